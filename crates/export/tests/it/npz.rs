use std::fs::File;
use std::io::Read;
use std::path::Path;

use periplus_export::NpzFiles;
use zip::ZipArchive;

use crate::{export, frame, listing, with_depth, with_points};

/// Shape and values of an array.
fn read(file: &Path, name: &str) -> (Vec<u64>, Vec<f32>) {
    let mut archive = ZipArchive::new(File::open(file).unwrap()).unwrap();
    let mut bytes = Vec::new();
    archive.by_name(&format!("{name}.npy")).unwrap().read_to_end(&mut bytes).unwrap();
    let array = npyz::NpyFile::new(bytes.as_slice()).unwrap();
    assert_eq!(array.order(), npyz::Order::C);
    (array.shape().to_vec(), array.into_vec().unwrap())
}

fn names(file: &Path) -> Vec<String> {
    ZipArchive::new(File::open(file).unwrap()).unwrap().file_names().map(|name| name.unwrap().into_owned()).collect()
}

#[test]
fn every_frame_has_its_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let summary = export(NpzFiles::create(folder.path()), [frame(0), frame(7)]);
    assert_eq!((summary.frames, summary.place), (2, folder.path().join("npz").display().to_string()));
    assert_eq!(listing(folder.path().join("npz")), ["000000.npz", "000007.npz"]);
    let file = folder.path().join("npz/000007.npz");
    assert_eq!(
        names(&file),
        ["pose_enc", "camera_to_world", "intrinsics", "depth", "depth_conf"].map(|n| n.to_owned() + ".npy")
    );
    assert_eq!(read(&file, "pose_enc"), (vec![9], vec![0.5, -1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 0.75, 1.5]));
    assert_eq!(read(&file, "intrinsics"), (vec![3, 3], vec![2.0, 0.0, 1.5, 0.0, 4.0, 1.0, 0.0, 0.0, 1.0]));
    assert_eq!(read(&file, "depth"), (vec![2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.5]));
    assert_eq!(read(&file, "depth_conf"), (vec![2, 3], vec![1.0, 1.25, 1.5, 2.0, 3.0, 5.25]));
    let (shape, pose) = read(&file, "camera_to_world");
    assert_eq!(shape, [3, 4]);
    let expected = [0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0, -1.0, -1.0, 0.0, 0.0, 2.0];
    assert!(pose.iter().zip(expected).all(|(ours, expected)| (ours - expected).abs() < 1e-7), "{pose:?}");
}

#[test]
fn a_point_head_adds_its_points() {
    let folder = tempfile::tempdir().unwrap();
    export(NpzFiles::create(folder.path()), [with_points(0)]);
    let file = folder.path().join("npz/000000.npz");
    assert_eq!(names(&file).len(), 7);
    let (shape, points) = read(&file, "world_points");
    assert_eq!((shape, &points[3..6]), (vec![2, 3, 3], &[1.0, 0.5, -1.0][..]));
    assert_eq!(read(&file, "world_points_conf"), (vec![2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
}

#[test]
fn values_that_are_not_finite_stay_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    export(NpzFiles::create(folder.path()), [with_depth(0, [f32::NAN, f32::INFINITY, -1.0, 0.0, 1.0, 2.0])]);
    let (_, depth) = read(&folder.path().join("npz/000000.npz"), "depth");
    assert!(depth[0].is_nan() && depth[1] == f32::INFINITY);
}
