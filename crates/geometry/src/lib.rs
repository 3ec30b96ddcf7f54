//! Outputs of a frame (pose, intrinsics, depth, points) and the geometry on them: projection, alignment, evaluation.
//!
//! Conventions: poses are camera-to-world; camera axes are OpenCV's (x right, y down, z forward); integer pixel
//! coordinates are pixel centres (see [`Intrinsics`]); angles are in radians. Lengths are in the unit of the stream,
//! which is metric only as far as the network's training was.
//!
//! Poses are [`nalgebra`] isometries, as in most Rust code for SLAM and robotics, in float64, so that long chains of
//! poses can be composed.

mod alignment;
mod camera;
mod depth;
mod frame;
mod motion;
mod raster;
mod timestamp;
mod viewport;

pub use alignment::{AlignmentError, absolute_trajectory_error, align, path_length};
pub use camera::{Intrinsics, PoseEncoding};
pub use depth::{DepthError, depth_error, median};
pub use frame::{DepthMap, FrameOutput, WorldPoints};
pub use motion::displacement;
pub use nalgebra;
pub use raster::Raster;
pub use timestamp::Timestamp;
pub use viewport::Viewport;
