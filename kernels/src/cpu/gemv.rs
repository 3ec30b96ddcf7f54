//! Gemv on the CPU: a few rows times weights. It is memory-bound, so each thread reads its part of the weights once, in
//! order.

use crate::operand::Element;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::cell::RefCell;

/// Maximum rows for which this is faster than gemm, which first copies weights to panels.
pub(super) const MOST_ROWS: usize = 8;
/// Rows of x per load of a weight.
const TILE: usize = 4;
/// Elements of x used at a time: 16 KiB, half an L1 cache.
const CHUNK: usize = 4096;

thread_local! {
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `w xᵀ`, `[outputs, rows]`, for x `[rows, inputs]` and w `[outputs, inputs]`. No size is 0.
pub(super) fn gemv<T: Element>(x: &[f32], w: &[T], inputs: usize) -> Vec<f32> {
    let rows = x.len() / inputs;
    let mut y = vec![0.0; w.len() / inputs * rows];
    // At least about 64 KiB of weights per task.
    let outputs = ((1 << 15) / inputs).max(1);
    y.par_chunks_mut(outputs * rows).zip(w.par_chunks(outputs * inputs)).for_each(|(y, w)| {
        WIDENED.with_borrow_mut(|widened| {
            widened.resize(CHUNK, 0.0);
            Arch::new().dispatch(Few { y, x, w, inputs, widened });
        });
    });
    y
}

struct Few<'a, T> {
    y: &'a mut [f32],
    x: &'a [f32],
    w: &'a [T],
    inputs: usize,
    widened: &'a mut [f32],
}

impl<T: Element> WithSimd for Few<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { y, x, w, inputs, widened } = self;
        let rows = x.len() / inputs;
        let chunk = CHUNK / rows;
        for start in (0..inputs).step_by(chunk) {
            let columns = start..inputs.min(start + chunk);
            for (y, w) in y.chunks_exact_mut(rows).zip(w.chunks_exact(inputs)) {
                let w = &w[columns.clone()];
                let w = if let Some(w) = T::as_f32(w) {
                    w
                } else {
                    T::widen(w, &mut widened[..w.len()]);
                    &widened[..w.len()]
                };
                let row = |row: usize| &x[row * inputs..][columns.clone()];
                let mut first = 0;
                while first + TILE <= rows {
                    add_dots::<S, TILE, 2>(simd, &mut y[first..], w, std::array::from_fn(|i| row(first + i)));
                    first += TILE;
                }
                while first < rows {
                    add_dots::<S, 1, 8>(simd, &mut y[first..], w, [row(first)]);
                    first += 1;
                }
            }
        }
    }
}

/// `y[i] += w · x[i]`, with U vectors of partial sums each.
#[inline(always)]
fn add_dots<S: Simd, const N: usize, const U: usize>(simd: S, y: &mut [f32], w: &[f32], x: [&[f32]; N]) {
    let (vectors, rest) = S::as_simd_f32s(w);
    let x_vectors = x.map(|x| &S::as_simd_f32s(x).0[..vectors.len()]);
    let mut sums = [[simd.splat_f32s(0.0); U]; N];
    let whole = vectors.len() / U * U;
    for at in (0..whole).step_by(U) {
        for j in 0..U {
            for (sum, x) in sums.iter_mut().zip(x_vectors) {
                sum[j] = simd.mul_add_e_f32s(vectors[at + j], x[at + j], sum[j]);
            }
        }
    }
    for at in whole..vectors.len() {
        for (sum, x) in sums.iter_mut().zip(x_vectors) {
            sum[0] = simd.mul_add_e_f32s(vectors[at], x[at], sum[0]);
        }
    }
    for ((y, sum), x) in y.iter_mut().zip(sums).zip(x) {
        let total = sum.into_iter().fold(simd.splat_f32s(0.0), |a, b| simd.add_f32s(a, b));
        let tail: f32 = rest.iter().zip(&x[w.len() - rest.len()..]).map(|(w, x)| w * x).sum();
        *y += simd.reduce_sum_f32s(total) + tail;
    }
}
