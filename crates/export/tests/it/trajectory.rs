use std::fs;

use nalgebra::Isometry3;
use periplus_export::{Revision, Sink, Trajectory};
use periplus_geometry::{FrameOutput, Timestamp};

use crate::{export, frame};

/// The numbers of every line that is no comment.
fn rows(text: &str) -> Vec<Vec<f64>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect()
}

#[test]
fn a_line_is_time_translation_quaternion() {
    let folder = tempfile::tempdir().unwrap();
    let mut precise = frame(2);
    precise.camera_to_world.translation.x = 1e-9 / 3.0;
    let untimed = FrameOutput { timestamp: None, ..frame(5) };
    let exact = FrameOutput { timestamp: Timestamp::parse("1403636579.763555584"), ..frame(6) };
    let frames = [frame(1), precise.clone(), untimed, exact];
    let summary = export(Trajectory::create(folder.path()), frames);
    let text = fs::read_to_string(folder.path().join("trajectory.txt")).unwrap();
    assert!(text.contains("\n1403636579.763555584 "), "no digit of a time is lost: {text}");
    let rows = rows(&text);
    assert_eq!((summary.frames, rows.len()), (4, 4));
    assert_eq!(rows[0][..4], [0.25, 0.5, -1.0, 2.0]);
    // The frame holds the negative of this quaternion.
    let half = 0.5_f64.sqrt();
    for (ours, expected) in rows[0][4..].iter().zip([0.0, half, 0.0, half]) {
        assert!((ours - expected).abs() < 1e-15);
    }
    assert_eq!(rows[1][1..4], [1e-9 / 3.0, -1.0, 2.0], "read back exactly");
    assert_eq!(rows[2][..1], [15.0], "the number in the clip of a frame without a time");
}

#[test]
fn a_pose_that_is_not_finite_has_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut broken = frame(1);
    broken.camera_to_world.translation.z = f64::NAN;
    let summary = export(Trajectory::create(folder.path()), [frame(0), broken, frame(2)]);
    let rows = rows(&fs::read_to_string(folder.path().join("trajectory.txt")).unwrap());
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), [0.0, 0.5]);
    assert_eq!(summary.frames, 2);
}

#[test]
fn revised_poses_are_written_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = Trajectory::create(folder.path()).unwrap();
    let mut lost = frame(1);
    lost.camera_to_world.translation.z = f64::NAN;
    for frame in [frame(0), lost, frame(2)] {
        sink.write(&frame).unwrap();
    }
    let moved = |index, x| Revision { index, camera_to_world: Isometry3::translation(x, 0.0, 0.0), scale: 2.0 };
    sink.revise(&[moved(1, 7.0), moved(2, 8.0)]).unwrap();
    sink.revise(&[moved(2, 9.0)]).unwrap();
    assert_eq!(Box::new(sink).finish().unwrap().frames, 3);
    let text = fs::read_to_string(folder.path().join("trajectory.txt")).unwrap();
    assert!(text.starts_with("# timestamp tx"));
    let rows = rows(&text);
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), [0.0, 0.25, 0.5]);
    assert_eq!(rows.iter().map(|row| row[1]).collect::<Vec<_>>(), [0.5, 7.0, 9.0], "the last revision counts");
}
