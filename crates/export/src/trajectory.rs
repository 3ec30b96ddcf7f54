//! The trajectory in the format of the TUM RGB-D benchmark, which most SLAM tools read.

use std::path::Path;

use periplus_geometry::FrameOutput;

use crate::pending::PendingFile;
use crate::pose::quaternion;
use crate::{ExportError, Sink, Summary};

/// `trajectory.txt`: a line `timestamp tx ty tz qx qy qz qw` per frame, camera to world, in the unit of the stream.
///
/// The timestamp is that of the frame in seconds, or its number in the clip where the source knows none (or none that is finite), so that frames
/// that were left out shift nothing against a ground truth. The quaternion is of unit length with `qw >= 0`. Numbers have
/// all digits that they need to be read back exactly. A pose that is not finite has no line (readers of the format do not
/// expect one).
pub struct Trajectory {
    file: PendingFile,
    poses: usize,
}

impl Trajectory {
    /// Begins `trajectory.txt` in `folder`, which is made if need be.
    ///
    /// # Errors
    /// If the folder cannot be made or the file not be written.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        let mut file = PendingFile::begin(folder, "trajectory.txt")?;
        file.append(b"# timestamp tx ty tz qx qy qz qw (camera to world; x right, y down, z forward)\n")?;
        Ok(Self { file, poses: 0 })
    }
}

impl Sink for Trajectory {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let pose = &frame.camera_to_world;
        let ([tx, ty, tz], [qx, qy, qz, qw]) = (pose.translation.vector.into(), quaternion(pose));
        if [tx, ty, tz, qx, qy, qz, qw].into_iter().all(f64::is_finite) {
            let timestamp = frame.timestamp.filter(|time| time.is_finite()).unwrap_or(frame.number as f64);
            self.file.append(format!("{timestamp} {tx} {ty} {tz} {qx} {qy} {qz} {qw}\n").as_bytes())?;
            self.poses += 1;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        let summary = Summary { path: self.file.path().to_path_buf(), frames: self.poses, note: None };
        if self.poses > 0 {
            self.file.commit()?;
        }
        Ok(summary)
    }
}
