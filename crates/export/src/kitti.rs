//! The trajectory in the format of the KITTI odometry benchmark.

use std::collections::HashMap;
use std::path::Path;

use nalgebra::Isometry3;
use periplus_geometry::FrameOutput;

use crate::pending::PendingFile;
use crate::pose::matrix_rows;
use crate::{ExportError, Revision, Sink, Summary};

/// `poses_kitti.txt`: a line per frame with the 12 values of the 3 x 4 matrix camera to world, row by row.
///
/// The format has no timestamps: line `n` belongs to frame `n` of the stream. A pose that is not finite gets the
/// pose before it (the identity if there is none), because a missing line would shift all lines after it; the summary counts
/// these. Revised poses are written when the file is finished.
pub struct KittiPoses {
    file: PendingFile,
    poses: Vec<(usize, Isometry3<f64>)>,
    revised: HashMap<usize, Isometry3<f64>>,
}

impl KittiPoses {
    /// Begins `poses_kitti.txt` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created or the file cannot be written.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        let file = PendingFile::begin(folder, "poses_kitti.txt")?;
        Ok(Self { file, poses: Vec::new(), revised: HashMap::new() })
    }
}

impl Sink for KittiPoses {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        self.poses.push((frame.index, frame.camera_to_world));
        Ok(())
    }

    fn revise(&mut self, revisions: &[Revision]) -> Result<(), ExportError> {
        self.revised.extend(revisions.iter().map(|revision| (revision.index, revision.camera_to_world)));
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        let mut last = matrix_rows(&Isometry3::identity());
        let mut lost = 0;
        for (index, written) in &self.poses {
            let rows = matrix_rows(self.revised.get(index).unwrap_or(written));
            if rows.as_flattened().iter().all(|value| value.is_finite()) {
                last = rows;
            } else {
                lost += 1;
            }
            let values: Vec<String> = last.as_flattened().iter().map(f64::to_string).collect();
            self.file.append(format!("{}\n", values.join(" ")).as_bytes())?;
        }
        let note = (lost > 0).then(|| format!("{lost} poses that are not finite repeat the pose before them"));
        let summary = Summary::of_file(self.file.path(), self.poses.len(), note);
        if !self.poses.is_empty() {
            self.file.commit()?;
        }
        Ok(summary)
    }
}
