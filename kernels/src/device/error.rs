//! Errors of opening a GPU.

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The feature `cuda` is off.
    #[error("this build runs on the CPU only: build with --features cuda to use NVIDIA GPUs")]
    NotBuilt,
    /// No driver is installed.
    #[error("no NVIDIA driver found: install one for CUDA 13.0 or newer, or run on the CPU")]
    NoDriver,
    /// The driver is older than the CUDA version of the kernels.
    #[error(
        "the NVIDIA driver supports CUDA {major}.{minor} only: update it to one for CUDA 13.0 or newer, or run on the CPU"
    )]
    DriverTooOld {
        /// Major version of the newest CUDA that the driver supports.
        major: i32,
        /// Minor version of the newest CUDA that the driver supports.
        minor: i32,
    },
    /// The driver finds no GPU.
    #[error("the NVIDIA driver finds no GPU: check the output of nvidia-smi, or run on the CPU")]
    NoGpu,
    /// The ordinal is too large.
    #[error("there is no GPU {ordinal}: the driver finds {count}, numbered from 0")]
    NoSuchGpu {
        /// The GPU asked for.
        ordinal: usize,
        /// Number of GPUs.
        count: usize,
    },
    /// The kernels were not compiled for this GPU.
    #[error(
        "this build has no kernels for {name} (compute capability {major}.{minor}), only for {built}: build with \
         PERIPLUS_CUDA_ARCHITECTURES set to include it (8.0 is the oldest), or run on the CPU"
    )]
    Unsupported {
        /// The driver's name for the GPU.
        name: String,
        /// Major compute capability.
        major: i32,
        /// Minor compute capability.
        minor: i32,
        /// Architectures that the kernels were compiled for.
        built: &'static str,
    },
    /// cuBLAS or cuRAND, which Candle opens with every device, is missing.
    #[error(
        "CUDA's libraries cuBLAS and cuRAND cannot be opened ({0}): install those of CUDA 13 (libcublas.so.13, \
         libcurand.so.10) and check that LD_LIBRARY_PATH contains their folder, or run on the CPU"
    )]
    NoLibraries(candle_core::Error),
    /// The GPU has no memory left for another CUDA stream.
    #[error("the GPU is out of memory: stop other programs that use it, or run on the CPU")]
    OutOfMemory,
    /// Any other error of the GPU or its driver.
    #[error("the GPU cannot be used: {0}")]
    Refused(#[from] candle_core::Error),
}
