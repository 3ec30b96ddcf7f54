//! The last layer of a dense head: values and confidence of each pixel.

use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operand::{reading, slice, zeros};
pub use crate::types::ValueActivation;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

/// What [`predict`] computes.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// `[frames, h, w, n]`.
    pub values: Tensor,
    /// `[frames, h, w]`.
    pub confidence: Tensor,
    /// `[1]`: how many values and confidences are NaN or infinite, at most 2^24.
    pub not_finite: Tensor,
}

/// A linear layer on x `[frames, h, w, channels]` with weight `[n + 1, channels]` and bias `[n + 1]`, both float32. The
/// first n outputs go through `activation` and become values; the last becomes a confidence, 1 + exp(output). Results
/// are float32. x is float32; on a GPU also bfloat16 or float16.
///
/// # Errors
/// When shapes do not match, an operand is not contiguous, or a dtype is wrong.
pub fn predict(x: &Tensor, weight: &Tensor, bias: &Tensor, activation: ValueActivation) -> Result<Predicted> {
    let (frames, height, width, _) = x.dims4()?;
    let predict = Predict { activation };
    let all = reading(x.device(), &[weight, bias], || x.apply_op3_no_bwd(weight, bias, &predict))?;
    let pixels = frames * height * width;
    let values = weight.dim(0)? - 1;
    Ok(Predicted {
        values: all.narrow(0, 0, pixels * values)?.reshape((frames, height, width, values))?,
        confidence: all.narrow(0, pixels * values, pixels)?.reshape((frames, height, width))?,
        not_finite: all.narrow(0, pixels * (values + 1), 1)?,
    })
}

struct Predict {
    activation: ValueActivation,
}

/// Checks the shapes; returns pixels, channels and outputs.
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
        let finish = cpu::Finish { bias: Some(bias), add: false, activation: crate::types::Activation::Identity };
        cpu::linear::linear(&mut raw, x, weight, (outputs, channels).into(), finish);
        let mut y = zeros("predict", &[pixels * outputs + 1])?;
        let (values, rest) = y.split_at_mut(pixels * (outputs - 1));
        let (confidences, not_finite) = rest.split_at_mut(pixels);
        cpu::prediction::predict(values, confidences, &raw, self.activation);
        not_finite[0] = cpu::prediction::not_finite(values) + cpu::prediction::not_finite(confidences);
        Ok((CpuStorage::F32(y), (pixels * outputs + 1).into()))
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
        let (output, y) = cuda::output("predict", device, candle_core::DType::F32, &[pixels * outputs + 1])?;
        let [weight, bias] = cuda::floats("predict", layer)?;
        let dtype = x.dtype_code("predict: x")?;
        let (channels, count) = (cuda::count("predict", channels)?, cuda::count("predict", outputs)?);
        let activation = match self.activation {
            ValueActivation::Exp => 0,
            ValueActivation::InverseLog => 1,
        };
        cuda::kernels::predict_pixels(device, y, x, dtype, weight, bias, pixels as u64, channels, count, activation)?;
        Ok((output, (pixels * outputs + 1).into()))
    }
}
