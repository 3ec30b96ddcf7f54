//! Depth as 16-bit pictures.

use std::io::Cursor;
use std::path::Path;

use image::{ImageBuffer, ImageFormat, Luma};
use periplus_geometry::FrameOutput;

use crate::numbered::NumberedFiles;
use crate::pending::write_file;
use crate::sink::depth_map;
use crate::{ExportError, Sink, Summary};

/// Values of a depth map per unit of depth: millimetres if the stream is in metres, as RGB-D tools assume. Reaches to
/// 65.5 units, in steps far below the error of any network.
const SCALE: f32 = 1000.0;

/// `depth/000000.png` and so on: 16-bit grayscale at network resolution, depth along z = value / scale.
///
/// The scale is the same for every frame of every run, 1000, and recorded in `depth/scale.json`. Value 0 is no depth:
/// not finite, out of the range of 0.001 to 65.535 units, or of a bar beside a padded picture. A depth is never clamped; how many were out of range is
/// part of the summary.
pub struct DepthMaps {
    files: NumberedFiles,
    out_of_range: usize,
}

impl DepthMaps {
    /// Makes the folder `depth` in `folder`, which is made if need be.
    ///
    /// # Errors
    /// If the folder cannot be made, files cannot be written there, or it holds files that are not from an earlier run.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        Ok(Self { files: NumberedFiles::create(folder.join("depth"), "png")?, out_of_range: 0 })
    }
}

impl Sink for DepthMaps {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let depth = &depth_map(frame, self.files.folder())?.depth;
        let (width, height) = (depth.width() as u32, depth.height() as u32);
        let shown = frame.viewport.shown();
        let pixels = || depth.values().iter().zip(shown.values());
        let values: Vec<u16> = pixels().map(|(&depth, &shown)| if shown { quantized(depth) } else { 0 }).collect();
        let lost = |((depth, shown), value): &((&f32, &bool), &u16)| **shown && depth.is_finite() && **value == 0;
        let out_of_range = pixels().zip(&values).filter(lost).count();
        let mut png = Cursor::new(Vec::new());
        ImageBuffer::<Luma<u16>, _>::from_raw(width, height, values)
            .ok_or_else(|| std::io::Error::other("the picture is too large"))
            .and_then(|picture| picture.write_to(&mut png, ImageFormat::Png).map_err(std::io::Error::other))
            .map_err(|error| ExportError::writing(self.files.folder(), error))?;
        self.files.write(frame.index, png.get_ref())?;
        // Not before the first frame, which finds out whether the folder is ours.
        if self.files.count == 1 {
            let scale = serde_json::json!({ "scale": SCALE, "invalid": 0 });
            write_file(self.files.folder().join("scale.json"), format!("{scale}\n").as_bytes())?;
        }
        self.out_of_range += out_of_range;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        let note = match self.out_of_range {
            0 => format!("depth = value / {SCALE}"),
            pixels => format!("depth = value / {SCALE}, {pixels} pixels out of range are 0"),
        };
        Ok(Summary { path: self.files.folder().to_path_buf(), frames: self.files.count, note: Some(note) })
    }
}

/// The nearest value, 0 where there is none.
fn quantized(depth: f32) -> u16 {
    let value = (depth * SCALE).round();
    // A number that is no number is in no range.
    if (1.0..=f32::from(u16::MAX)).contains(&value) { value as u16 } else { 0 }
}
