//! Image motion between two frames, which decides on keyframes.

use crate::{PoseEncoding, Raster};

/// [`displacement`] samples every eighth pixel along x and y.
const STRIDE: usize = 8;
/// The smallest depth that counts as in front of a camera.
const NEAREST: f64 = 1e-6;

/// The mean distance in pixels between the projections of the same points into the cameras `pose` and `reference`.
///
/// `depth` belongs to the frame with `pose`, at network resolution; both cameras have its size. Every eighth pixel
/// along x and y is used if its point is in front of both cameras. The result is infinite if no point is in front of
/// `reference`: the camera has turned away from everything it saw. It is 0 if `depth` has no valid pixel, because then
/// the motion is unknown.
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
