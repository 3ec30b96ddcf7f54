//! The CPU side of the operations, on slices whose sizes have been checked.

// `pulp` enables an instruction set for one function. Code must be inlined into that function to be compiled for it.
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

/// The epilogue of a gemm: what happens to its sums before they are stored.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether the sums are added to the old values of y.
    pub(crate) add: bool,
    pub(crate) activation: Activation,
}
