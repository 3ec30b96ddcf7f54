//! Depth maps as 16-bit PNG.

use std::path::Path;

use periplus_geometry::FrameOutput;

use crate::gray;
use crate::numbered::NumberedFiles;
use crate::pending::write_file;
use crate::sink::depth_map;
use crate::{ExportError, Sink, Summary};

/// PNG values per unit of depth. In a stream in metres these are millimetres, as RGB-D tools assume. The range ends at
/// 65.535 units, and a step is far below the error of the network.
pub(crate) const SCALE: f32 = 1000.0;

/// `depth/000000.png` and so on: 16-bit grayscale at network resolution, depth along z = value / scale.
///
/// The scale is 1000 for every frame of every run, and recorded in `depth/scale.json`. Value 0 means no depth: not
/// finite, outside 0.001 to 65.535 units, or in a bar of a padded picture. Depth is never clamped. The summary counts the
/// pixels that were out of range.
pub struct DepthMaps {
    files: NumberedFiles,
    out_of_range: usize,
}

impl DepthMaps {
    /// Creates the folder `depth` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created, files cannot be written there, or it holds files that are not from an earlier run.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        Ok(Self { files: NumberedFiles::create(&folder.join("depth"), "", "png")?, out_of_range: 0 })
    }
}

impl Sink for DepthMaps {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let depth = &depth_map(frame, self.files.folder())?.depth;
        let shown = frame.viewport.shown();
        let pixels = || depth.values().iter().zip(shown.values());
        let values: Vec<u16> = pixels().map(|(&depth, &shown)| if shown { quantized(depth) } else { 0 }).collect();
        let lost = |((depth, shown), value): &((&f32, &bool), &u16)| **shown && depth.is_finite() && **value == 0;
        let out_of_range = pixels().zip(&values).filter(lost).count();
        let png = gray::png(depth.width(), depth.height(), values);
        let png = png.map_err(|error| ExportError::writing(self.files.folder(), error))?;
        self.files.write(frame.index, &png)?;
        // After the first frame, which checks that the folder is not the user's.
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
        Ok(Summary::of_file(self.files.folder(), self.files.count, Some(note)))
    }
}

/// The nearest PNG value, 0 if the depth is out of range.
pub(crate) fn quantized(depth: f32) -> u16 {
    let value = (depth * SCALE).round();
    // NaN is in no range.
    if (1.0..=f32::from(u16::MAX)).contains(&value) { value as u16 } else { 0 }
}
