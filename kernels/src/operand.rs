//! Operands: the memory behind tensors, the checks before it is used, and the conversion of 16-bit elements.

// `widen` must be compiled for the instruction set that its caller was dispatched to.
#![allow(clippy::inline_always)]

#[cfg(feature = "cuda")]
use crate::cuda::Memory;
use candle_core::backend::BackendStorage;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::CudaDevice;
use candle_core::{CpuStorage, Layout, Result, Storage, StorageRef, Tensor, WithDType, bail};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::hint::black_box;

/// An element type of weights and pages.
pub(crate) trait Element: WithDType {
    /// The elements of a storage, if they have this type.
    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;
    /// The slice itself, if its elements are float32.
    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }
    /// Converts to float32; both slices have the same length.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Rounds from float32; both slices have the same length.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Element for f32 {
    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        match storage {
            CpuStorage::F32(data) => Some(data),
            _ => None,
        }
    }
    #[inline(always)]
    fn as_f32(from: &[Self]) -> Option<&[f32]> {
        Some(from)
    }
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Element for bf16 {
    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        match storage {
            CpuStorage::BF16(data) => Some(data),
            _ => None,
        }
    }
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        // A bfloat16 is the upper half of a float32. The loop is written out because it vectorises and keeps NaN
        // payloads.
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl Element for f16 {
    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        match storage {
            CpuStorage::F16(data) => Some(data),
            _ => None,
        }
    }
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        // Written out because it vectorises (after Giesen, "Half to float done quick"): the exponent gets its new bias;
        // infinities and NaNs get the largest exponent; a subtraction renormalises subnormal values.
        for (to, from) in to.iter_mut().zip(from) {
            let bits = u32::from(from.to_bits());
            let (sign, magnitude) = ((bits & 0x8000) << 16, (bits & 0x7fff) << 13);
            let rebased = magnitude + (112 << 23);
            let subnormal = f32::from_bits(rebased + (1 << 23)) - f32::from_bits(113 << 23);
            let value = match magnitude >> 23 {
                0 => subnormal.to_bits(),
                31 => rebased + (112 << 23),
                _ => rebased,
            };
            *to = f32::from_bits(sign | value);
        }
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

/// Runs `$body` with `$element` as the type that `$dtype` names.
macro_rules! with_dtype {
    ($op:expr, $dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $element = f32;
                $body
            }
            candle_core::DType::BF16 => {
                type $element = half::bf16;
                $body
            }
            candle_core::DType::F16 => {
                type $element = half::f16;
                $body
            }
            other => candle_core::bail!("{}: stored as {other:?}, but only f32, bf16 and f16 are supported", $op),
        }
    };
}
pub(crate) use with_dtype;

/// The elements of a contiguous operand. `what` names operation and operand.
pub(crate) fn slice<'a, T: Element>(what: &str, storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("{what}: shape {:?} with strides {:?} is not contiguous", layout.dims(), layout.stride())
    };
    match T::cpu_storage_as_slice(storage)?.get(start..end) {
        Some(elements) => Ok(elements),
        None => bail!("{what}: shape {:?} reaches past the end of its memory", layout.dims()),
    }
}

/// As [`slice`], mutable.
pub(crate) fn slice_mut<'a, T: Element>(
    what: &str,
    storage: &'a mut CpuStorage,
    layout: &Layout,
) -> Result<&'a mut [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("{what}: shape {:?} with strides {:?} is not contiguous", layout.dims(), layout.stride())
    };
    let found = storage.dtype();
    match T::of_mut(storage).map(|data| data.get_mut(start..end)) {
        Some(Some(elements)) => Ok(elements),
        Some(None) => bail!("{what}: shape {:?} reaches past the end of its memory", layout.dims()),
        None => bail!("{what}: stored as {found:?}, expected {:?}", T::DTYPE),
    }
}

/// An extra operand: a Candle op takes at most three tensors. It is locked for reading while the op runs.
pub(crate) struct Operand<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> Operand<'a> {
    pub(crate) fn read(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { storage, layout }
    }

    pub(crate) fn dims(&self) -> &'a [usize] {
        self.layout.dims()
    }

    pub(crate) fn slice<T: Element>(&self, what: &str) -> Result<&[T]> {
        match &*self.storage {
            Storage::Cpu(storage) => slice(what, storage, self.layout),
            _ => bail!("{what}: is not on the CPU as the other operands are"),
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn memory(&self, what: &str, device: &CudaDevice) -> Result<Memory> {
        match &*self.storage {
            Storage::Cuda(storage) => crate::cuda::memory(what, device, storage, self.layout),
            _ => bail!("{what}: is not on the GPU as the other operands are"),
        }
    }
}

/// Runs an operation that reads `operands`. On a GPU it runs in the CUDA stream of `device`, and operands may belong to
/// other streams.
pub(crate) fn reading<T>(
    device: &candle_core::Device,
    operands: &[&Tensor],
    operation: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match device {
        #[cfg(feature = "cuda")]
        candle_core::Device::Cuda(device) => crate::cuda::foreign::reading(device, operands, operation),
        _ => {
            let _ = operands;
            operation()
        }
    }
}

/// Whether two tensors are views of the same memory.
pub(crate) fn same_storage(a: &Tensor, b: &Tensor) -> bool {
    let address = |tensor: &Tensor| std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0).addr();
    address(a) == address(b)
}

/// Refuses an in-place operation on memory that it also reads.
pub(crate) fn check_distinct(op: &str, target: &Tensor, sources: &[&Tensor]) -> Result<()> {
    if sources.iter().any(|source| same_storage(target, source)) {
        bail!("{op}: computes in place in {:?}, which shares its memory with another operand", target.dims())
    }
    Ok(())
}

/// Zeros of a shape; `None` if they do not fit in memory.
///
/// The operating system maps a fresh zeroed allocation without touching it, so page faults happen in the threads that
/// fill it.
pub fn try_zeros(dims: &[usize]) -> Option<Vec<f32>> {
    let count = dims.iter().try_fold(1_usize, |count, &d| count.checked_mul(d))?;
    black_box(Vec::<f32>::new()).try_reserve_exact(count).is_ok().then(|| vec![0.0; count])
}

/// Zeros for an output; an error if it does not fit in memory.
pub(crate) fn zeros(op: &str, dims: &[usize]) -> Result<Vec<f32>> {
    match try_zeros(dims) {
        Some(zeros) => Ok(zeros),
        None => bail!("{op}: an output of shape {dims:?} does not fit in memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let mut to = [0.0; 2];
            f16::widen(&[f16::from_bits(bits)], &mut to[..1]);
            bf16::widen(&[bf16::from_bits(bits)], &mut to[1..]);
            for (to, exact) in to.into_iter().zip([f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32()]) {
                assert!(to.to_bits() == exact.to_bits() || (to.is_nan() && exact.is_nan()), "{bits:#x}: {to}");
            }
        }
    }
}
