//! The answer for one frame.

use std::sync::Arc;
use std::time::Duration;

use nalgebra::{Isometry3, Point3, Vector3};

use crate::{Intrinsics, PoseEncoding, Raster, Viewport};

/// What a point head says (stage-1 checkpoints carry one).
#[derive(Debug, Clone, PartialEq)]
pub struct WorldPoints {
    /// Position of each pixel's point in the world, x y z; network resolution.
    pub points: Raster<[f32; 3]>,
    /// Confidence of the points, 1 and above.
    pub confidence: Raster<f32>,
}

/// What the engine says of one frame.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameOutput {
    /// Number of the frame in the stream, from 0.
    pub index: usize,
    /// Where the frame came from (a file name, say), if the source gave one.
    pub name: Option<Arc<str>>,
    /// Seconds since the start of the clip, if the source knows.
    pub timestamp: Option<f64>,
    /// Whether the frame stays in the cache.
    pub keyframe: bool,
    /// The network's own numbers for the camera, from which pose and intrinsics follow.
    pub pose_encoding: PoseEncoding,
    /// Pose of the camera: takes camera coordinates to world coordinates.
    pub camera_to_world: Isometry3<f64>,
    /// The camera at network resolution; [`Intrinsics::in_original`] gives it at that of the original.
    pub intrinsics: Intrinsics,
    /// How the network's picture lies in the original.
    pub viewport: Viewport,
    /// Depth along z, in the unit of the stream; network resolution.
    pub depth: Raster<f32>,
    /// Confidence of the depth, 1 and above; network resolution.
    pub confidence: Raster<f32>,
    /// What the point head says; `None` for checkpoints without one.
    pub world_points: Option<WorldPoints>,
    /// What the network saw, 8-bit RGB.
    pub pixels: Arc<Raster<[u8; 3]>>,
    /// Time the engine took for this frame (of the scale frames: their share).
    pub elapsed: Duration,
}

impl FrameOutput {
    /// The depth map as points of the world, row by row, at network resolution. A depth that is not finite gives a
    /// point that is not finite.
    pub fn points(&self) -> Raster<Point3<f32>> {
        let rotation = self.camera_to_world.rotation.to_rotation_matrix();
        let origin = self.camera_to_world.translation.vector;
        self.depth.map_pixels(|x, y, &depth| {
            let point: Vector3<f64> = rotation * self.intrinsics.unproject(x as f64, y as f64, depth.into()) + origin;
            Point3::from(point.cast())
        })
    }
}
