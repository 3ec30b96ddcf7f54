//! Rotary position embedding, with the LayerNorm of queries and keys that comes before it.

use crate::cpu;
use crate::operand::{Operand, check_distinct, slice_mut};
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};

/// Which two channels turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// 2-D, split halves: the head is cut in two halves (row, column); within each, channel j pairs with j + half / 2.
    /// Angle table columns: the row angles (dim / 4), then the column angles (dim / 4).
    SplitHalves,
    /// Channel 2 j pairs with 2 j + 1.
    Interleaved,
}

/// Angles of a set of tokens: cos and sin `[tokens, head_dim / 2]` float32.
#[derive(Debug, Clone)]
pub struct Rotary {
    /// Cosines of the angles.
    pub cos: Tensor,
    /// Sines of the angles.
    pub sin: Tensor,
    /// Which channels they turn.
    pub pairing: Pairing,
}

/// LayerNorm on the queries and keys per head, then rotation, in place; values stay as they are.
///
/// qkv `[tokens, 3, heads, head_dim]`; norms are weight and bias `[head_dim]`; tokens is a multiple of the table's
/// tokens (frames that share the table). A pair (a, b) becomes (a cos - b sin, b cos + a sin).
///
/// # Errors
/// When shapes do not fit together, an operand is not contiguous or not float32 (on the CPU), or qkv shares its
/// memory with another operand.
pub fn norm_rotate(
    qkv: &Tensor,
    q_norm: (&Tensor, &Tensor),
    k_norm: (&Tensor, &Tensor),
    eps: f32,
    rotary: &Rotary,
) -> Result<()> {
    let operands = [q_norm.0, q_norm.1, k_norm.0, k_norm.1, &rotary.cos, &rotary.sin];
    check_distinct("norm_rotate", qkv, &operands)?;
    qkv.inplace_op1(&NormRotate { operands: operands.map(Operand::read), eps, pairing: rotary.pairing })
}

struct NormRotate<'a> {
    /// Weight and bias for queries, weight and bias for keys, cosines, sines.
    operands: [Operand<'a>; 6],
    eps: f32,
    pairing: Pairing,
}

impl NormRotate<'_> {
    fn check(&self, qkv: &[usize]) -> Result<()> {
        let [norms @ .., cos, sin] = self.operands.each_ref().map(Operand::dims);
        let channels = match self.pairing {
            Pairing::SplitHalves => 4,
            Pairing::Interleaved => 2,
        };
        match (qkv, cos) {
            (&[tokens, 3, _, dim], &[period, half])
                if half * 2 == dim
                    && dim % channels == 0
                    && cos == sin
                    && (tokens == 0 || (period != 0 && tokens % period == 0))
                    && norms.iter().all(|norm| *norm == [dim]) =>
            {
                Ok(())
            }
            _ => bail!(
                "norm_rotate: qkv {qkv:?}, norms {norms:?}, cos {cos:?} and sin {sin:?} must be [tokens, 3, heads, dim], \
                 [dim] and [tokens or a divisor, dim / 2], dim a multiple of {channels}"
            ),
        }
    }
}

impl InplaceOp1 for NormRotate<'_> {
    fn name(&self) -> &'static str {
        "norm_rotate"
    }

    fn cpu_fwd(&self, qkv: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.check(layout.dims())?;
        let qkv = slice_mut("norm_rotate: qkv", qkv, layout)?;
        let [q_weight, q_bias, k_weight, k_bias, cos, sin] =
            self.operands.each_ref().map(|operand| operand.slice("norm_rotate: norms and angles"));
        let norms = [(q_weight?, q_bias?), (k_weight?, k_bias?)];
        let heads = layout.dims()[2];
        cpu::rotary::norm_rotate(qkv, heads, norms, self.eps, (cos?, sin?), self.pairing);
        Ok(())
    }
}
