//! What yields the pictures of a clip.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use periplus_geometry::{Raster, Timestamp};

use crate::{
    FrameCause, FrameError, MAX_PICTURE_BYTES, PictureError, PictureWarning, SampleBits, decode_with_warnings,
    used_sample_bits,
};

/// Yields the pictures of one clip in order: a folder, a video, a camera.
///
/// A source only finds its pictures. [`Clip`](crate::Clip) selects some of them, decodes and resizes them in threads, checks their
/// sizes and handles bad ones, for every source in the same way.
pub trait Source: Send {
    /// The next picture, or why there is none at this place; `None` at the end. It may wait, for a camera for example, and is called in
    /// a thread of the clip. After an `Err` the source may go on with the pictures behind it.
    fn next(&mut self) -> Option<Result<Picture, FrameError>>;

    /// The number of pictures from the first to the last, if it is known.
    fn len_hint(&self) -> Option<usize> {
        None
    }
}

/// A picture of a source.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Its name in results, such as the name of its file, if it has one.
    pub name: Option<Arc<str>>,
    /// When it was taken, if the source knows.
    pub timestamp: Option<Timestamp>,
    /// What is in it.
    pub content: PictureContent,
}

/// The content of a [`Picture`].
#[derive(Debug, Clone)]
pub enum PictureContent {
    /// A file of a kind that [`decode`](crate::decode()) reads.
    File(PathBuf),
    /// The contents of such a file.
    Encoded(Cow<'static, [u8]>),
    /// Upright 8-bit RGB.
    Pixels(Raster<[u8; 3]>),
}

impl PictureContent {
    /// Upright 8-bit RGB, and what is unusual about the picture. `bits` are those that the samples of a 16-bit picture use.
    pub(crate) fn decode(self, bits: SampleBits) -> Result<(Raster<[u8; 3]>, Vec<PictureWarning>), FrameCause> {
        Ok(match self {
            Self::File(path) => decode_with_warnings(&contents(&path)?, bits)?,
            Self::Encoded(contents) => decode_with_warnings(&contents, bits)?,
            Self::Pixels(pixels) => (pixels, Vec::new()),
        })
    }

    /// The bits that the samples use.
    pub(crate) fn used_sample_bits(&self) -> Result<SampleBits, FrameCause> {
        let used = match self {
            Self::File(path) => used_sample_bits(&contents(path)?),
            Self::Encoded(contents) => used_sample_bits(contents),
            Self::Pixels(_) => None,
        };
        Ok(used.unwrap_or_default())
    }
}

/// The contents of a picture file.
fn contents(path: &Path) -> Result<Vec<u8>, FrameCause> {
    // Opening a named pipe would wait until a process writes to it.
    if !fs::metadata(path)?.is_file() {
        return Err(FrameCause::NotRegular);
    }
    let mut contents = Vec::new();
    File::open(path)?.take(MAX_PICTURE_BYTES + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MAX_PICTURE_BYTES {
        return Err(PictureError::FileTooLarge.into());
    }
    Ok(contents)
}
