//! Memory of a device: how much is used, whether an error means that there is none left, and giving it back.

use candle_core::{Device, Result};

/// Whether an operation failed because the GPU is out of memory.
pub fn is_out_of_memory(error: &candle_core::Error) -> bool {
    #[cfg(feature = "cuda")]
    return cuda::is_out_of_memory(error);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = error;
        false
    }
}

/// Whether `bytes` can be allocated in main memory as one block. Check this before Candle allocates a large tensor on
/// the CPU: when that allocation fails, the program aborts.
pub fn main_memory_holds(bytes: u64) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}

/// Waits for the CUDA stream of `device`, then returns freed GPU memory to the driver, as far as whole blocks of it are
/// free. This can turn many small free pieces into large ones. Does nothing on the CPU.
///
/// # Errors
/// When the GPU has failed.
pub fn trim_memory_pool(device: &Device) -> Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => cuda::trim_memory_pool(cuda),
        _ => Ok(()),
    }
}

/// Bytes of GPU memory in use by any process; `None` for the CPU. Memory that this process has freed but keeps for
/// later allocations counts as used.
///
/// # Errors
/// When the GPU has failed.
pub fn memory_used(device: &Device) -> Result<Option<u64>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => cuda::memory_used(cuda).map(Some),
        _ => Ok(None),
    }
}

#[cfg(feature = "cuda")]
pub(super) mod cuda {
    // Calls of the driver for which candle and cudarc have no safe function.
    #![allow(unsafe_code)]

    use candle_core::Result;
    use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, sys};
    use candle_core::cuda_backend::{CudaDevice, CudaError, WrapErr};
    use std::ffi::c_void;

    /// More than the libraries that Candle opens with a CUDA stream need; they take 67 MB on an H200.
    const LIBRARIES: usize = 256 << 20;
    const OUT_OF_MEMORY: DriverError = DriverError(sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY);

    /// The CUDA error in a Candle error, if there is one.
    pub(in crate::device) fn cuda_error(error: &candle_core::Error) -> Option<&CudaError> {
        match error {
            candle_core::Error::WithBacktrace { inner, .. } | candle_core::Error::Context { inner, .. } => {
                cuda_error(inner)
            }
            candle_core::Error::Cuda(error) => error.downcast_ref(),
            _ => None,
        }
    }

    pub(super) fn is_out_of_memory(error: &candle_core::Error) -> bool {
        matches!(cuda_error(error), Some(CudaError::Cuda(OUT_OF_MEMORY)))
    }

    /// Whether the GPU has less free memory than the libraries may need.
    pub(in crate::device) fn is_full(ordinal: usize) -> bool {
        let free = CudaContext::new(ordinal).and_then(|context| {
            context.bind_to_thread()?;
            free_and_total()
        });
        match free {
            Ok((free, _)) => free < LIBRARIES,
            Err(error) => error == OUT_OF_MEMORY,
        }
    }

    /// Makes the pool keep freed memory in the process, so the next frame gets it without a system call.
    pub(in crate::device) fn keep_freed_memory(device: &CudaDevice) -> Result<()> {
        let mut kept = u64::MAX;
        // SAFETY: the pool belongs to the device, and the attribute is a 64-bit integer.
        unsafe {
            sys::cuMemPoolSetAttribute(
                pool_of(device)?,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut kept).cast::<c_void>(),
            )
        }
        .result()
        .w()
    }

    /// The memory pool that the device allocates from.
    fn pool_of(device: &CudaDevice) -> Result<sys::CUmemoryPool> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: the call writes the device's pool to `pool`.
        unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device.cuda_stream().context().ordinal() as i32) }
            .result()
            .w()?;
        Ok(pool)
    }

    pub(super) fn trim_memory_pool(device: &CudaDevice) -> Result<()> {
        crate::cuda::foreign::synchronize(device)?;
        // SAFETY: the pool belongs to the device, and the call keeps what is in use.
        unsafe { sys::cuMemPoolTrimTo(pool_of(device)?, 0) }.result().w()
    }

    pub(super) fn memory_used(device: &CudaDevice) -> Result<u64> {
        device.cuda_stream().context().bind_to_thread().w()?;
        let (free, total) = free_and_total().w()?;
        Ok((total - free) as u64)
    }

    fn free_and_total() -> std::result::Result<(usize, usize), DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes one integer to each place.
        unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) }.result()?;
        Ok((free, total))
    }
}
