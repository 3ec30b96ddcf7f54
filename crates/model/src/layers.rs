//! Layers that every part of the network is made of. They choose the operation; the operations choose the device.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Storage, Tensor};
use candle_nn::{Init, VarBuilder};
use periplus_checkpoint::config::Config;
use periplus_checkpoint::{CheckpointError, FloatType, tensor_shapes};
use periplus_kernels::linear::{Activation, linear, linear_add};
use periplus_kernels::norm::layer_norm;

use rayon::prelude::*;

use crate::ModelError;

/// A place in the tree of tensor names, and how tensors below it are stored.
///
/// Weights go through main memory in float32, where LayerScale is folded into them, before they are stored.
#[derive(Clone)]
pub(crate) struct Loader<'a> {
    /// At the root of the tree, in main memory.
    weights: VarBuilder<'a>,
    /// The shapes of all tensors.
    shapes: Arc<BTreeMap<String, Vec<usize>>>,
    path: String,
    dtype: DType,
    device: &'a Device,
}

impl<'a> Loader<'a> {
    /// The root of the tree: `weights` for the network of `config`, to be stored as `dtype` on `device`.
    pub(crate) fn new(weights: &VarBuilder<'a>, config: &Config, dtype: DType, device: &'a Device) -> Self {
        let weights = weights.clone().set_device(Device::Cpu);
        Self { weights, shapes: Arc::new(tensor_shapes(config)), path: String::new(), dtype, device }
    }

    /// The place `name` below this one.
    pub(crate) fn pp(&self, name: impl std::fmt::Display) -> Self {
        let path = if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Self { path, ..self.clone() }
    }

    /// The same place, with products stored in `dtype`.
    pub(crate) fn stored_in(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// A tensor in float32 in main memory, for arithmetic before it is stored.
    pub(crate) fn host(&self, name: &str) -> Result<Tensor, ModelError> {
        let name = self.pp(name).path;
        let shape = self.shapes.get(&name).ok_or_else(|| CheckpointError::Unknown { name: name.clone() })?;
        Ok(self.weights.get_with_hints_dtype(shape.as_slice(), &name, Init::default(), DType::F32)?)
    }

    /// A small tensor (bias, norm, token), kept in float32.
    pub(crate) fn small(&self, name: &str) -> Result<Tensor, ModelError> {
        Ok(self.host(name)?.to_device(self.device)?)
    }

    pub(crate) fn device(&self) -> &'a Device {
        self.device
    }

    /// The dtype of activations: that of products on a GPU, float32 on the CPU.
    pub(crate) fn activations(&self) -> DType {
        if self.device.is_cuda() { self.dtype } else { DType::F32 }
    }

    /// Stores the weight of a product: this loader's dtype and device. Values that are too large for float16 are an
    /// error, since infinite weights would give NaN.
    pub(crate) fn store(&self, weight: &Tensor) -> Result<Tensor, ModelError> {
        let float = match FloatType::of(self.dtype) {
            None | Some(FloatType::F32) => return Ok(weight.to_device(self.device)?),
            Some(float) => float,
        };
        let halves = with_numbers(weight, |numbers| float.encode(numbers))?;
        let halves = halves.map_err(|_| ModelError::Float16 { place: self.path.clone() })?;
        Ok(Tensor::from_raw_buffer(&halves, self.dtype, weight.dims(), self.device)?)
    }
}

/// Converts the values of a float32 tensor in main memory with `body`, which may use several threads. Candle's own conversions use
/// one.
fn with_numbers<T>(tensor: &Tensor, body: impl FnOnce(&[f32]) -> T) -> candle_core::Result<T> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let numbers = match &*storage {
        Storage::Cpu(storage) => storage.as_slice::<f32>()?,
        _ => candle_core::bail!("weights are read in main memory"),
    };
    let (start, end) = layout.contiguous_offsets().unwrap_or((0, 0));
    Ok(body(&numbers[start..end]))
}

/// y = x Wᵀ + b.
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    pub(crate) fn load(at: &Loader) -> Result<Self, ModelError> {
        Self::from_host(at, &at.host("weight")?, Some(&at.host("bias")?))
    }

    /// With the LayerScale that follows it folded in: gamma (W x + b) = (gamma W) x + gamma b. Rounding to the stored dtype
    /// comes after, so nothing is lost.
    pub(crate) fn load_scaled(at: &Loader, gamma: &Tensor) -> Result<Self, ModelError> {
        let weight = at.host("weight")?;
        let gammas = gamma.to_vec1::<f32>()?;
        let inputs = weight.elem_count() / gammas.len().max(1);
        let mut scaled = weight.flatten_all()?.to_vec1::<f32>()?;
        if inputs > 0 {
            let rows = scaled.par_chunks_mut(inputs).zip(&gammas);
            rows.for_each(|(row, gamma)| row.iter_mut().for_each(|weight| *weight *= gamma));
        }
        let weight = Tensor::from_vec(scaled, weight.dims(), weight.device())?;
        Self::from_host(at, &weight, Some(&(at.host("bias")? * gamma)?))
    }

    /// From tensors `[out, in]` and `[out]` in main memory.
    pub(crate) fn from_host(at: &Loader, weight: &Tensor, bias: Option<&Tensor>) -> Result<Self, ModelError> {
        let bias = bias.map(|bias| bias.to_device(at.device)).transpose()?;
        Ok(Self { weight: at.store(weight)?, bias })
    }

    /// Channels of the result.
    pub(crate) fn outputs(&self) -> Result<usize, ModelError> {
        Ok(self.weight.dim(0)?)
    }

    pub(crate) fn forward(&self, x: &Tensor, activation: Activation) -> Result<Tensor, ModelError> {
        Ok(linear(x, &self.weight, self.bias.as_ref(), activation)?)
    }

    /// y += x Wᵀ + b, in place.
    pub(crate) fn forward_add(&self, y: &Tensor, x: &Tensor) -> Result<(), ModelError> {
        Ok(linear_add(y, x, &self.weight, self.bias.as_ref())?)
    }
}

/// Normalisation over the last dimension.
pub(crate) struct LayerNorm {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
    eps: f32,
    /// The dtype of the result.
    dtype: DType,
}

impl LayerNorm {
    pub(crate) fn load(at: &Loader, eps: f32) -> Result<Self, ModelError> {
        Ok(Self { weight: at.small("weight")?, bias: at.small("bias")?, eps, dtype: at.activations() })
    }

    /// With its result in float32, for tokens that blocks add to.
    pub(crate) fn in_float32(self) -> Self {
        Self { dtype: DType::F32, ..self }
    }

    /// Without weights of its own: (x - mean) / sqrt(variance + eps).
    pub(crate) fn plain(at: &Loader, channels: usize, eps: f32) -> Result<Self, ModelError> {
        let weight = Tensor::from_vec(vec![1.0_f32; channels], channels, at.device)?;
        Ok(Self { bias: weight.zeros_like()?, weight, eps, dtype: at.activations() })
    }

    /// x is float32.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(layer_norm(x, &self.weight, &self.bias, self.eps, self.dtype)?)
    }
}
