//! What the answer for one frame is: pose, intrinsics, depth and points, and the mathematics on them.
//!
//! Conventions, everywhere: poses are camera-to-world, camera axes are OpenCV's (x right, y down, z forward),
//! pixel centres are whole numbers, angles are radians. Lengths are in the unit of the stream, which is metric
//! only as far as the network's training was.

mod camera;
mod frame;
mod raster;
mod viewport;

pub use camera::{Intrinsics, PoseEncoding};
pub use frame::{FrameOutput, WorldPoints};
pub use raster::Raster;
pub use viewport::Viewport;
