//! The output for a frame.

use std::sync::Arc;
use std::time::Duration;

use nalgebra::{Isometry3, Point3, Vector3};

use crate::{Intrinsics, PoseEncoding, Raster, Timestamp, Viewport};

/// Depth and confidence of each pixel.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthMap {
    /// Depth along z, in the unit of the stream; network resolution.
    pub depth: Raster<f32>,
    /// Confidence of the depth, 1 and above.
    pub confidence: Raster<f32>,
}

impl DepthMap {
    /// The pixels as points in the world, for a camera with `intrinsics` (at network resolution) and pose
    /// `camera_to_world`. A depth that is not finite gives a point that is not finite. The bars of a padded picture get
    /// points, too, which are meaningless: [`Viewport::shown`] says which pixels are valid.
    pub fn points(&self, intrinsics: &Intrinsics, camera_to_world: &Isometry3<f64>) -> Raster<Point3<f32>> {
        let rotation = camera_to_world.rotation.to_rotation_matrix();
        let origin = camera_to_world.translation.vector;
        self.depth.map_pixels(|x, y, &depth| {
            let point: Vector3<f64> = rotation * intrinsics.unproject(x as f64, y as f64, depth.into()) + origin;
            Point3::from(point.cast())
        })
    }
}

/// The output of a point head, which stage-1 checkpoints have.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldPoints {
    /// World coordinates x y z of each pixel; network resolution.
    pub points: Raster<[f32; 3]>,
    /// Confidence of the points, 1 and above.
    pub confidence: Raster<f32>,
}

/// The output of the engine for one frame.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameOutput {
    /// Index of the output, from 0.
    pub index: usize,
    /// Number of the frame in its clip, from 0. Frames that the source leaves out count, too.
    pub number: usize,
    /// Name of the frame, for example its file name, if the source has one.
    pub name: Option<Arc<str>>,
    /// When the frame was taken, if the source knows it.
    pub timestamp: Option<Timestamp>,
    /// Whether the frame stays in the cache.
    pub keyframe: bool,
    /// The network's values for the camera, from which pose and intrinsics are computed.
    pub pose_encoding: PoseEncoding,
    /// Pose of the camera: the transform from camera to world coordinates.
    ///
    /// World coordinates are those of the first camera, up to the network's error: the first pose is close to the
    /// identity, but not equal. The unit of length is arbitrary for each clip, not a metre. Poses are not revised
    /// later. To compare with a ground truth, [`align`](crate::align) first.
    pub camera_to_world: Isometry3<f64>,
    /// Intrinsics at network resolution; [`Intrinsics::in_original`] converts them to the original resolution.
    pub intrinsics: Intrinsics,
    /// The map from the original picture to the network's picture.
    pub viewport: Viewport,
    /// Depth and confidence; `None` if the session outputs only poses.
    pub depth_map: Option<DepthMap>,
    /// Points of the point head; `None` if the checkpoint has none, or the session does not output them.
    pub world_points: Option<WorldPoints>,
    /// The network's input, 8-bit RGB.
    pub pixels: Arc<Raster<[u8; 3]>>,
    /// Time of the engine for this frame. Scale frames share the time of their pass equally.
    pub elapsed: Duration,
}
