//! What all formats have in common.

use std::fmt;
use std::path::{Path, PathBuf};

use periplus_geometry::{DepthMap, FrameOutput, Raster};

use crate::ExportError;

/// A place where results go, frame by frame.
pub trait Sink: Send {
    /// Writes one frame.
    ///
    /// # Errors
    /// If it cannot be written, or has no depth where the format has ([`ExportError::NoDepth`]). What was written before
    /// stays valid; [`Sink::finish`] is still to be called.
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError>;

    /// Ends the run, complete or cut short, and says what was written. Until then, a file that all frames share has
    /// a name that ends in `.part`; without this call it is removed.
    ///
    /// # Errors
    /// If the last bytes cannot be written or a file cannot be given its name.
    fn finish(self: Box<Self>) -> Result<Summary, ExportError>;
}

/// The depth map that `path` is to hold.
pub(crate) fn depth_map<'a>(frame: &'a FrameOutput, path: &Path) -> Result<&'a DepthMap, ExportError> {
    let missing = || ExportError::NoDepth { path: path.to_path_buf(), index: frame.index };
    frame.depth_map.as_ref().ok_or_else(missing)
}

/// The finite values of the pixels that are shown.
pub(crate) fn finite(values: &Raster<f32>, shown: &Raster<bool>) -> impl Iterator<Item = f64> {
    let pixels = values.values().iter().zip(shown.values());
    pixels.filter(|(value, shown)| **shown && value.is_finite()).map(|(&value, _)| value.into())
}

/// What a sink has written. Displays as a line for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The file or folder, or what the stream is called.
    pub path: PathBuf,
    /// Frames in it. Without any, nothing was written, and files of an earlier run are as they were.
    pub frames: usize,
    /// What else there is to know.
    pub note: Option<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match self.frames {
            0 => return f.write_str("nothing written"),
            1 => f.write_str("1 frame")?,
            frames => write!(f, "{frames} frames")?,
        }
        self.note.as_ref().map_or(Ok(()), |note| write!(f, ", {note}"))
    }
}
