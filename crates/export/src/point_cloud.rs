//! A point cloud of all frames as a PLY file.

use std::path::Path;

use periplus_geometry::FrameOutput;

use crate::pending::PendingFile;
use crate::sink::depth_map;
use crate::{ExportError, PointOptions, PointSelection, Sink, Summary};

/// `points.ply`: binary little-endian, `x y z` (float32, world coordinates), `red green blue` (sRGB), `confidence`.
///
/// The points are those of a [`PointSelection`]. Each frame's points are written at once and not kept in memory.
pub struct PointCloud {
    file: PendingFile,
    selection: PointSelection,
    points: u64,
    frames: usize,
}

impl PointCloud {
    /// Begins `points.ply` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created or the file cannot be written.
    pub fn create(folder: &Path, options: PointOptions) -> Result<Self, ExportError> {
        let mut file = PendingFile::begin(folder, "points.ply")?;
        file.append(header(0).as_bytes())?;
        Ok(Self { file, selection: PointSelection::new(options), points: 0, frames: 0 })
    }
}

impl Sink for PointCloud {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.file.path())?;
        let points = self.selection.select(frame, map);
        let mut record = Vec::new();
        for point in &points {
            record.extend(point.position.iter().flat_map(|x| x.to_le_bytes()));
            record.extend(point.colour);
            record.extend(point.confidence.to_le_bytes());
        }
        self.file.append(&record)?;
        self.points += points.len() as u64;
        self.frames += 1;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        let voxels = self.selection.voxel_size().map(|size| format!(", one per voxel of {size:.3e}"));
        let note = format!("{} points{}", self.points, voxels.unwrap_or_default());
        let summary = Summary::of_file(self.file.path(), self.frames, Some(note));
        if self.frames > 0 {
            self.file.overwrite_start(header(self.points).as_bytes())?;
            self.file.commit()?;
        }
        Ok(summary)
    }
}

/// The header for `points` points. Its length is the same for any number, because it is replaced at the end.
fn header(points: u64) -> String {
    // A u64 has up to 20 digits. A comment takes up the rest.
    let number = points.to_string();
    format!(
        "ply\n\
         format binary_little_endian 1.0\n\
         comment {:.<filler$}\n\
         element vertex {number}\n\
         property float x\nproperty float y\nproperty float z\n\
         property uchar red\nproperty uchar green\nproperty uchar blue\n\
         property float confidence\n\
         end_header\n",
        "",
        filler = 24 - number.len(),
    )
}
