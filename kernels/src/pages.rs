//! Pages of keys and values: which of them a query sees, and how rows get into them.

use candle_core::{Result, Tensor};

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

/// Copies keys and values of qkv `[tokens, 3, heads, head_dim]` (already normed and turned) to rows `row..row + tokens`
/// of page `page` of `pool` `[pages, 2, page_size, heads, head_dim]`, converting to the pool's dtype.
pub fn append(pool: &Tensor, page: usize, row: usize, qkv: &Tensor) -> Result<()>;

/// Rows of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows { pub page: u32, pub row: u32 }

/// Copies `count` rows (keys and values) from one pool to another (or the same pool, at rows that do not overlap).
pub fn copy_rows(from: &Tensor, source: Rows, to: &Tensor, target: Rows, count: usize) -> Result<()>;
