//! Adaptive LayerNorm modulation on the CPU.

/// As [`crate::modulation::modulate`]. On one thread, because there are only a few rows.
pub(crate) fn modulate(y: &mut [f32], x: &[f32], normed: &[f32], modulation: &[f32], channels: usize) {
    if channels == 0 {
        return;
    }
    let rows = x.chunks_exact(channels).zip(normed.chunks_exact(channels));
    let rows = rows.zip(modulation.chunks_exact(3 * channels));
    for (y, ((x, normed), modulation)) in y.chunks_exact_mut(channels).zip(rows) {
        let (shift, rest) = modulation.split_at(channels);
        let (scale, gate) = rest.split_at(channels);
        for (i, y) in y.iter_mut().enumerate() {
            *y = x[i] + gate[i] * (normed[i] * (1.0 + scale[i]) + shift[i]);
        }
    }
}
