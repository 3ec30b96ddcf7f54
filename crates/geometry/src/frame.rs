//! The answer for one frame.

use std::sync::Arc;
use std::time::Duration;

use nalgebra::{Isometry3, Point3};

use crate::{Intrinsics, PoseEncoding, Raster, Viewport};

/// Points of a checkpoint with a point head.
pub struct WorldPoints { pub points: Raster<[f32; 3]>, pub confidence: Raster<f32> }

/// What the engine says of one frame.
pub struct FrameOutput {
    /// Number of the frame in the stream, from 0.
    pub index: usize,
    /// Where the frame came from (a file name, say), if the source gave one.
    pub name: Option<Arc<str>>,
    /// Seconds since the start of the clip, if the source knows.
    pub timestamp: Option<f64>,
    /// Whether the frame stays in the cache.
    pub keyframe: bool,
    pub pose_encoding: PoseEncoding,
    pub camera_to_world: Isometry3<f64>,
    /// At network resolution.
    pub intrinsics: Intrinsics,
    pub viewport: Viewport,
    /// Depth along z, in the unit of the stream; network resolution.
    pub depth: Raster<f32>,
    /// Confidence of the depth, 1 and above.
    pub confidence: Raster<f32>,
    pub world_points: Option<WorldPoints>,
    /// What the network saw, 8-bit RGB.
    pub pixels: Arc<Raster<[u8; 3]>>,
    /// Time the engine took for this frame (of the scale frames: their share).
    pub elapsed: Duration,
}

impl FrameOutput {
    /// Points of the depth map in the world, row by row.
    pub fn points(&self) -> Raster<Point3<f32>>;
}
