//! What the operations compute on the CPU, on slices whose sizes have been checked.

pub(crate) mod attention;
pub(crate) mod conv;
mod few;
pub(crate) mod linear;
mod math;
pub(crate) mod norm;
mod product;
pub(crate) mod resample;
pub(crate) mod rotary;

pub(crate) use math::par_activate;
