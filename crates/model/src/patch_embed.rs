//! From pictures to patch tokens: a DINOv2 vision transformer with registers.

use candle_core::{DType, Device, IndexOp, Tensor};
use periplus_kernels::attention::self_attention;
use periplus_kernels::patches::patches;
use periplus_kernels::tokens::concat;

use crate::ModelError;
use crate::block::Block;
use crate::layers::{LayerNorm, Linear, Loader};
use crate::position::{Grid, resample_bicubic};
use periplus_checkpoint::config::Config;

/// Mean and standard deviation of red, green and blue in ImageNet, by which the pixels were normalised in training.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// The vision transformer, and the embedding of patches before it.
pub(crate) struct PatchEmbed {
    proj: Linear,
    /// Class token plus its position, then register tokens (which have none): `[1 + registers, channels]`, in main memory.
    prefix: Tensor,
    /// Position embedding of the patches as trained, `[side, side, channels]` row-major.
    positions: Vec<f32>,
    side: usize,
    blocks: Vec<Block>,
    norm: LayerNorm,
    patch: usize,
    /// The dtype of the patches in their product.
    dtype: DType,
    scale: Tensor,
    shift: Tensor,
}

impl PatchEmbed {
    pub(crate) fn load(at: &Loader, config: &Config) -> Result<Self, ModelError> {
        const EPS: f32 = 1e-6;
        let (channels, patch) = (config.embed_dim, config.patch_size);
        // A convolution whose stride is its kernel is a linear layer over the pixels of a patch, here in the order
        // in which a picture stores them: row, column, colour.
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
            prefix,
            positions,
            side: config.pos_grid,
            blocks,
            norm: LayerNorm::load(&at.pp("norm"), EPS)?.in_float32(),
            patch,
            dtype: at.activations(),
            scale: Tensor::new(&DEVIATION.map(|d| 1.0 / (255.0 * d)), device)?,
            shift: Tensor::from_iter(MEAN.iter().zip(DEVIATION).map(|(m, d)| m / d), device)?,
        })
    }

    /// frames `[frames, height, width, 3]` bytes, start as [`PatchEmbed::start`] of their grid makes it
    /// -> `[frames, patches, channels]`.
    ///
    /// One frame at a time, which bounds the memory of the scale pass.
    pub(crate) fn forward(&self, frames: &Tensor, grid: Grid, start: &Tensor) -> Result<Tensor, ModelError> {
        let tokens = (0..frames.dim(0)?)
            .map(|frame| self.frame(&frames.narrow(0, frame, 1)?, grid, start))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(concat(&tokens, frames.device())?)
    }

    fn frame(&self, pixels: &Tensor, grid: Grid, start: &Tensor) -> Result<Tensor, ModelError> {
        let prefix = self.prefix.dim(0)?;
        let x = start.copy()?;
        let patches = patches(pixels, &self.scale, &self.shift, self.patch, self.dtype)?;
        self.proj.forward_add(&x.narrow(1, prefix, grid.patches())?, &patches)?;
        for block in &self.blocks {
            block.finish(&x, &self_attention(&block.qkv(&x)?)?)?;
        }
        self.norm.forward(&x.narrow(1, prefix, grid.patches())?)
    }

    /// The tensor that the embedded patches of `grid` are added to: `[1, 1 + registers + patches, channels]`, the class and register
    /// tokens and the positions of the patches.
    pub(crate) fn start(&self, grid: Grid, device: &Device) -> Result<Tensor, ModelError> {
        let channels = self.prefix.dim(1)?;
        let positions = resample_bicubic(&self.positions, self.side, channels, grid);
        let positions = Tensor::from_vec(positions, (grid.patches(), channels), self.prefix.device())?;
        let start = Tensor::cat(&[&self.prefix, &positions], 0)?.unsqueeze(0)?;
        Ok(start.to_device(device)?)
    }
}
