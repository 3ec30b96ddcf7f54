//! Events: points in the work of a device, to measure the time between them.

use candle_core::{Device, Result};
use std::time::{Duration, Instant};

/// A point in the work of a device.
#[derive(Debug)]
pub struct Event(Clock);

#[derive(Debug)]
enum Clock {
    Host(Instant),
    #[cfg(feature = "cuda")]
    Cuda(candle_core::cuda_backend::cudarc::driver::CudaEvent),
}

impl Event {
    /// Records an event. On the CPU it is the present time. On a GPU it completes when the work submitted to the
    /// [CUDA stream](crate::device::cuda_stream) of `device` so far is done; the call does not wait for that.
    ///
    /// # Errors
    /// When the GPU has failed.
    pub fn record(device: &Device) -> Result<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => {
                use candle_core::cuda_backend::{WrapErr, cudarc::driver::sys::CUevent_flags};
                let event = cuda.cuda_stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).w()?;
                Ok(Self(Clock::Cuda(event)))
            }
            _ => Ok(Self(Clock::Host(Instant::now()))),
        }
    }

    /// The time from `earlier` to this event of the same device and CUDA stream. On a GPU this waits for both.
    ///
    /// # Errors
    /// When the GPU has failed, or the events are of different devices.
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        match (&self.0, &earlier.0) {
            (Clock::Host(later), Clock::Host(earlier)) => Ok(later.duration_since(*earlier)),
            #[cfg(feature = "cuda")]
            (Clock::Cuda(later), Clock::Cuda(earlier)) => {
                use candle_core::cuda_backend::WrapErr;
                Ok(Duration::from_secs_f32(earlier.elapsed_ms(later).w()?.max(0.0) / 1e3))
            }
            #[cfg(feature = "cuda")]
            _ => candle_core::bail!("cannot measure the time between events of different devices"),
        }
    }
}
