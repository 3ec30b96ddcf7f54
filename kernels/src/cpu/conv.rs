//! Convolutions and rearrangements of pictures.

use super::linear;
use super::math::activate;
use super::product::{Rows, add_product};
use crate::conv::Window;
use crate::linear::Activation;
use crate::operand::Element;
use gemm::Parallelism;
use rayon::prelude::*;
use std::cell::RefCell;

/// Elements of the gathered neighbourhoods of one block of pixels.
const GATHERED: usize = 1 << 18;

thread_local! {
    static NEIGHBOURHOODS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `y = activation(y + conv(x) + bias)`.
pub(crate) fn conv2d<T: Element>(
    y: &mut [f32],
    x: &[f32],
    weight: &[T],
    bias: Option<&[f32]>,
    window: &Window,
    activation: Activation,
) {
    let &Window { input: [_, _, c_in], output: [_, _, c_out], k, stride, padding, .. } = window;
    if y.is_empty() {
        return;
    }
    if k == 1 && stride == 1 && padding == 0 {
        linear::linear(y, x, weight, bias, &[c_out, c_in], activation);
        return;
    }
    let depth = k * k * c_in;
    let widened: Vec<f32>;
    let weight = if let Some(weight) = T::as_f32(weight) {
        weight
    } else {
        let mut all = vec![0.0; weight.len()];
        T::widen(weight, &mut all);
        widened = all;
        &widened
    };
    let block = (GATHERED / depth.max(1)).clamp(1, 256);
    y.par_chunks_mut(block * c_out).enumerate().for_each(|(i, y)| {
        if let Some(bias) = bias {
            y.chunks_exact_mut(c_out).for_each(|y| y.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
        if depth > 0 {
            NEIGHBOURHOODS.with_borrow_mut(|gathered| {
                gathered.resize(y.len() / c_out * depth, 0.0);
                for (j, to) in gathered.chunks_exact_mut(depth).enumerate() {
                    gather(to, x, window, i * block + j);
                }
                let gathered = Rows::dense(gathered, depth);
                add_product(y, c_out, gathered, Rows::dense(weight, depth), Parallelism::None);
            });
        }
        activate(y, activation);
    });
}

/// The neighbourhood `[k, k, in]` of the output pixel with number `pixel`, zeros outside the picture.
fn gather(to: &mut [f32], x: &[f32], window: &Window, pixel: usize) {
    let &Window { input: [h, w, c], output: [height, width, _], k, stride, padding, .. } = window;
    let (frame, row, column) = (pixel / (height * width), pixel / width % height, pixel % width);
    // Kernel columns that fall inside the picture.
    let left = column * stride;
    let first = padding.saturating_sub(left).min(k);
    let last = (w + padding).saturating_sub(left).clamp(first, k);
    for (i, to) in to.chunks_exact_mut(k * c).enumerate() {
        let y = row * stride + i;
        if y < padding || y >= h + padding || first == last {
            to.fill(0.0);
            continue;
        }
        let from = ((frame * h + y - padding) * w + left + first - padding) * c;
        to[..first * c].fill(0.0);
        to[first * c..last * c].copy_from_slice(&x[from..][..(last - first) * c]);
        to[last * c..].fill(0.0);
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
