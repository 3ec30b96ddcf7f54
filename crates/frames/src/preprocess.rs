//! From any RGB picture to the size that the network takes.

use periplus_geometry::{Raster, Viewport};

use crate::resample::bicubic;
use crate::{ImageSizeError, MAX_PICTURE_BYTES, PictureError};

/// How a picture is fitted to the image size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resize {
    /// The width becomes the image size, the height follows; rows beyond the image size are cropped, half of them
    /// above and half below.
    #[default]
    Crop,
    /// The longer side becomes the image size, the other follows and is padded with white to a square, the odd pixel
    /// at the bottom or right.
    Pad,
}

/// Fits pictures to the network. The side that follows keeps the picture's proportions up to rounding to whole patches
/// (half to even); resampling is Pillow's BICUBIC, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preprocess {
    image_size: u32,
    patch: u32,
    resize: Resize,
}

impl Preprocess {
    /// Fits to `image_size` pixels (518 for the published networks), cut into patches of `patch` x `patch` (14).
    ///
    /// # Errors
    /// If `image_size` is not a multiple of `patch`, or a square of it would be over [`MAX_PICTURE_BYTES`].
    pub fn new(image_size: u32, patch: u32, resize: Resize) -> Result<Self, ImageSizeError> {
        if patch == 0 {
            return Err(ImageSizeError::NoPatch);
        }
        let limit = (MAX_PICTURE_BYTES / 3).isqrt() as u32 / patch * patch;
        if image_size > limit {
            return Err(ImageSizeError::TooLarge { image_size, limit });
        }
        if image_size == 0 || !image_size.is_multiple_of(patch) {
            return Err(ImageSizeError::NotWholePatches { image_size, patch });
        }
        Ok(Self { image_size, patch, resize })
    }

    /// The picture as the network sees it, and how that lies in `picture`.
    ///
    /// # Errors
    /// [`PictureError::TooSlender`] if nothing would be left of the shorter side, [`PictureError::NoPixels`] if there is nothing.
    #[allow(clippy::missing_panics_doc)] // an invariant, see at its end
    pub fn apply(&self, picture: &Raster<[u8; 3]>) -> Result<(Raster<[u8; 3]>, Viewport), PictureError> {
        let (from_width, from_height) = (picture.width(), picture.height());
        let (original_width, original_height) = (from_width as u32, from_height as u32);
        if from_width == 0 || from_height == 0 {
            return Err(PictureError::NoPixels { width: original_width, height: original_height });
        }
        let [width, height] = self.resized(from_width, from_height).ok_or(PictureError::TooSlender {
            width: original_width,
            height: original_height,
            image_size: self.image_size,
            patch: self.patch,
        })?;
        let size = self.image_size as usize;
        let rows = height.min(size);
        let top = (height - rows) / 2;
        let pixels = bicubic(picture, width, height, top..top + rows);
        let (pixels, [network_width, network_height], offset) = match self.resize {
            Resize::Crop => (pixels, [width, rows], [0.0, -(top as f64)]),
            Resize::Pad => {
                let (left, above) = ((size - width) / 2, (size - rows) / 2);
                (padded(&pixels, width, left, above, size), [size, size], [left as f64, above as f64])
            }
        };
        let viewport = Viewport {
            original: [original_width, original_height],
            network: [network_width as u32, network_height as u32],
            scale: [width as f64 / from_width as f64, height as f64 / from_height as f64],
            offset,
        };
        let pixels = Raster::new(network_width, network_height, pixels);
        #[allow(clippy::expect_used)] // both arms above make network_width * network_height pixels
        Ok((pixels.expect("a pixel for every place"), viewport))
    }

    /// Width and height after resizing, before cropping or padding; `None` if there is nothing left.
    fn resized(&self, width: usize, height: usize) -> Option<[usize; 2]> {
        let follow = |side: usize, leading: usize| {
            let patches = side as f64 * (f64::from(self.image_size) / leading as f64) / f64::from(self.patch);
            patches.round_ties_even() as usize * self.patch as usize
        };
        let size = self.image_size as usize;
        let resized = if self.resize == Resize::Crop || width >= height {
            [size, follow(height, width)]
        } else {
            [follow(width, height), size]
        };
        (!resized.contains(&0)).then_some(resized)
    }
}

/// `pixels`, rows of `width`, on a white square of side `size`.
fn padded(pixels: &[[u8; 3]], width: usize, left: usize, above: usize, size: usize) -> Vec<[u8; 3]> {
    let mut square = vec![[u8::MAX; 3]; size * size];
    for (to, row) in square.chunks_exact_mut(size).skip(above).zip(pixels.chunks_exact(width)) {
        to[left..left + width].copy_from_slice(row);
    }
    square
}
