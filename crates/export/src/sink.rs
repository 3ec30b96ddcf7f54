//! The interface of all sinks.

use std::fmt;
use std::path::Path;

use nalgebra::Isometry3;
use periplus_geometry::{DepthMap, FrameOutput, Raster};

use crate::ExportError;
use crate::error::place;

/// A place where results go, frame by frame: a file, a numbered series of files, a folder, or a live viewer.
pub trait Sink: Send {
    /// Writes one frame.
    ///
    /// # Errors
    /// If the frame cannot be written, or has no depth and the format needs it ([`ExportError::NoDepth`]). Results
    /// written before stay valid. [`Sink::finish`] must still be called.
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError>;

    /// Replaces poses of frames that were written before. Windows that are joined later and loop closure do this.
    ///
    /// The default ignores revisions. That is right for a record of what was known when (JSON lines), and for formats that
    /// cannot be changed afterwards. Other sinks apply them at once (a viewer) or in [`Sink::finish`] (a file).
    ///
    /// # Errors
    /// If the revision cannot be written.
    fn revise(&mut self, revisions: &[Revision]) -> Result<(), ExportError> {
        let _ = revisions;
        Ok(())
    }

    /// Ends the run, complete or cut short, and says what was written. Until then, a file that holds all frames has
    /// a name that ends in `.part`. A sink that is dropped without this call removes it.
    ///
    /// # Errors
    /// If the last bytes cannot be written or a file cannot be renamed.
    fn finish(self: Box<Self>) -> Result<Summary, ExportError>;
}

/// A new pose of a frame that was written before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Revision {
    /// Index of the frame in the stream, [`FrameOutput::index`].
    pub index: usize,
    /// The new pose, in the new unit of length.
    pub camera_to_world: Isometry3<f64>,
    /// Factor for the depth of the frame as it was written: new depth = `scale` * written depth.
    pub scale: f64,
}

/// The depth map of a frame for the result at `path`.
pub(crate) fn depth_map<'a>(frame: &'a FrameOutput, path: &Path) -> Result<&'a DepthMap, ExportError> {
    frame.depth_map.as_ref().ok_or_else(|| ExportError::NoDepth { place: place(path), index: frame.index })
}

/// The finite values of the pixels that are shown.
pub(crate) fn finite(values: &Raster<f32>, shown: &Raster<bool>) -> impl Iterator<Item = f64> {
    let pixels = values.values().iter().zip(shown.values());
    pixels.filter(|(value, shown)| **shown && value.is_finite()).map(|(&value, _)| value.into())
}

/// What a sink has written. Displays as one line for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The file or folder, or another name of the place ("standard output").
    pub place: String,
    /// Frames in it. With 0 frames nothing was written, and files of an earlier run are unchanged.
    pub frames: usize,
    /// Details for the user.
    pub note: Option<String>,
}

impl Summary {
    pub(crate) fn of_file(path: &Path, frames: usize, note: Option<String>) -> Self {
        Self { place: place(path), frames, note }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        match self.frames {
            0 => return f.write_str("nothing written"),
            1 => f.write_str("1 frame")?,
            frames => write!(f, "{frames} frames")?,
        }
        self.note.as_ref().map_or(Ok(()), |note| write!(f, ", {note}"))
    }
}
