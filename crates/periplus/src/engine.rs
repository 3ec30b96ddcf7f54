//! The engine: a loaded network, which sessions share.

use std::sync::Arc;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use periplus_checkpoint::Weights;
use periplus_checkpoint::config::Config;
use periplus_frames::{ImageSizeError, Preprocess, Resize};
use periplus_model::Model;

use crate::{EngineError, Session, SessionConfig};

/// A loaded network. Clones share the weights; any number of sessions and threads may use one engine.
#[derive(Clone)]
pub struct Engine {
    model: Arc<Model>,
}

impl Engine {
    /// Loads the network onto `device`.
    ///
    /// `dtype` (float32, bfloat16 or float16) is the dtype of the trunk's weights and of the cache. On the CPU,
    /// arithmetic is always float32, and float32 is fastest. On a GPU, gemms and attention compute in this dtype, with
    /// float32 sums; the published code uses bfloat16. Float16 has eight times the precision, but values are clamped to
    /// its range (65504), so use it only for checkpoints that stay in this range. On a GPU, the dense heads are also
    /// float16 for bfloat16: if the depth of a checkpoint differs between GPU and CPU, use float32.
    ///
    /// On a GPU, freed memory stays with the process until it ends.
    ///
    /// # Errors
    /// If a tensor is missing or has the wrong shape, the dtype is another one, the device is not supported (a Metal
    /// device, or a GPU without kernels), or there is too little memory.
    pub fn load(weights: &Weights, dtype: DType, device: &Device) -> Result<Self, EngineError> {
        Self::from_var_builder(weights.var_builder(dtype, device), weights.config())
    }

    /// As [`Engine::load`], with weights from any `VarBuilder`: tensors in memory, or a file that Candle reads.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn from_var_builder(weights: VarBuilder, config: &Config) -> Result<Self, EngineError> {
        Ok(Self { model: Arc::new(Model::load(weights, config)?) })
    }

    /// The architecture, and the settings that the checkpoint suggests.
    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// Preprocessing to the width that the network was trained on, in whole patches.
    ///
    /// # Errors
    /// If the configuration's pictures do not fit in memory.
    pub fn preprocess(&self, resize: Resize) -> Result<Preprocess, ImageSizeError> {
        preprocess(self.config(), self.config().image_size(), resize)
    }

    /// The network itself, which takes and gives tensors.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A session for one video.
    ///
    /// # Errors
    /// If a setting is out of range, keyframes by motion are combined with [`Outputs::Poses`](crate::Outputs::Poses),
    /// or the GPU is out of memory.
    pub fn session(&self, config: SessionConfig) -> Result<Session, EngineError> {
        Session::new(Arc::clone(&self.model), config)
    }
}

/// Preprocessing to a width of `image_size` pixels, in whole patches, for a network of `config`. [`Engine::preprocess`]
/// uses the width that the network was trained on, which is best.
///
/// # Errors
/// If the image size is not a multiple of the patch size, or too large for memory.
pub fn preprocess(config: &Config, image_size: u32, resize: Resize) -> Result<Preprocess, ImageSizeError> {
    let patch = u32::try_from(config.patch_size).unwrap_or(u32::MAX);
    Preprocess::new(image_size, patch, resize)
}
