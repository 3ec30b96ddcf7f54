//! Keys and values that are never evicted: the cache of the camera head.

use candle_core::{DType, Device, Tensor};
use periplus_kernels::pages::{PageTable, Pools, append};

use crate::pool::{Storage, bytes, doubled, grow};
use crate::{Error, Result};

/// Keys and values in a single page `[1, 2, capacity, heads, head_dim]` that doubles when it is full. The attention that
/// reads a [`KvCache`](crate::KvCache) reads it as well.
///
/// The caller counts the rows to keep, and tells each [`GrowingRows::append`] after how many rows the new ones go. Rows of a pass that is rolled back are overwritten by the next one.
#[derive(Debug)]
pub struct GrowingRows {
    storage: Storage,
    page: Option<Tensor>,
    table: PageTable,
}

impl GrowingRows {
    /// Creates an empty cache. Memory is allocated when rows arrive.
    ///
    /// # Errors
    ///
    /// When `heads` or `head_dim` is 0, or `dtype` is not float32, bfloat16 or float16.
    pub fn new(heads: usize, head_dim: usize, dtype: DType, device: &Device) -> Result<Self> {
        let storage = Storage::new(heads, head_dim, dtype, device)?;
        Ok(Self { storage, page: None, table: PageTable::default() })
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.page.as_ref().map_or(0, bytes)
    }

    /// Writes the keys and values of `qkv` `[tokens, 3, heads, head_dim]` after the first `kept` rows. Only these and the new rows are
    /// visible then.
    ///
    /// # Errors
    ///
    /// When fewer than `kept` rows were ever written, the shape is wrong, or there is too little memory.
    pub fn append(&mut self, kept: usize, qkv: &Tensor) -> Result<()> {
        let tokens = qkv.dim(0)?;
        self.storage.check_rows(qkv, tokens)?;
        if kept > self.table.last_rows() {
            return Err(Error::NoSuchRows { kept, written: self.table.last_rows() });
        }
        let needed = kept.checked_add(tokens).ok_or(Error::TooLong)?;
        let capacity = self.page.as_ref().map_or(0, |page| page.dims()[2]);
        if needed > capacity {
            grow(doubled(capacity, needed, usize::MAX), needed, |rows| {
                // The old page has fewer rows and is freed only afterwards, so the whole new page counts.
                self.storage.check_memory(0, 1, rows, 1)?;
                self.storage.resize(&mut self.page, 1, rows)
            })?;
        }
        if tokens > 0 {
            append(self.page.as_ref().ok_or(Error::Empty)?, 0, kept, qkv)?;
        }
        self.table = table(needed);
        Ok(())
    }

    /// The page, as both pools of a layer.
    ///
    /// # Errors
    ///
    /// When there is no page yet because no rows were written.
    pub fn pools(&self) -> Result<Pools<'_>> {
        let page = self.page.as_ref().ok_or(Error::Empty)?;
        Ok(Pools { frames: page, special: page })
    }

    /// The visible rows: all up to those of the last [`GrowingRows::append`].
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// The first `kept` rows, `[1, 2, kept, heads, head_dim]`, for a snapshot; `None` for 0 rows.
    ///
    /// # Errors
    ///
    /// When fewer rows were ever written.
    pub fn rows(&self, kept: usize) -> Result<Option<Tensor>> {
        match &self.page {
            _ if kept == 0 => Ok(None),
            Some(page) if kept <= self.table.last_rows() => Ok(Some(page.narrow(2, 0, kept)?.contiguous()?)),
            _ => Err(Error::NoSuchRows { kept, written: self.table.last_rows() }),
        }
    }

    /// Restores saved [`GrowingRows::rows`], which are copied.
    ///
    /// # Errors
    ///
    /// When they have another shape or dtype than this cache stores, or there is too little memory.
    pub fn restore(&mut self, rows: Option<&Tensor>) -> Result<()> {
        let kept = rows.map_or(Ok(0), |rows| rows.dim(2))?;
        self.page = rows.map(|rows| self.storage.restored(rows, 1, kept)).transpose()?;
        self.table = table(kept);
        Ok(())
    }
}

/// A table of one page with `rows` visible rows.
fn table(rows: usize) -> PageTable {
    PageTable::new(if rows > 0 { vec![0] } else { Vec::new() }, Vec::new(), rows)
}
