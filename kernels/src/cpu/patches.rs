//! Patches of pictures, on the CPU.

use rayon::prelude::*;

/// As [`crate::patches::patches`], with `columns` patches per row of patches.
pub(crate) fn patches(y: &mut [f32], pixels: &[u8], scale: &[f32], shift: &[f32], patch: usize, columns: usize) {
    let line = 3 * patch;
    if y.is_empty() {
        return;
    }
    y.par_chunks_mut(patch * line).enumerate().with_min_len(16).for_each(|(i, y)| {
        let (row, column) = (i / columns, i % columns);
        for (down, y) in y.chunks_exact_mut(line).enumerate() {
            let from = &pixels[((row * patch + down) * columns + column) * line..][..line];
            for (y, from) in y.chunks_exact_mut(3).zip(from.chunks_exact(3)) {
                for colour in 0..3 {
                    y[colour] = f32::from(from[colour]) * scale[colour] - shift[colour];
                }
            }
        }
    });
}
