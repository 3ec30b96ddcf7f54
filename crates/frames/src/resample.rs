//! Resampling exactly as Pillow's BICUBIC does it on 8-bit pictures.
//!
//! The network was trained on Pillow's pixels, and the resamplers at hand differ from them by a level or two on some
//! percent of the pixels. Pillow stretches the cubic over the pixels that fall into one (it antialiases), rounds the
//! weights to fixed point, and rounds to 8 bits between the horizontal and the vertical pass; all of it is repeated
//! here in the same order of floating-point operations, so that every weight comes out the same.
//!
//! Pillow 13 began to run the vertical pass first for pictures whose height shrinks much more than their width, which
//! rounds differently. The network was trained before that: the horizontal pass is always first here.

use std::ops::Range;

use periplus_geometry::Raster;

/// Fraction bits of a weight: what is left of 32 after 8 of a sample and 2 for the cubic's overshoot and the sign.
const FRACTION_BITS: u32 = 22;

/// Half the width of the cubic, in pixels of the coarser grid.
const SUPPORT: f64 = 2.0;

/// Keys' cubic convolution kernel with a = -0.5 (Keys 1981, "Cubic convolution interpolation for digital image
/// processing").
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < SUPPORT {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// Which input samples make one output sample, and how much each counts (fixed point, `FRACTION_BITS`).
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// The taps of the outputs `range` when `input` samples become `output`.
fn taps(input: usize, output: usize, range: Range<usize>) -> Vec<Taps> {
    let scale = input as f64 / output as f64;
    let stretch = scale.max(1.0);
    let support = SUPPORT * stretch;
    let per_stretch = 1.0 / stretch;
    range
        .map(|index| {
            let centre = (index as f64 + 0.5) * scale;
            let first = (centre - support + 0.5) as usize; // truncates, and negative becomes 0
            let end = ((centre + support + 0.5) as usize).min(input);
            let exact: Vec<f64> = (first..end).map(|tap| cubic((tap as f64 - centre + 0.5) * per_stretch)).collect();
            let sum: f64 = exact.iter().sum();
            let fixed = |weight: &f64| (weight / sum * f64::from(1 << FRACTION_BITS)).round() as i32;
            Taps { first, weights: exact.iter().map(fixed).collect() }
        })
        .collect()
}

/// A weighted sum as a sample: rounded, clamped.
fn sample(sum: i32) -> u8 {
    ((sum + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS).clamp(0, 255) as u8
}

/// The `rows` of `picture` resized to `width` x `height`; work and memory are those of the rows asked for, however
/// large `height` is. `picture` and `width` must not be empty, `rows` must lie within `height`.
pub(crate) fn bicubic(picture: &Raster<[u8; 3]>, width: usize, height: usize, rows: Range<usize>) -> Vec<[u8; 3]> {
    let vertical = taps(picture.height(), height, rows);
    let needed_from = vertical.first().map_or(0, |taps| taps.first);
    let needed_to = vertical.last().map_or(0, |taps| taps.first + taps.weights.len());
    let needed = &picture.values()[needed_from * picture.width()..needed_to * picture.width()];

    let wide = horizontal_pass(needed, picture.width(), width);
    vertical_pass(&wide, needed_from, width, &vertical)
}

fn horizontal_pass(rows: &[[u8; 3]], from_width: usize, to_width: usize) -> Vec<[u8; 3]> {
    let taps = taps(from_width, to_width, 0..to_width);
    let mut out = Vec::with_capacity(rows.len() / from_width * to_width);
    for row in rows.chunks_exact(from_width) {
        out.extend(taps.iter().map(|taps| {
            let mut sum = [0; 3];
            for (pixel, weight) in row[taps.first..].iter().zip(&taps.weights) {
                for channel in 0..3 {
                    sum[channel] += i32::from(pixel[channel]) * weight;
                }
            }
            sum.map(sample)
        }));
    }
    out
}

/// `rows` are those of the whole picture from number `from` on.
fn vertical_pass(rows: &[[u8; 3]], from: usize, width: usize, taps: &[Taps]) -> Vec<[u8; 3]> {
    let mut sums = vec![0; 3 * width];
    let mut out = Vec::with_capacity(taps.len() * width);
    for taps in taps {
        sums.fill(0);
        let rows = rows[(taps.first - from) * width..].chunks_exact(width);
        for (row, weight) in rows.zip(&taps.weights) {
            for (sum, value) in sums.iter_mut().zip(row.as_flattened()) {
                *sum += i32::from(*value) * weight;
            }
        }
        out.extend(sums.as_chunks().0.iter().map(|pixel: &[i32; 3]| pixel.map(sample)));
    }
    out
}
