//! The transformer block that patch embedding, aggregator and camera head share.

use candle_core::{IndexOp, Tensor};
use periplus_cache::OpenPass;
use periplus_kernels::linear::Activation;
use periplus_kernels::rotary::{HeadNorms, Rotary, norm_rotate, norm_rotate_append};

use crate::ModelError;
use crate::layers::{LayerNorm, Linear, Loader};

/// Pre-norm attention and MLP, each with a LayerScale and a residual.
///
/// The attention itself is left to the caller, since it may go through the cache: [`Block::qkv`] computes queries, keys and values, the
/// caller attends, and [`Block::finish`] does the rest.
pub(crate) struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    heads: usize,
}

impl Block {
    pub(crate) fn load(at: &Loader, heads: usize, eps: f32) -> Result<Self, ModelError> {
        let (attn, mlp) = (at.pp("attn"), at.pp("mlp"));
        Ok(Self {
            norm1: LayerNorm::load(&at.pp("norm1"), eps)?,
            qkv: Linear::load(&attn.pp("qkv"))?,
            proj: Linear::load_scaled(&attn.pp("proj"), &at.pp("ls1").host("gamma")?)?,
            norm2: LayerNorm::load(&at.pp("norm2"), eps)?,
            fc1: Linear::load(&mlp.pp("fc1"))?,
            fc2: Linear::load_scaled(&mlp.pp("fc2"), &at.pp("ls2").host("gamma")?)?,
            heads,
        })
    }

    /// Queries, keys and values of x `[frames, tokens, channels]`: `[frames, tokens, 3, heads, head_dim]`.
    pub(crate) fn qkv(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let (frames, tokens, channels) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norm1.forward(x)?, Activation::Identity)?;
        Ok(qkv.reshape((frames, tokens, 3, self.heads, channels / self.heads))?)
    }

    /// The rest of the block after attention, in place: x `[frames, tokens, channels]`, attended of the same shape.
    ///
    /// Frame by frame, so that the hidden layer of the MLP (four times as wide) is held for one frame only.
    pub(crate) fn finish(&self, x: &Tensor, attended: &Tensor) -> Result<(), ModelError> {
        for frame in 0..x.dim(0)? {
            let x = x.i(frame)?;
            self.proj.forward_add(&x, &attended.i(frame)?)?;
            let hidden = self.fc1.forward(&self.norm2.forward(&x)?, Activation::Gelu)?;
            self.fc2.forward_add(&x, &hidden)?;
        }
        Ok(())
    }
}

/// A block of the aggregator: its queries and keys are normed per head, then rotated by their positions.
pub(crate) struct RotaryBlock {
    block: Block,
    q_norm: LayerNorm,
    k_norm: LayerNorm,
}

impl RotaryBlock {
    const EPS: f32 = 1e-5;

    pub(crate) fn load(at: &Loader, heads: usize) -> Result<Self, ModelError> {
        let attn = at.pp("attn");
        Ok(Self {
            block: Block::load(at, heads, Self::EPS)?,
            q_norm: LayerNorm::load(&attn.pp("q_norm"), Self::EPS)?,
            k_norm: LayerNorm::load(&attn.pp("k_norm"), Self::EPS)?,
        })
    }

    /// As [`Block::qkv`], with queries and keys normed and rotated by `rotary`, a table that all frames share.
    pub(crate) fn qkv(&self, x: &Tensor, rotary: &Rotary) -> Result<Tensor, ModelError> {
        let qkv = self.block.qkv(x)?;
        norm_rotate(&qkv.flatten(0, 1)?, &self.norms(), rotary)?;
        Ok(qkv)
    }

    /// As [`Block::qkv`]: queries and keys before their norm and rotation.
    pub(crate) fn qkv_unrotated(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        self.block.qkv(x)
    }

    /// Norms and rotates the queries and keys of qkv `[frames * tokens, 3, heads, head_dim]`. Queries change in place; keys and
    /// values go to the pages of `pass`, and only there.
    pub(crate) fn append(
        &self,
        qkv: &Tensor,
        rotary: &Rotary,
        pass: &mut OpenPass,
        layer: usize,
    ) -> Result<(), ModelError> {
        Ok(pass.write(layer, qkv, |pool, page, qkv, frame| {
            norm_rotate_append(qkv, &self.norms(), &rotary.of_frame(frame)?, pool, page)
        })?)
    }

    fn norms(&self) -> HeadNorms<'_> {
        HeadNorms {
            queries: (&self.q_norm.weight, &self.q_norm.bias),
            keys: (&self.k_norm.weight, &self.k_norm.bias),
            eps: Self::EPS,
        }
    }

    /// As [`Block::finish`].
    pub(crate) fn finish(&self, x: &Tensor, attended: &Tensor) -> Result<(), ModelError> {
        self.block.finish(x, attended)
    }
}
