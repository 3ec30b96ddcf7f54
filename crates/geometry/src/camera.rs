//! The camera of a frame: the network's pose encoding, the pose, and pinhole intrinsics.

use nalgebra::{Isometry3, Matrix3, Quaternion, Translation3, UnitQuaternion, Vector3};

use crate::Viewport;

/// The network's nine values for a camera: its position in the world; the quaternion x y z w of its camera-to-world
/// rotation, not normalised; vertical and horizontal field of view in radians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoseEncoding(pub [f32; 9]);

/// A pinhole camera without distortion, in pixels.
///
/// Pixel (0, 0) has coordinates (0, 0) at its centre, as in the published code. The principal point of the network is
/// at half the width and height, though: see [`Viewport`] for this convention, and the half pixel between the two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Intrinsics {
    /// Focal length along x.
    pub fx: f64,
    /// Focal length along y.
    pub fy: f64,
    /// Principal point, x.
    pub cx: f64,
    /// Principal point, y.
    pub cy: f64,
}

impl PoseEncoding {
    /// The camera-to-world pose. A quaternion that is 0 or not finite gives the identity rotation; the network never
    /// means to output one. A translation that is not finite is not changed.
    pub fn camera_to_world(&self) -> Isometry3<f64> {
        let [x, y, z, qx, qy, qz, qw, ..] = self.0.map(f64::from);
        // The square of an f32 is always in the range of f64, so the length is accurate, and 0 only for a zero
        // quaternion.
        let rotation = UnitQuaternion::try_new(Quaternion::new(qw, qx, qy, qz), 0.0)
            .filter(|rotation| rotation.coords.iter().all(|value| value.is_finite()));
        Isometry3::from_parts(Translation3::new(x, y, z), rotation.unwrap_or_default())
    }

    /// The camera of a picture of `width` x `height` pixels: f = size / 2 / tan(field of view / 2), c = size / 2.
    ///
    /// A field of view of 0 gives an infinite focal length.
    pub fn intrinsics(&self, width: u32, height: u32) -> Intrinsics {
        let [.., fov_y, fov_x] = self.0.map(f64::from);
        let (cx, cy) = (f64::from(width) / 2.0, f64::from(height) / 2.0);
        Intrinsics { fx: cx / (fov_x / 2.0).tan(), fy: cy / (fov_y / 2.0).tan(), cx, cy }
    }
}

impl Intrinsics {
    /// The matrix K that takes camera coordinates to homogeneous pixels.
    #[rustfmt::skip]
    pub fn matrix(&self) -> Matrix3<f64> {
        Matrix3::new(
            self.fx, 0.0, self.cx,
            0.0, self.fy, self.cy,
            0.0, 0.0, 1.0,
        )
    }

    /// The same camera in pixels of the original picture.
    ///
    /// This is the inverse of the viewport's map: c = (c - offset) / scale, f = f / scale. The network puts the
    /// principal point at half of its picture (see [`PoseEncoding::intrinsics`]). If the crop or padding is central,
    /// the result is half of the original picture.
    #[must_use]
    pub fn in_original(&self, viewport: &Viewport) -> Intrinsics {
        let ([scale_x, scale_y], [offset_x, offset_y]) = (viewport.scale, viewport.offset);
        Intrinsics {
            fx: self.fx / scale_x,
            fy: self.fy / scale_y,
            cx: (self.cx - offset_x) / scale_x,
            cy: (self.cy - offset_y) / scale_y,
        }
    }

    /// The point, in camera coordinates, at pixel (`u`, `v`) and `depth` along z.
    pub fn unproject(&self, u: f64, v: f64, depth: f64) -> Vector3<f64> {
        Vector3::new((u - self.cx) / self.fx * depth, (v - self.cy) / self.fy * depth, depth)
    }

    /// The pixel of `point`, which is in camera coordinates. Only valid for points in front of the camera (z > 0).
    pub fn project(&self, point: &Vector3<f64>) -> [f64; 2] {
        [point.x / point.z * self.fx + self.cx, point.y / point.z * self.fy + self.cy]
    }
}
