//! Launches of the attention kernels, within frames and over pages.

use super::{Gpu, Memory, count, kernels, memory, output};
use candle_core::cuda_backend::CudaDevice;
use candle_core::{CudaStorage, DType, Layout, Result, bail};

/// Attention within each frame of qkv `[frames, tokens, 3, heads, head_dim]`.
pub(crate) fn within_frames(
    op: &'static str,
    storage: &CudaStorage,
    layout: &Layout,
    [frames, tokens, heads, dim]: [usize; 4],
) -> Result<CudaStorage> {
    let qkv = memory(op, &storage.device, storage, layout)?;
    let (y, target) = output(op, &storage.device, qkv.dtype(), &[frames, tokens, heads * dim])?;
    let width = heads * dim;
    // The output of the qkv gemm serves as the pool: each frame is a page.
    let pool = kernels::PagePool {
        keys: qkv.skip(width).pointer(),
        value_offset: width as i64,
        row_stride: 3 * width as i64,
        page_stride: (tokens * 3 * width) as i64,
        pages: count(op, frames)?,
    };
    let table = Table { entries: std::ptr::null(), frames: 1, special: 0, last_rows: tokens, page_size: tokens };
    let queries = Queries { qkv, batch: frames, tokens, heads, dim };
    attend(op, &storage.device, &queries, [pool, pool], &table, target)?;
    Ok(y)
}

/// Queries `qkv[:, 0]` of each group of qkv `[batch, tokens, 3, heads, head_dim]`.
pub(crate) struct Queries {
    pub(crate) qkv: Memory,
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
}

/// The page table of a group of queries, see `paged_attention.h`.
pub(crate) struct Table {
    pub(crate) entries: *const u32,
    pub(crate) frames: usize,
    pub(crate) special: usize,
    pub(crate) last_rows: usize,
    pub(crate) page_size: usize,
}

/// The values of `head_dim` that kernels exist for.
pub(crate) fn widths(dtype: DType) -> &'static [usize] {
    if dtype == DType::F32 { &[32, 64, 128] } else { &[64, 128] }
}

pub(crate) fn attend(
    op: &'static str,
    device: &CudaDevice,
    queries: &Queries,
    [frames, special]: [kernels::PagePool; 2],
    table: &Table,
    target: Memory,
) -> Result<()> {
    let &Queries { qkv, batch, tokens, heads, dim } = queries;
    if batch * tokens * heads * dim == 0 {
        return Ok(());
    }
    let widths = widths(qkv.dtype());
    if !widths.contains(&dim) {
        bail!("{op}: there is no kernel for heads of {dim} channels in {:?}, only for {widths:?}", qkv.dtype())
    }
    let addresses = [qkv.address(), frames.keys as u64, special.keys as u64];
    if addresses.iter().any(|address| address % 16 != 0) {
        bail!("{op}: queries, keys and values must be aligned to 16 bytes, as whole tensors are")
    }
    let row = (3 * heads * dim) as i64;
    let size = |size| count(op, size);
    let mut attention = kernels::PagedAttention {
        queries: qkv.pointer(),
        query_stride: row,
        group_stride: row * tokens as i64,
        output: target.pointer_mut(),
        frames,
        special,
        table: table.entries,
        frame_pages: size(table.frames)?,
        special_pages: size(table.special)?,
        last_rows: size(table.last_rows)?,
        batch: size(batch)?,
        tokens: size(tokens)?,
        heads: size(heads)?,
        head_dim: size(dim)?,
        page_size: size(table.page_size)?,
        scale: (dim as f32).sqrt().recip(),
        dtype: qkv.dtype_code(op)?,
        block_queries: 0,
        whole: 0,
        splits: 1,
        workspace: std::ptr::null_mut(),
    };
    let gpu = Gpu::of(device)?;
    let hopper = gpu.hopper && qkv.dtype() != DType::F32 && dim == 64;
    // SAFETY: both functions only read and write the struct.
    match hopper {
        #[cfg(periplus_hopper)]
        true => unsafe { kernels::hopper::paged_attention_plan(&raw mut attention, gpu.multiprocessors) },
        _ => unsafe { kernels::paged_attention_plan(&raw mut attention, gpu.multiprocessors) },
    }
    // SAFETY: as above.
    let floats = unsafe { kernels::paged_attention_workspace(&raw const attention) } as usize;
    // Dropped at the end of this function, and freed in stream order: after the kernels that use it.
    let workspace = if floats == 0 { None } else { Some(output(op, device, DType::F32, &[floats])?) };
    if let Some((_, memory)) = &workspace {
        attention.workspace = memory.pointer_mut();
    }
    match hopper {
        #[cfg(periplus_hopper)]
        true => kernels::hopper::paged_attention(device, &attention),
        _ => kernels::paged_attention(device, &attention),
    }
}

#[cfg(test)]
mod tests {
    use super::kernels;

    type Plan = unsafe extern "C" fn(*mut kernels::PagedAttention, u32);

    /// The plan for `tokens` queries of 16 heads over `pages` full pages of `page_size` rows.
    fn planned(
        plan: Plan,
        dtype: i32,
        [tokens, pages, page_size]: [u32; 3],
        multiprocessors: u32,
    ) -> kernels::PagedAttention {
        let pool = kernels::PagePool { keys: std::ptr::null(), value_offset: 0, row_stride: 0, page_stride: 0, pages };
        let mut attention = kernels::PagedAttention {
            queries: std::ptr::null(),
            query_stride: 0,
            group_stride: 0,
            output: std::ptr::null_mut(),
            frames: pool,
            special: pool,
            table: std::ptr::null(),
            frame_pages: pages,
            special_pages: 0,
            last_rows: page_size,
            batch: 1,
            tokens,
            heads: 16,
            head_dim: 64,
            page_size,
            scale: 0.125,
            dtype,
            block_queries: 0,
            whole: 0,
            splits: 0,
            workspace: std::ptr::null_mut(),
        };
        // SAFETY: it only reads and writes the struct.
        unsafe { plan(&raw mut attention, multiprocessors) };
        attention
    }

    /// For many picture sizes, scale passes and long streams: a plan has 1 to 64 splits, a workspace if it has more
    /// than one, and a small workspace if only some blocks are split.
    #[test]
    fn plans_are_valid_and_need_little_memory() {
        let mut plans: Vec<(Plan, i32)> =
            vec![(kernels::paged_attention_plan, kernels::F32), (kernels::paged_attention_plan, kernels::BF16)];
        #[cfg(periplus_hopper)]
        plans.push((kernels::hopper::paged_attention_plan, kernels::BF16));
        let mut partly = 0;
        for (plan, dtype) in plans {
            for multiprocessors in [16, 46, 84, 108, 114, 132, 170] {
                for rows in 1..=64 {
                    let frame = 37 * rows + 6;
                    for (frames, pages) in [(1, 1), (8, 8), (1, 72), (1, 1000)] {
                        let sizes = [frames * frame, pages, frame];
                        let a = planned(plan, dtype, sizes, multiprocessors);
                        let context = format!("{sizes:?} on {multiprocessors}: {} whole, {} splits", a.whole, a.splits);
                        assert!((1..=64).contains(&a.splits), "{context}");
                        assert!(a.splits > 1 || a.whole == 0, "{context}");
                        // SAFETY: it only reads the struct.
                        let floats = unsafe { kernels::paged_attention_workspace(&raw const a) };
                        assert_eq!(floats == 0, a.splits == 1, "{context}");
                        assert!(a.whole == 0 || floats <= 4 << 20, "{context}: {floats} floats");
                        partly += usize::from(a.whole > 0);
                    }
                }
            }
        }
        assert!(partly > 0, "no plan splits only the blocks after full rounds");
    }
}
