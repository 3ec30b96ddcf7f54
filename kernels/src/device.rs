//! Where to compute, and clocks that tell how long it took there.

use candle_core::{Device, Result};
use std::time::{Duration, Instant};

/// Why there is no computing on a card.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The feature `cuda` was off.
    #[error("this build computes on the CPU only: build with --features cuda to use NVIDIA cards")]
    NotBuilt,
    /// No driver answers.
    #[error("no NVIDIA driver answers: install one for CUDA 13.0 or newer, or compute on the CPU")]
    NoDriver,
    /// The driver is older than the kernels.
    #[error(
        "the NVIDIA driver is for CUDA {major}.{minor}: update it to one for CUDA 13.0 or newer, or compute on the CPU"
    )]
    DriverTooOld {
        /// Of the newest CUDA that it knows.
        major: i32,
        /// Of the newest CUDA that it knows.
        minor: i32,
    },
    /// The driver has no card to offer.
    #[error("the NVIDIA driver finds no card: see what nvidia-smi says, or compute on the CPU")]
    NoCard,
    /// There are cards, but fewer.
    #[error("there is no card {number}: the driver counts {count}, from 0")]
    NoSuchCard {
        /// The one asked for.
        number: usize,
        /// How many there are.
        count: usize,
    },
    /// A card that the kernels were not compiled for.
    #[error(
        "{name} (compute capability {major}.{minor}) is not a card that this build has kernels for ({built}): build with \
         PERIPLUS_CUDA_ARCHITECTURES set to include it (8.0 is the oldest), or compute on the CPU"
    )]
    Unsupported {
        /// As the driver names it.
        name: String,
        /// Of its compute capability.
        major: i32,
        /// Of its compute capability.
        minor: i32,
        /// What the kernels were compiled for.
        built: &'static str,
    },
    /// The driver is there, but not the libraries that Candle opens beside it.
    #[error(
        "CUDA's libraries cuBLAS and cuRAND do not answer ({0}): install those of CUDA 13 (libcublas.so.13, libcurand.so.10) and see \
         that LD_LIBRARY_PATH names their folder, or compute on the CPU"
    )]
    NoLibraries(candle_core::Error),
    /// A card has no memory left for a [`queue`].
    #[error("the card has no memory left: end what else uses it, or compute on the CPU")]
    Full,
    /// The card or its driver refuses.
    #[error("the card cannot be used: {0}")]
    Refused(#[from] candle_core::Error),
}

/// The fastest device there is: the first NVIDIA card if this build has kernels for it and it answers, else the CPU. With it the
/// reason why a card that may be there is not used.
pub fn best() -> (Device, Option<DeviceError>) {
    match open_cuda(0) {
        Ok(card) => (card, None),
        Err(DeviceError::NotBuilt | DeviceError::NoDriver | DeviceError::NoCard) => (Device::Cpu, None),
        Err(reason) => (Device::Cpu, Some(reason)),
    }
}

/// A moment in the work of a device.
#[derive(Debug)]
pub struct Moment(Clock);

#[derive(Debug)]
enum Clock {
    Host(Instant),
    #[cfg(feature = "cuda")]
    Card(candle_core::cuda_backend::cudarc::driver::CudaEvent),
}

impl Moment {
    /// On the CPU, now. On a card, when it will have done what is in this device's [`queue`] so far; nothing waits for that.
    ///
    /// # Errors
    /// When the card refuses.
    pub fn of(device: &Device) -> Result<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Ok(Self(Clock::Card(card::record(cuda)?))),
            _ => Ok(Self(Clock::Host(Instant::now()))),
        }
    }

    /// The time from `earlier`, of the same device and queue, to this moment. On a card this waits until it has come.
    ///
    /// # Errors
    /// When the card has failed, or the moments are of different devices.
    pub fn since(&self, earlier: &Self) -> Result<Duration> {
        match (&self.0, &earlier.0) {
            (Clock::Host(now), Clock::Host(earlier)) => Ok(now.duration_since(*earlier)),
            #[cfg(feature = "cuda")]
            (Clock::Card(now), Clock::Card(earlier)) => card::between(earlier, now),
            #[cfg(feature = "cuda")]
            _ => candle_core::bail!("two moments of different devices have no time between them"),
        }
    }
}

/// Whether an operation failed because the card has no memory left.
pub fn is_out_of_memory(error: &candle_core::Error) -> bool {
    #[cfg(feature = "cuda")]
    return card::is_out_of_memory(error);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = error;
        false
    }
}

/// Whether main memory has room for so many bytes in one piece. To be asked before Candle allocates as many: what the system refuses
/// there ends the program.
pub fn main_memory_holds(bytes: u64) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}

/// To be called before tensors on `device` are dropped, or anything else is done with it, by a thread that may never have used
/// it: to free memory, a card must be current.
pub fn enter(device: &Device) {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device {
        card::enter(cuda);
    }
    #[cfg(not(feature = "cuda"))]
    let _ = device;
}

/// Gives memory that has been freed on a card back to the system, as far as no part of what was allocated with it is in use; what
/// is in this device's [`queue`] is then done. Memory in many pieces may become whole again by that.
///
/// # Errors
/// When the card refuses.
pub fn release_freed(device: &Device) -> Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => card::release_freed(cuda),
        _ => Ok(()),
    }
}

/// Bytes of the card's memory that are taken, by whom ever; `None` for the CPU. What a program has freed on a card that it has a
/// [`queue`] on counts, too.
///
/// # Errors
/// When the card refuses.
pub fn memory_taken(device: &Device) -> Result<Option<u64>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => card::memory_taken(cuda).map(Some),
        _ => Ok(None),
    }
}

/// Opens NVIDIA card `number`, counted from 0: a [`queue`] on it.
///
/// # Errors
/// [`DeviceError::NotBuilt`].
#[cfg(not(feature = "cuda"))]
pub fn open_cuda(_number: usize) -> std::result::Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt)
}

/// A queue of its own on `device`, for the operations of this crate. The CPU has none, and is itself.
///
/// # Errors
/// None.
#[cfg(not(feature = "cuda"))]
pub fn queue(device: &Device) -> std::result::Result<Device, DeviceError> {
    Ok(device.clone())
}

/// `device` itself if operations of this crate may be put in its queue, else a [`queue`] on it.
///
/// # Errors
/// None.
#[cfg(not(feature = "cuda"))]
pub fn usable_queue(device: &Device) -> std::result::Result<Device, DeviceError> {
    Ok(device.clone())
}

#[cfg(feature = "cuda")]
pub use card::{open_cuda, queue, usable_queue};

#[cfg(feature = "cuda")]
mod card {
    // The driver is called directly for what candle has no words for.
    #![allow(unsafe_code)]

    use super::{Device, DeviceError, Duration, Result};
    use candle_core::backend::BackendDevice;
    use candle_core::cuda_backend::cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
    use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, DriverError};
    use candle_core::cuda_backend::{CudaDevice, CudaError, WrapErr};
    use std::ffi::c_void;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    /// Machine code is there for each of these, as the build was told; a newer card compiles what is portable.
    const ARCHITECTURES: &str = env!("PERIPLUS_CUDA_ARCHITECTURES");
    /// Compute capability that the kernels ask for: 8.0 brought bfloat16 and copies past the registers.
    const OLDEST: (i32, i32) = (8, 0);
    /// The driver's version as it counts: CUDA 13.0.
    const RUNTIME: i32 = 13_000;
    /// Bytes that are enough for the libraries that Candle opens with a queue; it takes 67 MB on an H200.
    const LIBRARIES: usize = 256 << 20;
    const OUT_OF_MEMORY: DriverError = DriverError(sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY);

    /// Opens NVIDIA card `number`, counted from 0: a [`queue`] on it.
    ///
    /// # Errors
    /// When there is no driver, it is too old, or the card is not there or not one that the kernels run on; the
    /// sentence says which, and what to do.
    pub fn open_cuda(number: usize) -> std::result::Result<Device, DeviceError> {
        let (mut version, mut count) = (0, 0);
        // SAFETY: they write one number each to the places given.
        let [started, told, counted] = unsafe {
            [sys::cuInit(0), sys::cuDriverGetVersion(&raw mut version), sys::cuDeviceGetCount(&raw mut count)]
        };
        if version == 0 || told.result().is_err() {
            return Err(DeviceError::NoDriver);
        }
        if version < RUNTIME {
            return Err(DeviceError::DriverTooOld { major: version / 1000, minor: version % 1000 / 10 });
        }
        match started.result().and_then(|()| counted.result()) {
            Err(DriverError(sys::cudaError_enum::CUDA_ERROR_NO_DEVICE)) => return Err(DeviceError::NoCard),
            answer => answer.w()?,
        }
        let count = count.unsigned_abs() as usize;
        match count {
            0 => Err(DeviceError::NoCard),
            _ if number >= count => Err(DeviceError::NoSuchCard { number, count }),
            _ => queue_on(number),
        }
    }

    /// A queue of its own on `device`, for the operations of this crate. The CPU has none, and is itself.
    ///
    /// An operation on a card goes to the queue of its first operand (not of weights), where also what it writes must be, and is done
    /// after all that is in it. Weights that have been waited for may be read from any. Nothing orders two queues: a tensor goes from
    /// one to another by way of main memory.
    ///
    /// Candle's own [`Device::new_cuda`] stands for a queue of each thread's instead. The driver ends such a queue with its thread,
    /// and was seen to wait for ever there.
    ///
    /// Memory that is freed stays with the program, so that the next frame need not ask for it. So do queues: one that nobody and
    /// no tensor is in any more is handed to the next who asks.
    ///
    /// # Errors
    /// When the kernels do not run on the card, which is named, it has no memory left, or it refuses.
    pub fn queue(device: &Device) -> std::result::Result<Device, DeviceError> {
        match device {
            Device::Cuda(cuda) => queue_on(cuda.cuda_stream().context().ordinal()),
            _ => Ok(device.clone()),
        }
    }

    /// `device` itself if operations of this crate may be put in its queue, else a [`queue`] on it.
    ///
    /// # Errors
    /// As [`queue`].
    pub fn usable_queue(device: &Device) -> std::result::Result<Device, DeviceError> {
        match device {
            Device::Cuda(cuda) if !queues().iter().any(|queue| queue.device.same_device(cuda)) => queue(device),
            _ => Ok(device.clone()),
        }
    }

    /// A queue that has been opened.
    struct Queue {
        device: CudaDevice,
        /// How many share its stream while nobody else is in it.
        unheld: usize,
    }

    impl Queue {
        fn holders(&self) -> usize {
            Arc::strong_count(&self.device.cuda_stream())
        }
    }

    /// All queues that have been opened. None is ever closed: on a card that has failed, the libraries that Candle closes with it
    /// panic. To open one takes time and memory, and waits for the others.
    fn queues() -> MutexGuard<'static, Vec<Queue>> {
        static QUEUES: Mutex<Vec<Queue>> = Mutex::new(Vec::new());
        // Whoever panics leaves the list as it was, or with one more.
        QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue on card `number` that nobody is in, and that is in order.
    fn idle_queue(number: usize) -> Option<Device> {
        let idle = |queue: &&Queue| {
            queue.device.cuda_stream().context().ordinal() == number && queue.holders() == queue.unheld && {
                // What was freed in it may have failed since, which would be told to the next that uses it.
                enter(&queue.device);
                queue.device.cuda_stream().synchronize().is_ok()
            }
        };
        queues().iter().find(idle).map(|queue| Device::Cuda(queue.device.clone()))
    }

    fn queue_on(number: usize) -> std::result::Result<Device, DeviceError> {
        if let Some(idle) = idle_queue(number) {
            return Ok(idle);
        }
        let device = open_queue(number).map_err(|error| match error {
            DeviceError::Refused(error) if is_out_of_memory(&error) => DeviceError::Full,
            // Where there is no memory for their workspace, the libraries say that they are not initialised.
            DeviceError::Refused(error) if of_libraries(&error) && is_full(number) => DeviceError::Full,
            DeviceError::Refused(error) if of_libraries(&error) => DeviceError::NoLibraries(error),
            error => error,
        })?;
        let mut queue = Queue { device, unheld: 0 };
        queue.unheld = queue.holders();
        let device = queue.device.clone();
        queues().push(queue);
        Ok(Device::Cuda(device))
    }

    /// Whether one of the libraries that Candle opens with a device refused.
    fn of_libraries(error: &candle_core::Error) -> bool {
        matches!(cuda_error(error), Some(CudaError::Cublas(_) | CudaError::Curand(_)))
    }

    /// Whether the card has less memory left than the libraries may want.
    fn is_full(number: usize) -> bool {
        let free = CudaContext::new(number).and_then(|context| {
            context.bind_to_thread()?;
            free_and_all()
        });
        match free {
            Ok((free, _)) => free < LIBRARIES,
            Err(error) => error == OUT_OF_MEMORY,
        }
    }

    fn open_queue(number: usize) -> std::result::Result<CudaDevice, DeviceError> {
        let cuda = CudaDevice::new_with_stream(number)?;
        let stream = cuda.cuda_stream();
        let context = stream.context();
        let attribute = |attribute| context.attribute(attribute).w();
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if !runs_on((major, minor), ARCHITECTURES) {
            return Err(DeviceError::Unsupported { name: context.name().w()?, major, minor, built: ARCHITECTURES });
        }
        // Events would cost two a tensor.
        // SAFETY: what two queues share has been waited for, as said above.
        unsafe { cuda.disable_event_tracking() };
        let mut kept = u64::MAX;
        // SAFETY: the pool is the device's own, and the attribute is a 64-bit number.
        unsafe {
            sys::cuMemPoolSetAttribute(
                pool_of(&cuda)?,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut kept).cast::<c_void>(),
            )
            .result()
            .w()?;
        }
        Ok(cuda)
    }

    /// What CUDA said, if it said it.
    fn cuda_error(error: &candle_core::Error) -> Option<&CudaError> {
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

    /// Makes the card current for this thread. Memory is freed on the thread that drops it, also if that thread has never
    /// used a card.
    pub(super) fn enter(device: &CudaDevice) {
        // The first call may only tell of an error that an earlier drop met, and forget it: what is freed next must not fail
        // for that too.
        let context = device.cuda_stream().context().clone();
        let _ = context.bind_to_thread().or_else(|_| context.bind_to_thread());
    }

    pub(super) fn record(device: &CudaDevice) -> Result<CudaEvent> {
        device.cuda_stream().record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).w()
    }

    pub(super) fn between(earlier: &CudaEvent, later: &CudaEvent) -> Result<Duration> {
        Ok(Duration::from_secs_f32(earlier.elapsed_ms(later).w()?.max(0.0) / 1e3))
    }

    /// Where its memory comes from.
    fn pool_of(device: &CudaDevice) -> Result<sys::CUmemoryPool> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: it writes the device's own pool to the place given.
        unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device.cuda_stream().context().ordinal() as i32) }
            .result()
            .w()?;
        Ok(pool)
    }

    pub(super) fn release_freed(device: &CudaDevice) -> Result<()> {
        device.cuda_stream().synchronize().w()?;
        // SAFETY: the pool is the device's own, and keeps what is in use.
        unsafe { sys::cuMemPoolTrimTo(pool_of(device)?, 0) }.result().w()
    }

    pub(super) fn memory_taken(device: &CudaDevice) -> Result<u64> {
        device.cuda_stream().context().bind_to_thread().w()?;
        let (free, all) = free_and_all().w()?;
        Ok((all - free) as u64)
    }

    /// Bytes of the memory of the card that is current: those that nobody has, and all.
    fn free_and_all() -> std::result::Result<(usize, usize), DriverError> {
        let (mut free, mut all) = (0, 0);
        // SAFETY: it writes two numbers to the places given.
        unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut all) }.result()?;
        Ok((free, all))
    }

    /// Whether one of the architectures (`80`, `90a`, `90+PTX`, separated by spaces) runs on a card of this compute
    /// capability: machine code runs on cards of its generation from its own number on, PTX on all from its number on.
    /// An `a` adds kernels for that very number to those that are portable.
    fn runs_on((major, minor): (i32, i32), architectures: &str) -> bool {
        (major, minor) >= OLDEST
            && architectures.split_whitespace().any(|name| {
                let (number, ptx) = name.strip_suffix("+PTX").map_or((name, false), |number| (number, true));
                number.trim_end_matches('a').parse::<i32>().is_ok_and(|number| {
                    let (code_major, code_minor) = (number / 10, number % 10);
                    (ptx && (code_major, code_minor) <= (major, minor)) || (code_major == major && code_minor <= minor)
                })
            })
    }

    #[cfg(test)]
    mod tests {
        #![allow(clippy::unwrap_used)] // in a test a panic is the report

        use super::*;
        use crate::cuda::ffi;
        use std::process::Command;

        /// Makes a card fail, for the rest of the program; run by the test below.
        #[test]
        #[ignore = "no kernel runs in this program any more"]
        fn fail() {
            let device = open_cuda(0).unwrap();
            let other = queue(&device).unwrap();
            let tensor = candle_core::Tensor::zeros(8, candle_core::DType::F32, &other).unwrap();
            let Device::Cuda(cuda) = &device else { panic!("no card") };
            let stream = crate::cuda::stream(cuda).unwrap();
            // SAFETY: nothing is at this address, for which the card ends all that this program does there.
            assert_eq!(unsafe { ffi::relu(0x1000 as *mut c_void, ffi::F32, 1, 8, 0, stream) }, 0);
            device.synchronize().unwrap_err();
            // What else is done there is an error, and the end of things is none.
            enter(cuda);
            assert!(tensor.to_vec1::<f32>().is_err());
            assert!(queue(&device).is_err());
            drop(tensor);
            drop((device, other));
            println!("nothing has panicked");
        }

        #[test]
        fn a_card_that_fails_ends_no_program() {
            if let Err(reason) = open_cuda(0) {
                println!("skipped: {reason}");
                assert!(std::env::var_os("PERIPLUS_NEEDS_CARD").is_none(), "there is no card");
                return;
            }
            let arguments = ["--ignored", "--exact", "--nocapture", "device::card::tests::fail"];
            let ended = Command::new(std::env::current_exe().unwrap()).args(arguments).output().unwrap();
            let said = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            assert!(ended.status.success() && said[0].contains("nothing has panicked"), "{said:?}");
        }

        #[test]
        fn cards_are_matched_with_what_was_compiled() {
            let all = "80 86 89 90a 90+PTX";
            for capability in [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
                assert!(runs_on(capability, all), "{capability:?}");
            }
            assert!(!runs_on((7, 5), all));
            assert!(!runs_on((8, 0), "86"));
            assert!(runs_on((9, 0), "90a") && !runs_on((12, 0), "80 90a"));
        }
    }
}
