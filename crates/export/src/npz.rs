//! All outputs of a frame as NumPy arrays.

use std::io::{self, Cursor, Write};
use std::path::Path;

use npyz::WriterBuilder;
use periplus_geometry::{DepthMap, FrameOutput};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::numbered::NumberedFiles;
use crate::pose::matrix_rows;
use crate::sink::depth_map;
use crate::{ExportError, Sink, Summary};

/// `npz/000000.npz` and so on, for `numpy.load`: all arrays are float32 and not compressed.
///
/// `pose_enc [9]`, `camera_to_world [3, 4]`, `intrinsics [3, 3]` (pixels, at network resolution), `depth [H, W]` and
/// `depth_conf [H, W]`; `world_points [H, W, 3]` and `world_points_conf [H, W]` too if the frame has them. Values are the
/// network's own outputs, including values that are not finite and the bars of a padded picture.
pub struct NpzFiles {
    files: NumberedFiles,
}

impl NpzFiles {
    /// Creates the folder `npz` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created, files cannot be written there, or it holds files that are not from an earlier run.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        Ok(Self { files: NumberedFiles::create(&folder.join("npz"), "npz")? })
    }
}

impl Sink for NpzFiles {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.files.folder())?;
        let archive = archive(frame, map).map_err(|error| ExportError::writing(self.files.folder(), error))?;
        self.files.write(frame.index, &archive)
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        Ok(Summary::of_file(self.files.folder(), self.files.count, None))
    }
}

/// The file of one frame: a zip archive of `.npy` files.
fn archive(frame: &FrameOutput, map: &DepthMap) -> io::Result<Vec<u8>> {
    let mut archive = Archive(ZipWriter::new(Cursor::new(Vec::new())));
    let pose = matrix_rows(&frame.camera_to_world).map(|row| row.map(|value| value as f32));
    // nalgebra stores columns: those of the transpose are the rows.
    let intrinsics = frame.intrinsics.matrix().transpose().map(|value| value as f32);
    let size = [map.depth.height(), map.depth.width()];
    archive.add("pose_enc", &[9], &frame.pose_encoding.0)?;
    archive.add("camera_to_world", &[3, 4], pose.as_flattened())?;
    archive.add("intrinsics", &[3, 3], intrinsics.as_slice())?;
    archive.add("depth", &size, map.depth.values())?;
    archive.add("depth_conf", &[map.confidence.height(), map.confidence.width()], map.confidence.values())?;
    if let Some(world) = &frame.world_points {
        let size = [world.points.height(), world.points.width()];
        archive.add("world_points", &[size[0], size[1], 3], world.points.values().as_flattened())?;
        archive.add("world_points_conf", &size, world.confidence.values())?;
    }
    Ok(archive.0.finish()?.into_inner())
}

struct Archive(ZipWriter<Cursor<Vec<u8>>>);

impl Archive {
    fn add(&mut self, name: &str, shape: &[usize], values: &[f32]) -> io::Result<()> {
        // Collected first, because many small writes to a zip archive are slow.
        let mut array = Vec::with_capacity(size_of_val(values) + 128);
        let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
        let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut array).begin_nd()?;
        writer.extend(values.iter().copied())?;
        writer.finish()?;
        // As `numpy.savez` does: the noise in the last bits leaves little to compress.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(u32::try_from(array.len()).is_err());
        self.0.start_file(npyz::npz::file_name_from_array_name(name), options)?;
        self.0.write_all(&array)
    }
}
