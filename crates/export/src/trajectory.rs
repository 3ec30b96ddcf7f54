//! The trajectory in the format of the TUM RGB-D benchmark, which most SLAM tools read.

use std::collections::HashMap;
use std::path::Path;

use nalgebra::Isometry3;
use periplus_geometry::FrameOutput;

use crate::pending::PendingFile;
use crate::pose::quaternion;
use crate::{ExportError, Revision, Sink, Summary};

const HEADER: &[u8] = b"# timestamp tx ty tz qx qy qz qw (camera to world; x right, y down, z forward)\n";

/// `trajectory.txt`: a line `timestamp tx ty tz qx qy qz qw` per frame, camera to world, in the unit of the stream.
///
/// The timestamp is in seconds. A frame without a timestamp has its number in the clip instead; frames that were
/// left out are counted, so the numbers still match a ground truth. The quaternion has unit length and `qw >= 0`. Values
/// have all digits that are needed to read them back exactly. A pose that is not finite has no line, because readers of
/// the format do not expect one. Revised poses are written when the file is finished.
pub struct Trajectory {
    file: PendingFile,
    poses: usize,
    /// Index and timestamp of the frame of each line, and its pose.
    lines: Vec<(usize, String, Isometry3<f64>)>,
    revised: HashMap<usize, Isometry3<f64>>,
}

impl Trajectory {
    /// Begins `trajectory.txt` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created or the file cannot be written.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        let mut file = PendingFile::begin(folder, "trajectory.txt")?;
        file.append(HEADER)?;
        Ok(Self { file, poses: 0, lines: Vec::new(), revised: HashMap::new() })
    }
}

impl Sink for Trajectory {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let timestamp = frame.timestamp.map_or_else(|| frame.number.to_string(), |time| time.to_string());
        if let Some(line) = line(&timestamp, &frame.camera_to_world) {
            self.file.append(line.as_bytes())?;
            self.poses += 1;
        }
        self.lines.push((frame.index, timestamp, frame.camera_to_world));
        Ok(())
    }

    fn revise(&mut self, revisions: &[Revision]) -> Result<(), ExportError> {
        self.revised.extend(revisions.iter().map(|revision| (revision.index, revision.camera_to_world)));
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        if !self.revised.is_empty() {
            let pose = |index, pose| *self.revised.get(index).unwrap_or(pose);
            let lines =
                self.lines.iter().filter_map(|(index, timestamp, written)| line(timestamp, &pose(index, written)));
            let lines: Vec<String> = lines.collect();
            self.poses = lines.len();
            self.file.replace(&[HEADER, lines.concat().as_bytes()].concat())?;
        }
        let summary = Summary::of_file(self.file.path(), self.poses, None);
        if self.poses > 0 {
            self.file.commit()?;
        }
        Ok(summary)
    }
}

/// The line of a pose, `None` if the pose is not finite.
fn line(timestamp: &str, pose: &Isometry3<f64>) -> Option<String> {
    let ([tx, ty, tz], [qx, qy, qz, qw]) = (pose.translation.vector.into(), quaternion(pose));
    let finite = [tx, ty, tz, qx, qy, qz, qw].into_iter().all(f64::is_finite);
    finite.then(|| format!("{timestamp} {tx} {ty} {tz} {qx} {qy} {qz} {qw}\n"))
}
