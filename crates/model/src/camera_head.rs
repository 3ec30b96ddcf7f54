//! From camera tokens to poses, in a few passes of refinement.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use periplus_cache::GrowingRows;
use periplus_kernels::attention::paged_attention;
use periplus_kernels::conv::relu_in_place;
use periplus_kernels::linear::Activation;
use periplus_kernels::modulation::modulate;
use periplus_kernels::tokens::concat;

use crate::ModelError;
use crate::block::Block;
use crate::layers::{LayerNorm, Linear, Loader};
use periplus_checkpoint::config::Config;

/// A small transformer over the camera tokens of all cached frames, run a few times, each time modulated by the pose
/// so far (adaptive LayerNorm, as in DiT, Peebles & Xie 2023).
pub(crate) struct CameraHead {
    token_norm: LayerNorm,
    adaptive_norm: LayerNorm,
    empty_pose: Tensor,
    embed_pose: Linear,
    modulation: Linear,
    trunk: Vec<Block>,
    trunk_norm: LayerNorm,
    branch: [Linear; 2],
    heads: usize,
    channels: usize,
}

/// Keys and values of the camera tokens of every cached frame, one store per pass and block. Nothing is evicted.
///
/// Each store has a row for each cached frame, so the key-value cache of the video counts the rows of this one, too.
pub(crate) struct CameraCache {
    stores: Vec<GrowingRows>,
    heads: usize,
    head_dim: usize,
    device: Device,
}

impl CameraCache {
    fn new(stores: usize, heads: usize, head_dim: usize, device: &Device) -> Result<Self, ModelError> {
        let store = || GrowingRows::new(heads, head_dim, DType::F32, device);
        let stores = (0..stores).map(|_| store()).collect::<Result<_, _>>()?;
        Ok(Self { stores, heads, head_dim, device: device.clone() })
    }

    /// An empty cache of the same kind.
    pub(crate) fn empty(&self) -> Result<Self, ModelError> {
        Self::new(self.stores.len(), self.heads, self.head_dim, &self.device)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.stores.iter().map(GrowingRows::bytes).sum()
    }

    /// The rows of `frames` cached frames by name, `camera.STORE`: `[1, 2, frames, heads, head_dim]`.
    pub(crate) fn tensors(&self, frames: usize) -> Result<Vec<(String, Tensor)>, ModelError> {
        let named = |(i, store): (usize, &GrowingRows)| Ok(store.rows(frames)?.map(|rows| (name(i), rows)));
        self.stores.iter().enumerate().filter_map(|store| named(store).transpose()).collect()
    }

    /// Restores the saved rows of `frames` cached frames.
    pub(crate) fn restore(&mut self, frames: usize, tensors: &HashMap<String, Tensor>) -> Result<(), ModelError> {
        for (i, store) in self.stores.iter_mut().enumerate() {
            let saved = tensors.get(&name(i)).filter(|_| frames > 0);
            if saved.map_or(0, |rows| rows.dims().get(2).copied().unwrap_or(0)) != frames {
                return Err(periplus_cache::Error::Snapshot("the camera cache has another number of frames").into());
            }
            store.restore(saved)?;
        }
        Ok(())
    }
}

/// The name of a store in a snapshot.
fn name(store: usize) -> String {
    format!("camera.{store}")
}

/// Values of a pose encoding.
const POSE: usize = 9;
/// Values of it that are not fields of view.
const TRANSLATION_AND_ROTATION: usize = 7;

impl CameraHead {
    pub(crate) fn load(at: &Loader, config: &Config) -> Result<Self, ModelError> {
        const EPS: f32 = 1e-5;
        const ADAPTIVE_EPS: f32 = 1e-6;
        let channels = 2 * config.embed_dim;
        let trunk = (0..config.camera_depth)
            .map(|i| Block::load(&at.pp("trunk").pp(i), config.camera_heads, EPS))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            token_norm: LayerNorm::load(&at.pp("token_norm"), EPS)?,
            adaptive_norm: LayerNorm::plain(at, channels, ADAPTIVE_EPS)?,
            empty_pose: at.small("empty_pose_tokens")?.reshape((1, POSE))?,
            embed_pose: Linear::load(&at.pp("embed_pose"))?,
            modulation: Linear::load(&at.pp("poseLN_modulation.1"))?,
            trunk,
            trunk_norm: LayerNorm::load(&at.pp("trunk_norm"), EPS)?,
            branch: [Linear::load(&at.pp("pose_branch.fc1"))?, Linear::load(&at.pp("pose_branch.fc2"))?],
            heads: config.camera_heads,
            channels,
        })
    }

    /// Creates the cache for `iterations` passes.
    pub(crate) fn cache(&self, iterations: usize, device: &Device) -> Result<CameraCache, ModelError> {
        CameraCache::new(iterations * self.trunk.len(), self.heads, self.channels / self.heads, device)
    }

    /// tokens `[frames, 2 channels]` (camera token of the last tap) -> pose encodings `[frames, 9]`. The frames come after
    /// `cached` others, whose rows are in `cache`.
    pub(crate) fn forward(
        &self,
        tokens: &Tensor,
        cached: usize,
        cache: &mut CameraCache,
    ) -> Result<Tensor, ModelError> {
        let base = self.token_norm.forward(tokens)?;
        let normed = self.adaptive_norm.forward(&base)?;
        let frames = base.dim(0)?;
        let pose = Tensor::zeros((frames, POSE), DType::F32, base.device())?;
        for (pass, stores) in cache.stores.chunks_mut(self.trunk.len()).enumerate() {
            let given =
                if pass == 0 { concat(&vec![self.empty_pose.clone(); frames], base.device())? } else { pose.clone() };
            let embedded = self.embed_pose.forward(&given, Activation::Silu)?;
            let modulation = self.modulation.forward(&embedded, Activation::Identity)?;
            let x = modulate(&base, &normed, &modulation)?.unsqueeze(0)?;
            for (block, store) in self.trunk.iter().zip(stores) {
                let qkv = block.qkv(&x)?.squeeze(0)?;
                store.append(cached, &qkv)?;
                let attended = paged_attention(&qkv, store.pools()?, store.table())?;
                block.finish(&x, &attended.unsqueeze(0)?)?;
            }
            let y = self.trunk_norm.forward(&x.squeeze(0)?)?;
            self.branch[1].forward_add(&pose, &self.branch[0].forward(&y, Activation::Gelu)?)?;
        }
        relu_in_place(&pose, TRANSLATION_AND_ROTATION)?;
        Ok(pose)
    }
}
