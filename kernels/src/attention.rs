//! Attention, `softmax(q kᵀ / sqrt(head_dim)) v`, within frames and over pages of a key-value cache.

use crate::cpu;
use crate::cpu::attention::{Queries, Span};
#[cfg(feature = "cuda")]
use crate::cuda;
#[cfg(feature = "cuda")]
use crate::operand::Operand;
use crate::operand::{Element, reading, slice, with_dtype, zeros};
use crate::pages::{PageTable, Pools, locate};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp3, DType, Device, Layout, Result, Shape, Tensor, bail};

/// Self-attention within each frame: qkv `[frames, tokens, 3, heads, head_dim]` -> `[frames, tokens, heads *
/// head_dim]`.
///
/// # Errors
/// When qkv has another shape, is not contiguous or, on the CPU, not float32, or the GPU has no kernel for
/// this `head_dim`.
pub fn self_attention(qkv: &Tensor) -> Result<Tensor> {
    qkv.apply_op1_no_bwd(&SelfAttention)
}

/// Attention over pages: qkv `[tokens, 3, heads, head_dim]`, of which only the queries `qkv[:, 0]` are read ->
/// `[tokens, heads * head_dim]`.
///
/// On the CPU, qkv is float32, and both pools are float32, bfloat16 or float16. On a GPU, all three have the same one
/// of these dtypes.
///
/// # Errors
/// When shapes or dtypes do not match, the table lists no page or a page that its pool does not have, its
/// `last_rows` is 0 or larger than a page, or an operand is not contiguous.
pub fn paged_attention(qkv: &Tensor, pools: Pools<'_>, table: &PageTable) -> Result<Tensor> {
    let Pools { frames, special } = pools;
    reading(qkv.device(), &[frames, special], || qkv.apply_op3_no_bwd(frames, special, &PagedAttention { table }))
}

/// Whether `device` has an attention kernel for heads of `head_dim` channels in `dtype`. The CPU runs every width.
pub fn has_kernel(device: &Device, dtype: DType, head_dim: usize) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::attention::widths(dtype).contains(&head_dim),
        _ => {
            let _ = (dtype, head_dim);
            true
        }
    }
}

struct SelfAttention;

struct PagedAttention<'a> {
    table: &'a PageTable,
}

impl SelfAttention {
    fn check(qkv: &Layout) -> Result<[usize; 4]> {
        match *qkv.dims() {
            [frames, tokens, 3, heads, dim] => Ok([frames, tokens, heads, dim]),
            ref qkv => bail!("self_attention: qkv {qkv:?} must be [frames, tokens, 3, heads, head_dim]"),
        }
    }
}

impl CustomOp1 for SelfAttention {
    fn name(&self) -> &'static str {
        "self_attention"
    }

    fn cpu_fwd(&self, qkv: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let [frames, tokens, heads, dim] = Self::check(layout)?;
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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, qkv: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let [frames, tokens, heads, dim] = Self::check(layout)?;
        let y = cuda::attention::within_frames("self_attention", qkv, layout, [frames, tokens, heads, dim])?;
        Ok((y, (frames, tokens, heads * dim).into()))
    }
}

impl PagedAttention<'_> {
    /// The rows that the table lists. The table has been checked.
    fn spans<'a, T: Element>(&self, pools: [(&'a CpuStorage, &Layout); 2]) -> Result<Vec<Span<'a, T>>> {
        let Self { table } = self;
        let listed = [table.frames(), table.special()];
        let mut left = table.frames().len() + table.special().len();
        let mut spans = Vec::with_capacity(left);
        for ((storage, layout), pages) in pools.into_iter().zip(listed) {
            let pool = slice::<T>("paged_attention: pool", storage, layout)?;
            for &page in pages {
                left -= 1;
                let rows = if left == 0 { table.last_rows() } else { layout.dims()[2] };
                let [keys, values] = locate("paged_attention", layout.dims(), page as usize, 0, rows)?;
                let stride = layout.dims()[3] * layout.dims()[4];
                spans.push(Span { keys: &pool[keys], values: &pool[values], rows, stride });
            }
        }
        Ok(spans)
    }

    /// Checks the shapes; returns tokens, heads and `head_dim`.
    fn check(qkv: &Layout, frames: &Layout, special: &Layout) -> Result<[usize; 3]> {
        let shapes = (qkv.dims(), frames.dims(), special.dims());
        let (&[tokens, 3, heads, dim], [_, 2, frame_page @ ..], [_, 2, special_page @ ..]) = shapes else {
            bail!(
                "paged_attention: qkv and pools {shapes:?} must be [tokens, 3, heads, head_dim] and \
                 [pages, 2, page_size, heads, head_dim]"
            )
        };
        if frame_page != special_page || frame_page.len() != 3 || frame_page[1..] != [heads, dim] {
            bail!("paged_attention: qkv and pools {shapes:?} differ in page size, heads or head_dim")
        }
        Ok([tokens, heads, dim])
    }

    /// Checks that the table lists at least one row, and only pages that the pools have.
    fn check_table(&self, frames: &[usize], special: &[usize]) -> Result<()> {
        let Self { table } = self;
        let page_size = frames[2];
        let (frame_pages, special_pages, last_rows) = (table.frames().len(), table.special().len(), table.last_rows());
        if last_rows > page_size {
            bail!("paged_attention: {last_rows} rows in the last page, whose size is {page_size}")
        }
        if frame_pages + special_pages == 0 || last_rows == 0 {
            bail!(
                "paged_attention: the page table lists no page or one without rows ({frame_pages} frame pages, \
                 {special_pages} special pages, {last_rows} rows in the last)"
            )
        }
        for (pages, pool) in [(table.frames(), frames), (table.special(), special)] {
            if let Some(page) = pages.iter().find(|&&page| page as usize >= pool[0]) {
                bail!("paged_attention: the page table lists page {page}, but the pool {pool:?} has no such page")
            }
        }
        Ok(())
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
        let [tokens, heads, dim] = Self::check(qkv_layout, frames_layout, special_layout)?;
        self.check_table(frames_layout.dims(), special_layout.dims())?;
        let qkv = slice::<f32>("paged_attention: qkv", qkv, qkv_layout)?;
        let mut y = zeros("paged_attention", &[tokens, heads, dim])?;
        with_dtype!("paged_attention: pools", frames.dtype(), T => {
            let spans = self.spans::<T>([(frames, frames_layout), (special, special_layout)])?;
            cpu::attention::attend(&mut y, &Queries { qkv, heads, dim }, &spans);
        });
        Ok((CpuStorage::F32(y), (tokens, heads * dim).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        qkv: &CudaStorage,
        qkv_layout: &Layout,
        frames: &CudaStorage,
        frames_layout: &Layout,
        special: &CudaStorage,
        special_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        const OP: &str = "paged_attention";
        let [tokens, heads, dim] = Self::check(qkv_layout, frames_layout, special_layout)?;
        self.check_table(frames_layout.dims(), special_layout.dims())?;
        let device = &qkv.device;
        let width = heads * dim;
        let page_size = frames_layout.dims()[2];
        let qkv = cuda::memory("paged_attention: qkv", device, qkv, qkv_layout)?;
        let pool = |storage, layout: &Layout| -> Result<_> {
            let memory = cuda::memory("paged_attention: pool", device, storage, layout)?;
            Ok(cuda::kernels::PagePool {
                keys: memory.expect("paged_attention: pool", qkv.dtype())?.pointer(),
                value_offset: (page_size * width) as i64,
                row_stride: width as i64,
                page_stride: (2 * page_size * width) as i64,
                pages: cuda::count(OP, layout.dims()[0])?,
            })
        };
        let pools = [pool(frames, frames_layout)?, pool(special, special_layout)?];
        let entries = self.table.on_gpu(&Device::Cuda(device.clone()))?;
        let entries = entries.as_ref().map(Operand::read);
        let table = cuda::attention::Table {
            entries: match &entries {
                Some(entries) => entries.memory(OP, device)?.expect(OP, DType::U32)?.pointer(),
                None => std::ptr::null(),
            },
            frames: self.table.frames().len(),
            special: self.table.special().len(),
            last_rows: self.table.last_rows(),
            page_size,
        };
        let (y, target) = cuda::output(OP, device, qkv.dtype(), &[tokens, width])?;
        let queries = cuda::attention::Queries { qkv, batch: 1, tokens, heads, dim };
        cuda::attention::attend(OP, device, &queries, pools, &table, target)?;
        Ok((y, (tokens, width).into()))
    }
}
