//! Products of many rows with weights, linear layers and convolutions alike.
//!
//! A register tile is 6 rows by 2 vectors of outputs (12 accumulators, 2 vectors of weights and a broadcast in the 16
//! registers of AVX2). Rows of x are read where they lie; weights are copied to panels in which the outputs of a tile
//! are side by side, converted to float32 on the way. Blocking after Goto & van de Geijn, "Anatomy of High-Performance
//! Matrix Multiplication" (2008): one panel of `DEPTH` stays in the first-level cache while rows pass by, `STRIPE` rows
//! and the panels of a task in the second. Bias, sum and activation happen while a tile is in registers or next to it.

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
/// Terms between two checks of bounds.
const UNROLLED: usize = 4;
/// Most terms of a sum at a time: a panel of 16 outputs is 16 KiB, half a first-level cache.
const DEPTH: usize = 256;
/// Rows that pass by all panels of a task before the next: 96 KiB of x. No more, because rows that are a multiple of
/// 4 KiB apart have but a quarter of the cache's sets to lie in.
const STRIPE: usize = 16 * ROWS;
/// Most rows and outputs of a task: panels of 128 outputs are 128 KiB, copied once for 2 Ki rows.
const TASK_ROWS: usize = 2048;
const TASK_OUTPUTS: usize = 128;
/// A multiple of two vectors for any vector up to 16 wide.
const PANEL_OUTPUTS: usize = 32;

/// Rows of x, each of `segments` runs of `depth` numbers: one for a token, k x k for the neighbourhood of a pixel.
pub(super) trait Source: Sync {
    fn rows(&self) -> usize;
    fn segments(&self) -> usize;
    fn depth(&self) -> usize;
    /// One run of one row, `depth` long.
    fn run(&self, row: usize, segment: usize) -> &[f32];
}

/// y `[x.rows(), outputs]` = activation(y if `add` + x wᵀ + bias) for w `[outputs, segments, depth]`; nothing is empty.
pub(super) fn gemm<T: Element>(y: &mut [f32], x: &impl Source, w: &[T], finish: Finish<'_>) {
    let rows = x.rows();
    let outputs = y.len() / rows;
    assert_eq!(y.len(), rows * outputs);
    assert_eq!(w.len(), outputs * x.segments() * x.depth());

    // Enough tasks that threads finish together, of outputs first: splitting rows copies panels more often.
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

/// One rectangle of y.
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

/// Copies `depth` columns from `at` of all rows of w, `stride` long, to panels `[depth][2 vectors]`, the last one filled
/// up with zeros.
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

/// Products of some runs, one a row, with all panels of a task.
struct Stripe<'a, 'y> {
    target: &'a mut OutputTile<'y>,
    row: usize,
    depth: usize,
    runs: &'a [&'a [f32]],
    panels: &'a [f32],
    /// Whether these are the first and the last terms of their sums.
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
    /// Adds the products of N runs with a panel to a tile of y.
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
        // What was there is added to the sum of these terms, not each term to it: a residual is large beside a term, and
        // its rounding would count once for every one of them.
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

/// Up to two vectors, the rest zeros.
#[inline(always)]
fn load<S: Simd>(simd: S, from: &[f32]) -> [S::f32s; 2] {
    if let ([a, b, ..], _) = S::as_simd_f32s(from) {
        return [*a, *b];
    }
    let (a, b) = from.split_at(S::F32_LANES.min(from.len()));
    [simd.partial_load_f32s(a), simd.partial_load_f32s(b)]
}

/// As much of two vectors as there is room for.
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
