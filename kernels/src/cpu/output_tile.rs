//! Output tiles: disjoint rectangles of a matrix, which threads write in parallel.

use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;

/// An exclusive borrow of a rectangle of y: a range of outputs of a range of rows. It is not contiguous in memory.
pub(super) struct OutputTile<'a> {
    y: *mut f32,
    /// Elements from one row of y to the next.
    stride: usize,
    rows: Range<usize>,
    outputs: Range<usize>,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is equivalent to one `&mut [f32]` per row, which is `Send`. A shared reference to it gives no access to y.
#[allow(unsafe_code)]
unsafe impl Send for OutputTile<'_> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for OutputTile<'_> {}

impl<'a> OutputTile<'a> {
    /// All of y `[rows, outputs]`.
    pub(super) fn new(y: &'a mut [f32], outputs: usize) -> Self {
        let rows = y.len() / outputs;
        Self { y: y.as_mut_ptr(), stride: outputs, rows: 0..rows, outputs: 0..outputs, borrowed: PhantomData }
    }

    /// Splits it into tiles of at most `rows` and `outputs`, row by row of tiles.
    pub(super) fn split(self, rows: usize, outputs: usize) -> impl ParallelIterator<Item = Self> {
        let across = self.outputs.len().div_ceil(outputs);
        let parts = self.rows.len().div_ceil(rows) * across;
        (0..parts).into_par_iter().map(move |part| {
            // SAFETY: each tile is made once, tiles do not overlap, and `self` is consumed.
            #[allow(unsafe_code)]
            unsafe {
                self.part(part / across * rows, part % across * outputs, rows, outputs)
            }
        })
    }

    /// The tile of at most `rows` and `outputs` that starts at `row` and `output` of this tile.
    ///
    /// # Safety
    /// No other tile in use overlaps it.
    #[allow(unsafe_code)]
    unsafe fn part(&self, row: usize, output: usize, rows: usize, outputs: usize) -> Self {
        let cut = |whole: &Range<usize>, start: usize, length: usize| {
            let start = whole.start + start;
            start..whole.end.min(start + length)
        };
        Self { rows: cut(&self.rows, row, rows), outputs: cut(&self.outputs, output, outputs), ..*self }
    }

    /// The rows of y in this tile.
    pub(super) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The outputs of y in this tile.
    pub(super) fn outputs(&self) -> Range<usize> {
        self.outputs.clone()
    }

    /// A range of outputs of one row. Both are indices in y and must be in this tile.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, outputs: Range<usize>) -> &mut [f32] {
        assert!(self.rows.contains(&row));
        assert!(self.outputs.start <= outputs.start && outputs.start <= outputs.end && outputs.end <= self.outputs.end);
        // SAFETY: the assertions show that the range is in this tile, and so in y, which is borrowed for `'a`. Nothing
        // else refers to it: tiles do not overlap, and this one is mutably borrowed while the slice lives.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.y.add(row * self.stride + outputs.start), outputs.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_one_tile() {
        for (rows, outputs) in [(3, 4), (7, 10), (1, 1), (100, 3), (2, 100)] {
            let mut y = vec![0.0; 70];
            OutputTile::new(&mut y, 10).split(rows, outputs).for_each(|mut part| {
                assert!(part.rows().len() <= rows && part.outputs().len() <= outputs);
                for row in part.rows() {
                    part.row(row, part.outputs()).iter_mut().for_each(|y| *y += 1.0);
                }
            });
            assert_eq!(y, [1.0; 70], "{rows} x {outputs}");
        }
    }

    #[test]
    fn elements_outside_a_tile_are_refused() {
        let outside = [(0, 4..8), (2, 4..8), (1, 3..8), (1, 4..9)];
        for (row, outputs) in outside {
            let mut y = vec![0.0; 40];
            // SAFETY: it is the only tile.
            #[allow(unsafe_code)]
            let mut part = unsafe { OutputTile::new(&mut y, 10).part(1, 4, 1, 4) };
            part.row(1, 4..8);
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| part.row(row, outputs).len()));
            assert!(caught.is_err());
        }
    }
}
