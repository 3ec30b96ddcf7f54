//! Rotary position embedding, with the LayerNorm of queries and keys that comes before it.

/// Which two channels turn together.
pub enum Pairing {
    /// 2-D, split halves: the head is cut in two halves (row, column); within each, channel j pairs with j + half/2.
    /// Angle table columns: the row angles (dim / 4), then the column angles (dim / 4).
    SplitHalves,
    /// Channel 2 j pairs with 2 j + 1.
    Interleaved,
}
/// Angles of a set of tokens: cos and sin `[tokens, head_dim / 2]` float32.
pub struct Rotary { pub cos: Tensor, pub sin: Tensor, pub pairing: Pairing }

/// LayerNorm on the queries and keys per head, then rotation, in place; values stay as they are.
/// qkv `[tokens, 3, heads, head_dim]`; norm weights `[head_dim]`; tokens = a multiple of the table's tokens
/// (frames that share the table).
pub fn norm_rotate(qkv: &Tensor, q_norm: (&Tensor, &Tensor), k_norm: (&Tensor, &Tensor), eps: f32, rotary: &Rotary) -> Result<()>;
