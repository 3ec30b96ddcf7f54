//! The answer for one frame.

use std::sync::Arc;
use std::time::Duration;

use nalgebra::{Isometry3, Point3, Vector3};

use crate::{Intrinsics, PoseEncoding, Raster, Timestamp, Viewport};

/// How far each pixel is.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthMap {
    /// Depth along z, in the unit of the stream; network resolution.
    pub depth: Raster<f32>,
    /// Confidence of the depth, 1 and above.
    pub confidence: Raster<f32>,
}

impl DepthMap {
    /// The pixels as points of the world, row by row, of a camera with `intrinsics` (at network resolution) that stands at
    /// `camera_to_world`. A depth that is not finite gives a point that is not finite. Of a padded picture the bars
    /// have points as well, which mean nothing: [`Viewport::shown`] tells them apart.
    pub fn points(&self, intrinsics: &Intrinsics, camera_to_world: &Isometry3<f64>) -> Raster<Point3<f32>> {
        let rotation = camera_to_world.rotation.to_rotation_matrix();
        let origin = camera_to_world.translation.vector;
        self.depth.map_pixels(|x, y, &depth| {
            let point: Vector3<f64> = rotation * intrinsics.unproject(x as f64, y as f64, depth.into()) + origin;
            Point3::from(point.cast())
        })
    }
}

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
    /// Number of the frame in its clip, from 0, with those counted that the source left out.
    pub number: usize,
    /// Where the frame came from (a file name, say), if the source gave one.
    pub name: Option<Arc<str>>,
    /// When the frame was taken, if the source knows.
    pub timestamp: Option<Timestamp>,
    /// Whether the frame stays in the cache.
    pub keyframe: bool,
    /// The network's own numbers for the camera, from which pose and intrinsics follow.
    pub pose_encoding: PoseEncoding,
    /// Pose of the camera: takes camera coordinates to world coordinates.
    ///
    /// The world is the first camera's, but for the network's error: the first pose is close to the identity, not equal. The unit is
    /// the network's own for each clip and no metre. Poses are not revised later. To compare with a ground truth,
    /// [`align`](crate::align) first.
    pub camera_to_world: Isometry3<f64>,
    /// The camera at network resolution; [`Intrinsics::in_original`] gives it at that of the original.
    pub intrinsics: Intrinsics,
    /// How the network's picture lies in the original.
    pub viewport: Viewport,
    /// How far each pixel is; `None` where only poses were asked for.
    pub depth_map: Option<DepthMap>,
    /// What the point head says; `None` for checkpoints without one, and where it was not asked for.
    pub world_points: Option<WorldPoints>,
    /// What the network saw, 8-bit RGB.
    pub pixels: Arc<Raster<[u8; 3]>>,
    /// Time the engine took for this frame (of the scale frames: their share).
    pub elapsed: Duration,
}
