//! What can go wrong in the network.

use periplus_kernels::device::{DeviceError, is_out_of_memory};

use periplus_checkpoint::CheckpointError;
use periplus_checkpoint::config::ConfigError;
use periplus_units::Bytes;

/// Why loading a model or running a frame failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The weights.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device to run on.
    #[error(transparent)]
    Device(DeviceError),
    /// A device that is neither the CPU nor an NVIDIA GPU.
    #[error("there are no kernels for {0}: compute on the CPU or an NVIDIA GPU")]
    UnsupportedDevice(String),
    /// The key-value cache.
    #[error(transparent)]
    Cache(#[from] periplus_cache::Error),
    /// Main memory has no room for the weights.
    #[error("there is no memory for the weights ({}): use a 16-bit dtype or a smaller network", Bytes(*bytes))]
    OutOfMemory {
        /// Bytes of the weights.
        bytes: u64,
    },
    /// A GPU has no memory left for weights, or for the tensors of a frame.
    #[error("the GPU has no memory left: use smaller pictures, a smaller window, a 16-bit dtype or the CPU")]
    GpuFull,
    /// A tensor operation: a device that failed, or an operand that it cannot take.
    #[error("a tensor operation failed: {0}")]
    Tensor(candle_core::Error),
    /// Frames of a shape that the network cannot take.
    #[error(
        "frames must be [frames, height, width, 3] bytes with sides that are multiples of {patch} pixels, but are {found}"
    )]
    FrameShape {
        /// Side of a patch, in pixels.
        patch: usize,
        /// What was given.
        found: String,
    },
    /// A later frame differs in size from the first.
    #[error("a frame of {found} pixels cannot follow frames of {expected}: a stream keeps one size, reset it first")]
    FrameSize {
        /// Width x height of the stream.
        expected: String,
        /// Width x height of the frame.
        found: String,
    },
    /// A number of frames other than what the passes of the batch take.
    #[error("these videos take {expected} frames together, but {found} were given")]
    FrameCount {
        /// Frames that the passes take.
        expected: usize,
        /// Frames given.
        found: usize,
    },
    /// A state made for another model.
    #[error("the state of this video belongs to another model: make a new one for each model")]
    OtherModel,
    /// A state on another device or CUDA stream than the workspace.
    #[error(
        "the state of this video is on another device or CUDA stream than the workspace: a batch needs one for all"
    )]
    OtherStream,
    /// A dtype that weights cannot be stored in.
    #[error("weights are stored in f32, bf16 or f16, not in {0:?}")]
    DType(candle_core::DType),
    /// Attention heads for which there is no GPU kernel.
    #[error("there is no GPU kernel for the {place}'s heads of {width} channels in {dtype:?}: compute on the CPU")]
    HeadWidth {
        /// Which part of the network.
        place: &'static str,
        /// Channels of a head.
        width: usize,
        /// Their dtype.
        dtype: candle_core::DType,
    },
    /// Weights that are too large for float16, in which a GPU also stores the dense heads of a bfloat16 model.
    #[error("weights of {place} are too large for float16: use float32")]
    Float16 {
        /// Prefix of the tensor names.
        place: String,
    },
    /// Settings that no stream can have.
    #[error(transparent)]
    Settings(#[from] ConfigError),
}

impl From<candle_core::Error> for ModelError {
    fn from(error: candle_core::Error) -> Self {
        match CheckpointError::from_candle(error) {
            Ok(error) => Self::Checkpoint(error),
            Err(error) if is_out_of_memory(&error) => Self::GpuFull,
            Err(error) => Self::Tensor(error),
        }
    }
}

impl From<DeviceError> for ModelError {
    fn from(error: DeviceError) -> Self {
        if matches!(error, DeviceError::OutOfMemory) { Self::GpuFull } else { Self::Device(error) }
    }
}
