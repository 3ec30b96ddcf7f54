//! A frame, and what yields frames.

use std::sync::Arc;

use periplus_geometry::{Raster, Timestamp, Viewport};

use crate::{FrameError, PictureWarning};

/// A frame as the network sees it.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Its number in the clip, from 0, with those counted that the source leaves out: of a folder, the place of its picture
    /// among all. Only those who read results care.
    pub number: usize,
    /// Where it came from (the name of the picture file, say), if the source gives its frames names.
    pub name: Option<Arc<str>>,
    /// When it was taken, if the source knows.
    pub timestamp: Option<Timestamp>,
    /// How `pixels` lie in the picture that came in.
    pub viewport: Viewport,
    /// 8-bit RGB at network resolution: width and height are multiples of the patch size, the same for all frames of a
    /// source.
    pub pixels: Arc<Raster<[u8; 3]>>,
}

/// Yields the frames of one clip in order, all of one size.
///
/// Whether a bad frame ends the clip or is left out is the source's own setting. After an `Err` the source is at its
/// end: every further `next` is `None`.
pub trait Source: Iterator<Item = Result<Frame, FrameError>> {
    /// How many frames the whole clip has (those already yielded included), where that is known before its end.
    /// Frames left out as bad are counted: it is what `yielded + skipped_count()` reaches.
    fn len_hint(&self) -> Option<usize>;

    /// The first frames left out as bad, and why: a source may forget the later ones, lest bad frames without end take
    /// memory without end.
    fn skipped(&self) -> &[FrameError];

    /// How many frames were left out as bad so far.
    fn skipped_count(&self) -> usize {
        self.skipped().len()
    }

    /// What is odd about pictures so far: each kind of warning, the first picture that it is about, and how many there are.
    fn picture_warnings(&self) -> Vec<(PictureWarning, String, usize)> {
        Vec::new()
    }
}
