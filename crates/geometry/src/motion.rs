//! How far the picture has moved between two frames.

use crate::{PoseEncoding, Raster};

/// [`displacement`] samples every eighth pixel along x and y.
const STRIDE: usize = 8;
/// Smallest depth in front of a camera.
const NEAREST: f64 = 1e-6;

/// The mean distance in pixels between where `pose` and where `reference` see the same points.
///
/// `depth` belongs to the frame with `pose`, at network resolution; both cameras have its size. Every eighth pixel along x and
/// y counts if its point lies in front of both cameras. The result is infinite if none of the points lies in front of
/// `reference`: the camera has turned away from all that it saw. It is 0 if `depth` has no valid pixel at all, since then
/// nothing is known.
pub fn displacement(pose: &PoseEncoding, depth: &Raster<f32>, reference: &PoseEncoding) -> f64 {
    let (Ok(width), Ok(height)) = (u32::try_from(depth.width()), u32::try_from(depth.height())) else {
        return 0.0;
    };
    let (intrinsics, seen_by) = (pose.intrinsics(width, height), reference.intrinsics(width, height));
    let to_reference = reference.camera_to_world().inv_mul(&pose.camera_to_world());
    let (rotation, origin) = (to_reference.rotation.to_rotation_matrix(), to_reference.translation.vector);
    let (mut sum, mut count, mut valid) = (0.0, 0_usize, false);
    for y in (0..depth.height()).step_by(STRIDE) {
        for x in (0..depth.width()).step_by(STRIDE) {
            let z = f64::from(depth.values()[y * depth.width() + x]);
            let (u, v) = (x as f64, y as f64);
            let point = rotation * intrinsics.unproject(u, v, z) + origin;
            valid |= z > NEAREST;
            if z > NEAREST && point.z > NEAREST {
                let [seen_u, seen_v] = seen_by.project(&point);
                sum += (seen_u - u).hypot(seen_v - v);
                count += 1;
            }
        }
    }
    match (count, valid) {
        (0, false) => 0.0,
        (0, true) => f64::INFINITY,
        _ => sum / count as f64,
    }
}
