//! The LingBot-Map network: weights and frames in, tensors out.
//!
//! A frame goes through [`Model::forward`]: patch embedding, pairs of blocks over the key-value cache, camera head, dense
//! heads. Module names follow the tensor names of the checkpoint, so that a tensor leads to its code.

mod aggregator;
mod block;
mod camera_head;
mod dense_head;
mod error;
mod forward;
mod layers;
mod outputs;
mod patch_embed;
mod position;
mod state;
mod trace;
mod workspace;

use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, DeviceLocation};

pub use error::ModelError;
pub use forward::{Pass, Video};
pub use outputs::{DenseOutput, Outputs, Prediction};
pub use periplus_cache::PassKind;
pub use state::{VideoRecord, VideoState};
pub use trace::Observer;
pub use workspace::Workspace;

use aggregator::Aggregator;
use camera_head::CameraHead;
use candle_nn::VarBuilder;
use dense_head::DenseHead;
use layers::Loader;
use patch_embed::PatchEmbed;
use periplus_checkpoint::FloatType;
use periplus_checkpoint::config::Config;
use periplus_kernels::attention::has_kernel;
use periplus_kernels::device::{bind_to_thread, main_memory_holds, usable_cuda_stream};
use periplus_kernels::prediction::ValueActivation;

/// The network with its weights. Immutable: any number of videos and threads may share it.
pub struct Model {
    /// Identifies the model in this process.
    id: u64,
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
    /// Loads the network of `config` from `weights`, as other Candle models are loaded: from a
    /// [`Weights`](periplus_checkpoint::Weights), or from any tensors of these names and shapes.
    ///
    /// The dtype of `weights` (float32, bfloat16 or float16) is what the trunk's weights and the cache are stored in. The
    /// camera head stays in float32: its adaptive norm amplifies rounding some 500 times into the pose. The dense heads stay
    /// in float32, too, except on a GPU with a trunk of 16 bits. There they are float16, which is as fast as bfloat16 and
    /// rounds eight times finer: depth is the exponential of what they compute.
    ///
    /// # Errors
    /// A tensor that is missing or unusable, a dtype that weights are not stored in, a device that has no kernels, or none for
    /// heads of this width, or too little memory.
    #[allow(clippy::needless_pass_by_value)] // as every Candle model takes it
    pub fn load(weights: VarBuilder, config: &Config) -> Result<Self, ModelError> {
        config.validate()?;
        let (config, dtype) = (config.clone(), weights.dtype());
        check_device(weights.device().location())?;
        let device = &usable_cuda_stream(weights.device())?;
        check(&config, dtype, device)?;
        let bytes = config.weight_bytes(dtype.size_in_bytes());
        if device.is_cpu() && !main_memory_holds(bytes) {
            return Err(ModelError::OutOfMemory { bytes });
        }
        let root = Loader::new(&weights, &config, dtype, device);
        let heads = root.stored_in(DType::F32);
        let dense_heads =
            if device.is_cuda() && dtype != DType::F32 { root.stored_in(DType::F16) } else { heads.clone() };
        let dense = |name, activation| DenseHead::load(&dense_heads.pp(name), &config, activation);
        let model = Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            patch_embed: PatchEmbed::load(&root.pp("aggregator.patch_embed"), &config)?,
            aggregator: Aggregator::load(&root.pp("aggregator"), &config)?,
            camera_head: CameraHead::load(&heads.pp("camera_head"), &config)?,
            depth_head: dense("depth_head", ValueActivation::Exp)?,
            point_head: if config.point_head { Some(dense("point_head", ValueActivation::InverseLog)?) } else { None },
            config,
            dtype,
            device: device.clone(),
        };
        // Each video reads them in its own CUDA stream.
        device.synchronize()?;
        Ok(model)
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The dtype of the trunk's weights and the cache.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the weights are. On a GPU, videos may compute in CUDA streams of their own, see [`VideoState::device`].
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// Identifiers of models.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Refuses devices without kernels.
fn check_device(location: DeviceLocation) -> Result<(), ModelError> {
    match location {
        DeviceLocation::Cpu | DeviceLocation::Cuda { .. } => Ok(()),
        DeviceLocation::Metal { gpu_id } => Err(ModelError::UnsupportedDevice(format!("Metal GPU {gpu_id}"))),
    }
}

/// Checks that the trunk can be stored as `dtype`, and that `device` has kernels for all heads.
fn check(config: &Config, dtype: DType, device: &Device) -> Result<(), ModelError> {
    if FloatType::of(dtype).is_none() {
        return Err(ModelError::DType(dtype));
    }
    let channels = config.embed_dim;
    for (place, channels, heads, dtype) in [
        ("patch embedding", channels, config.vit_heads, dtype),
        ("blocks", channels, config.num_heads, dtype),
        ("camera head", 2 * channels, config.camera_heads, DType::F32),
    ] {
        let width = channels / heads.max(1);
        if !has_kernel(device, dtype, width) {
            return Err(ModelError::HeadWidth { place, width, dtype });
        }
    }
    Ok(())
}

impl Drop for Model {
    fn drop(&mut self) {
        bind_to_thread(&self.device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metal_devices_are_refused_in_a_sentence() {
        let error = check_device(DeviceLocation::Metal { gpu_id: 1 }).unwrap_err();
        assert_eq!(error.to_string(), "there are no kernels for Metal GPU 1: compute on the CPU or an NVIDIA GPU");
        assert!(check_device(Device::Cpu.location()).is_ok());
        assert!(check_device(DeviceLocation::Cuda { gpu_id: 0 }).is_ok());
    }
}
