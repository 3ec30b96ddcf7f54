//! Bilinear resampling on the CPU.

use pulp::Arch;
use rayon::prelude::*;

/// The two source positions for an output position, and the weight of the second.
fn taps(position: usize, from: usize, to: usize) -> (usize, usize, f32) {
    if to < 2 {
        return (0, 0, 0.0);
    }
    // Integers until the division, so corners and source pixels are hit exactly.
    let numerator = position as u128 * (from - 1) as u128;
    let steps = (to - 1) as u128;
    let low = (numerator / steps) as usize;
    let fraction = (numerator % steps) as f64 / steps as f64;
    (low, (low + 1).min(from - 1), fraction as f32)
}

/// x `[frames, from.0, from.1, channels]` -> y `[frames, to.0, to.1, channels]`, written or, with `add`, added.
pub(crate) fn bilinear(y: &mut [f32], x: &[f32], from: (usize, usize), to: (usize, usize), channels: usize, add: bool) {
    if y.is_empty() {
        return;
    }
    let columns: Vec<_> = (0..to.1).map(|column| taps(column, from.1, to.1)).collect();
    y.par_chunks_mut(to.1 * channels).enumerate().for_each(|(row, y)| {
        let (frame, row) = (row / to.0, row % to.0);
        let (top, bottom, down) = taps(row, from.0, to.0);
        let line = |row: usize| &x[(frame * from.0 + row) * from.1 * channels..][..from.1 * channels];
        let (top, bottom) = (line(top), line(bottom));
        Arch::new().dispatch(|| {
            for (y, &(left, right, across)) in y.chunks_exact_mut(channels).zip(&columns) {
                let corners = [(top, left), (top, right), (bottom, left), (bottom, right)];
                let [a, b, c, d] = corners.map(|(line, column)| &line[column * channels..][..channels]);
                for ((((y, a), b), c), d) in y.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                    let above = a + (b - a) * across;
                    let below = c + (d - c) * across;
                    let value = above + (below - above) * down;
                    *y = if add { *y + value } else { value };
                }
            }
        });
    });
}
