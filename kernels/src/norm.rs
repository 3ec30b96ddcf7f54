//! Layer normalisation over the last dimension.

use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operand::{reading, slice, zeros};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

/// `(x - mean) / sqrt(variance + eps) * weight + bias`: x `[.., c]`, weight and bias `[c]`, all float32. The result has
/// the given `dtype`: float32 on the CPU; on a GPU also bfloat16 or float16.
///
/// # Errors
/// When shapes do not match, an operand is not contiguous, or a dtype is wrong.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32, dtype: DType) -> Result<Tensor> {
    reading(x.device(), &[weight, bias], || x.apply_op3_no_bwd(weight, bias, &LayerNorm { eps, dtype }))
}

struct LayerNorm {
    eps: f32,
    dtype: DType,
}

impl LayerNorm {
    fn check(x: &Layout, weight: &Layout, bias: &Layout) -> Result<()> {
        match (x.dims(), weight.dims(), bias.dims()) {
            ([.., c], [w], [b]) if c == w && c == b => Ok(()),
            shapes => bail!("layer_norm: x, weight and bias {shapes:?} must be [.., c], [c] and [c]"),
        }
    }
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Self::check(x_layout, weight_layout, bias_layout)?;
        if self.dtype != DType::F32 {
            bail!("layer_norm: on the CPU the result is F32, not {:?}", self.dtype)
        }
        let x = slice("layer_norm: x", x, x_layout)?;
        let weight = slice("layer_norm: weight", weight, weight_layout)?;
        let bias = slice("layer_norm: bias", bias, bias_layout)?;
        let mut y = zeros("layer_norm", x_layout.dims())?;
        cpu::norm::layer_norm(&mut y, x, weight, bias, self.eps);
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }
    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Self::check(x_layout, weight_layout, bias_layout)?;
        let device = &x.device;
        let (output, y) = cuda::output("layer_norm", device, self.dtype, x_layout.dims())?;
        let operands = [
            cuda::memory("layer_norm: x", device, x, x_layout)?,
            cuda::memory("layer_norm: weight", device, weight, weight_layout)?,
            cuda::memory("layer_norm: bias", device, bias, bias_layout)?,
        ];
        let channels = weight_layout.dims()[0];
        let rows = x_layout.shape().elem_count().checked_div(channels).unwrap_or(0) as u64;
        let [x, weight, bias] = cuda::floats("layer_norm", operands)?;
        let (dtype, channels) = (y.dtype_code("layer_norm: y")?, cuda::count("layer_norm", channels)?);
        cuda::kernels::layer_norm(device, y, dtype, x, weight, bias, rows, channels, self.eps)?;
        Ok((output, x_layout.shape().clone()))
    }
}
