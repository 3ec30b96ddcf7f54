//! Rasters: a value for each pixel of a picture.

/// A row-major grid with one value per pixel.
#[derive(Debug, Clone, PartialEq)]
pub struct Raster<T> {
    width: usize,
    height: usize,
    values: Vec<T>,
}

impl<T> Raster<T> {
    /// A raster of `values`, row by row. `None` unless there are `width * height` values.
    pub fn new(width: usize, height: usize, values: Vec<T>) -> Option<Self> {
        (width.checked_mul(height) == Some(values.len())).then_some(Self { width, height, values })
    }

    /// A raster with the value `f(column, row)` at each pixel.
    pub fn from_fn(width: usize, height: usize, f: impl Fn(usize, usize) -> T) -> Self {
        let values = (0..height).flat_map(|y| (0..width).map(move |x| (x, y))).map(|(x, y)| f(x, y)).collect();
        Self { width, height, values }
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// All values, row by row.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The value at column `x` and row `y`; `None` outside of the raster.
    pub fn get(&self, x: usize, y: usize) -> Option<&T> {
        (x < self.width && y < self.height).then(|| &self.values[y * self.width + x])
    }

    /// A raster of the same size with the value `f(column, row, value)` at each pixel.
    pub fn map_pixels<U>(&self, mut f: impl FnMut(usize, usize, &T) -> U) -> Raster<U> {
        let mut values = Vec::with_capacity(self.values.len());
        for y in 0..self.height {
            let row = &self.values[y * self.width..(y + 1) * self.width];
            values.extend(row.iter().enumerate().map(|(x, value)| f(x, y, value)));
        }
        Raster { width: self.width, height: self.height, values }
    }
}
