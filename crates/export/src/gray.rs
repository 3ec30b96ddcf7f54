//! 16-bit grayscale PNG.

use std::io::{self, Cursor};

use image::{ImageBuffer, ImageFormat, Luma};

/// The bytes of a picture of `values`, row by row.
pub(crate) fn png(width: usize, height: usize, values: Vec<u16>) -> io::Result<Vec<u8>> {
    let mut png = Cursor::new(Vec::new());
    ImageBuffer::<Luma<u16>, _>::from_raw(width as u32, height as u32, values)
        .ok_or_else(|| io::Error::other("the picture is too large"))?
        .write_to(&mut png, ImageFormat::Png)
        .map_err(io::Error::other)?;
    Ok(png.into_inner())
}
