//! A cache that nothing ever leaves.

use candle_core::{DType, Device, Tensor};
use periplus_kernels::pages::{PageTable, Pools, append};

use crate::pool::{Storage, bytes, doubled, grow};
use crate::{Error, Result};

/// Keys and values that are only ever added to, in a single page `[1, 2, capacity, heads, head_dim]` that doubles
/// when it is full; the same attention reads it as reads a [`KvCache`](crate::KvCache).
///
/// Rows are provisional until they are kept: visible, but gone after [`discard`](Self::discard).
#[derive(Debug)]
pub struct GrowingRows {
    storage: Storage,
    page: Option<Tensor>,
    kept: usize,
    table: PageTable,
}

impl GrowingRows {
    /// An empty cache; memory is allocated when rows come.
    ///
    /// # Errors
    ///
    /// When `heads` or `head_dim` is 0, or `dtype` is not float32, bfloat16 or float16.
    pub fn new(heads: usize, head_dim: usize, dtype: DType, device: &Device) -> Result<Self> {
        let storage = Storage::new(heads, head_dim, dtype, device)?;
        Ok(Self { storage, page: None, kept: 0, table: PageTable::default() })
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.page.as_ref().map_or(0, bytes)
    }

    /// Adds the keys and values of `qkv` `[tokens, 3, heads, head_dim]` as provisional rows.
    ///
    /// # Errors
    ///
    /// When the rows added before are neither kept nor discarded, the shape is wrong, or memory is short.
    pub fn append(&mut self, qkv: &Tensor) -> Result<()> {
        if self.table.last_rows() > self.kept {
            return Err(Error::Provisional);
        }
        let tokens = qkv.dim(0)?;
        self.storage.check_rows(qkv, tokens)?;
        if tokens == 0 {
            return Ok(());
        }
        let capacity = self.page.as_ref().map_or(0, |page| page.dims()[2]);
        let needed = self.kept.checked_add(tokens).ok_or(Error::TooLong)?;
        if needed > capacity {
            grow(doubled(capacity, needed, usize::MAX), needed, |rows| {
                // The old page has fewer rows, so that all of the new one is more.
                self.storage.check_memory(0, 1, rows, 1)?;
                self.storage.resize(&mut self.page, 1, rows)
            })?;
        }
        let page = self.page.as_ref().ok_or(Error::Empty)?;
        append(page, 0, self.kept, qkv)?;
        self.see(needed);
        Ok(())
    }

    /// Keeps the provisional rows.
    pub fn keep(&mut self) {
        self.kept = self.table.last_rows();
    }

    /// Forgets the provisional rows.
    pub fn discard(&mut self) {
        self.see(self.kept);
    }

    /// Forgets all rows and keeps the memory.
    pub fn reset(&mut self) {
        self.kept = 0;
        self.see(0);
    }

    /// The page, as both pools of a layer.
    ///
    /// # Errors
    ///
    /// Before the first rows, when there is no page.
    pub fn pools(&self) -> Result<Pools<'_>> {
        let page = self.page.as_ref().ok_or(Error::Empty)?;
        Ok(Pools { frames: page, special: page })
    }

    /// What is visible: the rows kept and the provisional ones.
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    fn see(&mut self, rows: usize) {
        self.table = PageTable::new(if rows > 0 { vec![0] } else { Vec::new() }, Vec::new(), rows);
    }
}
