//! One picture of a run: frames, depth and the trajectory from above.

mod canvas;
mod tile;

use std::path::Path;

use nalgebra::Vector3;
use periplus_geometry::FrameOutput;

use self::canvas::{Canvas, Colour, mix, ramp};
use self::tile::{Samples, TILE, Tile};
use crate::pending::PendingFile;
use crate::{ExportError, Revision, Sink, Summary};

/// Tiles that are shown side by side.
const COLUMNS: usize = 5;
/// Tiles that are kept. All of them give points to the view from above.
const MOST_TILES: usize = 16;
/// Camera positions that are kept.
const MOST_POSITIONS: usize = 4096;

const MARGIN: usize = 16;
const WIDTH: usize = COLUMNS * TILE[0] + (COLUMNS + 1) * MARGIN;
const VIEW_HEIGHT: usize = 760;
const LEGEND_HEIGHT: usize = 15;

const BACKGROUND: Colour = [18, 20, 24];
const PANEL: Colour = [27, 30, 36];
const TEXT: Colour = [200, 204, 210];
const FIRST: Colour = [64, 208, 120];
const LAST: Colour = [255, 84, 84];

/// `overview.png`: pictures of up to five frames, their depth below them, and the scene and the trajectory from above.
///
/// Depth has one logarithmic colour scale for the run, bright is near; the bar between the rows has the depths of its
/// ends, in the unit of the stream. The view from above looks along the mean "down" of the cameras, with the first camera looking up
/// the picture; the trajectory runs from green to red. The same frames give the same file. Memory does not grow with the
/// number of frames.
pub struct Overview {
    file: PendingFile,
    tiles: Samples<Tile>,
    /// Index of a frame and position of its camera.
    positions: Samples<(usize, Vector3<f64>)>,
    /// Viewing direction of the first camera.
    forward: Option<Vector3<f64>>,
    /// Sum of the upward directions of all cameras.
    up: Vector3<f64>,
    frames: usize,
}

impl Overview {
    /// Begins `overview.png` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created or the file cannot be written.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        Ok(Self {
            file: PendingFile::begin(folder, "overview.png")?,
            tiles: Samples::new(MOST_TILES),
            positions: Samples::new(MOST_POSITIONS),
            forward: None,
            up: Vector3::zeros(),
            frames: 0,
        })
    }
}

impl Sink for Overview {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        self.tiles.push(|| Tile::new(frame));
        let pose = &frame.camera_to_world;
        if pose.to_homogeneous().iter().all(|value| value.is_finite()) {
            self.positions.push(|| (frame.index, pose.translation.vector));
            self.forward.get_or_insert(pose.rotation * Vector3::z());
            self.up += pose.rotation * -Vector3::y();
        }
        self.frames += 1;
        Ok(())
    }

    fn revise(&mut self, revisions: &[Revision]) -> Result<(), ExportError> {
        // The view from above keeps its direction: revisions turn the cameras little.
        for revision in revisions {
            for tile in self.tiles.items.iter_mut().filter(|tile| tile.index == revision.index) {
                tile.camera_to_world = revision.camera_to_world;
                tile.scale = revision.scale;
            }
            for (_, position) in self.positions.items.iter_mut().filter(|(index, _)| *index == revision.index) {
                *position = revision.camera_to_world.translation.vector;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        let summary = Summary::of_file(self.file.path(), self.frames, None);
        if self.frames > 0 {
            let png = self.draw().png().map_err(|error| ExportError::writing(self.file.path(), error))?;
            self.file.append(&png)?;
            self.file.commit()?;
        }
        Ok(summary)
    }
}

impl Overview {
    fn draw(&self) -> Canvas {
        let tiles = &self.tiles.items;
        let columns = tiles.len().min(COLUMNS);
        let shown: Vec<&Tile> = (0..columns).map(|at| &tiles[at * (tiles.len() - 1) / (columns - 1).max(1)]).collect();
        let row = shown.iter().map(|tile| tile.height()).max().unwrap_or(0);
        let depths = sorted(tiles.iter().flat_map(Tile::depths).filter(|depth| depth.is_finite()).collect());
        let range = percentile(&depths, 0.02).zip(percentile(&depths, 0.98));

        let legend = MARGIN + row + MARGIN;
        let (depth_row, height) = match range {
            Some(_) => (legend + LEGEND_HEIGHT + MARGIN, legend + LEGEND_HEIGHT + MARGIN + row + MARGIN),
            None => (legend, legend),
        };
        let mut canvas = Canvas::new(WIDTH as u32, (height + VIEW_HEIGHT + MARGIN) as u32, BACKGROUND);
        for (column, tile) in shown.iter().enumerate() {
            let left = MARGIN + column * (TILE[0] + MARGIN) + (TILE[0] - tile.width) / 2;
            put(&mut canvas, [left, MARGIN], tile.width, tile.colours.iter().copied());
            if let Some((near, far)) = range {
                let scale = (far / near).ln();
                let colour = |depth: f64| match (depth / near).ln() {
                    position if position.is_nan() => PANEL,
                    position => ramp(if scale > 0.0 { position / scale } else { 0.0 }),
                };
                put(&mut canvas, [left, depth_row], tile.width, tile.depths().map(colour));
            }
        }
        if let Some((near, far)) = range {
            draw_legend(&mut canvas, legend, near, far);
        }
        self.draw_view(&mut canvas, height);
        canvas
    }

    /// The scene from above, in a panel that begins at row `top`.
    fn draw_view(&self, canvas: &mut Canvas, top: usize) {
        let size = [WIDTH - 2 * MARGIN, VIEW_HEIGHT];
        put(canvas, [MARGIN, top], size[0], std::iter::repeat_n(PANEL, size[0] * size[1]));
        let up = self.up.try_normalize(1e-9).unwrap_or(-Vector3::y());
        let ahead = self.forward.unwrap_or(Vector3::z());
        let ahead = [ahead, Vector3::z(), Vector3::x()]
            .into_iter()
            .find_map(|ahead| (ahead - up * ahead.dot(&up)).try_normalize(1e-3));
        let ahead = ahead.unwrap_or(Vector3::z());
        let right = ahead.cross(&up);
        let flat = |point: &Vector3<f64>| [point.dot(&right), -point.dot(&ahead)];

        let path: Vec<[f64; 2]> = self.positions.items.iter().map(|(_, position)| flat(position)).collect();
        let points: Vec<([f64; 2], Colour)> =
            self.tiles.items.iter().flat_map(Tile::points).map(|(point, colour)| (flat(&point), colour)).collect();
        // All of the path, and the points without the farthest.
        let [across, along] = [0, 1].map(|axis| {
            let values = sorted(points.iter().map(|(point, _)| point[axis]).collect());
            let ends = [percentile(&values, 0.02), percentile(&values, 0.98)].into_iter().flatten();
            let values = ends.chain(path.iter().map(|point| point[axis]));
            values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)])
        });
        let spans = [across, along].map(|[low, high]| high - low);
        let fit = (0..2).map(|axis| (size[axis] - 4 * MARGIN) as f64 / spans[axis]).filter(|scale| scale.is_finite());
        let scale = fit.reduce(f64::min).unwrap_or(1.0);
        let offset = [MARGIN, top];
        let place = |point: [f64; 2]| {
            [0, 1].map(|axis| {
                let [low, high] = [across, along][axis];
                (point[axis] - f64::midpoint(low, high)) * scale + offset[axis] as f64 + size[axis] as f64 / 2.0
            })
        };

        // Points of one pixel are averaged: from above, everything over the floor would hide it.
        let mut sums = vec![[0_u32; 4]; size[0] * size[1]];
        for (point, colour) in &points {
            let [x, y] = place(*point);
            // Two pixels wide, because the pictures are small.
            for (dx, dy) in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
                let (x, y) = (x + dx - offset[0] as f64, y + dy - offset[1] as f64);
                if x >= 0.0 && y >= 0.0 && x < size[0] as f64 && y < size[1] as f64 {
                    let sum = &mut sums[y as usize * size[0] + x as usize];
                    *sum = [0, 1, 2, 3].map(|at| sum[at] + colour.get(at).map_or(1, |&value| u32::from(value)));
                }
            }
        }
        for (at, &[red, green, blue, count]) in sums.iter().enumerate().filter(|(_, sum)| sum[3] > 0) {
            let colour = [red, green, blue].map(|sum| (sum / count) as u8);
            let (x, y) = ((offset[0] + at % size[0]) as i64, (offset[1] + at / size[0]) as i64);
            canvas.blend(x, y, colour, 1.0 - 0.55_f64.powi(count.min(20) as i32));
        }

        let path: Vec<[f64; 2]> = path.into_iter().map(place).collect();
        for line in path.windows(2) {
            canvas.line(line[0], line[1], 7.0, BACKGROUND);
        }
        for (at, line) in path.windows(2).enumerate() {
            canvas.line(line[0], line[1], 3.5, mix(FIRST, LAST, at as f64 / path.len() as f64));
        }
        for (end, colour) in [(path.first(), FIRST), (path.last(), LAST)] {
            if let Some(&end) = end {
                canvas.line(end, end, 18.0, BACKGROUND);
                canvas.line(end, end, 13.0, colour);
            }
        }
    }
}

/// Draws rows of `width` pixels from a corner on.
fn put(canvas: &mut Canvas, [left, top]: [usize; 2], width: usize, colours: impl Iterator<Item = Colour>) {
    for (at, colour) in colours.enumerate() {
        canvas.set((left + at % width) as i64, (top + at / width) as i64, colour);
    }
}

/// The depth scale between its two ends.
fn draw_legend(canvas: &mut Canvas, top: usize, near: f64, far: f64) {
    let digits = |depth: f64| if (0.01..1e4).contains(&depth) { format!("{depth:.2}") } else { format!("{depth:.1e}") };
    let (near, far) = (digits(near), digits(far));
    let left = MARGIN as i64 + canvas.digits(MARGIN as i64, top as i64, &near, TEXT) + 8;
    let right = WIDTH as i64 - MARGIN as i64 - 12 * far.len() as i64;
    canvas.digits(right + 3, top as i64, &far, TEXT);
    let right = right - 8;
    for (x, y) in (0..LEGEND_HEIGHT as i64).flat_map(|y| (left..right).map(move |x| (x, y))) {
        canvas.set(x, top as i64 + y, ramp((x - left) as f64 / (right - left) as f64));
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The value below which the share `part` of the sorted values lies.
fn percentile(sorted: &[f64], part: f64) -> Option<f64> {
    sorted.get((part * sorted.len().saturating_sub(1) as f64).round() as usize).copied()
}
