//! Linear layers on the CPU: gemv for few rows, gemm for many.

use super::Finish;
use super::gemm::{Source, gemm};
use super::gemv;
use super::math::par_activate;
use crate::operand::Element;

/// Contiguous rows.
struct Dense<'a> {
    x: &'a [f32],
    inputs: usize,
}

impl Source for Dense<'_> {
    fn rows(&self) -> usize {
        self.x.len() / self.inputs
    }
    fn segments(&self) -> usize {
        1
    }
    fn depth(&self) -> usize {
        self.inputs
    }
    #[inline(always)]
    fn run(&self, row: usize, _: usize) -> &[f32] {
        &self.x[row * self.inputs..][..self.inputs]
    }
}

/// x `[rows, inputs]`, weight `[outputs, inputs]`, y `[rows, outputs]`.
pub(crate) fn linear<T: Element>(y: &mut [f32], x: &[f32], weight: &[T], dims: [usize; 2], finish: Finish<'_>) {
    let [outputs, inputs] = dims;
    if y.is_empty() {
        return;
    }
    let rows = y.len() / outputs;
    if inputs > 0 && rows > gemv::MOST_ROWS {
        gemm(y, &Dense { x, inputs }, weight, finish);
        return;
    }
    let sums = if inputs > 0 { gemv::gemv(x, weight, inputs) } else { vec![0.0; y.len()] };
    for (row, y) in y.chunks_exact_mut(outputs).enumerate() {
        for (i, (y, sum)) in y.iter_mut().zip(sums[row..].iter().step_by(rows)).enumerate() {
            let before = if finish.add { *y } else { 0.0 };
            *y = before + finish.bias.map_or(0.0, |bias| bias[i]) + sum;
        }
    }
    par_activate(y, finish.activation);
}
