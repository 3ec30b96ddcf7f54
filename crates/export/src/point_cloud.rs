//! All frames as one coloured point cloud.

use std::collections::HashSet;
use std::path::Path;

use periplus_geometry::{DepthMap, FrameOutput, Intrinsics, median};

use crate::pending::{PendingFile, make_folder};
use crate::sink::depth_map;
use crate::{ExportError, Sink, Summary};

/// The least distance of two different float32 numbers, so of two points: in smaller voxels each is alone.
const LEAST_DISTANCE: f64 = 1.401_298_464_324_817e-45; // 2^-149

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
/// finite or not in front of the camera are left out. They are written as they come; what stays in memory is
/// the set of voxels that have one, some 30 to 60 bytes each.
pub struct PointCloud {
    file: PendingFile,
    options: PointCloudOptions,
    /// Bits of whole float64 numbers, which no size of voxels is too small for.
    voxels: HashSet<[u64; 3]>,
    /// Side of a voxel, once it is known.
    voxel_size: Option<f64>,
    points: u64,
    frames: usize,
}

impl PointCloud {
    /// Begins `points.ply` in `folder`, which is made if need be.
    ///
    /// # Errors
    /// If the folder cannot be made or the file not be written.
    pub fn create(folder: &Path, options: PointCloudOptions) -> Result<Self, ExportError> {
        make_folder(folder)?;
        let mut file = PendingFile::create(folder.join("points.ply"))?;
        file.append(header(0).as_bytes())?;
        Ok(Self { file, options, voxels: HashSet::new(), voxel_size: options.voxel_size, points: 0, frames: 0 })
    }

    /// Whether the voxel of `point` had none yet.
    fn is_first(&mut self, point: [f32; 3], voxel_size: f64) -> bool {
        // Adding 0 makes 0 of -0.
        let voxel = point.map(|x| ((f64::from(x) / voxel_size).floor() + 0.0).to_bits());
        voxel_size.is_nan() || voxel_size < LEAST_DISTANCE || self.voxels.insert(voxel)
    }
}

impl Sink for PointCloud {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.file.path())?;
        let voxel_size = *self.voxel_size.get_or_insert_with(|| two_pixels(map, &frame.intrinsics));
        let points = map.points(&frame.intrinsics, &frame.camera_to_world);
        let mut record = Vec::new();
        let mut count = 0;
        let confidence = map.confidence.values();
        let pixels = map.depth.values().iter().zip(confidence).zip(frame.pixels.values()).zip(points.values());
        for (((&depth, &confidence), colour), point) in pixels {
            let point = [point.x, point.y, point.z];
            let wanted = depth > 0.0 && confidence >= self.options.min_confidence;
            if wanted && point.iter().all(|x| x.is_finite()) && self.is_first(point, voxel_size) {
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
        let voxels = match self.voxel_size {
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
fn two_pixels(map: &DepthMap, intrinsics: &Intrinsics) -> f64 {
    let mut depths: Vec<f64> = map.depth.values().iter().copied().filter(|z| z.is_finite()).map(f64::from).collect();
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
