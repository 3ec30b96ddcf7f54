//! The ground truth of the bundled clip: how close a run came to it, and a file of it beside the results.

use std::fs;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};

use image::{ImageFormat, ImageReader};
use periplus::FrameOutput;
use periplus::export::{ExportError, Sink, Summary};
use periplus::geometry::nalgebra::Point3;
use periplus::geometry::{absolute_trajectory_error, depth_error, path_length};

use crate::demo::{self, CLIP};

/// Compares outputs with the truth as they come.
#[derive(Default)]
pub(crate) struct Judge {
    estimate: Vec<Point3<f64>>,
    truth: Vec<Point3<f64>>,
    /// Depth per pixel of the true maps: estimate, truth in metres.
    depths: Vec<(f32, f32)>,
}

impl Judge {
    /// Takes note of the answer for a frame of the bundled clip.
    pub(crate) fn observe(&mut self, output: &FrameOutput) {
        let is_named = |(picture, _): &(&demo::Picture, _)| output.name.as_deref() == Some(picture.name);
        let Some((picture, (_, position))) = CLIP.iter().zip(demo::truth()).find(is_named) else { return };
        self.estimate.push(output.camera_to_world.translation.vector.into());
        self.truth.push(position);
        let Some(map) = &output.depth_map else { return };
        let Ok(truth) = ImageReader::with_format(Cursor::new(picture.depth), ImageFormat::Png).decode() else { return };
        let ([scale_x, scale_y], [offset_x, offset_y]) = (output.viewport.scale, output.viewport.offset);
        for (x, y, millimetres) in truth.into_luma16().enumerate_pixels() {
            // The network's pixel that the centre of this one falls on: the same one, unless the image size differs.
            let column = ((f64::from(x) + 0.5) * scale_x + offset_x).floor();
            let row = ((f64::from(y) + 0.5) * scale_y + offset_y).floor();
            if column >= 0.0
                && row >= 0.0
                && let Some(&depth) = map.depth.get(column as usize, row as usize)
            {
                self.depths.push((depth, f32::from(millimetres.0[0]) / 1000.0));
            }
        }
    }

    /// The sentence on how close it came; `None` if too few frames were answered to tell.
    pub(crate) fn verdict(self) -> Option<String> {
        let error = absolute_trajectory_error(&self.estimate, &self.truth).ok()?;
        let depth = depth_error(self.depths)?;
        let path = path_length(&self.truth);
        Some(format!(
            "Against the clip's ground truth: trajectory error {:.2} % of the {path:.2} m path (after Sim(3) alignment), \
             depth error (AbsRel) {:.4}",
            100.0 * error / path,
            depth.abs_rel
        ))
    }
}

/// `groundtruth.txt` beside the results of a run on the bundled clip: a TUM trajectory, for evo.
pub(crate) struct GroundTruth {
    path: PathBuf,
    frames: usize,
}

impl GroundTruth {
    /// The file's name.
    pub(crate) const NAME: &str = "groundtruth.txt";

    /// The file in `folder`, which exists. It is written when the run ends.
    ///
    /// # Errors
    /// If there is something that is not a regular file.
    pub(crate) fn create(folder: &Path) -> Result<Self, ExportError> {
        let path = folder.join(Self::NAME);
        if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
            let source = io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is not a regular file");
            return Err(ExportError::Write { place: path.display().to_string(), source });
        }
        Ok(Self { path, frames: 0 })
    }
}

impl Sink for GroundTruth {
    fn write(&mut self, _: &FrameOutput) -> Result<(), ExportError> {
        self.frames += 1;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        let place = self.path.display().to_string();
        let frames = if self.frames > 0 { CLIP.len() } else { 0 };
        if frames > 0 {
            let failed = |source| ExportError::Write { place: place.clone(), source };
            fs::write(&self.path, demo::TRAJECTORY).map_err(failed)?;
        }
        Ok(Summary { place, frames, note: None })
    }
}
