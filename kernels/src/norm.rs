//! Layer normalisation over the last dimension.

use crate::cpu;
use crate::operand::{slice, zeros};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

/// `(x - mean) / sqrt(variance + eps) * weight + bias`: x `[.., c]`, weight and bias `[c]`; all float32 on the CPU.
///
/// # Errors
/// When shapes do not fit together, an operand is not contiguous, or a dtype is another.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
    x.apply_op3_no_bwd(weight, bias, &LayerNorm { eps })
}

struct LayerNorm {
    eps: f32,
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
        let shapes = (x_layout.dims(), weight_layout.dims(), bias_layout.dims());
        if !matches!(shapes, ([.., c], [w], [b]) if c == w && c == b) {
            bail!("layer_norm: x, weight and bias {shapes:?} must be [.., c], [c] and [c]")
        }
        let x = slice("layer_norm: x", x, x_layout)?;
        let weight = slice("layer_norm: weight", weight, weight_layout)?;
        let bias = slice("layer_norm: bias", bias, bias_layout)?;
        let mut y = zeros("layer_norm", x_layout.dims())?;
        cpu::norm::layer_norm(&mut y, x, weight, bias, self.eps);
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }
}
