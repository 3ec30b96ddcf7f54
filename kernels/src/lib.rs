//! The operations of the network: functions over Candle tensors, with CPU and CUDA kernels of their own.
//!
//! Each file has one family of operations. Layouts are channels-last everywhere, so a linear layer, a 1 x 1 convolution
//! and an attention projection are all the same gemm, and nothing is ever transposed: tokens are `[.., tokens,
//! channels]`, heads `[.., heads, head_dim]`, pictures `[frames, height, width, channels]`.
//!
//! On the CPU, arithmetic is float32; weights and pages may be stored as float32, bfloat16 or float16. On NVIDIA GPUs
//! (feature `cuda`), a gemm reads and writes tokens in the dtype of its weights and sums in float32; the residual
//! stream, which blocks add to, is float32.
//!
//! Every function checks shapes before it computes, and returns a Candle error that names them. Operands must be
//! contiguous. An operand that is changed in place must not share its memory with another operand. Work is spread over
//! the threads of the current rayon pool; results do not depend on the number of threads.
//!
//! The files in this folder have the public functions and their Candle ops. `cpu` computes on slices, `cuda` launches
//! kernels.

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
