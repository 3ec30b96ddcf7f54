//! The state of one video between its frames.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use periplus_cache::{CacheRecord, CacheStats, KvCache};
use periplus_kernels::device::{bind_to_thread, synchronize};
use serde::{Deserialize, Serialize};

use crate::camera_head::CameraCache;
use crate::position::Grid;
use crate::{Model, ModelError};
use periplus_checkpoint::config::StreamSettings;

/// The state of one video: the key-value cache, the cache of the camera head, and the picture size.
///
/// Time is counted in cached frames: the scale frames are 0 and up, each keyframe takes the next number.
///
/// On a GPU the state belongs to one CUDA stream. It may be sent from thread to thread.
pub struct VideoState {
    /// The model it was made for.
    pub(crate) model: u64,
    pub(crate) device: Device,
    /// Of the cached frames. Without meaning while there are none.
    pub(crate) grid: Option<Grid>,
    pub(crate) pages: KvCache,
    pub(crate) camera: CameraCache,
}

/// A [`VideoState`] without its tensors, for saving.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VideoRecord {
    /// Rows and columns of patches.
    grid: Option<Grid>,
    pages: CacheRecord,
}

impl VideoState {
    /// Creates the state of a new video for `model`. `device` is the model's own, or a CUDA stream of the same GPU
    /// ([`cuda_stream`](periplus_kernels::device::cuda_stream)).
    ///
    /// # Errors
    /// Settings out of range.
    pub fn new(model: &Model, settings: &StreamSettings, device: &Device) -> Result<Self, ModelError> {
        settings.validate()?;
        let network = model.config();
        let cache = settings.cache(network.num_special());
        let head_dim = network.embed_dim / network.num_heads;
        Ok(Self {
            model: model.id,
            device: device.clone(),
            grid: None,
            pages: KvCache::new(cache, network.depth, network.num_heads, head_dim, model.dtype, device)?,
            camera: model.camera_head.cache(settings.camera_iterations, device)?,
        })
    }

    /// The device of the state: on a GPU, its CUDA stream.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Frames cached so far, which is the time index of the next.
    pub fn frames(&self) -> usize {
        self.pages.frames()
    }

    /// Frames, pages and bytes in use.
    pub fn stats(&self) -> CacheStats {
        self.pages.stats()
    }

    /// Bytes of the camera head's cache.
    pub fn camera_bytes(&self) -> usize {
        self.camera.bytes()
    }

    /// Clears the state and keeps its memory. The next video may have another picture size.
    pub fn reset(&mut self) {
        bind_to_thread(&self.device);
        self.pages.reset();
    }

    /// The picture size of the cached frames; `None` before the scale pass.
    pub(crate) fn grid(&self) -> Option<Grid> {
        self.grid.filter(|_| self.frames() > 0)
    }

    /// The state without its tensors.
    pub fn record(&self) -> VideoRecord {
        VideoRecord { grid: self.grid(), pages: self.pages.record() }
    }

    /// The tensors of the state by name. With [`VideoState::record`] they are all that [`VideoState::restore`] needs. The
    /// pages are not copied: later frames write to them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn tensors(&self) -> Result<Vec<(String, Tensor)>, ModelError> {
        bind_to_thread(&self.device);
        let mut tensors = self.pages.tensors()?;
        tensors.extend(self.camera.tensors(self.frames())?);
        Ok(tensors)
    }

    /// Restores a saved state, which must come from the same weights and settings. A restored video continues bit for bit
    /// on the CPU.
    ///
    /// # Errors
    /// When the record contradicts itself or these settings, or tensors are missing or have another shape or dtype.
    pub fn restore(&mut self, record: VideoRecord, tensors: &HashMap<String, Tensor>) -> Result<(), ModelError> {
        bind_to_thread(&self.device);
        let VideoRecord { grid, pages } = record;
        let mut camera = self.camera.empty()?;
        camera.restore(pages.frames(), tensors)?;
        self.pages.restore(pages, tensors)?;
        (self.camera, self.grid) = (camera, grid);
        Ok(())
    }
}

impl Drop for VideoState {
    fn drop(&mut self) {
        bind_to_thread(&self.device);
        // The stream holds the weights that it has read. A GPU that has failed reads nothing any more.
        let _ = synchronize(&self.device);
    }
}
