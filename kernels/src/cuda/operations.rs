//! The kernels of `operations.h`.

use super::{Memory, ffi, launched, stream};
use candle_core::cuda_backend::CudaDevice;
use candle_core::{DType, Result};
use std::ffi::c_int;

/// Queues a kernel.
macro_rules! launch {
    ($device:expr, $kernel:ident($($argument:expr),* $(,)?)) => {{
        let stream = stream($device)?;
        // SAFETY: the operations check shapes against each other, and tensors that these shapes are within their memory.
        // What is queued on a stream is done before later work on it, that of freeing the memory included.
        launched(stringify!($kernel), unsafe { ffi::$kernel($($argument,)* stream) })
    }};
}

/// Float32 operands, or an error that says which is not.
pub(crate) fn floats<const N: usize>(op: &str, operands: [Memory; N]) -> Result<[*const f32; N]> {
    for operand in operands {
        operand.expect(op, DType::F32)?;
    }
    Ok(operands.map(Memory::pointer))
}

pub(crate) fn layer_norm(
    device: &CudaDevice,
    y: Memory,
    operands: [Memory; 3],
    (rows, channels): (u64, u32),
    eps: f32,
) -> Result<()> {
    let element = y.dtype_code("layer_norm: y")?;
    let [x, weight, bias] = floats("layer_norm", operands)?;
    launch!(device, layer_norm(y.pointer_mut(), element, x, weight, bias, rows, channels, eps))
}

pub(crate) fn norm_rotate(device: &CudaDevice, operation: &ffi::NormRotate) -> Result<()> {
    launch!(device, norm_rotate(operation))
}

/// `keys` is where the first of them goes.
pub(crate) fn append_rows(
    device: &CudaDevice,
    (keys, value_offset): (Memory, i64),
    qkv: Memory,
    tokens: u32,
    width: u32,
) -> Result<()> {
    let size = qkv.dtype().size_in_bytes() as u32;
    launch!(device, append_rows(keys.pointer_mut(), value_offset, qkv.pointer(), size, tokens, width))
}

pub(crate) fn patches(
    device: &CudaDevice,
    y: Memory,
    x: Memory,
    colours: [Memory; 2],
    [frames, rows, columns, patch]: [u32; 4],
) -> Result<()> {
    let element = y.dtype_code("patches: y")?;
    let x = x.expect("patches: x", DType::U8)?.pointer();
    let [scale, shift] = floats("patches", colours)?;
    launch!(device, patches(y.pointer_mut(), element, x, scale, shift, frames, rows, columns, patch))
}

/// Of elements of four bytes.
pub(crate) fn join_channels(
    device: &CudaDevice,
    y: Memory,
    a: Memory,
    b: Memory,
    (rows, a_channels, b_channels): (u64, u32, u32),
) -> Result<()> {
    launch!(device, join_channels(y.pointer_mut(), a.pointer(), b.pointer(), rows, a_channels, b_channels))
}

pub(crate) fn modulate(
    device: &CudaDevice,
    y: Memory,
    operands: [Memory; 3],
    (rows, channels): (u64, u32),
) -> Result<()> {
    let [x, normed, modulation] = floats("modulate", operands)?;
    launch!(device, modulate(y.pointer_mut(), x, normed, modulation, rows, channels))
}

pub(crate) fn relu(device: &CudaDevice, x: Memory, rows: u64, channels: u32, first: u32) -> Result<()> {
    let element = x.dtype_code("relu: x")?;
    launch!(device, relu(x.pointer_mut(), element, rows, channels, first))
}

pub(crate) fn bilinear(device: &CudaDevice, operation: &ffi::Bilinear) -> Result<()> {
    launch!(device, bilinear(operation))
}

pub(crate) fn depth_to_space(
    device: &CudaDevice,
    y: Memory,
    x: Memory,
    [frames, height, width]: [u32; 3],
    k: u32,
    channels: u32,
) -> Result<()> {
    let size = x.dtype().size_in_bytes() as u32;
    launch!(device, depth_to_space(y.pointer_mut(), x.pointer(), size, frames, height, width, k, channels))
}

pub(crate) fn add_plane(
    device: &CudaDevice,
    x: Memory,
    waves: [Memory; 2],
    [frames, height, width, channels]: [u32; 4],
) -> Result<()> {
    let element = x.dtype_code("add_plane: x")?;
    let [u, v] = floats("add_plane", waves)?;
    launch!(device, add_plane(x.pointer_mut(), element, u, v, frames, height, width, channels))
}

pub(crate) fn predict_pixels(
    device: &CudaDevice,
    y: Memory,
    x: Memory,
    layer: [Memory; 2],
    (pixels, channels, outputs): (u64, u32, u32),
    activation: c_int,
) -> Result<()> {
    let element = x.dtype_code("predict: x")?;
    let [weight, bias] = floats("predict", layer)?;
    launch!(
        device,
        predict_pixels(y.pointer_mut(), x.pointer(), element, weight, bias, pixels, channels, outputs, activation)
    )
}
