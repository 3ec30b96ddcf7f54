//! Output formats: one file of code and one [`Sink`] per format.
//!
//! | Sink | Writes | For |
//! |---|---|---|
//! | [`JsonLines`] | any writer | programs that read along |
//! | [`JsonFile`] | `frames.jsonl` | scripts |
//! | [`NpzFiles`] | `npz/000000.npz` | NumPy: everything, in full precision |
//! | [`Trajectory`] | `trajectory.txt` | SLAM tools (TUM format) |
//! | [`KittiPoses`] | `poses_kitti.txt` | SLAM tools (KITTI format) |
//! | [`Colmap`] | `colmap/sparse/0` | COLMAP, splat trainers |
//! | [`Nerfstudio`] | `nerfstudio/transforms.json`, `nerfstudio/points.ply` | nerfstudio, splat trainers |
//! | [`DepthMaps`] | `depth/000000.png`, `depth/scale.json` | viewers and RGB-D tools (16-bit PNG) |
//! | [`ConfidenceMaps`] | `confidence/000000.png`, `confidence/scale.json` | viewers (16-bit PNG) |
//! | [`NpyFiles`] | `npy/000000.npy` | NumPy: depth alone |
//! | [`ExrFiles`] | `exr/000000.exr` | compositing programs: depth and confidence as float32 |
//! | [`BatchFiles`] | `batch/frame_000000.npz`, `batch/meta.npz` | tools for the published batch program |
//! | [`PointCloud`] | `points.ply` | point cloud viewers |
//! | [`Glb`] | `scene.glb` | Blender and web viewers: points, cameras, trajectory |
//! | [`Overview`] | `overview.png` | people: one picture of the run |
//!
//! [`OutputFolder`] holds the sinks of a run that write into one folder, marks the folder as unfinished until the run
//! ends, and refuses concurrent runs. [`PointSelection`] chooses points for every sink that holds points.
//!
//! **Files are atomic.** A file is written as `NAME.PROCESS.part`, with the id of the process, and renamed when it is
//! complete: a file of a single frame at once, a file of all frames by [`Sink::finish`]. `finish` must also be called
//! after an error; the file then holds the frames so far. Only a killed process leaves `.part` files, which may be
//! deleted.
//!
//! **A run replaces the results of an earlier run** in the same folder, format by format, when it has results of its
//! own: single files when they are finished, the numbered files of a folder when its first frame is written. Other
//! files stay. A folder of numbered files carries the marker `.periplus`; a folder that holds files without the marker
//! is the user's own and refused ([`ExportError::NotOurs`]).
//!
//! Poses are camera-to-world with OpenCV axes. Lengths are in the unit of the stream.

mod batch;
mod colmap;
mod confidence_maps;
mod depth_maps;
mod error;
mod float_maps;
mod folder;
mod glb;
mod gray;
mod json;
mod kitti;
mod merged;
mod nerfstudio;
mod npz;
mod numbered;
mod original;
mod overview;
mod pending;
mod point_cloud;
mod points;
mod pose;
mod sink;
mod trajectory;
mod voxels;

pub use batch::BatchFiles;
pub use colmap::Colmap;
pub use confidence_maps::ConfidenceMaps;
pub use depth_maps::DepthMaps;
pub use error::ExportError;
pub use float_maps::{ExrFiles, NpyFiles};
pub use folder::OutputFolder;
pub use glb::Glb;
pub use json::{JsonFile, JsonLines};
pub use kitti::KittiPoses;
pub use nerfstudio::Nerfstudio;
pub use npz::NpzFiles;
pub use overview::Overview;
pub use point_cloud::PointCloud;
pub use points::{MinConfidence, Point, PointOptions, PointSelection};
pub use sink::{Revision, Sink, Summary};
pub use trajectory::Trajectory;
