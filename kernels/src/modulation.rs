//! Adaptive LayerNorm modulation, by which the camera head feeds a pose back into its tokens.

use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operand::{reading, slice, zeros};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

/// `x + gate * (normed * (1 + scale) + shift)` (adaptive LayerNorm, Peebles & Xie 2023): x and normed `[rows, c]`,
/// modulation `[rows, 3 c]` = shift, scale, gate; all float32.
///
/// # Errors
/// When shapes do not match, or an operand is not contiguous or not float32.
pub fn modulate(x: &Tensor, normed: &Tensor, modulation: &Tensor) -> Result<Tensor> {
    reading(x.device(), &[normed, modulation], || x.apply_op3_no_bwd(normed, modulation, &Modulate))
}

struct Modulate;

/// Checks the shapes; returns rows and channels.
fn check(x: &Layout, normed: &Layout, modulation: &Layout) -> Result<(usize, usize)> {
    match (x.dims(), normed.dims(), modulation.dims()) {
        (&[rows, channels], other, &[modulated, three])
            if other == [rows, channels] && modulated == rows && channels.checked_mul(3) == Some(three) =>
        {
            Ok((rows, channels))
        }
        shapes => bail!("modulate: x, normed and modulation {shapes:?} must be [rows, c], [rows, c] and [rows, 3 c]"),
    }
}

impl CustomOp3 for Modulate {
    fn name(&self) -> &'static str {
        "modulate"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        normed: &CpuStorage,
        normed_layout: &Layout,
        modulation: &CpuStorage,
        modulation_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, channels) = check(x_layout, normed_layout, modulation_layout)?;
        let x = slice("modulate: x", x, x_layout)?;
        let normed = slice("modulate: normed", normed, normed_layout)?;
        let modulation = slice("modulate: modulation", modulation, modulation_layout)?;
        let mut y = zeros("modulate", x_layout.dims())?;
        cpu::modulation::modulate(&mut y, x, normed, modulation, channels);
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        normed: &CudaStorage,
        normed_layout: &Layout,
        modulation: &CudaStorage,
        modulation_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (rows, channels) = check(x_layout, normed_layout, modulation_layout)?;
        let device = &x.device;
        let operands = [
            cuda::memory("modulate: x", device, x, x_layout)?,
            cuda::memory("modulate: normed", device, normed, normed_layout)?,
            cuda::memory("modulate: modulation", device, modulation, modulation_layout)?,
        ];
        let (output, y) = cuda::output("modulate", device, candle_core::DType::F32, x_layout.dims())?;
        let [x, normed, modulation] = cuda::floats("modulate", operands)?;
        cuda::kernels::modulate(device, y, x, normed, modulation, rows as u64, cuda::count("modulate", channels)?)?;
        Ok((output, x_layout.shape().clone()))
    }
}
