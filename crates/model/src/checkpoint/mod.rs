//! Weights on disk and in memory: safetensors files, PyTorch files, synthetic weights.
//!
//! [`Weights`] is where the layers get their tensors from. What it holds has been compared with the configuration
//! when it was opened, so a tensor is there, in the shape that [`tensor_shapes`] gives. Files are mapped and read
//! one tensor at a time, and the pages that were read go back to the system.

mod error;
mod file;
mod float;
mod kind;
mod pickle;
mod pytorch;
mod safetensors;
mod shapes;
pub mod synthetic;
mod weights;
mod writer;

pub use error::{CheckpointError, ShapeMismatch};
pub(crate) use file::open_regular;
pub use float::FloatType;
pub(crate) use shapes::never_read;
pub use shapes::tensor_shapes;
pub use weights::Weights;
