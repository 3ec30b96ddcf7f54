//! CUDA streams: opening a GPU, and one stream for each user of it.

// Candle's event tracking is switched off, see `open_stream`.
#![allow(unsafe_code)]

use super::memory::cuda::{cuda_error, is_full, keep_freed_memory};
use super::{Device, DeviceError, bind_to_thread, is_out_of_memory};
use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use candle_core::cuda_backend::{CudaDevice, CudaError, WrapErr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The architectures that the kernels were compiled for.
const ARCHITECTURES: &str = env!("PERIPLUS_CUDA_ARCHITECTURES");
/// The oldest compute capability that the kernels support. They need bfloat16 and asynchronous copies to shared memory.
const OLDEST: (i32, i32) = (8, 0);
/// CUDA 13.0, as the driver numbers versions.
const CUDA_VERSION: i32 = 13_000;

/// Opens an NVIDIA GPU, numbered from 0, with a [CUDA stream](cuda_stream) of its own.
///
/// # Errors
/// When there is no driver, it is too old, there is no such GPU, or the kernels do not run on it.
pub fn open_cuda(ordinal: usize) -> Result<Device, DeviceError> {
    let (mut version, mut count) = (0, 0);
    // SAFETY: each call writes one integer to the given place.
    let [started, told, counted] =
        unsafe { [sys::cuInit(0), sys::cuDriverGetVersion(&raw mut version), sys::cuDeviceGetCount(&raw mut count)] };
    if version == 0 || told.result().is_err() {
        return Err(DeviceError::NoDriver);
    }
    if version < CUDA_VERSION {
        return Err(DeviceError::DriverTooOld { major: version / 1000, minor: version % 1000 / 10 });
    }
    match started.result().and_then(|()| counted.result()) {
        Err(DriverError(sys::cudaError_enum::CUDA_ERROR_NO_DEVICE)) => return Err(DeviceError::NoGpu),
        result => result.w()?,
    }
    let count = count.unsigned_abs() as usize;
    match count {
        0 => Err(DeviceError::NoGpu),
        _ if ordinal >= count => Err(DeviceError::NoSuchGpu { ordinal, count }),
        _ => stream_on(ordinal),
    }
}

/// The same GPU as `device` with another CUDA stream, which no other tensor or device uses. On the CPU, `device`
/// itself.
///
/// An operation runs in the CUDA stream of its first operand (weights are never the first), after all work that was
/// submitted to that stream before. What it writes must belong to the same stream. It may read weights and other
/// operands of another stream, and keeps them alive until it is done. Two streams are not ordered: the work that
/// computes such an operand must be done before ([`synchronize`](super::synchronize)), else the result has unspecified
/// values.
///
/// Streams are not closed but reused: a stream that no tensor and no device uses any more is given to the next caller.
///
/// Candle's own [`Device::new_cuda`] uses CUDA's per-thread default stream. The driver destroys such a stream when its
/// thread ends, and was seen to deadlock there.
///
/// # Errors
/// When the kernels do not run on the GPU, it is out of memory, or it has failed.
pub fn cuda_stream(device: &Device) -> Result<Device, DeviceError> {
    match device {
        Device::Cuda(cuda) => stream_on(cuda.cuda_stream().context().ordinal()),
        _ => Ok(device.clone()),
    }
}

/// `device` itself if its CUDA stream was opened by this module, else the same GPU with a new [`cuda_stream`].
///
/// # Errors
/// As [`cuda_stream`].
pub fn usable_cuda_stream(device: &Device) -> Result<Device, DeviceError> {
    match device {
        Device::Cuda(cuda) if !streams().iter().any(|stream| stream.device.same_device(cuda)) => cuda_stream(device),
        _ => Ok(device.clone()),
    }
}

/// A stream that has been opened.
struct OpenStream {
    device: CudaDevice,
    /// Number of references to the CUDA stream when nothing outside of this module uses it.
    unused: usize,
}

impl OpenStream {
    fn references(&self) -> usize {
        Arc::strong_count(&self.device.cuda_stream())
    }
}

/// All streams that have been opened. None is ever closed: opening one takes 67 MB on an H200 and waits for the others,
/// and after a failure of the GPU the libraries that Candle closes with a stream panic.
fn streams() -> MutexGuard<'static, Vec<OpenStream>> {
    static STREAMS: Mutex<Vec<OpenStream>> = Mutex::new(Vec::new());
    // A panic cannot leave the list half-updated.
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of this GPU that nothing uses and that has not failed.
fn unused_stream(ordinal: usize) -> Option<Device> {
    let unused = |stream: &&OpenStream| {
        stream.device.cuda_stream().context().ordinal() == ordinal && stream.references() == stream.unused && {
            // An earlier free may have failed; the next user of the stream must not get that error.
            let device = Device::Cuda(stream.device.clone());
            bind_to_thread(&device);
            crate::cuda::foreign::synchronize(&stream.device).is_ok()
        }
    };
    streams().iter().find(unused).map(|stream| Device::Cuda(stream.device.clone()))
}

fn stream_on(ordinal: usize) -> Result<Device, DeviceError> {
    if let Some(unused) = unused_stream(ordinal) {
        return Ok(unused);
    }
    let device = open_stream(ordinal).map_err(|error| match error {
        DeviceError::Refused(error) if is_out_of_memory(&error) => DeviceError::OutOfMemory,
        // The libraries report missing memory for their workspace as "not initialized".
        DeviceError::Refused(error) if of_libraries(&error) && is_full(ordinal) => DeviceError::OutOfMemory,
        DeviceError::Refused(error) if of_libraries(&error) => DeviceError::NoLibraries(error),
        error => error,
    })?;
    let mut stream = OpenStream { device, unused: 0 };
    stream.unused = stream.references();
    let device = stream.device.clone();
    streams().push(stream);
    Ok(Device::Cuda(device))
}

/// Whether the error comes from one of the libraries that Candle opens with a device.
fn of_libraries(error: &candle_core::Error) -> bool {
    matches!(cuda_error(error), Some(CudaError::Cublas(_) | CudaError::Curand(_)))
}

fn open_stream(ordinal: usize) -> Result<CudaDevice, DeviceError> {
    let cuda = CudaDevice::new_with_stream(ordinal)?;
    let stream = cuda.cuda_stream();
    let context = stream.context();
    let attribute = |attribute| context.attribute(attribute).w();
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    if !runs_on((major, minor), ARCHITECTURES) {
        return Err(DeviceError::Unsupported { name: context.name().w()?, major, minor, built: ARCHITECTURES });
    }
    // Candle would create two events for each tensor, and record one for each operand of each operation.
    // SAFETY: an operation keeps what it reads of other streams alive, see `cuda::foreign`.
    unsafe { cuda.disable_event_tracking() };
    keep_freed_memory(&cuda)?;
    Ok(cuda)
}

/// Whether one of the architectures (`80`, `90a`, `90+PTX`, separated by spaces) runs on a GPU of this compute
/// capability: machine code runs on GPUs of the same major version and the same or a newer minor version, PTX on all
/// newer ones. An `a` adds kernels for exactly that version to the portable ones.
fn runs_on((major, minor): (i32, i32), architectures: &str) -> bool {
    (major, minor) >= OLDEST
        && architectures.split_whitespace().any(|name| {
            let (architecture, ptx) = name.strip_suffix("+PTX").map_or((name, false), |name| (name, true));
            architecture.trim_end_matches('a').parse::<i32>().is_ok_and(|architecture| {
                let (code_major, code_minor) = (architecture / 10, architecture % 10);
                (ptx && (code_major, code_minor) <= (major, minor)) || (code_major == major && code_minor <= minor)
            })
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // in a test a panic is the report

    use super::*;
    use crate::cuda::{Memory, kernels};
    use std::process::Command;

    /// Set in the process that the test below starts.
    const CHILD: &str = "PERIPLUS_TEST_FAILS_THE_GPU";

    fn fail() {
        let device = open_cuda(0).unwrap();
        let other = cuda_stream(&device).unwrap();
        let tensor = candle_core::Tensor::zeros(8, candle_core::DType::F32, &other).unwrap();
        let Device::Cuda(cuda) = &device else { panic!("no GPU") };
        // There is no memory at this address, so the context fails, in this process alone.
        kernels::relu(cuda, Memory::nowhere(), kernels::F32, 1, 8, 0).unwrap();
        device.synchronize().unwrap_err();
        // Further operations are errors, and nothing panics at the end.
        bind_to_thread(&device);
        assert!(tensor.to_vec1::<f32>().is_err());
        assert!(cuda_stream(&device).is_err());
        drop(tensor);
        drop((device, other));
        println!("nothing has panicked");
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn a_failed_gpu_gives_errors_and_no_panic() {
        if std::env::var_os(CHILD).is_some() {
            return fail();
        }
        let name = "device::cuda_streams::tests::a_failed_gpu_gives_errors_and_no_panic";
        let arguments = ["--ignored", "--exact", "--nocapture", name];
        let output = Command::new(std::env::current_exe().unwrap()).args(arguments).env(CHILD, "1").output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && text[0].contains("nothing has panicked"), "{text:?}");
    }

    #[test]
    fn kernels_run_on_the_gpus_they_were_compiled_for() {
        let all = "80 86 89 90a 90+PTX";
        for capability in [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
            assert!(runs_on(capability, all), "{capability:?}");
        }
        assert!(!runs_on((7, 5), all));
        assert!(!runs_on((8, 0), "86"));
        assert!(runs_on((9, 0), "90a") && !runs_on((12, 0), "80 90a"));
    }
}
