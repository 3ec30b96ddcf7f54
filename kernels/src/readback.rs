//! Readback: copies of results to main memory.

use candle_core::{Result, Tensor};

/// Copies tensors to main memory. On a card all copies of a call are in flight together and are waited for once, over
/// memory that is kept from call to call.
#[derive(Debug, Default)]
pub struct Readback {
    #[cfg(feature = "cuda")]
    staging: Option<card::Staging>,
}

impl Readback {
    /// The elements of each tensor, float32 and contiguous. What is in their [CUDA stream](crate::device::cuda_stream) is then done.
    ///
    /// # Errors
    /// When a tensor is not contiguous or not float32, they are not all of one CUDA stream, or the device has failed.
    pub fn read(&mut self, tensors: &[Tensor]) -> Result<Vec<Vec<f32>>> {
        match tensors.first().map(Tensor::device) {
            #[cfg(feature = "cuda")]
            Some(candle_core::Device::Cuda(device)) => card::read(device, &mut self.staging, tensors),
            _ => tensors.iter().map(|tensor| tensor.flatten_all()?.to_vec1()).collect(),
        }
    }
}

#[cfg(feature = "cuda")]
mod card {
    // Copies to memory that is locked in place, which the driver writes to on its own.
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
            write!(f, "Staging({} numbers)", self.0.len())
        }
    }

    pub(super) fn read(
        device: &CudaDevice,
        staging: &mut Option<Staging>,
        tensors: &[Tensor],
    ) -> Result<Vec<Vec<f32>>> {
        let submitted = room(device, staging, tensors).and_then(|numbers| {
            submit(device, numbers, tensors)?;
            Ok(&*numbers)
        });
        // Also after an error: copies may be on their way, and what the tensors hold may still be computed, in memory that the
        // caller thinks is at rest.
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

    /// Memory for the numbers of all tensors, of this call or of one before.
    fn room<'a>(device: &CudaDevice, staging: &'a mut Option<Staging>, tensors: &[Tensor]) -> Result<&'a mut [f32]> {
        let total: usize = tensors.iter().map(Tensor::elem_count).sum();
        if staging.as_ref().is_none_or(|staging| staging.0.len() < total) {
            let context = device.cuda_stream().context().clone();
            // SAFETY: numbers of any bits are numbers, and they are written before they are read.
            match unsafe { context.alloc_pinned_with_flags(total.max(1), 0) } {
                Ok(pinned) => *staging = Some(Staging(pinned)),
                Err(error) => bail!("{OP}: main memory has no room to lock for {total} results: {error}"),
            }
        }
        match staging {
            Some(Staging(pinned)) => pinned.as_mut_slice().w(),
            None => bail!("{OP}: no memory to copy to"),
        }
    }

    /// Queues the copies.
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
                // SAFETY: the tensor holds as many numbers as there is room for, and both outlive the wait that follows.
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
