//! How close a run on the bundled clip came to the truth.

use std::io::Cursor;

use image::{ImageFormat, ImageReader};
use periplus::FrameOutput;
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
