//! Readback: copies of results to main memory.

use candle_core::{Result, Tensor};

/// Copies tensors to main memory. On a GPU, all copies of a call run together through pinned memory, which is kept for
/// the next call, and the host waits once.
#[derive(Debug, Default)]
pub struct Readback {
    #[cfg(feature = "cuda")]
    staging: Option<gpu::Staging>,
}

impl Readback {
    /// The elements of each tensor, which must be float32 and contiguous. Waits for all work in their
    /// [CUDA stream](crate::device::cuda_stream).
    ///
    /// # Errors
    /// When a tensor is not contiguous or not float32, they belong to more than one CUDA stream, or the device
    /// has failed.
    pub fn read(&mut self, tensors: &[Tensor]) -> Result<Vec<Vec<f32>>> {
        match tensors.first().map(Tensor::device) {
            #[cfg(feature = "cuda")]
            Some(candle_core::Device::Cuda(device)) => gpu::read(device, &mut self.staging, tensors),
            _ => tensors.iter().map(|tensor| tensor.flatten_all()?.to_vec1()).collect(),
        }
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    // Asynchronous copies to pinned memory.
    #![allow(unsafe_code)]

    use super::{Result, Tensor};
    use crate::cuda::{self, Memory};
    use crate::operand::Operand;
    use candle_core::backend::BackendDevice;
    use candle_core::cuda_backend::cudarc::driver::{PinnedHostSlice, sys::cuMemcpyDtoHAsync_v2};
    use candle_core::cuda_backend::{CudaDevice, WrapErr};
    use candle_core::{DType, bail};

    const OP: &str = "readback";

    pub(super) struct Staging(PinnedHostSlice<f32>);

    impl std::fmt::Debug for Staging {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "Staging({} elements)", self.0.len())
        }
    }

    pub(super) fn read(
        device: &CudaDevice,
        staging: &mut Option<Staging>,
        tensors: &[Tensor],
    ) -> Result<Vec<Vec<f32>>> {
        let submitted = pinned_memory(device, staging, tensors).and_then(|pinned| {
            submit(device, pinned, tensors)?;
            Ok(&*pinned)
        });
        // Also after an error: copies may be in flight, and the tensors may still be computed, while the caller may
        // reuse or free their memory.
        device.cuda_stream().synchronize().w()?;
        let mut rest = submitted?;
        Ok(tensors
            .iter()
            .map(|tensor| {
                let (mine, after) = rest.split_at(tensor.elem_count());
                rest = after;
                mine.to_vec()
            })
            .collect())
    }

    /// Pinned memory for the elements of all tensors: that of an earlier call if it is large enough.
    fn pinned_memory<'a>(
        device: &CudaDevice,
        staging: &'a mut Option<Staging>,
        tensors: &[Tensor],
    ) -> Result<&'a mut [f32]> {
        let total: usize = tensors.iter().map(Tensor::elem_count).sum();
        if staging.as_ref().is_none_or(|staging| staging.0.len() < total) {
            let context = device.cuda_stream().context().clone();
            // SAFETY: any bits are a valid f32, and the memory is written before it is read.
            match unsafe { context.alloc_pinned_with_flags(total.max(1), 0) } {
                Ok(pinned) => *staging = Some(Staging(pinned)),
                Err(error) => bail!("{OP}: cannot allocate pinned memory for {total} results: {error}"),
            }
        }
        match staging {
            Some(Staging(pinned)) => pinned.as_mut_slice().w(),
            None => bail!("{OP}: no memory to copy to"),
        }
    }

    /// Submits the copies to the CUDA stream.
    fn submit(device: &CudaDevice, mut rest: &mut [f32], tensors: &[Tensor]) -> Result<()> {
        for tensor in tensors {
            if !tensor.device().as_cuda_device()?.same_device(device) {
                bail!("{OP}: the results belong to more than one CUDA stream")
            }
            let operand = Operand::read(tensor);
            let from = operand.memory(OP, device)?.expect(OP, DType::F32)?;
            let (to, after) = rest.split_at_mut(tensor.elem_count());
            rest = after;
            if !to.is_empty() {
                let stream = cuda::stream(device)?;
                // SAFETY: source and target have the same number of elements, and both live until the caller has
                // waited.
                unsafe {
                    cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), Memory::address(from), size_of_val(to), stream.cast())
                }
                .result()
                .w()?;
            }
        }
        Ok(())
    }
}
