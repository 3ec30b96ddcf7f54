//! Confidence maps as 16-bit PNG.

use std::path::Path;

use periplus_geometry::FrameOutput;

use crate::gray;
use crate::numbered::NumberedFiles;
use crate::pending::write_file;
use crate::sink::depth_map;
use crate::{ExportError, Sink, Summary};

/// PNG values per unit of confidence. Confidence is 1 + exp(x), and thresholds lie between 1 and 10: steps of 0.001 are
/// fine enough for them.
const SCALE: f32 = 1000.0;

/// `confidence/000000.png` and so on: 16-bit grayscale at network resolution, confidence = value / scale.
///
/// The scale is 1000 for every frame of every run, and recorded in `confidence/scale.json`. Value 0 means no confidence:
/// not finite, or in a bar of a padded picture. Values of 65.535 and above are 65535.
pub struct ConfidenceMaps {
    files: NumberedFiles,
}

impl ConfidenceMaps {
    /// Creates the folder `confidence` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created, files cannot be written there, or it holds files that are not from an earlier run.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        Ok(Self { files: NumberedFiles::create(&folder.join("confidence"), "", "png")? })
    }
}

impl Sink for ConfidenceMaps {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let confidence = &depth_map(frame, self.files.folder())?.confidence;
        let shown = frame.viewport.shown();
        let value = |(&confidence, &shown): (&f32, &bool)| {
            // The conversion saturates.
            if shown && confidence.is_finite() { (confidence * SCALE).round() as u16 } else { 0 }
        };
        let values = confidence.values().iter().zip(shown.values()).map(value).collect();
        let png = gray::png(confidence.width(), confidence.height(), values);
        let png = png.map_err(|error| ExportError::writing(self.files.folder(), error))?;
        self.files.write(frame.index, &png)?;
        // After the first frame, which checks that the folder is not the user's.
        if self.files.count == 1 {
            let scale = serde_json::json!({ "scale": SCALE, "invalid": 0, "saturated": u16::MAX });
            write_file(self.files.folder().join("scale.json"), format!("{scale}\n").as_bytes())?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        let note = format!("confidence = value / {SCALE}");
        Ok(Summary::of_file(self.files.folder(), self.files.count, Some(note)))
    }
}
