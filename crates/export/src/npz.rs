//! All outputs of a frame as NumPy arrays.

use std::io::{self, Cursor, Write};
use std::path::Path;

use npyz::{AutoSerialize, WriterBuilder};
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
        Ok(Self { files: NumberedFiles::create(&folder.join("npz"), "", "npz")? })
    }
}

impl Sink for NpzFiles {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.files.folder())?;
        let archive = archive(frame, map).map_err(|error| ExportError::writing(self.files.folder(), error))?;
        self.files.write(frame.index, &archive).map(drop)
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        Ok(Summary::of_file(self.files.folder(), self.files.count, None))
    }
}

/// The file of one frame: a zip archive of `.npy` files.
fn archive(frame: &FrameOutput, map: &DepthMap) -> io::Result<Vec<u8>> {
    let mut archive = Archive::new();
    let pose = matrix_rows(&frame.camera_to_world).map(|row| row.map(|value| value as f32));
    let size = [map.depth.height(), map.depth.width()];
    archive.add("pose_enc", &[9], frame.pose_encoding.0)?;
    archive.add("camera_to_world", &[3, 4], pose.as_flattened().iter().copied())?;
    archive.add("intrinsics", &[3, 3], intrinsics(frame))?;
    archive.add("depth", &size, map.depth.values().iter().copied())?;
    archive.add("depth_conf", &size, map.confidence.values().iter().copied())?;
    archive.add_world_points(frame)?;
    archive.finish()
}

/// The matrix K, row by row, in pixels of the network's picture.
pub(crate) fn intrinsics(frame: &FrameOutput) -> [f32; 9] {
    // nalgebra stores columns: those of the transpose are the rows.
    let matrix = frame.intrinsics.matrix().transpose().map(|value| value as f32);
    std::array::from_fn(|at| matrix.as_slice()[at])
}

/// An `.npz` file in memory.
pub(crate) struct Archive(ZipWriter<Cursor<Vec<u8>>>);

impl Archive {
    pub(crate) fn new() -> Self {
        Self(ZipWriter::new(Cursor::new(Vec::new())))
    }

    pub(crate) fn add<T: AutoSerialize>(
        &mut self,
        name: &str,
        shape: &[usize],
        values: impl IntoIterator<Item = T>,
    ) -> io::Result<()> {
        // Collected first, because many small writes to a zip archive are slow.
        let array = array(shape, values)?;
        // As `numpy.savez` does: the noise in the last bits leaves little to compress.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(u32::try_from(array.len()).is_err());
        self.0.start_file(npyz::npz::file_name_from_array_name(name), options)?;
        self.0.write_all(&array)
    }

    /// What a point head says, if there is one.
    pub(crate) fn add_world_points(&mut self, frame: &FrameOutput) -> io::Result<()> {
        let Some(world) = &frame.world_points else { return Ok(()) };
        let (height, width) = (world.points.height(), world.points.width());
        self.add("world_points", &[height, width, 3], world.points.values().as_flattened().iter().copied())?;
        self.add("world_points_conf", &[height, width], world.confidence.values().iter().copied())
    }

    pub(crate) fn finish(self) -> io::Result<Vec<u8>> {
        Ok(self.0.finish()?.into_inner())
    }
}

/// The bytes of an `.npy` file.
pub(crate) fn array<T: AutoSerialize>(shape: &[usize], values: impl IntoIterator<Item = T>) -> io::Result<Vec<u8>> {
    let count: usize = shape.iter().product();
    let mut array = Vec::with_capacity(count * size_of::<T>() + 128);
    let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut array).begin_nd()?;
    writer.extend(values)?;
    writer.finish()?;
    Ok(array)
}
