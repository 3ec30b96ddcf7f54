//! The camera of one frame: what the network says of it, and what follows.

use nalgebra::{Isometry3, Matrix3, Vector3};

use crate::Viewport;

/// The network's nine numbers: translation of the camera in the world, quaternion x y z w of its rotation
/// (camera to world, not of unit length), vertical and horizontal field of view in radians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoseEncoding(pub [f32; 9]);

/// A pinhole camera, in pixels.
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
    /// Camera to world. A quaternion of zero or not finite length gives the identity rotation (the network never
    /// means it).
    pub fn camera_to_world(&self) -> Isometry3<f64>;
    /// fx = width / 2 / tan(fov_x / 2), cx = width / 2.
    pub fn intrinsics(&self, width: u32, height: u32) -> Intrinsics;
}

impl Intrinsics {
    pub fn matrix(&self) -> Matrix3<f64>;
    /// The same camera in the pixels of the picture that came in.
    pub fn in_original(&self, viewport: &Viewport) -> Intrinsics;
    pub fn unproject(&self, u: f64, v: f64, depth: f64) -> Vector3<f64>;
}
