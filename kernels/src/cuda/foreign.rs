//! Operands of other CUDA streams: weights, which every video reads in its own stream.
//!
//! Memory is freed, and then reused, in the order of the stream that it was allocated in. That is safe for operands of
//! the stream in which an operation runs. But an operand of another stream can be dropped, and its memory reused in the
//! order of that other stream, while the operation still reads it. Therefore a stream *holds* such operands: it keeps a
//! clone of the tensor, and with it the memory, until an event shows that the operation is done.
//!
//! A frame reads about a thousand weights. One event for each would cost time on the host and on the GPU, so a batch of
//! operands shares an event. Nothing waits for these events: when a batch is full, earlier batches whose event has
//! completed are dropped. [`synchronize`] drops everything that a stream holds.
//!
//! This keeps the memory of an operand, not its values: the work that computes an operand of another stream must be
//! done before an operation reads it. Otherwise the values of the result are unspecified.

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream};
use candle_core::cuda_backend::{CudaDevice, WrapErr};
use candle_core::{CudaStorage, Device, Result, Storage, Tensor};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Operands that share an event: about one event for each frame.
const BATCH: usize = 1024;

/// The operands that a stream holds.
#[derive(Default)]
struct Held {
    /// Those without an event so far.
    open: Vec<Tensor>,
    /// Full batches. The event was recorded after the last operation of the batch.
    closed: Vec<(CudaEvent, Vec<Tensor>)>,
}

/// The operands that each stream holds, by the address of the stream.
static HELD: Mutex<BTreeMap<usize, Held>> = Mutex::new(BTreeMap::new());

fn all_held() -> MutexGuard<'static, BTreeMap<usize, Held>> {
    // After a panic the map is still valid; at worst, some operands are held for longer.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(stream: &CudaStream) -> usize {
    stream.cu_stream().addr()
}

thread_local! {
    /// Addresses of the storages of other streams that the current operation may read.
    static DECLARED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Runs `operation`, which launches kernels in the stream of `device` that read `operands`, and holds those of other
/// streams.
///
/// They are held *after* the launch. The borrow keeps them alive until then. If they were held before, another thread
/// could call [`synchronize`] between the two, which would drop them too early.
pub(crate) fn reading<T>(
    device: &CudaDevice,
    operands: &[&Tensor],
    operation: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let foreign = |tensor: &&&Tensor| matches!(tensor.device(), Device::Cuda(own) if !own.same_device(device));
    let foreign = || operands.iter().filter(foreign);
    if foreign().next().is_none() {
        return operation();
    }
    DECLARED.with_borrow_mut(|declared| declared.extend(foreign().map(|tensor| address_of(tensor))));
    let result = operation();
    DECLARED.with_borrow_mut(Vec::clear);
    // Also after an error: an operation of several kernels may have launched some.
    hold(device, foreign().map(|tensor| Tensor::clone(tensor)))?;
    result
}

/// Whether the current operation may read a storage of another stream.
pub(super) fn is_declared(storage: &CudaStorage) -> bool {
    DECLARED.with_borrow(|declared| declared.contains(&std::ptr::from_ref(storage).addr()))
}

fn address_of(tensor: &Tensor) -> usize {
    match &*tensor.storage_and_layout().0 {
        Storage::Cuda(storage) => std::ptr::from_ref(storage).addr(),
        _ => 0,
    }
}

fn hold(device: &CudaDevice, operands: impl Iterator<Item = Tensor>) -> Result<()> {
    let stream = device.cuda_stream();
    let mut done = Vec::new();
    {
        let mut all = all_held();
        let held = all.entry(key(&stream)).or_default();
        held.open.extend(operands);
        if held.open.len() >= BATCH {
            let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING)).w()?;
            held.closed.push((event, std::mem::take(&mut held.open)));
            done.extend(held.closed.extract_if(.., |(event, _)| event.is_complete()));
        }
    }
    // After the lock is released: freeing memory may take long.
    drop(done);
    Ok(())
}

/// Waits for the stream of `device`, then drops the operands that it holds.
pub(crate) fn synchronize(device: &CudaDevice) -> Result<()> {
    let stream = device.cuda_stream();
    // Taken before the wait: an operation that another thread launches meanwhile may run after it.
    let held = all_held().remove(&key(&stream));
    let result = stream.synchronize().w();
    // Also after an error: a GPU that has failed no longer reads anything.
    drop(held);
    result
}
