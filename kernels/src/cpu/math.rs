//! Vectorisable elementary functions (erf, exp2, activations), and reductions.

use crate::types::Activation;
use pulp::{Arch, Simd};
use rayon::prelude::*;

/// erf(x) = x P(x²) / Q(x²) on |x| <= 3.9, where it reaches 1 to within half an ulp. Coefficients are a minimax fit in
/// float64 (Lawson's reweighted linear least squares on Chebyshev nodes, relative error 1.8e-8), in rising order.
#[allow(clippy::approx_constant)] // a coefficient of a fit is close to the constant
const ERF_P: [f32; 6] =
    [1.128_379_1, 0.189_668_7, 0.052_668_333, 0.003_738_427_8, 0.000_285_064_28, 0.000_002_066_461_5];
const ERF_Q: [f32; 6] = [1.0, 0.501_422_3, 0.113_819_73, 0.014_914_439, 0.001_157_396_5, 0.000_038_270_01];

#[inline(always)]
fn polynomial<const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    coefficients.iter().rev().fold(0.0, |sum: f32, &c| sum.mul_add(x, c))
}

#[inline(always)]
fn erf(x: f32) -> f32 {
    let x = x.clamp(-3.9, 3.9);
    let t = x * x;
    x * polynomial(ERF_P, t) / polynomial(ERF_Q, t)
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Applies an activation to every element. Compiled for the instruction set that the caller was dispatched to.
#[inline(always)]
pub(super) fn activate(x: &mut [f32], activation: Activation) {
    match activation {
        Activation::Identity => {}
        Activation::Gelu => x.iter_mut().for_each(|x| *x = gelu(*x)),
        // Not `max`, which turns NaN into 0.
        Activation::Relu => x.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x }),
        Activation::Silu => x.iter_mut().for_each(|x| *x /= 1.0 + (-*x).exp()),
    }
}

/// sum += factor * vectors
#[inline(always)]
pub(super) fn multiply_add<S: Simd, const N: usize>(
    simd: S,
    sum: &mut [S::f32s; N],
    factor: f32,
    vectors: &[S::f32s; N],
) {
    let factor = simd.splat_f32s(factor);
    for (sum, &vector) in sum.iter_mut().zip(vectors) {
        *sum = simd.mul_add_e_f32s(factor, vector, *sum);
    }
}

/// Elements per task: 64 KiB, enough to hide the cost of scheduling.
const CHUNK: usize = 1 << 14;

/// [`activate`], parallel.
pub(crate) fn par_activate(x: &mut [f32], activation: Activation) {
    if activation != Activation::Identity {
        x.par_chunks_mut(CHUNK).for_each(|x| Arch::new().dispatch(|| activate(x, activation)));
    }
}

/// Sum of f(x) in 16 partial sums, which vectorises and rounds less.
#[inline(always)]
pub(super) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += f(x));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &x)| *lane += f(x));
    lanes.iter().sum()
}

/// Mean and 1 / sqrt(variance + eps), in two passes over x.
#[inline(always)]
pub(super) fn moments(x: &[f32], eps: f32) -> (f32, f32) {
    let count = x.len() as f32;
    let mean = sum(x, |x| x) / count;
    let variance = sum(x, |x| (x - mean) * (x - mean)) / count;
    (mean, 1.0 / (variance + eps).sqrt())
}

/// Minimax polynomial of 2^x on [-1/2, 1/2] (Remez exchange in float64, relative error 1.9e-9), in rising order.
#[allow(clippy::approx_constant)] // a coefficient of a fit is close to the constant
const EXP2: [f32; 7] =
    [1.0, 0.693_147_2, 0.240_226_47, 0.055_503_288, 0.009_618_489, 0.001_339_993_1, 0.000_153_458_12];

/// 2^x for x <= 0; below -126 it stays at 2^-126. NaN stays NaN.
#[inline(always)]
pub(super) fn exp2<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // x is the second operand because the x86 maximum returns the second operand when one is NaN.
    let x = simd.max_f32s(simd.splat_f32s(-126.0), x);
    // Adding 1.5 * 2^23 rounds to an integer n. With the exponent bias 127 added as well, the low bits of the sum are
    // the biased exponent of 2^n.
    let shift = simd.splat_f32s(12_582_912.0 + 127.0);
    let shifted = simd.add_f32s(x, shift);
    let fraction = simd.sub_f32s(x, simd.sub_f32s(shifted, shift));
    let bits = simd.transmute_u32s_f32s(shifted);
    let power = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23)));
    let mut sum = simd.splat_f32s(EXP2[6]);
    for &c in EXP2[..6].iter().rev() {
        sum = simd.mul_add_e_f32s(sum, fraction, simd.splat_f32s(c));
    }
    simd.mul_f32s(sum, power)
}
