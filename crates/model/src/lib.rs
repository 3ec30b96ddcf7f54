//! The LingBot-Map network: weights and frames in, tensors out.
//!
//! A frame goes through [`Stream::push`]: patch embedding, pairs of blocks over the key-value cache, camera head, dense
//! heads. Module names follow the tensor names of the checkpoint, so that a tensor leads to its code.

mod aggregator;
mod block;
mod camera_head;
pub mod checkpoint;
pub mod config;
mod dense_head;
mod error;
mod layers;
mod patch_embed;
mod position;
mod stream;
mod trace;

use candle_core::{DType, Device};

pub use error::ModelError;
pub use stream::{Prediction, Stream};
pub use trace::Observer;

use aggregator::Aggregator;
use camera_head::CameraHead;
use checkpoint::Weights;
use config::Config;
use dense_head::{DenseHead, ValueActivation};
use layers::Loader;
use patch_embed::PatchEmbed;

/// The network with its weights. Immutable: any number of streams and threads may share it.
pub struct Model {
    config: Config,
    patch_embed: PatchEmbed,
    aggregator: Aggregator,
    camera_head: CameraHead,
    depth_head: DenseHead,
    point_head: Option<DenseHead>,
    dtype: DType,
    device: Device,
}

impl Model {
    /// Loads the network. `dtype` (float32, bfloat16 or float16) is what the trunk's weights and the cache are stored
    /// in; the heads stay in float32 (the camera head's adaptive norm amplifies rounding some 500 times into the pose).
    ///
    /// # Errors
    /// A tensor that is missing or unusable, or no memory.
    pub fn load(weights: &Weights, dtype: DType, device: &Device) -> Result<Self, ModelError> {
        let config = weights.config().clone();
        let root = Loader::new(weights, dtype, device);
        let heads = root.stored_in(DType::F32);
        let dense = |name, activation| DenseHead::load(&heads.pp(name), &config, activation);
        Ok(Self {
            patch_embed: PatchEmbed::load(&root.pp("aggregator.patch_embed"), &config)?,
            aggregator: Aggregator::load(&root.pp("aggregator"), &config)?,
            camera_head: CameraHead::load(&heads.pp("camera_head"), &config)?,
            depth_head: dense("depth_head", ValueActivation::Exp)?,
            point_head: if config.point_head { Some(dense("point_head", ValueActivation::InverseLog)?) } else { None },
            config,
            dtype,
            device: device.clone(),
        })
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the trunk's weights and the cache are stored in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
