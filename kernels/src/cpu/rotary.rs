//! LayerNorm and rotation of queries and keys.

use super::math::moments;
use crate::rotary::Pairing;
use pulp::Arch;
use rayon::prelude::*;

/// qkv `[tokens, 3, heads, dim]` in place; norms (weight, bias) of queries and of keys; angles (cos, sin) repeat.
pub(crate) fn norm_rotate(
    qkv: &mut [f32],
    heads: usize,
    norms: [(&[f32], &[f32]); 2],
    eps: f32,
    angles: (&[f32], &[f32]),
    pairing: Pairing,
) {
    let dim = norms[0].0.len();
    if qkv.is_empty() {
        return;
    }
    let (width, half) = (heads * dim, dim / 2);
    let period = angles.0.len() / half;
    qkv.par_chunks_mut(3 * width).enumerate().with_min_len(8).for_each(|(token, qkv)| {
        let at = token % period * half;
        let (cos, sin) = (&angles.0[at..at + half], &angles.1[at..at + half]);
        Arch::new().dispatch(|| {
            for (x, (weight, bias)) in qkv.chunks_exact_mut(width).zip(norms) {
                for x in x.chunks_exact_mut(dim) {
                    let (mean, scale) = moments(x, eps);
                    for ((x, weight), bias) in x.iter_mut().zip(weight).zip(bias) {
                        *x = (*x - mean) * scale * weight + bias;
                    }
                    match pairing {
                        Pairing::SplitHalves => {
                            let quarter = half / 2;
                            for (i, x) in x.chunks_exact_mut(half).enumerate() {
                                let (low, high) = x.split_at_mut(quarter);
                                let at = i * quarter;
                                turn(low.iter_mut().zip(high), &cos[at..at + quarter], &sin[at..at + quarter]);
                            }
                        }
                        Pairing::Interleaved => {
                            let (pairs, _) = x.as_chunks_mut::<2>();
                            turn(pairs.iter_mut().map(|[even, odd]| (even, odd)), cos, sin);
                        }
                    }
                }
            }
        });
    });
}

#[inline(always)]
fn turn<'a>(pairs: impl Iterator<Item = (&'a mut f32, &'a mut f32)>, cos: &[f32], sin: &[f32]) {
    for (((a, b), cos), sin) in pairs.zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
