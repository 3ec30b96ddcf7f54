//! Viewports: the map from the original picture to the network's picture.

use crate::Raster;

/// Network position = original position * `scale` + `offset`, per axis.
///
/// Positions are measured from edge to edge: 0 is the left or upper edge of the first pixel; the width or height is the
/// far edge of the last pixel. In this convention, the network's principal point is at half the width and height.
/// Elsewhere in this crate, pixel coordinates are integers at pixel centres, which is half a pixel less than the
/// position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Viewport {
    /// Width and height of the original picture in pixels, with EXIF orientation applied.
    pub original: [u32; 2],
    /// Width and height of the network's picture in pixels.
    pub network: [u32; 2],
    /// Network pixels per original pixel, along x and y. The two differ slightly, because sizes are rounded to whole
    /// patches.
    pub scale: [f64; 2],
    /// Position of the original's upper left corner in network pixels: negative if cropped, positive if padded.
    pub offset: [f64; 2],
}

impl Viewport {
    /// The identity: network and original picture are the same.
    pub fn identity(width: u32, height: u32) -> Self {
        Self { original: [width, height], network: [width, height], scale: [1.0; 2], offset: [0.0; 2] }
    }

    /// Whether the viewport is valid: pictures are not empty, scales are positive, all values are finite.
    pub fn is_possible(&self) -> bool {
        let sizes = self.original.iter().chain(&self.network).all(|&size| size > 0);
        sizes
            && self.scale.iter().all(|&scale| scale > 0.0 && scale.is_finite())
            && self.offset.iter().all(|x| x.is_finite())
    }

    /// Which pixels of the network's picture show the original: all except the bars of a padded picture, whose outputs
    /// are meaningless.
    pub fn shown(&self) -> Raster<bool> {
        let [columns, rows] = [0, 1].map(|axis| {
            let shows = |pixel: u32| {
                // The centre of the pixel decides.
                let position = (f64::from(pixel) + 0.5 - self.offset[axis]) / self.scale[axis];
                (0.0..=f64::from(self.original[axis])).contains(&position)
            };
            (0..self.network[axis]).map(shows).collect::<Vec<_>>()
        });
        Raster::from_fn(columns.len(), rows.len(), |x, y| columns[x] && rows[y])
    }
}
