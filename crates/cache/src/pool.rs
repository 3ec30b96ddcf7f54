//! Pools of pages as tensors: their shape, and how they grow.

use candle_core::{DType, Device, Tensor};
use periplus_kernels::device::{is_out_of_memory, main_memory_holds, trim_memory_pool};
use periplus_kernels::pages::{Rows, copy_rows};

use crate::{Error, Result};

/// What all pools of a cache have in common: the shape and dtype of their rows, and their device.
#[derive(Debug, Clone)]
pub(crate) struct Storage {
    heads: usize,
    head_dim: usize,
    dtype: DType,
    device: Device,
}

impl Storage {
    pub(crate) fn new(heads: usize, head_dim: usize, dtype: DType, device: &Device) -> Result<Self> {
        for (size, what) in [(heads, "number of heads"), (head_dim, "head width")] {
            if size == 0 {
                return Err(Error::Zero { what });
            }
        }
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F16) {
            return Err(Error::UnsupportedDType { dtype });
        }
        Ok(Self { heads, head_dim, dtype, device: device.clone() })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Checks that queries, keys and values of `tokens` tokens have the shape `[tokens, 3, heads, head_dim]`.
    pub(crate) fn check_rows(&self, qkv: &Tensor, tokens: usize) -> Result<()> {
        let expected = [tokens, 3, self.heads, self.head_dim];
        if qkv.dims() == expected {
            Ok(())
        } else {
            Err(Error::Shape { expected: expected.to_vec(), got: qkv.dims().to_vec() })
        }
    }

    /// Checks that there is memory for `pools` pools to grow, one after the other, from `old` pages to `pages`.
    ///
    /// If the system refuses an allocation inside Candle, the process aborts. So the allocation is tried here first, where failure can
    /// be an error. On other devices Candle reports the failure.
    pub(crate) fn check_memory(&self, old: usize, pages: usize, rows: usize, pools: usize) -> Result<()> {
        let more = more_pages(old, pages, pools).and_then(|more| self.bytes(more, rows));
        let bytes = more.ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
        if self.device.is_cpu() && !main_memory_holds(bytes as u64) {
            return Err(Error::OutOfMemory { bytes });
        }
        Ok(())
    }

    /// Resizes `pool` to `pages` pages of `rows` rows. Contents are kept as far as they fit.
    pub(crate) fn resize(&self, pool: &mut Option<Tensor>, pages: usize, rows: usize) -> Result<()> {
        if pages == 0 || pool.as_ref().is_some_and(|pool| pool.dims()[0] == pages && pool.dims()[2] == rows) {
            return Ok(());
        }
        let shape = (pages, 2, rows, self.heads, self.head_dim);
        let zeros = || Tensor::zeros(shape, self.dtype, &self.device);
        let resized = zeros().or_else(|error| {
            if !is_out_of_memory(&error) {
                return Err(Error::from(error));
            }
            // Memory that smaller pools have freed may suffice now.
            trim_memory_pool(&self.device)?;
            let bytes = self.bytes(pages, rows).unwrap_or(usize::MAX);
            zeros().map_err(|error| if is_out_of_memory(&error) { Error::GpuFull { bytes } } else { error.into() })
        })?;
        if let Some(old) = pool {
            let (old_pages, _, old_rows, _, _) = old.dims5()?;
            for page in 0..u32::try_from(old_pages.min(pages)).map_err(|_| Error::TooLong)? {
                let start = Rows { page, row: 0 };
                copy_rows(old, start, &resized, start, old_rows.min(rows))?;
            }
        }
        *pool = Some(resized);
        Ok(())
    }

    /// A copy of a saved pool, after a check that it has `pages` pages of `rows` rows.
    pub(crate) fn restored(&self, saved: &Tensor, pages: usize, rows: usize) -> Result<Tensor> {
        if saved.dims() != [pages, 2, rows, self.heads, self.head_dim] || saved.dtype() != self.dtype {
            return Err(Error::Snapshot("a pool has another shape or dtype"));
        }
        self.check_memory(0, pages, rows, 1)?;
        Ok(saved.to_device(&self.device)?.contiguous()?.copy()?)
    }

    /// Bytes of a number of pages; `None` on overflow.
    fn bytes(&self, pages: usize, rows: usize) -> Option<usize> {
        let sizes = [pages, rows, self.heads, self.head_dim, self.dtype.size_in_bytes()];
        sizes.into_iter().try_fold(2, usize::checked_mul)
    }
}

/// Grows to the preferred size, or to the needed one if there is no memory for the preferred one.
pub(crate) fn grow<T: Copy + PartialEq>(
    generous: T,
    needed: T,
    mut grow_to: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    match grow_to(generous) {
        Err(Error::OutOfMemory { .. } | Error::GpuFull { .. }) if generous != needed => grow_to(needed),
        done => done,
    }
}

/// The most additional pages that exist at once while `pools` pools grow one after the other: for the last one, old pages exist
/// beside new ones. 0 if the pools do not grow, `None` on overflow.
fn more_pages(old: usize, pages: usize, pools: usize) -> Option<usize> {
    match pages.saturating_sub(old) {
        0 => Some(0),
        more => more.checked_mul(pools)?.checked_add(old),
    }
}

/// The size to grow to when `needed` pages are needed and `capacity` exist: twice as many, so that growing costs O(1) amortised, but
/// at most `most`.
pub(crate) fn doubled(capacity: usize, needed: usize, most: usize) -> usize {
    capacity.saturating_mul(2).min(most).max(needed)
}

/// Bytes that a pool takes.
pub(crate) fn bytes(pool: &Tensor) -> usize {
    pool.elem_count() * pool.dtype().size_in_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_counted_pool_by_pool() {
        // Ten pools of three pages, then of four: while the last one is copied there are 9 * 4 + 3 + 4.
        assert_eq!(more_pages(3, 4, 10), Some(9 * 4 + 3 + 4 - 10 * 3));
        assert_eq!(more_pages(0, 4, 10), Some(40));
        assert_eq!([more_pages(4, 4, 10), more_pages(8, 4, 10)], [Some(0); 2], "nothing grows");
        assert_eq!(more_pages(1, usize::MAX, 2), None);
    }
}
