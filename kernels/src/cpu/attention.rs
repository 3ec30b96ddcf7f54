//! Attention on the CPU, with a running softmax (Milakov & Gimelshein, arXiv 1805.02867) over tiles of keys, as in
//! FlashAttention (arXiv 2205.14135).
//!
//! SIMD lanes run over queries. The queries of a task are transposed once to `[head_dim][queries]`. A score then is a
//! sum of broadcast key elements times vectors of queries, and an output is a sum of broadcast value elements times
//! vectors of probabilities. Keys and values need no transposition, and maxima and sums over keys are vertical SIMD
//! operations.

use super::math::{exp2, multiply_add};
use crate::operand::Element;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::cell::RefCell;

/// Queries: `qkv[:, 0]` of qkv `[tokens, 3, heads, dim]`.
pub(crate) struct Queries<'a> {
    pub(crate) qkv: &'a [f32],
    pub(crate) heads: usize,
    pub(crate) dim: usize,
}

/// Rows of keys and values `[heads, dim]`, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a, T> {
    pub(crate) keys: &'a [T],
    pub(crate) values: &'a [T],
    pub(crate) rows: usize,
    pub(crate) stride: usize,
}

/// Keys per tile. With heads of 64 channels, keys and values of a tile take 15 KiB each. One of them fits in an L1
/// cache of 32 KiB, together with the queries, scores and outputs of one group.
const TILE: usize = 60;
/// Vectors of queries, and rows of keys or values, per register tile: 12 accumulators, 2 queries and 2 broadcasts fill
/// the 16 registers of AVX2, and each 8 loads feed 12 multiply-adds.
const VECTORS: usize = 2;
const ROWS: usize = 6;
/// Channels per bounds check.
const UNROLLED: usize = 4;
/// A number of queries that every vector width up to 16 divides into whole groups of `VECTORS` vectors.
const GROUP: usize = 16 * VECTORS;
/// Maximum queries per task. Rows of keys are kilobytes apart, so copying a tile costs as much as computing it for 60
/// queries; with this many queries the copy no longer matters. Their transposed queries and outputs (416 KiB with heads
/// of 64 channels) are read once per tile, for which even the L3 cache is fast enough.
const BLOCK: usize = 26 * GROUP;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// y `[tokens, heads, dim]` = attention of the queries over all rows of the spans.
pub(crate) fn attend<T: Element>(y: &mut [f32], queries: &Queries<'_>, spans: &[Span<'_, T>]) {
    let &Queries { heads, dim, .. } = queries;
    if y.is_empty() {
        return;
    }
    let tokens = y.len() / (heads * dim);
    // Enough tasks for all threads to finish at about the same time.
    let block = (tokens * heads / (4 * rayon::current_num_threads())).next_multiple_of(GROUP).clamp(GROUP, BLOCK);
    let blocks = tokens.div_ceil(block);
    let mut outputs = vec![0.0; heads * blocks * block * dim];
    outputs.par_chunks_mut(block * dim).enumerate().for_each(|(task, output)| {
        let (head, first) = (task / blocks, task % blocks * block);
        let count = block.min(tokens - first);
        let output = &mut output[..count * dim];
        SCRATCH.with_borrow_mut(|scratch| {
            Arch::new().dispatch(Task { output, queries, spans, head, first, count, scratch });
        });
    });
    y.par_chunks_mut(dim).enumerate().with_min_len(64).for_each(|(i, y)| {
        let (token, head) = (i / heads, i % heads);
        let row = (head * blocks + token / block) * block + token % block;
        y.copy_from_slice(&outputs[row * dim..][..dim]);
    });
}

/// Attention of queries `first..first + count` of one head; output `[count, dim]`.
struct Task<'a, T> {
    output: &'a mut [f32],
    queries: &'a Queries<'a>,
    spans: &'a [Span<'a, T>],
    head: usize,
    first: usize,
    count: usize,
    scratch: &'a mut Vec<f32>,
}

impl<T: Element> WithSimd for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { output, queries, spans, head, first, count, scratch } = self;
        let &Queries { qkv, heads, dim } = queries;
        let padded_dim = dim.next_multiple_of(ROWS);
        let lanes = VECTORS * S::F32_LANES;
        let groups = count.div_ceil(lanes);

        // Each lane of a vector has one query. A group has `VECTORS` vectors, the last group maybe fewer
        // (`vectors_of`); memory for the last group is as large as for the others.
        let sizes = [
            groups * dim * lanes,        // queries [groups][dim][vectors of the group][lanes of a vector]
            groups * padded_dim * lanes, // output sums, same layout
            2 * groups * lanes,          // [groups][maxima, totals][lanes]
            TILE * lanes,                // scores of a tile for one group
            TILE * dim,                  // keys of a tile
            TILE * padded_dim,           // values of a tile
        ];
        let needed = sizes.iter().sum::<usize>() + 16;
        if scratch.len() < needed {
            scratch.resize(needed, 0.0);
        }
        let aligned = scratch.as_ptr().align_offset(64).min(16);
        let (query, rest) = scratch[aligned..].split_at_mut(sizes[0]);
        let (sums, rest) = rest.split_at_mut(sizes[1]);
        let (state, rest) = rest.split_at_mut(sizes[2]);
        let (scores, rest) = rest.split_at_mut(sizes[3]);
        let (keys, rest) = rest.split_at_mut(sizes[4]);
        let values = &mut rest[..sizes[5]];

        // Probabilities are powers of two: exp(s / sqrt(dim)) = exp2(s log2(e) / sqrt(dim)).
        let scale = std::f32::consts::LOG2_E / (dim as f32).sqrt();
        query.fill(0.0);
        for i in 0..count {
            let row = &qkv[((first + i) * 3 * heads + head) * dim..][..dim];
            let (group, vectors) = (i / lanes, vectors_of::<S>(i / lanes, count));
            let query = &mut query[group * dim * lanes + i % lanes..];
            for (query, x) in query.iter_mut().step_by(vectors * S::F32_LANES).zip(row) {
                *query = x * scale;
            }
        }
        sums.fill(0.0);
        for state in state.chunks_exact_mut(2 * lanes) {
            let (maximum, total) = state.split_at_mut(lanes);
            maximum.fill(f32::NEG_INFINITY);
            total.fill(0.0);
        }

        let mut tiles = Tiles { spans, head, dim, padded_dim, row: 0 };
        loop {
            let rows = tiles.next(keys, values);
            if rows == 0 {
                break;
            }
            let query = query.chunks_exact(dim * lanes);
            let sums = sums.chunks_exact_mut(padded_dim * lanes);
            let state = state.chunks_exact_mut(2 * lanes);
            for (group, ((query, sums), state)) in query.zip(sums).zip(state).enumerate() {
                let tile = Tile { keys, values, rows, dim, padded_dim };
                let query = S::as_simd_f32s(query).0;
                let sums = S::as_mut_simd_f32s(sums).0;
                let state = S::as_mut_simd_f32s(state).0;
                let scores = S::as_mut_simd_f32s(scores).0;
                match vectors_of::<S>(group, count) {
                    1 => step::<S, 1>(simd, &tile, query, sums, state, scores),
                    _ => step::<S, VECTORS>(simd, &tile, query, sums, state, scores),
                }
            }
        }

        for (i, output) in output.chunks_exact_mut(dim).enumerate() {
            let (group, vectors) = (i / lanes, vectors_of::<S>(i / lanes, count));
            let total = state[group * 2 * lanes + lanes + i % lanes];
            let sums = &sums[group * padded_dim * lanes + i % lanes..];
            for (output, sum) in output.iter_mut().zip(sums.iter().step_by(vectors * S::F32_LANES)) {
                *output = sum / total;
            }
        }
    }
}

/// Number of vectors in a group: the last group may have fewer.
#[inline(always)]
fn vectors_of<S: Simd>(group: usize, count: usize) -> usize {
    (count - group * VECTORS * S::F32_LANES).div_ceil(S::F32_LANES).min(VECTORS)
}

/// Cuts the concatenated rows of all spans into tiles, converted to float32.
struct Tiles<'a, T> {
    spans: &'a [Span<'a, T>],
    head: usize,
    dim: usize,
    padded_dim: usize,
    row: usize,
}

impl<T: Element> Tiles<'_, T> {
    /// Fills the next tile and returns its number of rows; 0 after the last tile. The padding of value rows, and of key
    /// rows up to a multiple of `ROWS`, keeps old contents; the results of the padding are never read.
    #[inline(always)]
    fn next(&mut self, keys: &mut [f32], values: &mut [f32]) -> usize {
        let mut filled = 0;
        while let (Some(span), true) = (self.spans.first(), filled < TILE) {
            let count = (span.rows - self.row).min(TILE - filled);
            for i in 0..count {
                let at = (self.row + i) * span.stride + self.head * self.dim;
                T::widen(&span.keys[at..][..self.dim], &mut keys[(filled + i) * self.dim..][..self.dim]);
                T::widen(&span.values[at..][..self.dim], &mut values[(filled + i) * self.padded_dim..][..self.dim]);
            }
            filled += count;
            self.row += count;
            if self.row == span.rows {
                self.row = 0;
                self.spans = &self.spans[1..];
            }
        }
        filled
    }
}

struct Tile<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    rows: usize,
    dim: usize,
    padded_dim: usize,
}

/// One tile of keys for one group of queries: query `[dim][N]`, sums `[padded_dim][N]`, state `[maxima, totals][N]`.
#[inline(always)]
fn step<S: Simd, const N: usize>(
    simd: S,
    tile: &Tile<'_>,
    query: &[S::f32s],
    sums: &mut [S::f32s],
    state: &mut [S::f32s],
    scores: &mut [S::f32s],
) {
    let &Tile { keys, values, rows, dim, padded_dim } = tile;
    let query = &query.as_chunks::<N>().0[..dim];
    let scores = scores.as_chunks_mut::<N>().0;

    let padded_rows = rows.next_multiple_of(ROWS);
    for (keys, scores) in keys.chunks_exact(ROWS * dim).zip(scores[..padded_rows].as_chunks_mut::<ROWS>().0) {
        let mut sum = [[simd.splat_f32s(0.0); N]; ROWS];
        let keys: [_; ROWS] = std::array::from_fn(|row| keys[row * dim..][..dim].as_chunks::<UNROLLED>());
        let (steps, rest) = query.as_chunks::<UNROLLED>();
        for (step, query) in steps.iter().enumerate() {
            let keys: [_; ROWS] = std::array::from_fn(|row| &keys[row].0[step]);
            for (i, query) in query.iter().enumerate() {
                for (sum, keys) in sum.iter_mut().zip(keys) {
                    multiply_add(simd, sum, keys[i], query);
                }
            }
        }
        for (i, query) in rest.iter().enumerate() {
            for (sum, keys) in sum.iter_mut().zip(keys) {
                multiply_add(simd, sum, keys.1[i], query);
            }
        }
        *scores = sum;
    }

    let scores = &mut scores[..rows];
    let (maxima, totals) = state.split_at_mut(VECTORS);
    let mut maximum: [S::f32s; N] = std::array::from_fn(|j| maxima[j]);
    for scores in &*scores {
        for (maximum, &score) in maximum.iter_mut().zip(scores) {
            *maximum = simd.max_f32s(*maximum, score);
        }
    }
    let shrink: [S::f32s; N] = std::array::from_fn(|j| exp2(simd, simd.sub_f32s(maxima[j], maximum[j])));
    // The sums of a tile start at zero and are added to the running sums once. With tens of thousands of keys, adding
    // each term to a large running sum would accumulate thousands of rounding errors of its magnitude.
    let mut total = [simd.splat_f32s(0.0); N];
    for scores in &mut *scores {
        for ((score, total), &maximum) in scores.iter_mut().zip(&mut total).zip(&maximum) {
            *score = exp2(simd, simd.sub_f32s(*score, maximum));
            *total = simd.add_f32s(*total, *score);
        }
    }
    maxima[..N].copy_from_slice(&maximum);
    for j in 0..N {
        totals[j] = simd.mul_add_e_f32s(totals[j], shrink[j], total[j]);
    }

    let sums = &mut sums.as_chunks_mut::<N>().0[..padded_dim];
    for (i, sums) in sums.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
        let mut sum = [[simd.splat_f32s(0.0); N]; ROWS];
        for (values, scores) in values.chunks_exact(padded_dim).zip(&*scores) {
            let values = &values[i * ROWS..][..ROWS];
            for (sum, &value) in sum.iter_mut().zip(values) {
                multiply_add(simd, sum, value, scores);
            }
        }
        for (sums, sum) in sums.iter_mut().zip(sum) {
            for j in 0..N {
                sums[j] = simd.mul_add_e_f32s(sums[j], shrink[j], sum[j]);
            }
        }
    }
}
