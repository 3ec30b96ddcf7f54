//! Streaming 3D reconstruction: a video goes in frame by frame; camera pose, depth and confidence come out for each.
//!
//! ```no_run
//! use periplus::frames::{Clip, ClipOptions, FolderOptions, FolderSource, Resize};
//! use periplus::{DType, Device, Engine, SessionConfig, Weights};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let weights = Weights::open("lingbot-map.safetensors".as_ref(), None)?;
//! let engine = Engine::load(&weights, DType::F32, &Device::Cpu)?; // shared by all sessions
//! let mut session = engine.session(SessionConfig::from(engine.config()))?;
//! let preprocess = engine.preprocess(Resize::Crop)?; // to the width that it was trained on: 518 pixels
//! let source = FolderSource::open("frames", &FolderOptions::default())?;
//! for frame in Clip::start(source, preprocess, &ClipOptions::default())? {
//!     for output in session.push(frame?)? {
//!         println!("{}: {}", output.index, output.camera_to_world);
//!     }
//! }
//! for output in session.finish()? {
//!     println!("{}: {}", output.index, output.camera_to_world);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Poses are camera-to-world; camera axes are OpenCV's (x right, y down, z forward). The library never prints, exits or
//! reads the environment.

mod engine;
mod error;
mod keyframes;
mod network;
mod session;

pub use candle_core::{DType, Device, Tensor};
pub use periplus_cache::{Error as CacheError, Retention};
pub use periplus_checkpoint::config::{Config, StreamSettings};
pub use periplus_checkpoint::{self as checkpoint, Weights, config};
pub use periplus_export as export;
pub use periplus_frames as frames;
pub use periplus_frames::Frame;
pub use periplus_geometry as geometry;
pub use periplus_geometry::{DepthMap, FrameOutput, Intrinsics, PoseEncoding, Raster, Viewport, WorldPoints};
pub use periplus_kernels as kernels;
pub use periplus_kernels::device;
pub use periplus_model::{
    DenseOutput, Model, ModelError, Outputs, Pass, PassKind, Prediction, Video, VideoRecord, VideoState, Workspace,
};

pub use engine::{Engine, preprocess};
pub use error::EngineError;
pub use keyframes::{Keyframes, keyframe_interval};
pub use session::{Session, SessionConfig, SessionStats};
