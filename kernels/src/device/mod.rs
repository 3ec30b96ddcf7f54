//! Devices: opening a GPU, CUDA streams, memory, and events to measure time.

#[cfg(feature = "cuda")]
mod cuda_streams;
mod error;
mod event;
mod memory;

use candle_core::Device;
#[cfg(feature = "cuda")]
pub use cuda_streams::{cuda_stream, open_cuda, usable_cuda_stream};
pub use error::DeviceError;
pub use event::Event;
pub use memory::{is_out_of_memory, main_memory_holds, memory_used, trim_memory_pool};

/// The fastest device: the first NVIDIA GPU if this build has kernels for it and it works, else the CPU. In the second case
/// also the reason why a GPU that may be there is not used.
pub fn best() -> (Device, Option<DeviceError>) {
    match open_cuda(0) {
        Ok(gpu) => (gpu, None),
        Err(DeviceError::NotBuilt | DeviceError::NoDriver | DeviceError::NoGpu) => (Device::Cpu, None),
        Err(reason) => (Device::Cpu, Some(reason)),
    }
}

/// Makes the GPU of `device` current for this thread. GPU memory is freed by the thread that drops a tensor: call this first in a
/// thread that may never have used the GPU.
pub fn bind_to_thread(device: &Device) {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device {
        // The first call may return, and so clear, the error of an earlier drop.
        let context = cuda.cuda_stream().context().clone();
        let _ = context.bind_to_thread().or_else(|_| context.bind_to_thread());
    }
    #[cfg(not(feature = "cuda"))]
    let _ = device;
}

/// Waits until all work submitted to the CUDA stream of `device` is done, and lets go of the weights and other operands of other
/// streams that it has read. On the CPU there is nothing to wait for.
///
/// # Errors
/// When the GPU has failed.
pub fn synchronize(device: &Device) -> candle_core::Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => crate::cuda::foreign::synchronize(cuda),
        _ => Ok(()),
    }
}

/// Opens an NVIDIA GPU, numbered from 0, with a [CUDA stream](cuda_stream) of its own.
///
/// # Errors
/// [`DeviceError::NotBuilt`].
#[cfg(not(feature = "cuda"))]
pub fn open_cuda(_ordinal: usize) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt)
}

/// The same GPU as `device` with another CUDA stream. On the CPU, `device` itself.
///
/// # Errors
/// None in a build without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub fn cuda_stream(device: &Device) -> Result<Device, DeviceError> {
    Ok(device.clone())
}

/// `device` itself if its CUDA stream was opened by this module, else the same GPU with a new [`cuda_stream`].
///
/// # Errors
/// None in a build without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub fn usable_cuda_stream(device: &Device) -> Result<Device, DeviceError> {
    Ok(device.clone())
}
