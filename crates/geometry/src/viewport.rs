//! How the picture that the network sees lies in the picture that came in.

/// Network pixel = original pixel * `scale` + `offset`, per axis.
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
}
