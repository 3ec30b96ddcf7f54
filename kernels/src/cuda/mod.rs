//! The CUDA side of the operations: launches of kernels on tensors whose shapes have been checked.

// This folder is the boundary to the kernels. It passes device addresses and never dereferences them.
#![allow(unsafe_code)]

pub(crate) mod attention;
pub(crate) mod foreign;
pub(crate) mod gemm;
pub(crate) mod kernels;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice_attribute as Attribute, cuMemcpyDtoDAsync_v2, cudaError_enum,
};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError};
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorageSlice, WrapErr};
use candle_core::{CudaStorage, DType, Layout, Result, bail};
use half::{bf16, f16};
use std::ffi::{CStr, c_int};

/// Device memory with the type of its elements.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    address: u64,
    dtype: DType,
}

impl Memory {
    /// An invalid address.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self { address: 0x1000, dtype: DType::F32 }
    }

    pub(crate) fn dtype(self) -> DType {
        self.dtype
    }

    pub(crate) fn address(self) -> u64 {
        self.address
    }

    pub(crate) fn pointer<T>(self) -> *const T {
        self.address as *const T
    }

    pub(crate) fn pointer_mut<T>(self) -> *mut T {
        self.address as *mut T
    }

    /// The same memory from element `count` on.
    pub(crate) fn skip(self, count: usize) -> Self {
        Self { address: self.address + (count * self.dtype.size_in_bytes()) as u64, ..self }
    }

    /// The `DType` of `dtype.h`.
    pub(crate) fn dtype_code(self, what: &str) -> Result<c_int> {
        match self.dtype {
            DType::F32 => Ok(kernels::F32),
            DType::F16 => Ok(kernels::F16),
            DType::BF16 => Ok(kernels::BF16),
            other => bail!("{what}: stored as {other:?}, but only f32, bf16 and f16 are supported"),
        }
    }

    /// Checks the dtype; returns the memory itself.
    pub(crate) fn expect(self, what: &str, dtype: DType) -> Result<Self> {
        if self.dtype == dtype { Ok(self) } else { bail!("{what}: stored as {:?}, expected {dtype:?}", self.dtype) }
    }
}

/// The memory of a contiguous operand of an operation on `device`. `what` names operation and operand in errors.
///
/// The address may be used by work that is launched in the stream of `device` while the operand is borrowed. An operand
/// that belongs to this stream is freed in its order, so after that work. An operand of another stream must have been
/// declared to [`foreign::reading`], which keeps it alive until that work is done.
pub(crate) fn memory(what: &str, device: &CudaDevice, storage: &CudaStorage, layout: &Layout) -> Result<Memory> {
    fn place<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> (u64, usize) {
        (slice.device_ptr(stream).0, slice.len())
    }

    if device.location() != storage.device.location() {
        bail!("{what}: is not on the same GPU as the other operands")
    }
    if !device.same_device(&storage.device) && !foreign::is_declared(storage) {
        bail!("{what}: does not belong to the same CUDA stream as the other operands")
    }
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("{what}: shape {:?} with strides {:?} is not contiguous", layout.dims(), layout.stride())
    };
    let stream = device.cuda_stream();
    let (address, stored) = match &storage.slice {
        CudaStorageSlice::F32(slice) => place(slice, &stream),
        CudaStorageSlice::F16(slice) => place(slice, &stream),
        CudaStorageSlice::BF16(slice) => place(slice, &stream),
        CudaStorageSlice::U8(slice) => place(slice, &stream),
        CudaStorageSlice::U32(slice) => place(slice, &stream),
        _ => bail!("{what}: stored as {:?}, which no kernel supports", storage.dtype()),
    };
    if end > stored {
        bail!("{what}: elements {start} to {end} reach past the {stored} that are stored")
    }
    Ok(Memory { address, dtype: storage.dtype() }.skip(start))
}

/// As [`memory`], for an operand that is written. It must belong to the CUDA stream of `device`, because two streams
/// are not ordered.
pub(crate) fn target(what: &str, device: &CudaDevice, storage: &CudaStorage, layout: &Layout) -> Result<Memory> {
    if !device.same_device(&storage.device) {
        bail!("{what}: does not belong to the CUDA stream of the operands that are written to it")
    }
    memory(what, device, storage, layout)
}

/// Checks that all operands are float32; returns them.
pub(crate) fn floats<const N: usize>(op: &str, operands: [Memory; N]) -> Result<[Memory; N]> {
    for operand in operands {
        operand.expect(op, DType::F32)?;
    }
    Ok(operands)
}

/// Uninitialised memory for an output. The kernel must write all of it.
pub(crate) fn output(op: &str, device: &CudaDevice, dtype: DType, dims: &[usize]) -> Result<(CudaStorage, Memory)> {
    fn allocate<T: DeviceRepr + CudaDType>(device: &CudaDevice, count: usize) -> Result<CudaStorage> {
        // SAFETY: any bits are valid for these types, and nothing reads them before the kernel has written them.
        let slice: CudaSlice<T> = unsafe { device.alloc(count)? };
        Ok(CudaStorage::wrap_cuda_slice(slice, device.clone()))
    }
    let count = dims.iter().try_fold(1_usize, |count, &d| count.checked_mul(d));
    let Some(count) = count.filter(|&count| count <= isize::MAX as usize / 8) else {
        bail!("{op}: an output of shape {dims:?} does not fit in memory")
    };
    // The driver refuses allocations of 0 bytes.
    let count = count.max(1);
    let storage = match dtype {
        DType::F32 => allocate::<f32>(device, count),
        DType::F16 => allocate::<f16>(device, count),
        DType::BF16 => allocate::<bf16>(device, count),
        DType::U8 => allocate::<u8>(device, count),
        other => bail!("{op}: no output is stored as {other:?}"),
    }?;
    let memory = memory(op, device, &storage, &Layout::contiguous(dims))?;
    Ok((storage, memory))
}

/// The handle of CUDA's per-thread default stream. It is a different stream in each thread, so two uses are not
/// ordered.
const PER_THREAD: usize = 2;

/// The CUDA stream of `device`. Also makes its context current for the launch that follows.
pub(crate) fn stream(device: &CudaDevice) -> Result<kernels::Stream> {
    let stream = device.cuda_stream();
    if stream.cu_stream().addr() == PER_THREAD {
        bail!("operations need a CUDA stream of device::cuda_stream, not CUDA's per-thread default stream")
    }
    stream.context().bind_to_thread().w()?;
    Ok(stream.cu_stream().cast())
}

/// The result of a launch.
pub(crate) fn launched(op: &str, error: c_int) -> Result<()> {
    if error == 0 {
        return Ok(());
    }
    // Clears the error, which the runtime would otherwise report again after the next launch.
    // SAFETY: it has no preconditions.
    unsafe { kernels::cudaGetLastError() };
    if error == kernels::OUT_OF_MEMORY {
        // The code of a kernel is loaded at its first launch, and needs memory, too.
        return Err(DriverError(cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY)).w();
    }
    // SAFETY: it returns a static string for every error code.
    let text = unsafe { CStr::from_ptr(kernels::cudaGetErrorString(error)) };
    bail!("{op}: the GPU failed: {}", text.to_string_lossy())
}

/// A size as a kernel argument.
pub(crate) fn count(op: &str, size: usize) -> Result<u32> {
    match u32::try_from(size) {
        Ok(size) => Ok(size),
        Err(_) => bail!("{op}: a size of {size} is more than kernels support"),
    }
}

/// Copies `count` elements, asynchronously in the CUDA stream of `device`.
pub(crate) fn copy(device: &CudaDevice, to: Memory, from: Memory, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let bytes = count * from.dtype.size_in_bytes();
    let stream = stream(device)?;
    // SAFETY: both ranges are within tensors that the caller has checked, and live until the work in this stream is
    // done.
    unsafe { cuMemcpyDtoDAsync_v2(to.address, from.address, bytes, stream.cast()) }.result().w()
}

/// Properties of a GPU that the choice of a kernel depends on.
#[derive(Clone, Copy)]
pub(crate) struct Gpu {
    pub(crate) multiprocessors: u32,
    /// Whether this build has the kernels for compute capability 9.0 and the GPU runs them.
    pub(crate) hopper: bool,
}

impl Gpu {
    pub(crate) fn of(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let attribute = |attribute| stream.context().attribute(attribute).w();
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Self {
            multiprocessors: multiprocessors.unsigned_abs(),
            hopper: cfg!(periplus_hopper) && (major, minor) == (9, 0),
        })
    }
}
