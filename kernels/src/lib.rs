//! The operations of the network that deserve code of their own, as functions over Candle tensors.
//!
//! One operation family a file. Layouts are channels-last throughout, so that a linear layer, a 1 x 1
//! convolution and an attention projection are the same product and nothing is ever transposed:
//! tokens are `[.., tokens, channels]`, heads `[.., heads, head_dim]`, pictures `[frames, height, width, channels]`.
//! Arithmetic on the CPU is float32; weights and pages may be stored in float32, bfloat16 or float16. On NVIDIA cards
//! (feature `cuda`) the tokens that a product reads and writes are stored as its weights are, sums are float32, and what
//! blocks add to stays float32.
//!
//! Every function checks shapes before it computes and answers a Candle error that names them. Operands must be
//! contiguous; what is computed in place must not share its memory with another operand. Work is spread over
//! the threads of the current rayon pool, and results do not depend on how many there are.
//!
//! The files here hold the checked functions and their Candle ops, `cpu` what those ops compute on slices, `cuda` what
//! they launch.

pub mod attention;
pub mod conv;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
pub mod linear;
pub mod modulation;
pub mod norm;
mod operand;
pub mod pages;
pub mod patches;
pub mod prediction;
pub mod readback;
pub mod resample;
pub mod rotary;
pub mod tokens;
mod types;

pub use operand::try_zeros;
