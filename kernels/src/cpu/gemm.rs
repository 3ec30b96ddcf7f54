//! Gemm on the CPU: many rows times weights, for linear layers and convolutions.
//!
//! A register tile is 6 rows by 2 vectors of outputs (12 accumulators, 2 vectors of weights and a broadcast in the 16
//! registers of AVX2). Rows of x are read in place. Weights are converted to float32 and copied to panels in which the
//! outputs of a tile are adjacent. Blocking follows Goto & van de Geijn, "Anatomy of High-Performance Matrix
//! Multiplication" (2008): one panel of `DEPTH` terms stays in the L1 cache while rows stream past it; `STRIPE` rows
//! and the panels of a task stay in the L2 cache. Bias, residual and activation are applied while a tile is in
//! registers or L1.

use super::Finish;
use super::math::{activate, multiply_add};
use super::output_tile::OutputTile;
use crate::operand::Element;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Rows of a register tile.
const ROWS: usize = 6;
/// Terms per bounds check.
const UNROLLED: usize = 4;
/// Maximum terms of a sum per panel: a panel of 16 outputs is 16 KiB, half an L1 cache.
const DEPTH: usize = 256;
/// Rows that go through all panels of a task before the next rows do: 96 KiB of x. More would not stay in the cache:
/// rows that are a multiple of 4 KiB apart share a quarter of its sets.
const STRIPE: usize = 16 * ROWS;
/// Maximum rows and outputs per task: panels of 128 outputs are 128 KiB, copied once for 2048 rows.
const TASK_ROWS: usize = 2048;
const TASK_OUTPUTS: usize = 128;
/// A multiple of two vectors, for every vector width up to 16.
const PANEL_OUTPUTS: usize = 32;

/// Rows of x. Each has `segments` runs of `depth` elements: one run for a token, k x k runs for the neighbourhood of a
/// pixel.
pub(super) trait Source: Sync {
    fn rows(&self) -> usize;
    fn segments(&self) -> usize;
    fn depth(&self) -> usize;
    /// One run of one row: `depth` elements.
    fn run(&self, row: usize, segment: usize) -> &[f32];
}

/// y `[x.rows(), outputs]` = activation(x wᵀ + bias), where `finish.add` includes the old y in the sum; w is
/// `[outputs, segments, depth]`. No size is 0.
pub(super) fn gemm<T: Element>(y: &mut [f32], x: &impl Source, w: &[T], finish: Finish<'_>) {
    let rows = x.rows();
    let outputs = y.len() / rows;
    assert_eq!(y.len(), rows * outputs);
    assert_eq!(w.len(), outputs * x.segments() * x.depth());

    // Enough tasks for all threads to finish at about the same time. Outputs are split first, because splitting rows
    // copies panels more often.
    let wanted = 4 * rayon::current_num_threads();
    let (mut task_rows, mut task_outputs) = (TASK_ROWS, TASK_OUTPUTS);
    let tasks = |rows_each: usize, outputs_each: usize| rows.div_ceil(rows_each) * outputs.div_ceil(outputs_each);
    while task_outputs > PANEL_OUTPUTS && tasks(task_rows, task_outputs) < wanted {
        task_outputs /= 2;
    }
    while task_rows > 2 * STRIPE && tasks(task_rows, task_outputs) < wanted {
        task_rows /= 2;
    }
    let task_rows = rows.div_ceil(rows.div_ceil(task_rows)).next_multiple_of(ROWS);

    OutputTile::new(y, outputs).split(task_rows, task_outputs).for_each(|target| {
        PANELS.with_borrow_mut(|panels| {
            panels.resize(task_outputs * DEPTH + 16, 0.0);
            let aligned = panels.as_ptr().align_offset(64).min(16);
            let panels = &mut panels[aligned..][..task_outputs * DEPTH];
            task(target, x, w, finish, panels);
        });
    });
}

thread_local! {
    static PANELS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Computes one tile of y.
fn task<T: Element>(mut target: OutputTile<'_>, x: &impl Source, w: &[T], finish: Finish<'_>, panels: &mut [f32]) {
    let (rows, outputs) = (target.rows(), target.outputs());
    let (segments, depth) = (x.segments(), x.depth());
    let w = &w[outputs.start * segments * depth..outputs.end * segments * depth];
    let mut runs: [&[f32]; STRIPE] = [&[]; STRIPE];
    for segment in 0..segments {
        for start in (0..depth).step_by(DEPTH) {
            let columns = start..depth.min(start + DEPTH);
            let at = segment * depth + start;
            Arch::new().dispatch(Fill { panels, depth: columns.len(), w, at, stride: segments * depth });
            for row in rows.clone().step_by(STRIPE) {
                let count = STRIPE.min(rows.end - row);
                for (i, run) in runs[..count].iter_mut().enumerate() {
                    *run = &x.run(row + i, segment)[columns.clone()];
                }
                Arch::new().dispatch(Stripe {
                    target: &mut target,
                    row,
                    depth: columns.len(),
                    runs: &runs[..count],
                    panels,
                    first: at == 0,
                    last: segment + 1 == segments && columns.end == depth,
                    finish,
                });
            }
        }
    }
}

/// Copies columns `at..at + depth` of all rows of w (row stride `stride`) to panels `[depth][2 vectors]`. The last
/// panel is padded with zeros.
struct Fill<'a, T> {
    panels: &'a mut [f32],
    depth: usize,
    w: &'a [T],
    at: usize,
    stride: usize,
}

impl<T: Element> WithSimd for Fill<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { panels, depth, w, at, stride } = self;
        let width = 2 * S::F32_LANES;
        let mut widened = [0.0; DEPTH];
        let widened = &mut widened[..depth];
        for (panel, w) in panels.chunks_exact_mut(depth * width).zip(w.chunks(width * stride)) {
            for lane in 0..width {
                match w.get(lane * stride + at..lane * stride + at + depth) {
                    Some(w) => T::widen(w, widened),
                    None => widened.fill(0.0),
                }
                for (panel, &w) in panel[lane..].iter_mut().step_by(width).zip(&*widened) {
                    *panel = w;
                }
            }
        }
    }
}

/// Multiplies runs, one per row, with all panels of a task.
struct Stripe<'a, 'y> {
    target: &'a mut OutputTile<'y>,
    row: usize,
    depth: usize,
    runs: &'a [&'a [f32]],
    panels: &'a [f32],
    /// Whether these are the first, or the last, terms of the sums.
    first: bool,
    last: bool,
    finish: Finish<'a>,
}

impl WithSimd for Stripe<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let width = 2 * S::F32_LANES;
        let outputs = self.target.outputs();
        let panels = self.panels.chunks_exact(self.depth * width);
        for (panel, output) in panels.zip(outputs.clone().step_by(width)) {
            let part = output..outputs.end.min(output + width);
            let panel = S::as_simd_f32s(panel).0.as_chunks::<2>().0;
            for (i, runs) in self.runs.chunks(ROWS).enumerate() {
                let (row, part) = (self.row + i * ROWS, part.clone());
                match runs.len() {
                    1 => self.tile::<S, 1>(simd, row, part, runs, panel),
                    2 => self.tile::<S, 2>(simd, row, part, runs, panel),
                    3 => self.tile::<S, 3>(simd, row, part, runs, panel),
                    4 => self.tile::<S, 4>(simd, row, part, runs, panel),
                    5 => self.tile::<S, 5>(simd, row, part, runs, panel),
                    _ => self.tile::<S, ROWS>(simd, row, part, runs, panel),
                }
            }
        }
    }
}

impl Stripe<'_, '_> {
    /// Multiplies N runs with a panel and adds the results to a tile of y.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(
        &mut self,
        simd: S,
        row: usize,
        part: Range<usize>,
        runs: &[&[f32]],
        panel: &[[S::f32s; 2]],
    ) {
        let mut sums = [[simd.splat_f32s(0.0); 2]; N];
        let runs: [_; N] = std::array::from_fn(|i| runs[i].as_chunks::<UNROLLED>());
        let (steps, rest) = panel.as_chunks::<UNROLLED>();
        for (step, panel) in steps.iter().enumerate() {
            let runs: [_; N] = std::array::from_fn(|i| &runs[i].0[step]);
            for (k, panel) in panel.iter().enumerate() {
                for (sums, run) in sums.iter_mut().zip(runs) {
                    multiply_add(simd, sums, run[k], panel);
                }
            }
        }
        for (k, panel) in rest.iter().enumerate() {
            for (sums, run) in sums.iter_mut().zip(runs) {
                multiply_add(simd, sums, run.1[k], panel);
            }
        }
        // The old value is added to the finished sum. Adding each term to it would round once per term, and a residual
        // is large beside a term.
        let add = |a: [S::f32s; 2], b: [S::f32s; 2]| std::array::from_fn(|j| simd.add_f32s(a[j], b[j]));
        let bias = self.finish.bias.filter(|_| self.first).map(|bias| load(simd, &bias[part.clone()]));
        for (i, mut sums) in sums.into_iter().enumerate() {
            let y = self.target.row(row + i, part.clone());
            if let Some(bias) = bias {
                sums = add(sums, bias);
            }
            if !self.first || self.finish.add {
                sums = add(sums, load(simd, y));
            }
            store(simd, y, sums);
            if self.last {
                activate(y, self.finish.activation);
            }
        }
    }
}

/// Loads up to two vectors and fills the rest with zeros.
#[inline(always)]
fn load<S: Simd>(simd: S, from: &[f32]) -> [S::f32s; 2] {
    if let ([a, b, ..], _) = S::as_simd_f32s(from) {
        return [*a, *b];
    }
    let (a, b) = from.split_at(S::F32_LANES.min(from.len()));
    [simd.partial_load_f32s(a), simd.partial_load_f32s(b)]
}

/// Stores as much of two vectors as fits.
#[inline(always)]
fn store<S: Simd>(simd: S, to: &mut [f32], [x, y]: [S::f32s; 2]) {
    if let ([a, b, ..], _) = S::as_mut_simd_f32s(to) {
        (*a, *b) = (x, y);
        return;
    }
    let (a, b) = to.split_at_mut(S::F32_LANES.min(to.len()));
    simd.partial_store_f32s(a, x);
    simd.partial_store_f32s(b, y);
}
