//! Checks before work begins that main memory can be had. An allocation that fails later aborts the program.

use periplus::checkpoint::FloatType;
use periplus::device::main_memory_holds;
use periplus::{Config, Device};
use periplus_units::Bytes;

use crate::console::counted;
use crate::failure::Failure;

/// What threads that start later and free memory in pieces take of the address space. glibc reserves 64 MiB for a thread
/// that allocates.
const MARGIN: u64 = 128 << 20;

/// Stack (2 MiB, the default of Rust) and bookkeeping of a thread.
const THREAD: u64 = 3 << 20;

/// Tensors of the largest size that are in memory at once while a checkpoint is written: as stored, as float32, and encoded.
const TENSORS: u64 = 3;

/// Checks that `count` threads can have their stacks.
///
/// # Errors
/// If they cannot.
pub(crate) fn check_threads(count: usize) -> Result<(), Failure> {
    require(THREAD.saturating_mul(count as u64), &counted(count, "thread"), "choose fewer --threads")
}

/// Checks that the weights of a network can be loaded on `device`.
///
/// # Errors
/// If they cannot.
pub(crate) fn check_weights(config: &Config, float: FloatType, device: &Device) -> Result<(), Failure> {
    let bytes = if device.is_cuda() { 0 } else { config.weight_bytes(float.size()) };
    require(bytes.saturating_add(MARGIN), "this network", "choose --dtype bf16 or a smaller network")
}

/// Checks that a checkpoint of the network can be written, tensor by tensor.
///
/// # Errors
/// If it cannot.
pub(crate) fn check_writing(config: &Config) -> Result<(), Failure> {
    let bytes = config.largest_tensor_bytes().saturating_mul(TENSORS);
    require(bytes.saturating_add(MARGIN), "writing a checkpoint of this network", "write it where there is more")
}

/// Checks that the CPU can stream `keyframes` frames of `width` x `height` pixels. A GPU reports by itself that it is full.
///
/// # Errors
/// If it cannot.
pub(crate) fn check_stream(
    config: &Config,
    float: FloatType,
    [width, height]: [usize; 2],
    keyframes: usize,
    device: &Device,
) -> Result<(), Failure> {
    if device.is_cuda() {
        return Ok(());
    }
    let bytes = config.stream_bytes(height, width, keyframes, float.size());
    let working = config.working_bytes(height, width, config.stream.scale_frames);
    let what = format!(
        "a stream of {width} x {height} pixels with {} and a window of {}",
        counted(keyframes, "keyframe"),
        config.stream.window
    );
    let bytes = bytes.saturating_add(working).saturating_add(MARGIN);
    require(bytes, &what, "choose a smaller --window, --image-size or --dtype bf16")
}

fn require(bytes: u64, what: &str, advice: &str) -> Result<(), Failure> {
    if main_memory_holds(bytes) {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{what} needs {} of memory, which the system does not give: free memory, raise its limit (ulimit -v), or {advice}",
        Bytes(bytes)
    )))
}
