//! A point cloud of all frames as a PLY file.

use std::path::Path;

use periplus_geometry::FrameOutput;

use crate::merged::MergedPoints;
use crate::sink::depth_map;
use crate::{ExportError, Point, PointOptions, Sink, Summary};

/// `points.ply`: binary little-endian, `x y z` (float32, world coordinates), `red green blue` (sRGB), `confidence`.
///
/// The points are those of a [`PointSelection`](crate::PointSelection). They are written at once and not kept in memory:
/// see there for its bound. The file is a cloud of points, not of Gaussian splats.
pub struct PointCloud {
    points: MergedPoints,
    /// For a trainer of splats, which needs normals and at least one point.
    is_seed: bool,
    frames: usize,
}

impl PointCloud {
    /// Begins `points.ply` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created or the file cannot be written.
    pub fn create(folder: &Path, options: PointOptions) -> Result<Self, ExportError> {
        Self::begin(folder, options, false)
    }

    /// Like [`PointCloud::create`], as seed for trainers of splats: with normals `nx ny nz` of 0, which some of them ask
    /// for, and with points also where all are below the confidence threshold.
    pub(crate) fn seed(folder: &Path, options: PointOptions) -> Result<Self, ExportError> {
        Self::begin(folder, options, true)
    }

    fn begin(folder: &Path, options: PointOptions, is_seed: bool) -> Result<Self, ExportError> {
        let encode = if is_seed { encode_seed } else { encode };
        let points = MergedPoints::begin(folder, "points.ply", header(0, is_seed).as_bytes(), encode, options)?;
        Ok(Self { points, is_seed, frames: 0 })
    }
}

impl Sink for PointCloud {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.points.file.path())?;
        let selection = &mut self.points.selection;
        let points = if self.is_seed { selection.select_seeds(frame, map) } else { selection.select(frame, map) };
        self.points.write(&points)?;
        self.frames += 1;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        let MergedPoints { file, selection, count, .. } = &mut self.points;
        let summary = Summary::of_file(file.path(), self.frames, Some(selection.note()));
        if self.frames > 0 {
            file.overwrite_start(header(*count, self.is_seed).as_bytes())?;
            self.points.file.commit()?;
        }
        Ok(summary)
    }
}

fn encode(point: &Point, record: &mut Vec<u8>) {
    record.extend(point.position.iter().flat_map(|x| x.to_le_bytes()));
    record.extend(point.colour);
    record.extend(point.confidence.to_le_bytes());
}

fn encode_seed(point: &Point, record: &mut Vec<u8>) {
    record.extend(point.position.iter().flat_map(|x| x.to_le_bytes()));
    record.extend([0; 12]);
    record.extend(point.colour);
    record.extend(point.confidence.to_le_bytes());
}

/// The header for `points` points. Its length is the same for any number, because it is replaced at the end.
fn header(points: u64, is_seed: bool) -> String {
    // A u64 has up to 20 digits. A comment takes up the rest.
    let number = points.to_string();
    let normals = if is_seed { "property float nx\nproperty float ny\nproperty float nz\n" } else { "" };
    format!(
        "ply\n\
         format binary_little_endian 1.0\n\
         comment {:.<filler$}\n\
         element vertex {number}\n\
         property float x\nproperty float y\nproperty float z\n\
         {normals}\
         property uchar red\nproperty uchar green\nproperty uchar blue\n\
         property float confidence\n\
         end_header\n",
        "",
        filler = 24 - number.len(),
    )
}
