//! What a dense head ends in.

use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operand::{slice, zeros};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

/// What turns a raw output into a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueActivation {
    /// exp(x): depth.
    Exp,
    /// sign(x) (exp(|x|) - 1): points.
    InverseLog,
}

/// A linear layer x `[frames, h, w, channels]`, weight `[n + 1, channels]`, bias `[n + 1]` (both float32), whose first n
/// outputs become values `[frames, h, w, n]` and the last a confidence `[frames, h, w]`, 1 + exp; both float32.
/// x is float32 on the CPU; on a card bfloat16 or float16, too.
///
/// # Errors
/// When shapes do not fit together, an operand is not contiguous, or a dtype is another.
pub fn predict(x: &Tensor, weight: &Tensor, bias: &Tensor, activation: ValueActivation) -> Result<(Tensor, Tensor)> {
    let (frames, height, width, _) = x.dims4()?;
    let both = x.apply_op3_no_bwd(weight, bias, &Predict { activation })?;
    let pixels = frames * height * width;
    let values = weight.dim(0)? - 1;
    Ok((
        both.narrow(0, 0, pixels * values)?.reshape((frames, height, width, values))?,
        both.narrow(0, pixels * values, pixels)?.reshape((frames, height, width))?,
    ))
}

struct Predict {
    activation: ValueActivation,
}

/// Pixels, channels and outputs.
fn check(x: &Layout, weight: &Layout, bias: &Layout) -> Result<[usize; 3]> {
    match (x.dims(), weight.dims(), bias.dims()) {
        (&[frames, height, width, channels], &[outputs, inputs], &[biases])
            if inputs == channels && biases == outputs && outputs > 0 =>
        {
            Ok([frames * height * width, channels, outputs])
        }
        shapes => {
            bail!("predict: x, weight and bias {shapes:?} must be [frames, height, width, c], [n + 1, c] and [n + 1]")
        }
    }
}

impl CustomOp3 for Predict {
    fn name(&self) -> &'static str {
        "predict"
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
        let [pixels, channels, outputs] = check(x_layout, weight_layout, bias_layout)?;
        let x = slice("predict: x", x, x_layout)?;
        let weight = slice::<f32>("predict: weight", weight, weight_layout)?;
        let bias = slice("predict: bias", bias, bias_layout)?;
        let mut raw = zeros("predict", &[pixels, outputs])?;
        let finish = cpu::Finish { bias: Some(bias), add: false, activation: crate::linear::Activation::Identity };
        cpu::linear::linear(&mut raw, x, weight, (outputs, channels).into(), finish);
        let mut y = zeros("predict", &[pixels * outputs])?;
        let (values, confidences) = y.split_at_mut(pixels * (outputs - 1));
        cpu::prediction::predict(values, confidences, &raw, self.activation);
        Ok((CpuStorage::F32(y), (pixels * outputs).into()))
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
        let [pixels, channels, outputs] = check(x_layout, weight_layout, bias_layout)?;
        let device = &x.device;
        let layer = [
            cuda::memory("predict: weight", device, weight, weight_layout)?,
            cuda::memory("predict: bias", device, bias, bias_layout)?,
        ];
        let x = cuda::memory("predict: x", device, x, x_layout)?;
        let (output, y) = cuda::output("predict", device, candle_core::DType::F32, &[pixels, outputs])?;
        let sizes = (pixels as u64, cuda::count("predict", channels)?, cuda::count("predict", outputs)?);
        let activation = match self.activation {
            ValueActivation::Exp => 0,
            ValueActivation::InverseLog => 1,
        };
        cuda::operations::predict_pixels(device, y, x, layer, sizes, activation)?;
        Ok((output, (pixels * outputs).into()))
    }
}
