//! From pictures to patch tokens: a DINOv2 vision transformer with registers.

use candle_core::{DType, IndexOp, Tensor};
use periplus_kernels::attention::self_attention;
use periplus_kernels::linear::Activation;

use crate::ModelError;
use crate::block::Block;
use crate::config::Config;
use crate::layers::{LayerNorm, Linear, Loader};
use crate::position::{Grid, resample_bicubic};

/// Mean and standard deviation of ImageNet's red, green and blue: what the weights were trained behind.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// The vision transformer and what stands in front of it.
pub(crate) struct PatchEmbed {
    proj: Linear,
    /// Class token plus its position, then register tokens (which have none): `[1 + registers, channels]`.
    prefix: Tensor,
    /// Position embedding of the patches as trained, `[side, side, channels]` row-major.
    positions: Vec<f32>,
    side: usize,
    blocks: Vec<Block>,
    norm: LayerNorm,
    patch: usize,
    scale: Tensor,
    shift: Tensor,
}

impl PatchEmbed {
    pub(crate) fn load(at: &Loader, config: &Config) -> Result<Self, ModelError> {
        const EPS: f32 = 1e-6;
        let (channels, patch) = (config.embed_dim, config.patch_size);
        // A convolution whose stride is its kernel is a linear layer over the pixels of a patch, here in the order
        // in which a picture holds them: row, column, colour.
        let proj = at.pp("patch_embed.proj");
        let weight = proj.host("weight")?.permute((0, 2, 3, 1))?.reshape((channels, patch * patch * 3))?;
        let proj = Linear::from_host(&proj, &weight, Some(&proj.host("bias")?))?;

        let positions = at.host("pos_embed")?.i(0)?;
        let class = (at.host("cls_token")?.i(0)? + positions.narrow(0, 0, 1)?)?;
        let prefix = Tensor::cat(&[class, at.host("register_tokens")?.i(0)?], 0)?;
        let positions = positions.narrow(0, 1, config.pos_grid * config.pos_grid)?.flatten_all()?.to_vec1()?;

        let blocks = (0..config.vit_depth)
            .map(|i| Block::load(&at.pp("blocks").pp(i), config.vit_heads, EPS))
            .collect::<Result<_, _>>()?;
        let device = at.device();
        Ok(Self {
            proj,
            prefix: prefix.to_device(device)?,
            positions,
            side: config.pos_grid,
            blocks,
            norm: LayerNorm::load(&at.pp("norm"), EPS)?,
            patch,
            scale: Tensor::new(&DEVIATION.map(|d| 1.0 / (255.0 * d)), device)?,
            shift: Tensor::from_iter(MEAN.iter().zip(DEVIATION).map(|(m, d)| m / d), device)?,
        })
    }

    /// frames `[frames, height, width, 3]` bytes, positions as [`PatchEmbed::positions`] of their grid makes them
    /// -> `[frames, patches, channels]`.
    ///
    /// One frame at a time, which bounds the memory of the scale pass.
    pub(crate) fn forward(&self, frames: &Tensor, grid: Grid, positions: &Tensor) -> Result<Tensor, ModelError> {
        let tokens =
            (0..frames.dim(0)?).map(|i| self.frame(&frames.i(i)?, grid, positions)).collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::cat(&tokens, 0)?)
    }

    fn frame(&self, pixels: &Tensor, grid: Grid, positions: &Tensor) -> Result<Tensor, ModelError> {
        let patch = self.patch;
        let pixels = pixels.to_dtype(DType::F32)?.broadcast_mul(&self.scale)?.broadcast_sub(&self.shift)?;
        let patches = pixels.reshape((grid.rows, patch, grid.cols, patch * 3))?.transpose(1, 2)?.contiguous()?;
        let patches = patches.reshape((grid.patches(), patch * patch * 3))?;
        let patches = (self.proj.forward(&patches, Activation::Identity)? + positions)?;
        let x = Tensor::cat(&[&self.prefix, &patches], 0)?.unsqueeze(0)?;
        for block in &self.blocks {
            block.finish(&x, &self_attention(&block.qkv(&x)?)?)?;
        }
        self.norm.forward(&x.narrow(1, self.prefix.dim(0)?, grid.patches())?)
    }

    /// The position embedding of the patches of `grid`: `[patches, channels]`.
    pub(crate) fn positions(&self, grid: Grid) -> Result<Tensor, ModelError> {
        let channels = self.prefix.dim(1)?;
        let values = resample_bicubic(&self.positions, self.side, channels, grid);
        Ok(Tensor::from_vec(values, (grid.patches(), channels), self.prefix.device())?)
    }
}
