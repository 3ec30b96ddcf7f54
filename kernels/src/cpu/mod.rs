//! What the operations compute on the CPU, on slices whose sizes have been checked.

// Code that `pulp` compiles for an instruction set must be inlined into the function that has it enabled.
#![allow(clippy::inline_always)]

pub(crate) mod attention;
pub(crate) mod conv;
mod gemm;
mod gemv;
pub(crate) mod linear;
mod math;
pub(crate) mod modulation;
pub(crate) mod norm;
mod output_tile;
pub(crate) mod patches;
pub(crate) mod prediction;
pub(crate) mod resample;
pub(crate) mod rotary;

use crate::types::Activation;
pub(crate) use math::par_activate;

/// What becomes of the sums.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether the sums are added to what y holds.
    pub(crate) add: bool,
    pub(crate) activation: Activation,
}
