//! Position embedding and rotary angles, which depend only on the picture size and a frame's time.

use candle_core::{Device, Tensor};
use periplus_kernels::rotary::{Pairing, Rotary};

use crate::ModelError;

/// The grid of patches of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Grid {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Grid {
    pub(crate) fn patches(self) -> usize {
        self.rows * self.cols
    }

    /// (row, column) of each patch, row by row.
    fn places(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.rows).flat_map(move |row| (0..self.cols).map(move |col| (row, col)))
    }
}

/// Angles for the frame blocks: base 100, the first half of a head is rotated by row and the second by column.
/// Special tokens sit at 0, patches at 1 and up (RoPE of CroCo / VGGT).
pub(crate) fn rotary_2d(grid: Grid, special: usize, head_dim: usize, device: &Device) -> Result<Rotary, ModelError> {
    const BASE: f64 = 100.0;
    let quarter = head_dim / 4;
    let frequencies: Vec<f64> = (0..quarter).map(|i| BASE.powf(-(i as f64) / quarter as f64)).collect();
    let places = std::iter::repeat_n((0, 0), special).chain(grid.places().map(|(row, col)| (row + 1, col + 1)));
    let angles = places.flat_map(|(row, col)| [row, col]).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
    rotary(&angles.collect::<Vec<_>>(), special + grid.patches(), Pairing::SplitHalves, device)
}

/// Angles for the global blocks: base 10000, 10 + 11 + 11 pairs are rotated by time, row and column.
///
/// Special token j of a frame sits at (t, j, j), patch (r, c) at (t, special + r, special + c).
pub(crate) struct Rotary3d {
    /// The columns for time are not used.
    places: Rotary,
    time: Vec<f64>,
}

impl Rotary3d {
    const BASE: f64 = 10_000.0;

    /// How the channels of a head are divided between time, row and column: 20 + 22 + 22 for 64.
    const CHANNELS: [usize; 3] = [20, 22, 22];

    pub(crate) fn new(grid: Grid, special: usize, device: &Device) -> Result<Self, ModelError> {
        let frequencies = |channels: usize| {
            (0..channels / 2).map(move |i| Self::BASE.powf(-2.0 * i as f64 / channels as f64)).collect::<Vec<_>>()
        };
        let [time, row, col] = Self::CHANNELS.map(frequencies);
        let places = (0..special).map(|j| (j, j)).chain(grid.places().map(|(r, c)| (special + r, special + c)));
        let angles: Vec<f64> = places
            .flat_map(|(r, c)| {
                let rows = row.iter().map(move |f| r as f64 * f);
                let cols = col.iter().map(move |f| c as f64 * f);
                std::iter::repeat_n(0.0, time.len()).chain(rows).chain(cols)
            })
            .collect();
        Ok(Self { places: rotary(&angles, special + grid.patches(), Pairing::Interleaved, device)?, time })
    }

    /// The angles of `count` frames from time index `first` on.
    pub(crate) fn at(&self, first: usize, count: usize) -> Result<Rotary, ModelError> {
        let mut times = Vec::with_capacity(count * 2 * self.time.len());
        for t in (first..).take(count) {
            let angles = || self.time.iter().map(|frequency| t as f64 * frequency);
            times.extend(angles().map(|angle| angle.cos() as f32));
            times.extend(angles().map(|angle| angle.sin() as f32));
        }
        let times = Tensor::from_vec(times, (count, 2, self.time.len()), self.places.cos.device())?;
        Ok(Rotary { times: Some(times), ..self.places.clone() })
    }
}

fn rotary(angles: &[f64], tokens: usize, pairing: Pairing, device: &Device) -> Result<Rotary, ModelError> {
    let shape = (tokens, angles.len() / tokens);
    let table =
        |f: fn(f64) -> f64| Tensor::from_vec(angles.iter().map(|a| f(*a) as f32).collect::<Vec<_>>(), shape, device);
    Ok(Rotary { cos: table(f64::cos)?, sin: table(f64::sin)?, times: None, pairing })
}

/// Resamples a square position embedding `[side, side, channels]` (row-major) to `grid`, bicubic with antialiasing
/// (Keys 1981, a = -0.5): what `torch.nn.functional.interpolate(mode="bicubic", antialias=True)` computes.
pub(crate) fn resample_bicubic(values: &[f32], side: usize, channels: usize, grid: Grid) -> Vec<f32> {
    let along_rows = bicubic_taps(side, grid.rows);
    let along_cols = bicubic_taps(side, grid.cols);
    let mut wide = vec![0.0; side * grid.cols * channels];
    for (target, (row, (start, weights))) in
        wide.chunks_mut(channels).zip((0..side).flat_map(|row| along_cols.iter().map(move |taps| (row, taps))))
    {
        for (k, weight) in weights.iter().enumerate() {
            let source = &values[(row * side + start + k) * channels..][..channels];
            target.iter_mut().zip(source).for_each(|(t, s)| *t += weight * f64::from(*s));
        }
    }
    let mut out = Vec::with_capacity(grid.patches() * channels);
    let mut sum = vec![0.0; channels];
    for (start, weights) in &along_rows {
        for col in 0..grid.cols {
            sum.fill(0.0);
            for (k, weight) in weights.iter().enumerate() {
                let source = &wide[((start + k) * grid.cols + col) * channels..][..channels];
                sum.iter_mut().zip(source).for_each(|(t, s)| *t += weight * s);
            }
            out.extend(sum.iter().map(|v| *v as f32));
        }
    }
    out
}

/// For each of `target` positions along an axis of length `source`: the first tap and the weights, which sum to 1.
fn bicubic_taps(source: usize, target: usize) -> Vec<(usize, Vec<f64>)> {
    const A: f64 = -0.5;
    let cubic = |x: f64| match x.abs() {
        x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    };
    let scale = source as f64 / target as f64;
    let stretch = scale.max(1.0);
    let support = 2.0 * stretch;
    (0..target)
        .map(|i| {
            let centre = (i as f64 + 0.5) * scale;
            let start = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(source);
            let weights: Vec<f64> = (start..end).map(|tap| cubic((tap as f64 - centre + 0.5) / stretch)).collect();
            let total: f64 = weights.iter().sum();
            (start, weights.into_iter().map(|w| w / total).collect())
        })
        .collect()
}
