//! Launches of the gemm kernels, for linear layers and convolutions.

#[cfg(periplus_hopper)]
use super::Gpu;
use super::{Memory, count, kernels, memory};
use crate::types::Activation;
use crate::types::Window;
use candle_core::{CudaStorage, DType, Layout, Result, bail};
use std::ffi::c_int;

/// Where the sums go and what happens to them before they are stored.
pub(crate) struct Target {
    pub(crate) y: Memory,
    pub(crate) add: bool,
    pub(crate) activation: Activation,
}

/// y = activation(x weight + bias), or y += x weight + bias, for the convolution that `window` describes.
pub(crate) fn gemm(
    op: &'static str,
    target: &Target,
    (x, x_layout): (&CudaStorage, &Layout),
    (weight, weight_layout): (&CudaStorage, &Layout),
    bias: Option<Memory>,
    window: &Window,
) -> Result<()> {
    let device = &x.device;
    let x = memory(op, device, x, x_layout)?;
    let weight = memory(op, device, weight, weight_layout)?;
    let dtype = x.dtype_code(op)?;
    if weight.dtype() != x.dtype() || ![x.dtype(), DType::F32].contains(&target.y.dtype()) {
        let dtypes = (x.dtype(), weight.dtype(), target.y.dtype());
        bail!("{op}: x, weight and y stored as {dtypes:?} must have one dtype, except that y may be F32")
    }
    let bias = bias.map(|bias| bias.expect(op, DType::F32)).transpose()?;
    let [height, width, inputs] = window.input;
    let size = |size| count(op, size);
    let gemm = kernels::Gemm {
        x: x.pointer(),
        weight: weight.pointer(),
        bias: bias.map_or(std::ptr::null(), Memory::pointer),
        y: target.y.pointer_mut(),
        frames: size(window.frames)?,
        height: size(height)?,
        width: size(width)?,
        inputs: size(inputs)?,
        outputs: size(window.output[2])?,
        kernel: size(window.k)?,
        stride: size(window.stride)?,
        padding: size(window.padding)?,
        dtype,
        output_dtype: target.y.dtype_code(op)?,
        activation: activation(target.activation),
        add: u32::from(target.add),
    };
    #[cfg(periplus_hopper)]
    {
        let gpu = Gpu::of(device)?;
        // SAFETY: it only reads the struct.
        if gpu.hopper && unsafe { kernels::hopper::gemm_fits(&raw const gemm) } != 0 {
            // SAFETY: as above.
            let plan = unsafe { kernels::hopper::gemm_plan(&raw const gemm, gpu.multiprocessors) };
            return kernels::hopper::gemm(device, &gemm, plan);
        }
    }
    kernels::gemm(device, &gemm)
}

fn activation(activation: Activation) -> c_int {
    match activation {
        Activation::Identity => 0,
        Activation::Gelu => 1,
        Activation::Relu => 2,
        Activation::Silu => 3,
    }
}
