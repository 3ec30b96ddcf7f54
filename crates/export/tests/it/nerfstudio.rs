//! A nerfstudio scene, projected as nerfstudio projects: OpenGL's axes, pixel centres at (0.5, 0.5).

use std::fs;
use std::path::Path;

use nalgebra::{Isometry3, Matrix4, Vector4};
use periplus_export::{MinConfidence, Nerfstudio, PointOptions, Revision, Sink};
use periplus_geometry::{FrameOutput, Viewport};
use serde_json::Value;

use crate::{export, frame, listing, unsure};

const EVERY_POINT: PointOptions =
    PointOptions { min_confidence: MinConfidence::Value(1.0), voxel_size: Some(0.0), max_points: 1000 };

const CROPPED: Viewport = Viewport { original: [6, 8], network: [3, 2], scale: [0.5, 0.5], offset: [0.0, -1.0] };
const PADDED: Viewport = Viewport { original: [4, 8], network: [3, 2], scale: [0.5, 0.25], offset: [1.0, 0.0] };

fn transforms(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("nerfstudio/transforms.json")).unwrap()).unwrap()
}

fn matrix(frame: &Value) -> Matrix4<f64> {
    Matrix4::from_fn(|row, column| frame["transform_matrix"][row][column].as_f64().unwrap())
}

/// Position and colour of every point of the seed cloud.
fn points(folder: &Path) -> Vec<([f32; 3], [u8; 3])> {
    let bytes = fs::read(folder.join("nerfstudio/points.ply")).unwrap();
    let end = bytes.windows(11).position(|window| window == b"end_header\n").unwrap() + 11;
    assert!(std::str::from_utf8(&bytes[..end]).unwrap().contains("property float nz\nproperty uchar red\n"));
    let (records, rest) = bytes[end..].as_chunks::<31>();
    assert!(rest.is_empty());
    let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    records.iter().map(|r| ([float(&r[..4]), float(&r[4..8]), float(&r[8..12])], [r[24], r[25], r[26]])).collect()
}

#[test]
fn points_project_to_the_centres_of_their_pixels_cropped_and_padded() {
    for viewport in [CROPPED, PADDED] {
        let folder = tempfile::tempdir().unwrap();
        export(Nerfstudio::create(folder.path(), EVERY_POINT, false), [FrameOutput { viewport, ..frame(0) }]);
        let scene = transforms(folder.path());
        let entry = &scene["frames"][0];
        assert_eq!([&entry["w"], &entry["h"]], viewport.original.each_ref());
        let number = |key: &str| entry[key].as_f64().unwrap();
        let world_to_camera = matrix(entry).try_inverse().unwrap();
        let points = points(folder.path());
        assert!(points.len() >= 4);
        for ([x, y, z], [pixel, ..]) in points {
            let seen = world_to_camera * Vector4::new(x.into(), y.into(), z.into(), 1.0);
            assert!(seen.z < 0.0, "the camera looks along -z");
            let u = number("fl_x") * seen.x / -seen.z + number("cx");
            let v = number("fl_y") * -seen.y / -seen.z + number("cy");
            // The frame's colours tell its pixel: red is its number, row by row.
            let centre = [f64::from(pixel % 3) + 0.5, f64::from(pixel / 3) + 0.5];
            let expected = [0, 1].map(|axis| (centre[axis] - viewport.offset[axis]) / viewport.scale[axis]);
            assert!((u - expected[0]).abs() < 1e-4 && (v - expected[1]).abs() < 1e-4, "{u} {v} is not {expected:?}");
        }
    }
}

#[test]
fn cameras_have_the_axes_of_opengl() {
    let folder = tempfile::tempdir().unwrap();
    export(Nerfstudio::create(folder.path(), EVERY_POINT, false), [frame(0)]);
    let scene = transforms(folder.path());
    // OpenCV's camera of the frame: x is -z of the world, y is y, z is x.
    let expected = Matrix4::new(
        0.0, 0.0, -1.0, 0.5, //
        0.0, -1.0, 0.0, -1.0, //
        -1.0, 0.0, 0.0, 2.0, //
        0.0, 0.0, 0.0, 1.0,
    );
    assert!((matrix(&scene["frames"][0]) - expected).norm() < 1e-12);
    assert_eq!(scene["camera_model"], "OPENCV");
    assert_eq!(scene["ply_file_path"], "points.ply");
    assert_eq!(scene["frames"][0]["file_path"], "images/frame0.png");
    // nerfstudio would take these for every frame, and turn the points.
    for key in ["fl_x", "fl_y", "cx", "cy", "applied_transform"] {
        assert!(scene.get(key).is_none(), "{key}");
    }
}

#[test]
fn depth_covers_the_whole_picture() {
    for (viewport, expected) in [
        (CROPPED, vec![[0, 0, 0], [1000, 2000, 3000], [4000, 5000, 6500], [0, 0, 0]]),
        // Without the first column, which is a bar.
        (PADDED, vec![[2000, 3000, 0], [5000, 6500, 0]]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        export(Nerfstudio::create(folder.path(), EVERY_POINT, true), [FrameOutput { viewport, ..frame(0) }]);
        assert_eq!(transforms(folder.path())["frames"][0]["depth_file_path"], "depth/000000.png");
        let depth = image::open(folder.path().join("nerfstudio/depth/000000.png")).unwrap().into_luma16();
        let width = (f64::from(viewport.original[0]) * viewport.scale[0]) as usize;
        let expected: Vec<u16> = expected.iter().flat_map(|row| row[..width].to_vec()).collect();
        assert_eq!(depth.into_raw(), expected);
    }
}

#[test]
fn a_frame_without_a_camera_is_left_out_and_a_scene_has_points() {
    let folder = tempfile::tempdir().unwrap();
    let mut lost = frame(1);
    lost.camera_to_world.translation.x = f64::NAN;
    let never = PointOptions { min_confidence: MinConfidence::Value(100.0), ..EVERY_POINT };
    let summary = export(Nerfstudio::create(folder.path(), never, true), [frame(0), lost, unsure(frame(2))]);
    assert_eq!(summary.frames, 2);
    assert!(summary.note.unwrap().ends_with("below the confidence threshold"));
    let scene = transforms(folder.path());
    let with_depth = scene["frames"].as_array().unwrap().iter().filter(|frame| frame.get("depth_file_path").is_some());
    assert_eq!(with_depth.count(), 2, "for all frames or for none");
    assert!(!points(folder.path()).is_empty());
}

#[test]
fn revised_poses_move_cameras() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = Nerfstudio::create(folder.path(), EVERY_POINT, false).unwrap();
    sink.write(&frame(0)).unwrap();
    sink.revise(&[Revision { index: 0, camera_to_world: Isometry3::translation(7.0, 0.0, 0.0), scale: 2.0 }]).unwrap();
    Box::new(sink).finish().unwrap();
    assert!((matrix(&transforms(folder.path())["frames"][0])[(0, 3)] - 7.0).abs() < 1e-12);
}

#[test]
fn a_run_without_a_frame_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(export(Nerfstudio::create(folder.path(), EVERY_POINT, true), []).frames, 0);
    assert!(listing(folder.path()).is_empty());
}
