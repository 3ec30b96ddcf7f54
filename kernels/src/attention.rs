//! `softmax(q kᵀ / sqrt(head_dim)) v` with a running softmax.

use crate::cpu;
use crate::cpu::attention::{Queries, Span};
use crate::operand::{Element, slice, with_element, zeros};
use crate::pages::{PageTable, Pools, locate};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor, bail};

/// Within each frame: qkv `[frames, tokens, 3, heads, head_dim]` -> `[frames, tokens, heads * head_dim]`.
///
/// # Errors
/// When qkv has another shape, is not contiguous, or is not float32 (on the CPU).
pub fn self_attention(qkv: &Tensor) -> Result<Tensor> {
    qkv.apply_op1_no_bwd(&SelfAttention)
}

/// Against pages: the queries are `qkv[:, 0]` of qkv `[tokens, 3, heads, head_dim]` -> `[tokens, heads * head_dim]`.
///
/// On the CPU qkv is float32, and both pools are float32, bfloat16 or float16.
///
/// # Errors
/// When shapes or dtypes do not fit together, the table lists no page or one that its pool does not have, its
/// `last_rows` is not within a page, or an operand is not contiguous.
pub fn paged_attention(qkv: &Tensor, pools: Pools<'_>, table: &PageTable) -> Result<Tensor> {
    qkv.apply_op3_no_bwd(pools.frames, pools.special, &PagedAttention { table })
}

struct SelfAttention;

struct PagedAttention<'a> {
    table: &'a PageTable,
}

impl CustomOp1 for SelfAttention {
    fn name(&self) -> &'static str {
        "self_attention"
    }

    fn cpu_fwd(&self, qkv: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let &[frames, tokens, 3, heads, dim] = layout.dims() else {
            bail!("self_attention: qkv {:?} must be [frames, tokens, 3, heads, head_dim]", layout.dims())
        };
        let qkv = slice::<f32>("self_attention: qkv", qkv, layout)?;
        let width = heads * dim;
        let mut y = zeros("self_attention", &[frames, tokens, width])?;
        if !y.is_empty() {
            for (y, qkv) in y.chunks_exact_mut(tokens * width).zip(qkv.chunks_exact(tokens * 3 * width)) {
                let span = Span { keys: &qkv[width..], values: &qkv[2 * width..], rows: tokens, stride: 3 * width };
                cpu::attention::attend(y, &Queries { qkv, heads, dim }, &[span]);
            }
        }
        Ok((CpuStorage::F32(y), (frames, tokens, width).into()))
    }
}

impl PagedAttention<'_> {
    /// The rows that the table lists.
    fn spans<'a, T: Element>(&self, pools: [(&'a CpuStorage, &Layout); 2]) -> Result<Vec<Span<'a, T>>> {
        let Self { table } = self;
        let listed = [&table.frames, &table.special];
        let mut left = table.frames.len() + table.special.len();
        let mut spans = Vec::with_capacity(left);
        for ((storage, layout), pages) in pools.into_iter().zip(listed) {
            let pool = slice::<T>("paged_attention: pool", storage, layout)?;
            for &page in pages {
                left -= 1;
                let rows = if left == 0 { table.last_rows } else { layout.dims()[2] };
                let [keys, values] = locate("paged_attention", layout.dims(), page as usize, 0, rows)?;
                let stride = layout.dims()[3] * layout.dims()[4];
                spans.push(Span { keys: &pool[keys], values: &pool[values], rows, stride });
            }
        }
        if spans.is_empty() || spans.iter().any(|span| span.rows == 0) {
            bail!(
                "paged_attention: the page table lists no page or one without rows ({} frame pages, {} special pages, \
                 {} rows in the last)",
                table.frames.len(),
                table.special.len(),
                table.last_rows
            )
        }
        Ok(spans)
    }
}

impl CustomOp3 for PagedAttention<'_> {
    fn name(&self) -> &'static str {
        "paged_attention"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        qkv_layout: &Layout,
        frames: &CpuStorage,
        frames_layout: &Layout,
        special: &CpuStorage,
        special_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shapes = (qkv_layout.dims(), frames_layout.dims(), special_layout.dims());
        let (&[tokens, 3, heads, dim], [_, 2, frame_page @ ..], [_, 2, special_page @ ..]) = shapes else {
            bail!(
                "paged_attention: qkv and pools {shapes:?} must be [tokens, 3, heads, head_dim] and \
                 [pages, 2, page_size, heads, head_dim]"
            )
        };
        if frame_page != special_page || frame_page.len() != 3 || frame_page[1..] != [heads, dim] {
            bail!("paged_attention: qkv and pools {shapes:?} differ in page size, heads or head_dim")
        }
        let qkv = slice::<f32>("paged_attention: qkv", qkv, qkv_layout)?;
        let mut y = zeros("paged_attention", &[tokens, heads, dim])?;
        with_element!("paged_attention: pools", frames.dtype(), T => {
            let spans = self.spans::<T>([(frames, frames_layout), (special, special_layout)])?;
            cpu::attention::attend(&mut y, &Queries { qkv, heads, dim }, &spans);
        });
        Ok((CpuStorage::F32(y), (tokens, heads * dim).into()))
    }
}
