//! The layout that the published batch program writes, for the tools around it.

use std::io;
use std::path::Path;

use periplus_geometry::{DepthMap, FrameOutput};

use crate::npz::{Archive, intrinsics};
use crate::numbered::NumberedFiles;
use crate::pending::write_file;
use crate::pose::matrix_rows;
use crate::sink::depth_map;
use crate::{ExportError, Sink, Summary};

/// `batch/frame_000000.npz` and so on, and `batch/meta.npz`: what the batch program beside the published network writes and
/// its renderer and viewers load.
///
/// Arrays of a frame are float32: `images [3, H, W]` (RGB, 0 to 1), `pose_enc [9]`, `depth [H, W, 1]`, `depth_conf
/// [H, W]`, `extrinsic [3, 4]`, `intrinsic [3, 3]`; `world_points [H, W, 3]` and `world_points_conf [H, W]` too if the
/// frame has them. `meta.npz` holds `is_keyframe [1, S]` (bool) and `frame_type [1, S]` (uint8; 1 is a keyframe, 2 another
/// frame) for all S frames. The published 0 of scale frames is 1 here: both are keyframes.
///
/// **`extrinsic` is world to camera**, as in the published files. `pose_enc` is camera to world, as everywhere.
///
/// Loaders stack all frames, so frames are numbered from 0 without gaps: the n-th file is the n-th frame that was
/// written.
pub struct BatchFiles {
    files: NumberedFiles,
    keyframes: Vec<bool>,
}

impl BatchFiles {
    /// Creates the folder `batch` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created, files cannot be written there, or it holds files that are not from an earlier run.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        let files = NumberedFiles::create(&folder.join("batch"), "frame_", "npz")?;
        Ok(Self { files, keyframes: Vec::new() })
    }
}

impl Sink for BatchFiles {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.files.folder())?;
        let archive = archive(frame, map).map_err(|error| ExportError::writing(self.files.folder(), error))?;
        self.files.write(self.files.count, &archive)?;
        self.keyframes.push(frame.keyframe);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        if self.files.count > 0 {
            let meta = meta(&self.keyframes).map_err(|error| ExportError::writing(self.files.folder(), error))?;
            write_file(self.files.folder().join("meta.npz"), &meta)?;
        }
        Ok(Summary::of_file(self.files.folder(), self.files.count, None))
    }
}

fn archive(frame: &FrameOutput, map: &DepthMap) -> io::Result<Vec<u8>> {
    let mut archive = Archive::new();
    let (height, width) = (map.depth.height(), map.depth.width());
    let pixels = frame.pixels.values();
    let planes = (0..3).flat_map(|channel| pixels.iter().map(move |pixel| f32::from(pixel[channel]) / 255.0));
    let extrinsic = matrix_rows(&frame.camera_to_world.inverse()).map(|row| row.map(|value| value as f32));
    archive.add("images", &[3, frame.pixels.height(), frame.pixels.width()], planes)?;
    archive.add("pose_enc", &[9], frame.pose_encoding.0)?;
    archive.add("depth", &[height, width, 1], map.depth.values().iter().copied())?;
    archive.add("depth_conf", &[height, width], map.confidence.values().iter().copied())?;
    archive.add("extrinsic", &[3, 4], extrinsic.as_flattened().iter().copied())?;
    archive.add("intrinsic", &[3, 3], intrinsics(frame))?;
    archive.add_world_points(frame)?;
    archive.finish()
}

fn meta(keyframes: &[bool]) -> io::Result<Vec<u8>> {
    let mut archive = Archive::new();
    let shape = [1, keyframes.len()];
    archive.add("frame_type", &shape, keyframes.iter().map(|&keyframe| if keyframe { 1_u8 } else { 2 }))?;
    archive.add("is_keyframe", &shape, keyframes.iter().copied())?;
    archive.finish()
}
