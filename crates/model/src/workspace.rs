//! Tables that the forward pass computes once for each picture size.

use candle_core::Device;
use periplus_kernels::device::bind_to_thread;
use periplus_kernels::rotary::Rotary;

use crate::dense_head::{DenseHead, Planes};
use crate::position::{Grid, Rotary3d, rotary_2d};
use crate::{Model, ModelError, Outputs};

/// Tables that [`Model::forward`] needs besides weights and state, and can compute again at any time: position embedding, rotary
/// tables, position planes of the dense heads. It may be dropped between any two calls, and is used by one call at a time.
///
/// On a GPU it belongs to one CUDA stream, that of the states it is used with.
pub struct Workspace {
    device: Device,
    tables: Option<Tables>,
}

/// Tables that depend on the picture size only.
pub(crate) struct Tables {
    /// The model they were computed for.
    model: u64,
    pub(crate) grid: Grid,
    pub(crate) start: candle_core::Tensor,
    pub(crate) within_frame: Rotary,
    pub(crate) across_frames: Rotary3d,
    /// `None` until the head runs.
    pub(crate) depth_planes: Option<Planes>,
    pub(crate) point_planes: Option<Planes>,
}

impl Workspace {
    /// Creates an empty workspace on `device`: on a GPU, the CUDA stream that computes.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), tables: None }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The tables for pictures of `grid`. Those of the last size are kept.
    pub(crate) fn tables(&mut self, model: &Model, grid: Grid, outputs: Outputs) -> Result<&Tables, ModelError> {
        let kept = self.tables.take().filter(|tables| (tables.model, tables.grid) == (model.id, grid));
        let mut tables = kept.map_or_else(|| Tables::new(model, grid, &self.device), Ok)?;
        let planes = |head: &DenseHead| head.planes(grid, &self.device);
        if tables.depth_planes.is_none() && outputs >= Outputs::Depth {
            tables.depth_planes = Some(planes(&model.depth_head)?);
        }
        if tables.point_planes.is_none() && outputs >= Outputs::All {
            tables.point_planes = model.point_head.as_ref().map(planes).transpose()?;
        }
        Ok(self.tables.insert(tables))
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        bind_to_thread(&self.device);
    }
}

impl Tables {
    fn new(model: &Model, grid: Grid, device: &Device) -> Result<Self, ModelError> {
        let special = model.config.num_special();
        let head_dim = model.config.embed_dim / model.config.num_heads;
        Ok(Self {
            model: model.id,
            grid,
            start: model.patch_embed.start(grid, device)?,
            within_frame: rotary_2d(grid, special, head_dim, device)?,
            across_frames: Rotary3d::new(grid, special, device)?,
            depth_planes: None,
            point_planes: None,
        })
    }
}
