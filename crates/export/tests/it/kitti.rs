use std::fs;

use periplus_export::KittiPoses;

use crate::{export, frame};

#[test]
fn a_line_is_the_matrix_camera_to_world() {
    let folder = tempfile::tempdir().unwrap();
    let mut lost = frame(1);
    lost.camera_to_world.translation.z = f64::NAN;
    let summary = export(KittiPoses::create(folder.path()), [frame(0), lost, frame(2)]);
    assert_eq!(summary.note.as_deref(), Some("1 poses that are not finite repeat the pose before them"));
    let text = fs::read_to_string(folder.path().join("poses_kitti.txt")).unwrap();
    let rows: Vec<Vec<f64>> =
        text.lines().map(|line| line.split(' ').map(|value| value.parse().unwrap()).collect()).collect();
    assert_eq!(rows.len(), 3, "a line per frame");
    // A quarter turn about y: z forward becomes x.
    let expected = [0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0, -1.0, -1.0, 0.0, 0.0, 2.0];
    for row in rows {
        assert!(
            row.len() == 12 && row.iter().zip(expected).all(|(ours, right)| (ours - right).abs() < 1e-12),
            "{row:?}"
        );
    }
}
