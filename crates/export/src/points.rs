//! Choosing the points of a point cloud: confidence threshold, voxel grid, and a bound on their number.

use periplus_geometry::{DepthMap, FrameOutput, Intrinsics, Raster, median};

use crate::sink::finite;
use crate::voxels::VoxelSet;

/// Which points a [`PointSelection`] keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PointOptions {
    /// Points of lower confidence are left out. Default: [`MinConfidence::Value`] of 1.5.
    pub min_confidence: MinConfidence,
    /// Side of a voxel, in the unit of the stream. Each voxel keeps its first point. 0 or less, or NaN, keeps all points.
    /// Default `None`: twice the size of a pixel at the median depth of the first frame.
    pub voxel_size: Option<f64>,
    /// Largest number of points (at least 1). When there are more, voxels grow. Default 10 million.
    pub max_points: usize,
}

/// Lowest confidence of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MinConfidence {
    /// The same for all frames. Confidence is 1 + exp(x), so 1 keeps all points.
    Value(f32),
    /// This share of each frame's pixels, in percent, is left out: those of the lowest confidence. 0 keeps all points.
    Percent(f32),
}

impl Default for PointOptions {
    fn default() -> Self {
        Self { min_confidence: MinConfidence::Value(1.5), voxel_size: None, max_points: 10_000_000 }
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
/// points.
///
/// **Memory is bounded**, by the surface and by [`PointOptions::max_points`], not by the number of frames: about 120
/// bytes for each block of 8 x 8 x 8 voxels that holds a point. When the selection [is full](Self::is_full), the sink
/// calls [`coarsen`](Self::coarsen) and asks [`keep`](Self::keep) again for each point that it has, in the order in which
/// they were selected. What stays is what voxels of the new size would have kept from the start.
pub struct PointSelection {
    options: PointOptions,
    voxels: VoxelSet,
    /// Two pixels at the median depth of the first frame that has such a size, 0 before.
    two_pixels: f64,
    /// Points that were kept.
    points: usize,
    /// Times that voxels grew.
    growths: u32,
    /// The points of the first frame are below the confidence threshold.
    unsure: bool,
}

impl PointSelection {
    /// An empty selection.
    pub fn new(options: PointOptions) -> Self {
        let voxels = VoxelSet::new(options.voxel_size.unwrap_or(0.0));
        Self { options, voxels, two_pixels: 0.0, points: 0, growths: 0, unsure: false }
    }

    /// Side of a voxel, in the unit of the stream. `None` before the first frame, and if all points are kept.
    pub fn voxel_size(&self) -> Option<f64> {
        Some(self.voxels.size()).filter(|&size| size > 0.0)
    }

    /// The points of `frame` to keep, row by row. `map` is its depth map.
    pub fn select(&mut self, frame: &FrameOutput, map: &DepthMap) -> Vec<Point> {
        self.select_above(frame, map, self.options.min_confidence)
    }

    /// Like [`select`](Self::select), for programs that cannot start without points, such as splat trainers: while no
    /// point has been selected, a frame whose points are all below the confidence threshold gives all of them.
    pub fn select_seeds(&mut self, frame: &FrameOutput, map: &DepthMap) -> Vec<Point> {
        let mut selected = self.select(frame, map);
        if self.points == 0 {
            selected = self.select_above(frame, map, MinConfidence::Value(f32::NEG_INFINITY));
            self.unsure = !selected.is_empty();
        }
        selected
    }

    fn select_above(&mut self, frame: &FrameOutput, map: &DepthMap, least: MinConfidence) -> Vec<Point> {
        let shown = frame.viewport.shown();
        if self.two_pixels <= 0.0 {
            self.two_pixels = two_pixels(map, &shown, &frame.intrinsics);
            if self.options.voxel_size.is_none() {
                self.voxels = VoxelSet::new(self.two_pixels);
            }
        }
        // An infinite focal length (a field of view of 0) would put all points on the optical axis.
        let Intrinsics { fx, fy, cx, cy } = frame.intrinsics;
        if ![fx, fy, cx, cy].into_iter().all(f64::is_finite) {
            return Vec::new();
        }
        let least = match least {
            MinConfidence::Value(value) => value,
            MinConfidence::Percent(percent) => percentile(&map.confidence, &shown, percent),
        };
        let points = map.points(&frame.intrinsics, &frame.camera_to_world);
        let width = map.depth.width();
        let confidence = map.confidence.values();
        let pixels = map.depth.values().iter().zip(confidence).zip(frame.pixels.values()).zip(points.values());
        let mut selected = Vec::new();
        for (index, ((((&depth, &confidence), &colour), point), &shown)) in pixels.zip(shown.values()).enumerate() {
            let position = [point.x, point.y, point.z];
            let wanted = shown && depth > 0.0 && confidence.is_finite() && confidence >= least;
            if wanted && position.iter().all(|x| x.is_finite()) && self.keep(position) {
                selected.push(Point { position, colour, confidence, pixel: [index % width, index / width] });
            }
        }
        selected
    }

    /// Whether there are more points than the options allow.
    pub fn is_full(&self) -> bool {
        self.points > self.options.max_points.max(1)
    }

    /// Doubles the size of the voxels and forgets all points. Without voxels, their size becomes that of two pixels.
    pub fn coarsen(&mut self) {
        // A last resort of some size, for streams in which a pixel has none.
        let first = if self.two_pixels > 0.0 { self.two_pixels } else { 1e-3 };
        self.voxels = VoxelSet::new(self.voxel_size().map_or(first, |size| 2.0 * size));
        self.points = 0;
        self.growths += 1;
    }

    /// Adds a finite point that was selected before, after [`coarsen`](Self::coarsen). Returns whether it stays.
    pub fn keep(&mut self, position: [f32; 3]) -> bool {
        let is_new = self.voxels.insert(position);
        self.points += usize::from(is_new);
        is_new
    }

    /// What was kept, for the user.
    pub(crate) fn note(&self) -> String {
        let voxels = self.voxel_size().map(|size| format!(", one per voxel of {size:.3e}"));
        let limit = self.options.max_points;
        let growths = (self.growths > 0).then(|| format!(" (larger than asked for, to keep no more than {limit})"));
        let unsure = self.unsure.then_some(", those of the first frame below the confidence threshold");
        format!(
            "{} points{}{}{}",
            self.points,
            voxels.unwrap_or_default(),
            growths.unwrap_or_default(),
            unsure.unwrap_or_default()
        )
    }
}

/// Twice the size of a pixel at the median depth, 0 if it is not known.
fn two_pixels(map: &DepthMap, shown: &Raster<bool>, intrinsics: &Intrinsics) -> f64 {
    let mut depths: Vec<f64> = finite(&map.depth, shown).collect();
    let size = 2.0 * median(&mut depths).unwrap_or(0.0) / intrinsics.fx;
    if size.is_finite() { size.max(0.0) } else { 0.0 }
}

/// The confidence below which `percent` of the pixels lie.
fn percentile(confidence: &Raster<f32>, shown: &Raster<bool>, percent: f32) -> f32 {
    let mut values: Vec<f64> = finite(confidence, shown).collect();
    let below = (f64::from(percent) / 100.0 * values.len() as f64) as usize;
    if values.is_empty() {
        return f32::NEG_INFINITY;
    }
    let at = below.min(values.len() - 1);
    *values.select_nth_unstable_by(at, f64::total_cmp).1 as f32
}
