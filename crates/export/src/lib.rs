//! Where results go: one file per format, one [`Sink`] each.
//!
//! | Sink | Writes | For |
//! |---|---|---|
//! | [`JsonLines`] | any writer | programs that read along |
//! | [`JsonFile`] | `frames.jsonl` | scripts |
//! | [`NpzFiles`] | `npz/000000.npz` | NumPy: everything, in full precision |
//! | [`Trajectory`] | `trajectory.txt` | SLAM tools (TUM format) |
//! | [`DepthMaps`] | `depth/000000.png`, `depth/scale.json` | viewers and RGB-D tools (16-bit PNG) |
//! | [`PointCloud`] | `points.ply` | point cloud viewers |
//!
//! **Files appear whole or not at all.** A file is written as `NAME.PROCESS.part`, after the number of the process,
//! and renamed when it is complete: one of a single frame at once, one of all frames by [`Sink::finish`], which is to
//! be called after an error as well and then leaves a valid file with the frames so far. Only a process that is killed
//! leaves a `.part`, which may be deleted.
//!
//! **A run replaces the results of an earlier run** in the same folder, format by format, and not before it has
//! results of its own: single files when they are finished, the numbered files of a folder (all of them, lest frames
//! of two runs mix) when its first frame is written. Other files are left alone: a folder of numbered files carries the
//! marker `.periplus`, and one that holds files without it is the user's own and refused
//! ([`ExportError::NotOurs`]).
//!
//! Poses are camera-to-world with OpenCV's axes; lengths are in the unit of the stream.

mod depth_maps;
mod error;
mod json;
mod npz;
mod numbered;
mod pending;
mod point_cloud;
mod pose;
mod sink;
mod trajectory;
mod voxels;

pub use depth_maps::DepthMaps;
pub use error::ExportError;
pub use json::{JsonFile, JsonLines};
pub use npz::NpzFiles;
pub use point_cloud::{PointCloud, PointCloudOptions};
pub use sink::{Sink, Summary};
pub use trajectory::Trajectory;
