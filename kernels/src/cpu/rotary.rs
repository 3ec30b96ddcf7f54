//! LayerNorm and RoPE of queries and keys on the CPU.

use super::math::moments;
use crate::types::Pairing;
use pulp::Arch;
use rayon::prelude::*;

/// As [`crate::rotary::Rotary`]. Each frame uses the same table, with its own times.
pub(crate) struct Angles<'a> {
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
    pub(crate) times: &'a [f32],
    pub(crate) time_pairs: usize,
    pub(crate) pairing: Pairing,
}

/// Changes qkv `[tokens, 3, heads, dim]` in place; `norms` are (weight, bias) of queries and of keys.
pub(crate) fn norm_rotate(qkv: &mut [f32], heads: usize, norms: [(&[f32], &[f32]); 2], eps: f32, angles: &Angles<'_>) {
    let dim = norms[0].0.len();
    if qkv.is_empty() {
        return;
    }
    let (width, half) = (heads * dim, dim / 2);
    let Angles { pairing, time_pairs, .. } = *angles;
    let period = angles.cos.len() / half;
    qkv.par_chunks_mut(3 * width).enumerate().with_min_len(8).for_each(|(token, qkv)| {
        let (frame, at) = (token / period, token % period * half);
        let times = &angles.times[2 * time_pairs * frame..][..2 * time_pairs];
        let (time_cos, time_sin) = times.split_at(time_pairs);
        let (cos, sin) = (&angles.cos[at..at + half], &angles.sin[at..at + half]);
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
                            let (by_time, by_place) = pairs.split_at_mut(time_pairs);
                            turn(by_time.iter_mut().map(|[even, odd]| (even, odd)), time_cos, time_sin);
                            let (cos, sin) = (&cos[time_pairs..], &sin[time_pairs..]);
                            turn(by_place.iter_mut().map(|[even, odd]| (even, odd)), cos, sin);
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
