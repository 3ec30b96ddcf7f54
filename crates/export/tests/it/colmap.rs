//! A COLMAP model, read back as text and binary and projected as COLMAP projects.

#![allow(clippy::float_cmp, reason = "identifiers, and values that are read back exactly")]

use std::fs;
use std::path::Path;

use nalgebra::{Isometry3, Point3, Quaternion, Translation3, UnitQuaternion};
use periplus_export::{Colmap, MinConfidence, PointOptions, Revision, Sink};
use periplus_geometry::{FrameOutput, Viewport};

use crate::{export, frame, unsure};

const EVERY_POINT: PointOptions =
    PointOptions { min_confidence: MinConfidence::Value(1.0), voxel_size: Some(0.0), max_points: 1000 };

struct Picture {
    camera: Vec<f64>,
    size: [f64; 2],
    world_to_camera: Isometry3<f64>,
    name: String,
    /// x, y, identifier of the point.
    observations: Vec<[f64; 3]>,
}

impl Picture {
    fn project(&self, point: &[f64]) -> [f64; 2] {
        let p = self.world_to_camera * Point3::new(point[0], point[1], point[2]);
        assert!(p.z > 0.0);
        [p.x / p.z * self.camera[0] + self.camera[2], p.y / p.z * self.camera[1] + self.camera[3]]
    }
}

fn lines(folder: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join("colmap/sparse/0").join(name)).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn numbers(text: &str) -> Vec<f64> {
    text.split_whitespace().map(|value| value.parse().unwrap()).collect()
}

/// Pictures and points (identifier, x y z, colour, error, track).
fn read_text(folder: &Path) -> (Vec<Picture>, Vec<Vec<f64>>) {
    let cameras = lines(folder, "cameras.txt");
    let images = lines(folder, "images.txt");
    assert_eq!(images.len(), 2 * cameras.len(), "two lines per picture");
    let mut pictures = Vec::new();
    for (at, (camera, image)) in cameras.iter().zip(images.as_chunks::<2>().0).enumerate() {
        let camera: Vec<&str> = camera.splitn(3, ' ').collect();
        assert_eq!(camera[..2], [(at + 1).to_string().as_str(), "PINHOLE"]);
        let camera = numbers(camera[2]);
        let fields: Vec<&str> = image[0].splitn(10, ' ').collect();
        let values = numbers(&fields[..9].join(" "));
        assert_eq!([values[0], values[8]], [(at + 1) as f64; 2]);
        let rotation = UnitQuaternion::from_quaternion(Quaternion::new(values[1], values[2], values[3], values[4]));
        pictures.push(Picture {
            size: [camera[0], camera[1]],
            camera: camera[2..].to_vec(),
            world_to_camera: Isometry3::from_parts(Translation3::new(values[5], values[6], values[7]), rotation),
            name: fields[9].to_owned(),
            observations: numbers(&image[1]).as_chunks::<3>().0.to_vec(),
        });
    }
    (pictures, lines(folder, "points3D.txt").iter().map(|line| numbers(line)).collect())
}

/// Every track names observations that name the point, at the position to which the point projects.
fn assert_consistent(pictures: &[Picture], points: &[Vec<f64>]) {
    let mut named = 0;
    for (at, point) in points.iter().enumerate() {
        assert_eq!(point[0], (at + 1) as f64);
        for [image, observation] in point[8..].as_chunks::<2>().0 {
            let picture = &pictures[*image as usize - 1];
            let [x, y, of] = picture.observations[*observation as usize];
            let [u, v] = picture.project(&point[1..4]);
            assert!((u - x).abs() < 1e-4 && (v - y).abs() < 1e-4, "{u} {v} is not {x} {y}");
            assert!((0.0..=picture.size[0]).contains(&x) && (0.0..=picture.size[1]).contains(&y), "{x} {y}");
            assert_eq!(of, point[0]);
            named += 1;
        }
    }
    assert_eq!(named, pictures.iter().map(|picture| picture.observations.len()).sum::<usize>());
}

#[test]
fn points_project_to_the_centres_of_their_pixels_cropped_and_padded() {
    let cropped = Viewport { original: [6, 8], network: [3, 2], scale: [0.5, 0.5], offset: [0.0, -1.0] };
    let padded = Viewport { original: [4, 8], network: [3, 2], scale: [0.5, 0.25], offset: [0.5, 0.0] };
    for viewport in [cropped, padded] {
        let folder = tempfile::tempdir().unwrap();
        export(Colmap::create(folder.path(), EVERY_POINT), [FrameOutput { viewport, ..frame(0) }]);
        let (pictures, points) = read_text(folder.path());
        assert_eq!((pictures[0].name.as_str(), pictures[0].size), ("frame0.png", viewport.original.map(f64::from)));
        assert_consistent(&pictures, &points);
        for point in &points {
            // The frame's colours tell its pixel: red is its number, row by row.
            let pixel = point[4] as usize;
            let centre = [(pixel % 3) as f64 + 0.5, (pixel / 3) as f64 + 0.5];
            let expected = [0, 1].map(|axis| (centre[axis] - viewport.offset[axis]) / viewport.scale[axis]);
            let [u, v] = pictures[0].project(&point[1..4]);
            assert!((u - expected[0]).abs() < 1e-9 && (v - expected[1]).abs() < 1e-9, "{u} {v} is not {expected:?}");
        }
        assert!(points.len() >= 4, "{}", points.len());
    }
}

#[test]
fn the_centre_of_the_camera_is_the_position_of_the_frame() {
    let folder = tempfile::tempdir().unwrap();
    export(Colmap::create(folder.path(), EVERY_POINT), [frame(0)]);
    let centre = read_text(folder.path()).0[0].world_to_camera.inverse().translation.vector;
    assert!((centre - frame(0).camera_to_world.translation.vector).norm() < 1e-12, "{centre}");
}

#[test]
fn tracks_reach_frames_that_see_the_same_surface() {
    let folder = tempfile::tempdir().unwrap();
    export(Colmap::create(folder.path(), EVERY_POINT), (0..7).map(frame));
    let (pictures, points) = read_text(folder.path());
    assert_consistent(&pictures, &points);
    let longest = points.iter().map(|point| (point.len() - 8) / 2).max();
    assert_eq!(longest, Some(5), "its own frame and four before it");
}

#[test]
fn a_frame_without_a_camera_is_left_out_and_a_model_has_points() {
    let folder = tempfile::tempdir().unwrap();
    let mut lost = frame(1);
    lost.camera_to_world.translation.x = f64::NAN;
    let never = PointOptions { min_confidence: MinConfidence::Value(100.0), ..EVERY_POINT };
    let summary = export(Colmap::create(folder.path(), never), [frame(0), lost, unsure(frame(2))]);
    assert_eq!(summary.frames, 2);
    assert!(summary.note.unwrap().ends_with("below the confidence threshold"));
    let (pictures, points) = read_text(folder.path());
    assert_consistent(&pictures, &points);
    assert_eq!(pictures.len(), 2);
    assert!(!points.is_empty());
}

#[test]
fn tracks_stay_consistent_when_voxels_grow() {
    let folder = tempfile::tempdir().unwrap();
    let few = PointOptions { max_points: 12, voxel_size: Some(0.01), ..EVERY_POINT };
    let moved = (0..9).map(|index| {
        let mut frame = frame(index);
        frame.camera_to_world.translation.z += 0.2 * index as f64;
        frame
    });
    export(Colmap::create(folder.path(), few), moved);
    let (pictures, points) = read_text(folder.path());
    assert!((1..=12).contains(&points.len()), "{}", points.len());
    assert_consistent(&pictures, &points);
}

#[test]
fn revised_poses_move_cameras_and_points() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = Colmap::create(folder.path(), EVERY_POINT).unwrap();
    sink.write(&frame(0)).unwrap();
    let camera_to_world = Isometry3::translation(7.0, 0.0, 0.0);
    sink.revise(&[Revision { index: 0, camera_to_world, scale: 2.0 }]).unwrap();
    Box::new(sink).finish().unwrap();
    let (pictures, points) = read_text(folder.path());
    assert_consistent(&pictures, &points);
    assert!((pictures[0].world_to_camera.translation.x + 7.0).abs() < 1e-12);
    assert!(points.iter().any(|point| (point[3] - 13.0).abs() < 1e-12), "depth 6.5, twice");
}

#[test]
fn binary_files_hold_what_text_files_hold() {
    let folder = tempfile::tempdir().unwrap();
    export(Colmap::create(folder.path(), EVERY_POINT), (0..3).map(frame));
    let (pictures, points) = read_text(folder.path());
    let open = |name| Bytes(fs::read(folder.path().join("colmap/sparse/0").join(name)).unwrap(), 0);

    let mut cameras = open("cameras.bin");
    assert_eq!(cameras.u64(), 3);
    for (at, picture) in pictures.iter().enumerate() {
        assert_eq!([cameras.u32(), cameras.u32()], [at as u32 + 1, 1]);
        assert_eq!([cameras.u64() as f64, cameras.u64() as f64], picture.size);
        assert_eq!(cameras.floats(4), picture.camera);
    }
    cameras.end();

    let mut images = open("images.bin");
    assert_eq!(images.u64(), 3);
    for (at, picture) in pictures.iter().enumerate() {
        assert_eq!(images.u32(), at as u32 + 1);
        let pose = images.floats(7);
        let q = picture.world_to_camera.rotation.quaternion();
        let t = picture.world_to_camera.translation;
        let expected = [q.w, q.i, q.j, q.k, t.x, t.y, t.z];
        assert!(pose.iter().zip(expected).all(|(ours, text)| (ours - text).abs() < 1e-12), "{pose:?} {expected:?}");
        assert_eq!(images.u32(), at as u32 + 1);
        let name: Vec<u8> = std::iter::from_fn(|| Some(images.take::<1>()[0]).filter(|&byte| byte != 0)).collect();
        assert_eq!(name, picture.name.as_bytes());
        assert_eq!(images.u64() as usize, picture.observations.len());
        for observation in &picture.observations {
            assert_eq!(images.floats(2), observation[..2]);
            assert_eq!(images.u64() as f64, observation[2]);
        }
    }
    images.end();

    let mut seeds = open("points3D.bin");
    assert_eq!(seeds.u64() as usize, points.len());
    for point in &points {
        assert_eq!(seeds.u64() as f64, point[0]);
        assert_eq!(seeds.floats(3), point[1..4]);
        assert_eq!(seeds.take::<3>().map(f64::from), point[4..7]);
        assert_eq!(seeds.floats(1), point[7..8]);
        let track = &point[8..];
        assert_eq!(seeds.u64() as usize, track.len() / 2);
        assert!(track.iter().all(|&value| f64::from(seeds.u32()) == value));
    }
    seeds.end();
}

/// Reads little-endian fields.
struct Bytes(Vec<u8>, usize);

impl Bytes {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        self.1 += N;
        self.0[self.1 - N..self.1].try_into().unwrap()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn floats(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| f64::from_le_bytes(self.take())).collect()
    }

    fn end(&self) {
        assert_eq!(self.1, self.0.len());
    }
}
