//! A picture's worth of values.

/// A row-major grid of values, one a pixel.
#[derive(Debug, Clone, PartialEq)]
pub struct Raster<T> {
    width: usize,
    height: usize,
    values: Vec<T>,
}

impl<T> Raster<T> {
    /// Wraps `values`, row by row; `None` unless there are `width * height` of them.
    pub fn new(width: usize, height: usize, values: Vec<T>) -> Option<Self> {
        (width.checked_mul(height) == Some(values.len())).then_some(Self { width, height, values })
    }

    /// `f(column, row)` at every pixel.
    pub fn from_fn(width: usize, height: usize, f: impl Fn(usize, usize) -> T) -> Self {
        let values = (0..height).flat_map(|y| (0..width).map(move |x| (x, y))).map(|(x, y)| f(x, y)).collect();
        Self { width, height, values }
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// All values, row by row.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The value at column `x`, row `y`; `None` outside.
    pub fn get(&self, x: usize, y: usize) -> Option<&T> {
        (x < self.width && y < self.height).then(|| &self.values[y * self.width + x])
    }

    /// A raster of the same size, `f(column, row, value)` at every pixel.
    pub fn map_pixels<U>(&self, mut f: impl FnMut(usize, usize, &T) -> U) -> Raster<U> {
        let mut values = Vec::with_capacity(self.values.len());
        for y in 0..self.height {
            let row = &self.values[y * self.width..(y + 1) * self.width];
            values.extend(row.iter().enumerate().map(|(x, value)| f(x, y, value)));
        }
        Raster { width: self.width, height: self.height, values }
    }
}
