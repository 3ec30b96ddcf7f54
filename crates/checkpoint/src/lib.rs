//! Checkpoints: configuration and weights, from safetensors files, PyTorch files or a seed.
//!
//! [`Weights`] opens a file, compares it with the configuration of its network, and is a backend of
//! [`VarBuilder`](candle_nn::VarBuilder), through which every Candle model gets its tensors. Files are mapped and
//! read one tensor at a time, and the pages that were read go back to the system.

pub mod config;
mod error;
mod file;
mod float;
mod kind;
mod names;
mod pickle;
mod pytorch;
mod room;
mod safetensors;
mod shapes;
mod shards;
pub mod synthetic;
mod var_builder;
mod weights;
mod writer;

pub use error::{CheckpointError, Sample, ShapeMismatch};
pub(crate) use file::open_regular;
pub use float::FloatType;
pub(crate) use shapes::never_read;
pub use shapes::tensor_shapes;
pub use weights::Weights;
