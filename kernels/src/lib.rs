//! The operations of the network that deserve code of their own, as functions over Candle tensors.
//!
//! One operation family a file. Layouts are channels-last throughout, so that a linear layer, a 1 x 1
//! convolution and an attention projection are the same product and nothing is ever transposed:
//! tokens are `[.., tokens, channels]`, heads `[.., heads, head_dim]`, pictures `[frames, height, width, channels]`.
//! Arithmetic on the CPU is float32; weights and pages may be stored in float32, bfloat16 or float16.

pub mod attention;
pub mod conv;
pub mod linear;
pub mod norm;
pub mod pages;
pub mod resample;
pub mod rotary;
