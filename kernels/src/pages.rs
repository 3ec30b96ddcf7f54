//! Pages of keys and values: which of them a query sees, and how rows get into them.

use crate::operand::{Element, same_storage, slice, slice_mut, with_element};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Tensor, bail};
use std::ops::Range;

/// The pages that a query sees, in order: the pages of `frames`, then those of `special`.
///
/// Every page is full but the last one of the list, of which `last_rows` rows count. An attention
/// kernel therefore needs no mask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageTable {
    /// Page numbers within the pool of frame pages.
    pub frames: Vec<u32>,
    /// Page numbers within the pool of special pages.
    pub special: Vec<u32>,
    /// Valid rows of the last page of the list, `1..=page_size`; 0 for an empty list.
    pub last_rows: usize,
}

/// The two pools of one layer, each `[pages, 2, page_size, heads, head_dim]` (keys at 0, values at 1).
#[derive(Debug, Clone, Copy)]
pub struct Pools<'a> {
    /// Pool of frame pages.
    pub frames: &'a Tensor,
    /// Pool of special pages; same page size, heads and width.
    pub special: &'a Tensor,
}

/// Copies keys and values of qkv `[tokens, 3, heads, head_dim]` (already normed and turned) to rows
/// `row..row + tokens` of page `page` of `pool` `[pages, 2, page_size, heads, head_dim]`, rounding to the pool's dtype.
///
/// # Errors
/// When shapes do not fit together, the rows are not within a page, an operand is not contiguous, qkv is not float32
/// (on the CPU), or both share their memory.
pub fn append(pool: &Tensor, page: usize, row: usize, qkv: &Tensor) -> Result<()> {
    pool.inplace_op2(qkv, &Append { page, row })
}

/// Rows of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Number of the page within its pool.
    pub page: u32,
    /// First row within the page.
    pub row: u32,
}

/// Copies `count` rows (keys and values) from one pool to another (or the same pool, at rows that do not overlap).
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

/// Where `count` rows from `row` of `page` lie in a pool: their keys and their values.
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
        let (pool_dims, qkv_dims) = (pool_layout.dims(), qkv_layout.dims());
        let (&[_, 2, _, heads, dim], &[tokens, 3, qkv_heads, qkv_dim]) = (pool_dims, qkv_dims) else {
            bail!(
                "append: pool {pool_dims:?} and qkv {qkv_dims:?} must be [pages, 2, page_size, heads, head_dim] and \
                 [tokens, 3, heads, head_dim]"
            )
        };
        if (heads, dim) != (qkv_heads, qkv_dim) {
            bail!("append: pool {pool_dims:?} and qkv {qkv_dims:?} differ in heads or head_dim")
        }
        let targets = locate("append", pool_dims, self.page, self.row, tokens)?;
        let qkv = slice::<f32>("append: qkv", qkv, qkv_layout)?;
        let width = heads * dim;
        if qkv.is_empty() {
            return Ok(());
        }
        with_element!("append: pool", pool.dtype(), T => {
            let pool = slice_mut::<T>("append: pool", pool, pool_layout)?;
            for (i, target) in targets.into_iter().enumerate() {
                for (to, from) in pool[target].chunks_exact_mut(width).zip(qkv.chunks_exact(3 * width)) {
                    T::narrow(&from[(i + 1) * width..][..width], to);
                }
            }
        });
        Ok(())
    }
}

impl CopyRows {
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

    fn within<T: Element>(&self, pool: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (sources, targets) = (self.sources(layout.dims())?, self.targets(layout.dims())?);
        let pool = slice_mut::<T>("copy_rows: pool", pool, layout)?;
        for (source, target) in sources.into_iter().zip(targets) {
            if source.start < target.end && target.start < source.end {
                bail!("copy_rows: {} rows from {:?} to {:?} overlap", self.count, self.source, self.target)
            }
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
        with_element!("copy_rows: pool", pool.dtype(), T => self.within::<T>(pool, layout))
    }
}

impl InplaceOp2 for CopyRows {
    fn name(&self) -> &'static str {
        "copy_rows"
    }

    fn cpu_fwd(&self, to: &mut CpuStorage, to_layout: &Layout, from: &CpuStorage, from_layout: &Layout) -> Result<()> {
        let (to_dims, from_dims) = (to_layout.dims(), from_layout.dims());
        if to_dims.len() != 5 || from_dims.len() != 5 || to_dims[3..] != from_dims[3..] {
            bail!("copy_rows: pools {from_dims:?} and {to_dims:?} differ in heads or head_dim")
        }
        with_element!("copy_rows: pool", to.dtype(), T => self.between::<T>(to, to_layout, from, from_layout))
    }
}
