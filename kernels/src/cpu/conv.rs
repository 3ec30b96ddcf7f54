//! Convolutions on the CPU, and the other picture operations of a dense head.

use super::Finish;
use super::gemm::{Source, gemm};
use super::linear::linear;
use crate::operand::Element;
use crate::types::Window;
use rayon::prelude::*;

/// The kernel-sized neighbourhoods of output pixels, as rows of a gemm, read in place from the picture.
struct Neighbourhoods<'a> {
    x: &'a [f32],
    window: &'a Window,
    /// The pixels outside the picture.
    outside: Vec<f32>,
}

impl Source for Neighbourhoods<'_> {
    fn rows(&self) -> usize {
        self.window.frames * self.window.output[0] * self.window.output[1]
    }
    fn segments(&self) -> usize {
        self.window.k * self.window.k
    }
    fn depth(&self) -> usize {
        self.window.input[2]
    }
    #[inline(always)]
    fn run(&self, pixel: usize, segment: usize) -> &[f32] {
        let &Window { input: [h, w, c], output: [height, width, _], k, stride, padding, .. } = self.window;
        let (line, column) = (pixel / width, pixel % width);
        let (frame, line) = (line / height, line % height);
        // Above and to the left of the picture, this wraps around to a large value.
        let row = (line * stride + segment / k).wrapping_sub(padding);
        let column = (column * stride + segment % k).wrapping_sub(padding);
        if row < h && column < w { &self.x[((frame * h + row) * w + column) * c..][..c] } else { &self.outside }
    }
}

/// The lines of neighbourhoods that are inside the picture everywhere: a few long runs instead of many short ones.
struct Lines<'a> {
    x: &'a [f32],
    window: &'a Window,
}

impl Source for Lines<'_> {
    fn rows(&self) -> usize {
        self.window.frames * self.window.output[0] * self.window.output[1]
    }
    fn segments(&self) -> usize {
        self.window.k
    }
    fn depth(&self) -> usize {
        self.window.k * self.window.input[2]
    }
    #[inline(always)]
    fn run(&self, pixel: usize, segment: usize) -> &[f32] {
        let &Window { input: [h, w, c], output: [height, width, _], k, stride, .. } = self.window;
        let (line, column) = (pixel / width, pixel % width);
        let (frame, line) = (line / height, line % height);
        &self.x[((frame * h + line * stride + segment) * w + column * stride) * c..][..k * c]
    }
}

/// Shapes of x and y as in `window`, weight `[out, k, k, in]`.
pub(crate) fn conv2d<T: Element>(y: &mut [f32], x: &[f32], weight: &[T], window: &Window, finish: Finish<'_>) {
    let &Window { input: [_, _, inputs], output: [_, _, outputs], k, stride, padding, .. } = window;
    if y.is_empty() {
    } else if inputs == 0 || (k == 1 && stride == 1 && padding == 0) {
        linear(y, x, weight, [outputs, inputs], finish);
    } else if padding == 0 {
        gemm(y, &Lines { x, window }, weight, finish);
    } else {
        gemm(y, &Neighbourhoods { x, window, outside: vec![0.0; inputs] }, weight, finish);
    }
}

/// x `[rows, w, k, k, channels]` -> y `[rows * k, w * k, channels]`.
pub(crate) fn depth_to_space(y: &mut [f32], x: &[f32], w: usize, k: usize, channels: usize) {
    if y.is_empty() {
        return;
    }
    let run = k * channels;
    y.par_chunks_mut(w * run).enumerate().for_each(|(row, y)| {
        let x = &x[row / k * w * k * run..][..w * k * run];
        for (y, x) in y.chunks_exact_mut(run).zip(x.chunks_exact(k * run)) {
            y.copy_from_slice(&x[row % k * run..][..run]);
        }
    });
}

/// x `[frames, h, w, c]` += (u `[w, c / 2]`, v `[h, c / 2]`).
pub(crate) fn add_plane(x: &mut [f32], u: &[f32], v: &[f32], h: usize, w: usize) {
    if x.is_empty() {
        return;
    }
    let half = u.len() / w;
    x.par_chunks_mut(w * 2 * half).enumerate().for_each(|(row, x)| {
        let v = &v[row % h * half..][..half];
        for (x, u) in x.chunks_exact_mut(2 * half).zip(u.chunks_exact(half)) {
            x.iter_mut().zip(u.iter().chain(v)).for_each(|(x, plane)| *x += plane);
        }
    });
}
