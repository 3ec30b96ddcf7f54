//! Products with weights.

use super::few;
use super::math::par_activate;
use super::product::{Rows, add_product};
use crate::linear::Activation;
use crate::operand::Element;
use gemm::Parallelism;
use rayon::prelude::*;

/// Elements of a block of widened weights: 512 KiB, some rows of the widest layers.
const WIDENED: usize = 1 << 17;

/// `y = activation(x weightᵀ + bias)` for weight `[out, in]`; y is zero before.
pub(crate) fn linear<T: Element>(
    y: &mut [f32],
    x: &[f32],
    weight: &[T],
    bias: Option<&[f32]>,
    dims: &[usize],
    activation: Activation,
) {
    linear_add(y, x, weight, bias, dims);
    par_activate(y, activation);
}

/// `y += x weightᵀ + bias` for weight `[out, in]`.
pub(crate) fn linear_add<T: Element>(y: &mut [f32], x: &[f32], weight: &[T], bias: Option<&[f32]>, dims: &[usize]) {
    let &[outputs, inputs] = dims else { return };
    if y.is_empty() {
        return;
    }
    if let Some(bias) = bias {
        y.par_chunks_mut(outputs).with_min_len(8).for_each(|y| y.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
    }
    if inputs == 0 {
        return;
    }
    if x.len() / inputs <= few::ROWS {
        let sums = few::product(x, weight, inputs);
        let rows = x.len() / inputs;
        for (row, y) in y.chunks_exact_mut(outputs).enumerate() {
            y.iter_mut().zip(sums.iter().skip(row).step_by(rows)).for_each(|(y, sum)| *y += sum);
        }
        return;
    }
    let x = Rows::dense(x, inputs);
    if let Some(weight) = T::as_f32(weight) {
        add_product(y, outputs, x, Rows::dense(weight, inputs), Parallelism::Rayon(0));
        return;
    }
    let block = (WIDENED / inputs).max(1);
    let mut widened = vec![0.0; block.min(outputs) * inputs];
    for (i, weight) in weight.chunks(block * inputs).enumerate() {
        let widened = &mut widened[..weight.len()];
        let pieces = widened.par_chunks_mut(inputs).zip(weight.par_chunks(inputs));
        pieces.for_each(|(to, from)| T::widen(from, to));
        add_product(&mut y[i * block..], outputs, x, Rows::dense(widened, inputs), Parallelism::Rayon(0));
    }
}
