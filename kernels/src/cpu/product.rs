//! The one call into `gemm`.

use gemm::Parallelism;

/// A row-major matrix: rows of `columns` numbers, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows that follow each other without gap; `columns` is not 0.
    pub(super) fn dense(data: &'a [f32], columns: usize) -> Self {
        Self { data, rows: data.len() / columns, columns, stride: columns }
    }

    fn fits(&self, len: usize) -> bool {
        let last = self.rows.saturating_sub(1).checked_mul(self.stride);
        self.rows == 0 || last.and_then(|last| last.checked_add(self.columns)).is_some_and(|end| end <= len)
    }
}

/// `y += x wᵀ`, y `[x.rows, w.rows]` with rows `y_stride` apart, x `[x.rows, k]`, w `[w.rows, k]`.
///
/// # Panics
/// When a matrix does not fit its slice: callers have checked sizes, so that is a bug in this crate.
pub(super) fn add_product(y: &mut [f32], y_stride: usize, x: Rows<'_>, w: Rows<'_>, parallelism: Parallelism) {
    let target = Rows { data: &[], rows: x.rows, columns: w.rows, stride: y_stride };
    assert!(x.columns == w.columns && target.columns <= y_stride);
    assert!(target.fits(y.len()) && x.fits(x.data.len()) && w.fits(w.data.len()));
    // SAFETY: by the assertions every element that the strides reach lies within its slice; rows of y do not
    // overlap (columns <= stride); y is borrowed exclusively, so it overlaps neither x nor w. Slices span at most
    // isize::MAX bytes, so the strides fit isize.
    #[allow(unsafe_code)]
    unsafe {
        gemm::gemm(
            x.rows,
            w.rows,
            x.columns,
            y.as_mut_ptr(),
            1,
            y_stride as isize,
            true,
            x.data.as_ptr(),
            1,
            x.stride as isize,
            w.data.as_ptr(),
            w.stride as isize,
            1,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
