//! The transformer block that patch embedding, aggregator and camera head share.

use candle_core::{IndexOp, Tensor};
use periplus_kernels::linear::Activation;
use periplus_kernels::rotary::{Rotary, norm_rotate};

use crate::ModelError;
use crate::layers::{LayerNorm, Linear, Loader};

/// Pre-norm attention and MLP, each with a LayerScale and a residual.
///
/// Attention is split around the cache: [`Block::qkv`] makes queries, keys and values, the caller attends as it
/// sees fit, [`Block::finish`] does the rest.
pub(crate) struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    qk_norm: Option<(LayerNorm, LayerNorm)>,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    heads: usize,
}

/// Epsilon of the norms on queries and keys, whatever the block's own is.
const QK_NORM_EPS: f32 = 1e-5;

impl Block {
    pub(crate) fn load(at: &Loader, heads: usize, eps: f32, qk_norm: bool) -> Result<Self, ModelError> {
        let (attn, mlp) = (at.pp("attn"), at.pp("mlp"));
        let qk_norm = if qk_norm {
            Some((LayerNorm::load(&attn.pp("q_norm"), QK_NORM_EPS)?, LayerNorm::load(&attn.pp("k_norm"), QK_NORM_EPS)?))
        } else {
            None
        };
        Ok(Self {
            norm1: LayerNorm::load(&at.pp("norm1"), eps)?,
            qkv: Linear::load(&attn.pp("qkv"))?,
            qk_norm,
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

    /// As [`Block::qkv`], with queries and keys normed and turned by `rotary`, whose table covers the tokens of one
    /// frame (shared by all) or of all frames.
    pub(crate) fn rotated_qkv(&self, x: &Tensor, rotary: &Rotary) -> Result<Tensor, ModelError> {
        let qkv = self.qkv(x)?;
        if let Some((q, k)) = &self.qk_norm {
            norm_rotate(&qkv.flatten(0, 1)?, (&q.weight, &q.bias), (&k.weight, &k.bias), QK_NORM_EPS, rotary)?;
        }
        Ok(qkv)
    }

    /// What follows attention, in place: x `[frames, tokens, channels]`, attended of the same shape.
    ///
    /// Frame by frame, so that the hidden layer of the MLP (four times as wide) is never held for more than one.
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
