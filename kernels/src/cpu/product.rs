//! Products of many rows with weights, linear layers and convolutions alike.
//!
//! A register tile is 6 rows by 2 vectors of outputs (12 accumulators, 2 vectors of weights and a broadcast in the 16
//! registers of AVX2). Rows of x are read where they lie; weights are copied to panels in which the outputs of a tile
//! are side by side, converted to float32 on the way. Blocking after Goto & van de Geijn, "Anatomy of High-Performance
//! Matrix Multiplication" (2008): one panel of `DEPTH` stays in the first-level cache while rows pass by, `STRIPE` rows
//! and the panels of a task in the second. Bias, sum and activation happen while a tile is in registers or next to it.

use super::Finish;
use super::math::{activate, multiply_add};
use crate::operand::Element;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Rows of a register tile.
const ROWS: usize = 6;
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
pub(super) fn product<T: Element>(y: &mut [f32], x: &impl Source, w: &[T], finish: Finish<'_>) {
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

    let target = Target { first: y.as_mut_ptr(), rows, outputs };
    let across = outputs.div_ceil(task_outputs);
    (0..tasks(task_rows, task_outputs)).into_par_iter().for_each(|task| {
        let (row, output) = (task / across * task_rows, task % across * task_outputs);
        let (rows, outputs) = (row..rows.min(row + task_rows), output..outputs.min(output + task_outputs));
        PANELS.with_borrow_mut(|panels| {
            panels.resize(task_outputs * DEPTH + 16, 0.0);
            let aligned = panels.as_ptr().align_offset(64).min(16);
            let panels = &mut panels[aligned..][..task_outputs * DEPTH];
            Arch::new().dispatch(Task { target: &target, x, w, finish, rows, outputs, panels });
        });
    });
}

thread_local! {
    static PANELS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// y, to be written by several tasks, each in a rectangle of its own.
struct Target {
    first: *mut f32,
    rows: usize,
    outputs: usize,
}

// SAFETY: it stands for a `&mut [f32]` that is handed out in parts, see `part`.
#[allow(unsafe_code)]
unsafe impl Sync for Target {}

impl Target {
    /// Part of a row.
    ///
    /// # Safety
    /// `outputs` of `row` lie in the rectangle of the calling task, and the slice is dropped before the next call.
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    unsafe fn part(&self, row: usize, outputs: Range<usize>) -> &mut [f32] {
        assert!(row < self.rows && outputs.start <= outputs.end && outputs.end <= self.outputs);
        // SAFETY: by the assertion the range lies within the rows * outputs elements behind `first`, borrowed
        // exclusively for as long as this exists; rectangles of tasks do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.outputs + outputs.start), outputs.len()) }
    }
}

struct Task<'a, T, X> {
    target: &'a Target,
    x: &'a X,
    w: &'a [T],
    finish: Finish<'a>,
    rows: Range<usize>,
    outputs: Range<usize>,
    panels: &'a mut [f32],
}

impl<T: Element, X: Source> WithSimd for Task<'_, T, X> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { target, x, w, finish, rows, outputs, panels } = self;
        let width = 2 * S::F32_LANES;
        let (segments, depth) = (x.segments(), x.depth());
        let mut runs: [&[f32]; STRIPE] = [&[]; STRIPE];
        for segment in 0..segments {
            for start in (0..depth).step_by(DEPTH) {
                let columns = start..depth.min(start + DEPTH);
                let first = segment == 0 && start == 0;
                let last = segment + 1 == segments && columns.end == depth;
                let at = segment * depth + start;
                let size = columns.len() * width;
                for (i, panel) in panels.chunks_exact_mut(size).take(outputs.len().div_ceil(width)).enumerate() {
                    let output = outputs.start + i * width;
                    let w = &w[output * segments * depth..outputs.end * segments * depth];
                    fill_panel(panel, width, columns.len(), w, at, segments * depth);
                }
                for row in rows.clone().step_by(STRIPE) {
                    let count = STRIPE.min(rows.end - row);
                    for (i, run) in runs[..count].iter_mut().enumerate() {
                        *run = &x.run(row + i, segment)[columns.clone()];
                    }
                    for (panel, output) in panels.chunks_exact(size).zip(outputs.clone().step_by(width)) {
                        let part = output..outputs.end.min(output + width);
                        let panel = S::as_simd_f32s(panel).0;
                        for (i, runs) in runs[..count].chunks(ROWS).enumerate() {
                            let place = Place { target, row: row + i * ROWS, part: part.clone(), first, last, finish };
                            match runs.len() {
                                1 => place.tile::<S, 1>(simd, runs, panel),
                                2 => place.tile::<S, 2>(simd, runs, panel),
                                3 => place.tile::<S, 3>(simd, runs, panel),
                                4 => place.tile::<S, 4>(simd, runs, panel),
                                5 => place.tile::<S, 5>(simd, runs, panel),
                                _ => place.tile::<S, ROWS>(simd, runs, panel),
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Copies `depth` columns from `at` of up to `width` rows of w, `stride` apart, to panel `[depth][width]`.
#[inline(always)]
fn fill_panel<T: Element>(panel: &mut [f32], width: usize, depth: usize, w: &[T], at: usize, stride: usize) {
    let mut widened = [0.0; DEPTH];
    let widened = &mut widened[..depth];
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

/// Where a tile of y lies, and what happens before the first and after the last of its terms.
struct Place<'a> {
    target: &'a Target,
    row: usize,
    part: Range<usize>,
    first: bool,
    last: bool,
    finish: Finish<'a>,
}

impl Place<'_> {
    /// Adds the products of N runs with a panel.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(&self, simd: S, runs: &[&[f32]], panel: &[S::f32s]) {
        let panel = panel.as_chunks::<2>().0;
        let depth = panel.len();
        let runs: [&[f32]; N] = std::array::from_fn(|i| &runs[i][..depth]);
        // SAFETY: the tile lies in the rectangle of this task; rows are taken one at a time.
        #[allow(unsafe_code)]
        let row = |i: usize| unsafe { self.target.part(self.row + i, self.part.clone()) };

        let mut sums = [[simd.splat_f32s(0.0); 2]; N];
        if !self.first || self.finish.add {
            for (i, sums) in sums.iter_mut().enumerate() {
                *sums = load(simd, row(i));
            }
        }
        if let (true, Some(bias)) = (self.first, self.finish.bias) {
            let bias = load(simd, &bias[self.part.clone()]);
            for sums in &mut sums {
                *sums = std::array::from_fn(|j| simd.add_f32s(sums[j], bias[j]));
            }
        }
        for k in 0..depth {
            for (sums, run) in sums.iter_mut().zip(runs) {
                multiply_add(simd, sums, run[k], &panel[k]);
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            let row = row(i);
            store(simd, row, sums);
            if self.last {
                activate(row, self.finish.activation);
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
