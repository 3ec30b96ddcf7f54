//! All frames as one coloured point cloud.

use std::path::Path;

use periplus_geometry::{DepthMap, FrameOutput, Intrinsics, Raster, median};

use crate::pending::PendingFile;
use crate::sink::{depth_map, finite};
use crate::voxels::VoxelSet;
use crate::{ExportError, Sink, Summary};

/// Which points go into a [`PointCloud`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PointCloudOptions {
    /// Points of lower confidence are left out. Confidence is 1 + exp(x), so 1 keeps all. Default 1.5.
    pub min_confidence: f32,
    /// Side of the voxels, of each of which the first point is kept, in the unit of the stream; 0 (or less, or no
    /// number) keeps every point.
    /// Default `None`: twice what a pixel spans at the median depth of the first frame.
    pub voxel_size: Option<f64>,
}

impl Default for PointCloudOptions {
    fn default() -> Self {
        Self { min_confidence: 1.5, voxel_size: None }
    }
}

/// `points.ply`: binary little-endian, `x y z` (float32, world coordinates), `red green blue`, `confidence`.
///
/// The points are those of the depth maps (also with a point head: depth and pose agree better). Points that are not
/// finite or not in front of the camera are left out, and so are the bars beside a padded picture. They are written as they come; what stays in memory is
/// the set of voxels that have one: some 120 bytes for each block of 8 x 8 x 8 that any surface crosses.
pub struct PointCloud {
    file: PendingFile,
    options: PointCloudOptions,
    /// Those that have a point, once their size is known.
    voxels: Option<VoxelSet>,
    points: u64,
    frames: usize,
}

impl PointCloud {
    /// Begins `points.ply` in `folder`, which is made if need be.
    ///
    /// # Errors
    /// If the folder cannot be made or the file not be written.
    pub fn create(folder: &Path, options: PointCloudOptions) -> Result<Self, ExportError> {
        let mut file = PendingFile::begin(folder, "points.ply")?;
        file.append(header(0).as_bytes())?;
        Ok(Self { file, options, voxels: options.voxel_size.map(VoxelSet::new), points: 0, frames: 0 })
    }
}

impl Sink for PointCloud {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.file.path())?;
        let shown = frame.viewport.shown();
        let voxels = self.voxels.get_or_insert_with(|| VoxelSet::new(two_pixels(map, &shown, &frame.intrinsics)));
        let points = map.points(&frame.intrinsics, &frame.camera_to_world);
        let mut record = Vec::new();
        let mut count = 0;
        let confidence = map.confidence.values();
        let pixels = map.depth.values().iter().zip(confidence).zip(frame.pixels.values()).zip(points.values());
        for ((((&depth, &confidence), colour), point), _) in pixels.zip(shown.values()).filter(|(_, shown)| **shown) {
            let point = [point.x, point.y, point.z];
            let wanted = depth > 0.0 && confidence >= self.options.min_confidence;
            if wanted && point.iter().all(|x| x.is_finite()) && voxels.insert(point) {
                record.extend(point.iter().flat_map(|x| x.to_le_bytes()));
                record.extend(colour);
                record.extend(confidence.to_le_bytes());
                count += 1;
            }
        }
        self.file.append(&record)?;
        self.points += count;
        self.frames += 1;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        let voxels = match self.voxels.as_ref().map(VoxelSet::size) {
            Some(size) if size > 0.0 => format!(", one per voxel of {size:.3e}"),
            _ => String::new(),
        };
        let note = Some(format!("{} points{voxels}", self.points));
        let summary = Summary { path: self.file.path().to_path_buf(), frames: self.frames, note };
        if self.frames > 0 {
            self.file.overwrite_start(header(self.points).as_bytes())?;
            self.file.commit()?;
        }
        Ok(summary)
    }
}

/// Twice what a pixel spans at the median depth; 0 if that is not known.
fn two_pixels(map: &DepthMap, shown: &Raster<bool>, intrinsics: &Intrinsics) -> f64 {
    let mut depths: Vec<f64> = finite(&map.depth, shown).collect();
    let size = 2.0 * median(&mut depths).unwrap_or(0.0) / intrinsics.fx;
    if size.is_finite() { size } else { 0.0 }
}

/// The header for `points` points; of the same length for any number, so that it can be replaced.
fn header(points: u64) -> String {
    // A comment fills up what the number leaves of the 20 digits that a u64 can have.
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
