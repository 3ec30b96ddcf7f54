//! How the picture that the network sees lies in the picture that came in.

use crate::Raster;

/// Network position = original position * `scale` + `offset`, per axis.
///
/// Positions are measured between the edges of a picture: 0 is the left or upper edge of its first pixel, its width or
/// height the far edge of its last. This is the convention in which the network puts its principal point at half the
/// width. A pixel's number, a whole number at its centre as everywhere else here, is half a pixel less than the position
/// of its centre.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Viewport {
    /// Width and height of the original picture, upright (EXIF orientation applied), in pixels.
    pub original: [u32; 2],
    /// Width and height of the picture that the network sees.
    pub network: [u32; 2],
    /// Network pixels per original pixel, per axis (sizes are rounded to whole patches, so the two differ a little).
    pub scale: [f64; 2],
    /// Where the original's corner lies in network pixels: negative where it was cropped, positive where padded.
    pub offset: [f64; 2],
}

impl Viewport {
    /// The picture as it is: network and original are the same.
    pub fn identity(width: u32, height: u32) -> Self {
        Self { original: [width, height], network: [width, height], scale: [1.0; 2], offset: [0.0; 2] }
    }

    /// Whether there is such a viewport: of pictures that are not empty, with scales above 0 and finite numbers.
    pub fn is_possible(&self) -> bool {
        let sizes = self.original.iter().chain(&self.network).all(|&size| size > 0);
        sizes
            && self.scale.iter().all(|&scale| scale > 0.0 && scale.is_finite())
            && self.offset.iter().all(|x| x.is_finite())
    }

    /// Which pixels of the network's picture show the original: all of them, but for the bars beside one that was padded. What the
    /// network says of those means nothing.
    pub fn shown(&self) -> Raster<bool> {
        let [columns, rows] = [0, 1].map(|axis| {
            let shows = |pixel: u32| {
                // Its centre decides.
                let position = (f64::from(pixel) + 0.5 - self.offset[axis]) / self.scale[axis];
                (0.0..=f64::from(self.original[axis])).contains(&position)
            };
            (0..self.network[axis]).map(shows).collect::<Vec<_>>()
        });
        Raster::from_fn(columns.len(), rows.len(), |x, y| columns[x] && rows[y])
    }
}
