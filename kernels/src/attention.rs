//! softmax(q kᵀ / sqrt(head_dim)) v with a running softmax.

/// Within each frame: qkv `[frames, tokens, 3, heads, head_dim]` -> `[frames, tokens, heads * head_dim]`.
pub fn self_attention(qkv: &Tensor) -> Result<Tensor>;

/// Against pages: the queries are `qkv[:, 0]` of qkv `[tokens, 3, heads, head_dim]` -> `[tokens, heads * head_dim]`.
pub fn paged_attention(qkv: &Tensor, pools: Pools<'_>, table: &PageTable) -> Result<Tensor>;
