//! How far the picture has moved since another frame.

use crate::{PoseEncoding, Raster};

/// Every how many pixels, along x and y, [`displacement`] looks.
const STRIDE: usize = 8;
/// Depths up to this do not count: what lies there is not in front of the camera.
const NEAREST: f64 = 1e-6;

/// Mean distance in pixels by which what one frame sees moves in the picture when it is seen from `reference`.
///
/// `depth` is that of the frame with `pose`, at network resolution; both cameras have its size. Every eighth pixel
/// along x and y counts if it lies in front of both cameras; 0 if none does.
pub fn displacement(pose: &PoseEncoding, depth: &Raster<f32>, reference: &PoseEncoding) -> f64 {
    let (Ok(width), Ok(height)) = (u32::try_from(depth.width()), u32::try_from(depth.height())) else {
        return 0.0;
    };
    let (intrinsics, seen_by) = (pose.intrinsics(width, height), reference.intrinsics(width, height));
    let to_reference = reference.camera_to_world().inv_mul(&pose.camera_to_world());
    let (rotation, origin) = (to_reference.rotation.to_rotation_matrix(), to_reference.translation.vector);
    let (mut sum, mut count) = (0.0, 0_usize);
    for y in (0..depth.height()).step_by(STRIDE) {
        for x in (0..depth.width()).step_by(STRIDE) {
            let z = f64::from(depth.values()[y * depth.width() + x]);
            let (u, v) = (x as f64, y as f64);
            let point = rotation * intrinsics.unproject(u, v, z) + origin;
            if z > NEAREST && point.z > NEAREST {
                let [seen_u, seen_v] = seen_by.project(&point);
                sum += (seen_u - u).hypot(seen_v - v);
                count += 1;
            }
        }
    }
    if count == 0 { 0.0 } else { sum / count as f64 }
}
