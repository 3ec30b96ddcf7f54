//! The weights, shared.

use std::sync::Arc;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use periplus_checkpoint::Weights;
use periplus_checkpoint::config::Config;
use periplus_frames::{ImageSizeError, Preprocess, Resize};
use periplus_model::Model;

use crate::{EngineError, Session, SessionConfig};

/// A loaded network. Cloning is cheap; any number of sessions and threads may share one.
#[derive(Clone)]
pub struct Engine {
    model: Arc<Model>,
}

impl Engine {
    /// Loads the network onto `device`.
    ///
    /// `dtype` (float32, bfloat16 or float16) is what the trunk's weights and the cache are stored in; on the CPU all
    /// arithmetic is float32 whatever it is, and float32 is fastest. On a card products are of numbers of this type, with
    /// float32 sums; bfloat16 is what the published code uses. Float16 is finer, but what leaves its range (65504) stays at
    /// its end, so it suits checkpoints that are known to stay within. The dense heads are float16 on a card for bfloat16, too,
    /// and eight times finer for it: a checkpoint whose depth differs between card and CPU wants float32.
    ///
    /// On a card, memory that is freed stays with the program until it ends.
    ///
    /// # Errors
    /// A tensor that is missing or of the wrong shape, another `dtype`, a card that lacks the kernels, or too little memory.
    pub fn load(weights: &Weights, dtype: DType, device: &Device) -> Result<Self, EngineError> {
        Self::from_var_builder(weights.var_builder(dtype, device), weights.config())
    }

    /// As [`Engine::load`], from any tensors that Candle has: in memory, or from a file that it reads.
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

    /// What fits pictures to the network: to the width that it was trained on, cut into its patches.
    ///
    /// # Errors
    /// A network for pictures that no memory holds.
    pub fn preprocess(&self, resize: Resize) -> Result<Preprocess, ImageSizeError> {
        preprocess(self.config(), self.config().image_size(), resize)
    }

    /// The network itself, for those who want tensors.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A session for one video.
    ///
    /// # Errors
    /// A setting out of range, keyframes by motion where only poses are wanted, or a card that has no memory left.
    pub fn session(&self, config: SessionConfig) -> Result<Session, EngineError> {
        Session::new(Arc::clone(&self.model), config)
    }
}

/// What fits pictures to a network of `config`: to `image_size` pixels, cut into its patches. What it was trained on, and suits it
/// best, [`Engine::preprocess`] takes by itself.
///
/// # Errors
/// An image size that is not made of whole patches, or too large for memory.
pub fn preprocess(config: &Config, image_size: u32, resize: Resize) -> Result<Preprocess, ImageSizeError> {
    let patch = u32::try_from(config.patch_size).unwrap_or(u32::MAX);
    Preprocess::new(image_size, patch, resize)
}
