//! Layer normalisation on the CPU.

use super::math::moments;
use pulp::Arch;
use rayon::prelude::*;

/// Normalises each row of `weight.len()` elements of x.
pub(crate) fn layer_norm(y: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32], eps: f32) {
    let channels = weight.len();
    if channels == 0 {
        return;
    }
    y.par_chunks_mut(channels).zip(x.par_chunks(channels)).with_min_len(8).for_each(|(y, x)| {
        Arch::new().dispatch(|| {
            let (mean, scale) = moments(x, eps);
            for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                *y = (x - mean) * scale * weight + bias;
            }
        });
    });
}
