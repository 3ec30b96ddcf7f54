//! Pages of the key-value cache: the page table that attention reads, and copies of rows into pages.

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operand::{Element, same_storage, slice, slice_mut, with_dtype};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Device, InplaceOp1, InplaceOp2, Layout, Result, Tensor, bail};
use std::ops::Range;

/// The pages that a query sees, in order: the pages of `frames`, then those of `special`.
///
/// Every page is full except the last one of the list, which has `last_rows` valid rows. So attention kernels need no
/// mask.
#[derive(Debug, Clone, Default)]
pub struct PageTable {
    frames: Vec<u32>,
    special: Vec<u32>,
    last_rows: usize,
    /// `[frames.len(), special.len(), last_rows, frames.., special..]` on a GPU.
    on_gpu: Option<Tensor>,
}

impl PageTable {
    /// A table of page indices within the pool of frame pages and the pool of special pages. `last_rows` counts the
    /// valid rows of the last page of the list: `1..=page_size`, or 0 for an empty list.
    pub fn new(frames: Vec<u32>, special: Vec<u32>, last_rows: usize) -> Self {
        Self { frames, special, last_rows, on_gpu: None }
    }

    /// Page indices within the pool of frame pages.
    pub fn frames(&self) -> &[u32] {
        &self.frames
    }

    /// Page indices within the pool of special pages.
    pub fn special(&self) -> &[u32] {
        &self.special
    }

    /// Valid rows of the last page of the list.
    pub fn last_rows(&self) -> usize {
        self.last_rows
    }

    /// Copies the table to `device` if that is a GPU, for all attention operations that will read it. Without this,
    /// each operation makes its own copy.
    ///
    /// # Errors
    /// When the GPU has failed or is out of memory.
    pub fn upload(&mut self, device: &Device) -> Result<()> {
        self.on_gpu = if device.is_cuda() { Some(self.entries(device)?) } else { None };
        Ok(())
    }

    fn entries(&self, device: &Device) -> Result<Tensor> {
        let counts = [self.frames.len(), self.special.len(), self.last_rows];
        let counts = counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Tensor::new([counts.as_slice(), &self.frames, &self.special].concat(), device)
    }

    /// The table for kernels on `device`; `None` if it lists the first frame pages in order, which kernels do without a
    /// table.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu(&self, device: &Device) -> Result<Option<Tensor>> {
        if self.special.is_empty() && self.frames.iter().copied().eq(0..self.frames.len() as u32) {
            return Ok(None);
        }
        match &self.on_gpu {
            Some(entries) if entries.device().same_device(device) => Ok(Some(entries.clone())),
            _ => self.entries(device).map(Some),
        }
    }
}

/// Compares what the tables list, not where they are stored.
impl PartialEq for PageTable {
    fn eq(&self, other: &Self) -> bool {
        (&self.frames, &self.special, self.last_rows) == (&other.frames, &other.special, other.last_rows)
    }
}

impl Eq for PageTable {}

/// The two pools of one layer, each `[pages, 2, page_size, heads, head_dim]` (keys at 0, values at 1).
#[derive(Debug, Clone, Copy)]
pub struct Pools<'a> {
    /// Pool of frame pages.
    pub frames: &'a Tensor,
    /// Pool of special pages; same page size, heads and width.
    pub special: &'a Tensor,
}

/// Copies keys and values of qkv `[tokens, 3, heads, head_dim]` (after norm and RoPE) to rows `row..row + tokens` of
/// page `page` of `pool` `[pages, 2, page_size, heads, head_dim]`, rounded to the pool's dtype.
///
/// # Errors
/// When shapes do not match, the rows are not within a page, an operand is not contiguous, qkv is not float32
/// (on a GPU: of the pool's dtype), or both share their memory.
pub fn append(pool: &Tensor, page: usize, row: usize, qkv: &Tensor) -> Result<()> {
    pool.inplace_op2(qkv, &Append { page, row })
}

/// The place of rows in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Index of the page within its pool.
    pub page: u32,
    /// First row within the page.
    pub row: u32,
}

/// Copies `count` rows (keys and values) from one pool to another, or within a pool if the rows do not overlap.
///
/// # Errors
/// When the pools differ in heads, `head_dim` or dtype, the rows are not within a page or overlap, or a pool is not
/// contiguous.
pub fn copy_rows(from: &Tensor, source: Rows, to: &Tensor, target: Rows, count: usize) -> Result<()> {
    let op = CopyRows { source, target, count };
    if same_storage(from, to) {
        if from.layout() != to.layout() {
            bail!("copy_rows: {:?} and {:?} are different views of the same memory", from.dims(), to.dims())
        }
        to.inplace_op1(&op)
    } else {
        to.inplace_op2(from, &op)
    }
}

struct Append {
    page: usize,
    row: usize,
}

struct CopyRows {
    source: Rows,
    target: Rows,
    count: usize,
}

/// The element ranges of `count` rows in a pool, from `row` of `page` on: keys, then values.
pub(crate) fn locate(op: &str, pool: &[usize], page: usize, row: usize, count: usize) -> Result<[Range<usize>; 2]> {
    let &[pages, 2, page_size, heads, dim] = pool else {
        bail!("{op}: pool {pool:?} must be [pages, 2, page_size, heads, head_dim]")
    };
    let end = row.checked_add(count).filter(|&end| page < pages && end <= page_size);
    let Some(end) = end else {
        bail!("{op}: {count} rows from row {row} of page {page} are not within one page of the pool {pool:?}")
    };
    let width = heads * dim;
    Ok([2 * page, 2 * page + 1].map(|half| {
        let start = half * page_size;
        (start + row) * width..(start + end) * width
    }))
}

impl Append {
    /// The element ranges to write, and the width of a row.
    fn targets(&self, pool: &[usize], qkv: &[usize]) -> Result<([Range<usize>; 2], usize)> {
        let (&[_, 2, _, heads, dim], &[tokens, 3, qkv_heads, qkv_dim]) = (pool, qkv) else {
            bail!(
                "append: pool {pool:?} and qkv {qkv:?} must be [pages, 2, page_size, heads, head_dim] and \
                 [tokens, 3, heads, head_dim]"
            )
        };
        if (heads, dim) != (qkv_heads, qkv_dim) {
            bail!("append: pool {pool:?} and qkv {qkv:?} differ in heads or head_dim")
        }
        Ok((locate("append", pool, self.page, self.row, tokens)?, heads * dim))
    }
}

impl InplaceOp2 for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn cpu_fwd(
        &self,
        pool: &mut CpuStorage,
        pool_layout: &Layout,
        qkv: &CpuStorage,
        qkv_layout: &Layout,
    ) -> Result<()> {
        let (targets, width) = self.targets(pool_layout.dims(), qkv_layout.dims())?;
        let qkv = slice::<f32>("append: qkv", qkv, qkv_layout)?;
        if qkv.is_empty() {
            return Ok(());
        }
        with_dtype!("append: pool", pool.dtype(), T => {
            let pool = slice_mut::<T>("append: pool", pool, pool_layout)?;
            for (i, target) in targets.into_iter().enumerate() {
                for (to, from) in pool[target].chunks_exact_mut(width).zip(qkv.chunks_exact(3 * width)) {
                    T::narrow(&from[(i + 1) * width..][..width], to);
                }
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        pool: &mut CudaStorage,
        pool_layout: &Layout,
        qkv: &CudaStorage,
        qkv_layout: &Layout,
    ) -> Result<()> {
        let ([keys, values], width) = self.targets(pool_layout.dims(), qkv_layout.dims())?;
        let device = &qkv.device;
        let qkv = cuda::memory("append: qkv", device, qkv, qkv_layout)?;
        let pool = cuda::target("append: pool", device, pool, pool_layout)?.expect("append: pool", qkv.dtype())?;
        let (to, value_offset) = (pool.skip(keys.start), (values.start - keys.start) as i64);
        let size = |size| cuda::count("append", size);
        let (bytes, tokens) = (size(qkv.dtype().size_in_bytes())?, size(qkv_layout.dims()[0])?);
        cuda::kernels::append_rows(device, to, value_offset, qkv, bytes, tokens, size(width)?)
    }
}

impl CopyRows {
    fn check_pools(to: &[usize], from: &[usize]) -> Result<()> {
        if to.len() != 5 || from.len() != 5 || to[3..] != from[3..] {
            bail!("copy_rows: pools {from:?} and {to:?} differ in heads or head_dim")
        }
        Ok(())
    }

    fn sources(&self, pool: &[usize]) -> Result<[Range<usize>; 2]> {
        locate("copy_rows", pool, self.source.page as usize, self.source.row as usize, self.count)
    }

    fn targets(&self, pool: &[usize]) -> Result<[Range<usize>; 2]> {
        locate("copy_rows", pool, self.target.page as usize, self.target.row as usize, self.count)
    }

    fn between<T: Element>(
        &self,
        to: &mut CpuStorage,
        to_layout: &Layout,
        from: &CpuStorage,
        from_layout: &Layout,
    ) -> Result<()> {
        let (sources, targets) = (self.sources(from_layout.dims())?, self.targets(to_layout.dims())?);
        let to = slice_mut::<T>("copy_rows: to", to, to_layout)?;
        let from = slice::<T>("copy_rows: from", from, from_layout)?;
        for (source, target) in sources.into_iter().zip(targets) {
            to[target].copy_from_slice(&from[source]);
        }
        Ok(())
    }

    /// Source and target ranges within one pool. They must not overlap.
    fn distinct(&self, layout: &Layout) -> Result<impl Iterator<Item = (Range<usize>, Range<usize>)>> {
        let (sources, targets) = (self.sources(layout.dims())?, self.targets(layout.dims())?);
        let overlap =
            |(source, target): (&Range<usize>, &Range<usize>)| source.start < target.end && target.start < source.end;
        if sources.iter().zip(&targets).any(overlap) {
            bail!("copy_rows: {} rows from {:?} to {:?} overlap", self.count, self.source, self.target)
        }
        Ok(sources.into_iter().zip(targets))
    }

    fn within<T: Element>(&self, pool: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let copies = self.distinct(layout)?;
        let pool = slice_mut::<T>("copy_rows: pool", pool, layout)?;
        for (source, target) in copies {
            pool.copy_within(source, target.start);
        }
        Ok(())
    }
}

impl InplaceOp1 for CopyRows {
    fn name(&self) -> &'static str {
        "copy_rows"
    }

    fn cpu_fwd(&self, pool: &mut CpuStorage, layout: &Layout) -> Result<()> {
        with_dtype!("copy_rows: pool", pool.dtype(), T => self.within::<T>(pool, layout))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, pool: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let copies = self.distinct(layout)?;
        let device = pool.device.clone();
        let pool = cuda::memory("copy_rows: pool", &device, pool, layout)?;
        for (source, target) in copies {
            cuda::copy(&device, pool.skip(target.start), pool.skip(source.start), source.len())?;
        }
        Ok(())
    }
}

impl InplaceOp2 for CopyRows {
    fn name(&self) -> &'static str {
        "copy_rows"
    }

    fn cpu_fwd(&self, to: &mut CpuStorage, to_layout: &Layout, from: &CpuStorage, from_layout: &Layout) -> Result<()> {
        Self::check_pools(to_layout.dims(), from_layout.dims())?;
        with_dtype!("copy_rows: pool", to.dtype(), T => self.between::<T>(to, to_layout, from, from_layout))
    }
    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        to: &mut CudaStorage,
        to_layout: &Layout,
        from: &CudaStorage,
        from_layout: &Layout,
    ) -> Result<()> {
        Self::check_pools(to_layout.dims(), from_layout.dims())?;
        let (sources, targets) = (self.sources(from_layout.dims())?, self.targets(to_layout.dims())?);
        let device = from.device.clone();
        let from = cuda::memory("copy_rows: from", &device, from, from_layout)?;
        let to = cuda::target("copy_rows: to", &device, to, to_layout)?.expect("copy_rows: to", from.dtype())?;
        for (source, target) in sources.into_iter().zip(targets) {
            cuda::copy(&device, to.skip(target.start), from.skip(source.start), source.len())?;
        }
        Ok(())
    }
}
