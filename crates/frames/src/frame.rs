//! A frame as the network sees it.

use std::sync::Arc;

use periplus_geometry::{Raster, Timestamp, Viewport};

/// A picture of a clip at network resolution.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The number of its picture in the source, from 0. Pictures that are not selected count, too.
    pub number: usize,
    /// The name of its picture, such as that of its file, if the source gives names.
    pub name: Option<Arc<str>>,
    /// When it was taken, if the source knows.
    pub timestamp: Option<Timestamp>,
    /// The map from the original picture to `pixels`.
    pub viewport: Viewport,
    /// 8-bit RGB at network resolution: width and height are multiples of the patch size, the same for all frames of a clip.
    pub pixels: Arc<Raster<[u8; 3]>>,
}
