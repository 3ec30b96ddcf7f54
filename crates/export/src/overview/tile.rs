//! Small versions of frames, and samples of a stream of unknown length.

use nalgebra::{Isometry3, Vector3};
use periplus_geometry::{FrameOutput, Intrinsics};

use super::canvas::Colour;

/// Largest width and height of a tile, in pixels.
pub(super) const TILE: [usize; 2] = [300, 300];

/// A frame, made small: picture, depth and camera. Bars of a padded picture are cut off.
pub(super) struct Tile {
    pub(super) index: usize,
    pub(super) width: usize,
    pub(super) colours: Vec<Colour>,
    /// Depth of each pixel; not finite or not above 0 where it is unknown.
    pub(super) depth: Vec<f32>,
    pub(super) confidence: Vec<f32>,
    /// Camera rays of the pixels, with z = 1.
    rays: Vec<Vector3<f64>>,
    pub(super) camera_to_world: Isometry3<f64>,
    /// Product of the scales of all revisions.
    pub(super) scale: f64,
}

impl Tile {
    pub(super) fn new(frame: &FrameOutput) -> Self {
        let shown = frame.viewport.shown();
        let columns =
            bounds(frame.pixels.width(), |x| (0..frame.pixels.height()).any(|y| shown.get(x, y) == Some(&true)));
        let rows = bounds(frame.pixels.height(), |y| (0..frame.pixels.width()).any(|x| shown.get(x, y) == Some(&true)));
        let size = [columns.len(), rows.len()];
        let factor = (0..2).map(|axis| TILE[axis] as f64 / size[axis].max(1) as f64).fold(1.0, f64::min);
        let [width, height] = size.map(|size| (size as f64 * factor).round() as usize).map(|size| size.max(1));
        // The source pixels of a tile pixel.
        let source = |at: usize, of: usize, range: &std::ops::Range<usize>| {
            let start = range.start + at * range.len() / of;
            start..(range.start + (at + 1) * range.len() / of).clamp(start + 1, range.end.max(start + 1))
        };
        let map = frame.depth_map.as_ref();
        let mut tile = Self {
            index: frame.index,
            width,
            colours: Vec::with_capacity(width * height),
            depth: Vec::new(),
            confidence: Vec::new(),
            rays: Vec::new(),
            camera_to_world: frame.camera_to_world,
            scale: 1.0,
        };
        for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
            let (xs, ys) = (source(x, width, &columns), source(y, height, &rows));
            let pixels = ys.clone().flat_map(|y| xs.clone().map(move |x| (x, y)));
            let pixels = pixels.filter_map(|(x, y)| frame.pixels.get(x, y));
            let (sum, count) = pixels.fold(([0_usize; 3], 0), |(sum, count), pixel| {
                ([0, 1, 2].map(|channel| sum[channel] + usize::from(pixel[channel])), count + 1)
            });
            tile.colours.push(sum.map(|sum| (sum / count.max(1)) as u8));
            // Averages over an edge would lie between the surfaces: depth is that of the middle pixel.
            let (x, y) = (usize::midpoint(xs.start, xs.end), usize::midpoint(ys.start, ys.end));
            tile.depth.push(map.and_then(|map| map.depth.get(x, y)).copied().unwrap_or(f32::NAN));
            tile.confidence.push(map.and_then(|map| map.confidence.get(x, y)).copied().unwrap_or(f32::NAN));
            let Intrinsics { fx, fy, .. } = frame.intrinsics;
            // No rays for an infinite focal length: it would put all points on the optical axis.
            let focal = if fx.is_finite() && fy.is_finite() { 1.0 } else { f64::NAN };
            tile.rays.push(focal * frame.intrinsics.unproject(x as f64, y as f64, 1.0));
        }
        tile
    }

    pub(super) fn height(&self) -> usize {
        self.colours.len() / self.width
    }

    /// Known depths with revisions applied, NaN for others.
    pub(super) fn depths(&self) -> impl Iterator<Item = f64> {
        let known = |depth: f32| if depth.is_finite() && depth > 0.0 { f64::from(depth) } else { f64::NAN };
        self.depth.iter().map(move |&depth| known(depth) * self.scale)
    }

    /// World points and their colours, without the least confident 30 %, the usual share for clouds of this network.
    pub(super) fn points(&self) -> impl Iterator<Item = (Vector3<f64>, Colour)> {
        let mut sorted: Vec<f32> = self.confidence.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f32::total_cmp);
        let threshold = sorted.get(sorted.len() * 3 / 10).copied().unwrap_or(f32::INFINITY);
        let pixels = self.depths().zip(&self.rays).zip(&self.confidence).zip(&self.colours);
        pixels.filter(move |((_, confidence), _)| **confidence >= threshold).filter_map(
            |(((depth, ray), _), &colour)| {
                let point = self.camera_to_world.rotation * (ray * depth) + self.camera_to_world.translation.vector;
                point.iter().all(|x| x.is_finite()).then_some((point, colour))
            },
        )
    }
}

/// From the first to the last position that is shown; everything if none is.
fn bounds(size: usize, shown: impl Fn(usize) -> bool) -> std::ops::Range<usize> {
    let first = (0..size).find(|&at| shown(at));
    let last = (0..size).rev().find(|&at| shown(at));
    first.zip(last).map_or(0..size, |(first, last)| first..last + 1)
}

/// Evenly spaced items of a stream of unknown length: between half of `limit` and `limit` of them.
pub(super) struct Samples<T> {
    pub(super) items: Vec<T>,
    limit: usize,
    /// Every so many items of the stream, one is kept.
    every: usize,
    seen: usize,
}

impl<T> Samples<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self { items: Vec::new(), limit, every: 1, seen: 0 }
    }

    /// Adds the next item of the stream. `make` is called if it is kept.
    pub(super) fn push(&mut self, make: impl FnOnce() -> T) {
        if self.seen.is_multiple_of(self.every) {
            if self.items.len() == self.limit {
                let mut even = false;
                self.items.retain(|_| {
                    even = !even;
                    even
                });
                self.every *= 2;
            }
            if self.seen.is_multiple_of(self.every) {
                self.items.push(make());
            }
        }
        self.seen += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_even_and_bounded() {
        for count in 0..200_usize {
            let mut samples = Samples::new(8);
            (0..count).for_each(|item| samples.push(|| item));
            let items = samples.items;
            assert!(items.len() <= 8 && items.len() >= count.min(4), "{count}: {items:?}");
            let step = items.get(1).copied().unwrap_or(1);
            assert!(items.iter().enumerate().all(|(at, &item)| item == at * step), "{count}: {items:?}");
        }
    }
}
