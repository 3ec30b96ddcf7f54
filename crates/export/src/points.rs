//! Choosing the points of a point cloud: confidence threshold and voxel grid.

use periplus_geometry::{DepthMap, FrameOutput, Intrinsics, Raster, median};

use crate::sink::finite;
use crate::voxels::VoxelSet;

/// Which points a [`PointSelection`] keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PointOptions {
    /// Points of lower confidence are left out. Confidence is 1 + exp(x), so 1 keeps all. Default 1.5.
    pub min_confidence: f32,
    /// Side of a voxel, in the unit of the stream. Each voxel keeps its first point. 0 or less, or NaN, keeps all points.
    /// Default `None`: twice the size of a pixel at the median depth of the first frame.
    pub voxel_size: Option<f64>,
}

impl Default for PointOptions {
    fn default() -> Self {
        Self { min_confidence: 1.5, voxel_size: None }
    }
}

/// A point of the world, seen in one pixel of one frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// World coordinates, in the unit of the stream.
    pub position: [f32; 3],
    /// 8-bit sRGB.
    pub colour: [u8; 3],
    /// Confidence of the depth.
    pub confidence: f32,
    /// Column and row of the pixel, at network resolution.
    pub pixel: [usize; 2],
}

/// Selects points of a stream, frame by frame, for any sink that holds points.
///
/// Points come from the depth maps, also for checkpoints with a point head: depth and pose agree better. Points that are
/// not finite, points behind the camera, and the bars of a padded picture are left out. A frame without finite intrinsics has no
/// points. Memory is bounded by the surface, not by the number of frames: about 120 bytes for each block of 8 x 8 x 8
/// voxels that holds a point.
pub struct PointSelection {
    options: PointOptions,
    /// Voxels that have a point. `None` until their size is known.
    voxels: Option<VoxelSet>,
}

impl PointSelection {
    /// An empty selection.
    pub fn new(options: PointOptions) -> Self {
        Self { options, voxels: options.voxel_size.map(VoxelSet::new) }
    }

    /// Side of a voxel, in the unit of the stream. `None` before the first frame, and if all points are kept.
    pub fn voxel_size(&self) -> Option<f64> {
        self.voxels.as_ref().map(VoxelSet::size).filter(|&size| size > 0.0)
    }

    /// The points of `frame` to keep, row by row. `map` is its depth map.
    pub fn select(&mut self, frame: &FrameOutput, map: &DepthMap) -> Vec<Point> {
        let shown = frame.viewport.shown();
        let voxels = self.voxels.get_or_insert_with(|| VoxelSet::new(two_pixels(map, &shown, &frame.intrinsics)));
        // An infinite focal length (a field of view of 0) would put all points on the optical axis.
        let Intrinsics { fx, fy, cx, cy } = frame.intrinsics;
        if ![fx, fy, cx, cy].into_iter().all(f64::is_finite) {
            return Vec::new();
        }
        let points = map.points(&frame.intrinsics, &frame.camera_to_world);
        let width = map.depth.width();
        let confidence = map.confidence.values();
        let pixels = map.depth.values().iter().zip(confidence).zip(frame.pixels.values()).zip(points.values());
        let mut selected = Vec::new();
        for (index, ((((&depth, &confidence), &colour), point), &shown)) in pixels.zip(shown.values()).enumerate() {
            let position = [point.x, point.y, point.z];
            let wanted = shown && depth > 0.0 && confidence.is_finite() && confidence >= self.options.min_confidence;
            if wanted && position.iter().all(|x| x.is_finite()) && voxels.insert(position) {
                selected.push(Point { position, colour, confidence, pixel: [index % width, index / width] });
            }
        }
        selected
    }
}

/// Twice the size of a pixel at the median depth, 0 if it is not known.
fn two_pixels(map: &DepthMap, shown: &Raster<bool>, intrinsics: &Intrinsics) -> f64 {
    let mut depths: Vec<f64> = finite(&map.depth, shown).collect();
    let size = 2.0 * median(&mut depths).unwrap_or(0.0) / intrinsics.fx;
    if size.is_finite() { size } else { 0.0 }
}
