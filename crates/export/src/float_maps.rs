//! Depth as float32: NumPy arrays and EXR pictures.

use std::io::{self, Cursor};
use std::path::Path;

use exr::prelude::{AnyChannel, AnyChannels, Encoding, FlatSamples, Image, Layer, LayerAttributes, SmallVec};
use exr::prelude::{Text, WritableImage};
use periplus_geometry::{FrameOutput, Raster, Viewport};

use crate::npz::array;
use crate::numbered::NumberedFiles;
use crate::sink::depth_map;
use crate::{ExportError, Sink, Summary};

/// `npy/000000.npy` and so on, for `numpy.load`: depth `[H, W]` along z as float32, in the unit of the stream, at network
/// resolution. The bars of a padded picture are NaN.
pub struct NpyFiles {
    files: NumberedFiles,
}

impl NpyFiles {
    /// Creates the folder `npy` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created, files cannot be written there, or it holds files that are not from an earlier run.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        Ok(Self { files: NumberedFiles::create(&folder.join("npy"), "", "npy")? })
    }
}

impl Sink for NpyFiles {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let depth = &depth_map(frame, self.files.folder())?.depth;
        let values = without_bars(depth, &frame.viewport, f32::NAN);
        let array = array(&[depth.height(), depth.width()], values);
        let array = array.map_err(|error| ExportError::writing(self.files.folder(), error))?;
        self.files.write(frame.index, &array).map(drop)
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        Ok(Summary::of_file(self.files.folder(), self.files.count, None))
    }
}

/// `exr/000000.exr` and so on, for compositing programs: the float32 channels `Z` (depth along z, in the unit of the
/// stream) and `confidence`, at network resolution. In the bars of a padded picture `Z` is NaN and `confidence` 0.
/// Compressed without loss.
pub struct ExrFiles {
    files: NumberedFiles,
}

impl ExrFiles {
    /// Creates the folder `exr` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created, files cannot be written there, or it holds files that are not from an earlier run.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        Ok(Self { files: NumberedFiles::create(&folder.join("exr"), "", "exr")? })
    }
}

impl Sink for ExrFiles {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.files.folder())?;
        let size = (map.depth.width(), map.depth.height());
        let channels = [
            ("Z", without_bars(&map.depth, &frame.viewport, f32::NAN)),
            ("confidence", without_bars(&map.confidence, &frame.viewport, 0.0)),
        ];
        let picture = picture(size, channels);
        let picture = picture.map_err(|error| ExportError::writing(self.files.folder(), error))?;
        self.files.write(frame.index, &picture).map(drop)
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        let note = "channels Z and confidence".into();
        Ok(Summary::of_file(self.files.folder(), self.files.count, Some(note)))
    }
}

/// The values, with `bar` in the bars of a padded picture.
fn without_bars(values: &Raster<f32>, viewport: &Viewport, bar: f32) -> Vec<f32> {
    let shown = viewport.shown();
    values.values().iter().zip(shown.values()).map(|(&value, &shown)| if shown { value } else { bar }).collect()
}

fn picture(size: (usize, usize), channels: [(&str, Vec<f32>); 2]) -> io::Result<Vec<u8>> {
    let channel = |(name, values)| AnyChannel::new(Text::from(name), FlatSamples::F32(values));
    let channels = AnyChannels::sort(channels.into_iter().map(channel).collect::<SmallVec<_>>());
    let layer = Layer::new(size, LayerAttributes::default(), Encoding::FAST_LOSSLESS, channels);
    let mut bytes = Cursor::new(Vec::new());
    Image::from_layer(layer).write().non_parallel().to_buffered(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.into_inner())
}
