//! What the answer for one frame is: pose, intrinsics, depth and points, and the mathematics on them.
//!
//! Conventions, everywhere: poses are camera-to-world, camera axes are OpenCV's (x right, y down, z forward),
//! pixels are unprojected by their whole numbers (see [`Intrinsics`]), angles are radians. Lengths are in the unit of the stream, which is metric
//! only as far as the network's training was.
//!
//! Poses are [`nalgebra`] isometries, the type that Rust code for SLAM and robotics passes around; in 64 bits, so
//! that long chains of poses can be composed.

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
