use std::fs;
use std::path::Path;

use periplus_export::{MinConfidence, PointCloud, PointOptions};
use periplus_geometry::FrameOutput;

use crate::{export, frame, padded, unsure, with_depth};

/// Position, colour, confidence.
type Vertex = ([f32; 3], [u8; 3], f32);

/// Reads what the header says, and no more than that.
fn read(folder: &Path) -> Vec<Vertex> {
    let bytes = fs::read(folder.join("points.ply")).unwrap();
    let end = bytes.windows(11).position(|window| window == b"end_header\n").unwrap();
    let header = std::str::from_utf8(&bytes[..end]).unwrap();
    let lines: Vec<_> = header.lines().filter(|line| !line.starts_with("comment ")).collect();
    let count: usize = lines[2].strip_prefix("element vertex ").unwrap().parse().unwrap();
    let properties = ["float x", "float y", "float z", "uchar red", "uchar green", "uchar blue", "float confidence"];
    assert_eq!(lines[..2], ["ply", "format binary_little_endian 1.0"]);
    assert_eq!(lines[3..], properties.map(|property| format!("property {property}")));
    let (vertices, rest) = bytes[end + 11..].as_chunks::<19>();
    assert_eq!((vertices.len(), rest.len()), (count, 0));
    let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    vertices
        .iter()
        .map(|v| ([float(&v[..4]), float(&v[4..8]), float(&v[8..12])], [v[12], v[13], v[14]], float(&v[15..])))
        .collect()
}

fn cloud(options: PointOptions, frames: impl IntoIterator<Item = FrameOutput>) -> (Vec<Vertex>, String) {
    let folder = tempfile::tempdir().unwrap();
    let summary = export(PointCloud::create(folder.path(), options), frames);
    (read(folder.path()), summary.note.unwrap())
}

const EVERY_POINT: PointOptions =
    PointOptions { min_confidence: MinConfidence::Value(1.0), voxel_size: Some(0.0), max_points: 1000 };

#[test]
fn points_have_place_colour_and_confidence() {
    let (vertices, note) = cloud(EVERY_POINT, [frame(0), frame(1)]);
    assert_eq!((vertices.len(), note.as_str()), (12, "12 points"));
    assert_eq!(vertices[..6], vertices[6..]);
    // Pixel (2, 1) at depth 6.5: camera (1.625, 0, 6.5), and the camera's z is the world's x, its x the world's -z.
    let ([x, y, z], colour, confidence) = vertices[5];
    assert!((x - 7.0).abs() < 1e-6 && (y + 1.0).abs() < 1e-6 && (z - 0.375).abs() < 1e-6, "{x} {y} {z}");
    assert_eq!((colour, confidence.to_bits()), ([5, 15, 25], 5.25_f32.to_bits()));
}

#[test]
fn unsure_broken_and_impossible_points_are_left_out() {
    let (vertices, _) = cloud(PointOptions { min_confidence: MinConfidence::Value(1.5), ..EVERY_POINT }, [frame(0)]);
    assert_eq!(vertices.iter().map(|v| v.1[0]).collect::<Vec<_>>(), [2, 3, 4, 5]);
    let (vertices, _) = cloud(EVERY_POINT, [with_depth(0, [f32::NAN, f32::INFINITY, -1.0, 0.0, 5.0, f32::MAX])]);
    assert_eq!(vertices.iter().map(|v| v.1[0]).collect::<Vec<_>>(), [4, 5]);
    let mut nowhere = frame(1);
    nowhere.camera_to_world.translation.x = f64::NAN;
    assert_eq!(cloud(EVERY_POINT, [unsure(frame(0)), nowhere]).0, []);
    // A field of view of 0.
    for focal_length in [f64::INFINITY, f64::NAN] {
        let mut blind = frame(0);
        blind.intrinsics.fx = focal_length;
        assert_eq!(cloud(EVERY_POINT, [blind]).0, []);
    }
    let mut certain = frame(0);
    let map = certain.depth_map.as_mut().unwrap();
    map.confidence = map.confidence.map_pixels(|_, _, _| f32::INFINITY);
    assert_eq!(cloud(EVERY_POINT, [certain]).0, []);
}

#[test]
fn bars_beside_a_padded_picture_are_no_points() {
    let (vertices, _) = cloud(EVERY_POINT, [padded(frame(0))]);
    assert_eq!(vertices.iter().map(|v| v.1[0]).collect::<Vec<_>>(), [0, 1, 3, 4]);
    // The median of 1, 2, 4 and 5 is 3, and fx = 2.
    let automatic = PointOptions { voxel_size: None, ..EVERY_POINT };
    assert!(cloud(automatic, [padded(frame(0))]).1.ends_with("one per voxel of 3.000e0"));
}

#[test]
fn a_voxel_keeps_its_first_point() {
    let sized = |size| PointOptions { voxel_size: Some(size), ..EVERY_POINT };
    assert_eq!(cloud(sized(100.0), [frame(0), frame(1)]).0.len(), 1);
    assert!([-1.0, f64::NAN].iter().all(|&size| cloud(sized(size), [frame(0), frame(1)]).0.len() == 12));
    let mut lower = frame(0);
    lower.camera_to_world.translation.y = 0.5;
    assert_eq!(cloud(sized(100.0), [lower]).0.len(), 2, "zero is a border like any other");
    let (vertices, note) = cloud(sized(1e-3), [frame(0), frame(1)]);
    assert_eq!((vertices.len(), note.as_str()), (6, "6 points, one per voxel of 1.000e-3"));
    // A camera half a voxel further sees other points in the same voxels.
    let mut moved = frame(1);
    moved.camera_to_world.translation.x += 1e-4;
    assert_eq!(cloud(sized(0.01), [frame(0), moved]).0, vertices);
}

#[test]
fn voxels_may_be_of_any_size() {
    let sized = |size| PointOptions { voxel_size: Some(size), ..EVERY_POINT };
    for size in [1e-12, 1e-30, 1.5e-45, f64::MIN_POSITIVE] {
        // Far away and all apart.
        let far = with_depth(0, [1e10, 2e10, 3e10, 4e10, 5e10, 6e10]);
        assert_eq!(cloud(sized(size), [frame(0), far]).0.len(), 12, "{size}");
    }
    assert_eq!(cloud(sized(f64::INFINITY), [frame(0)]).0.len(), cloud(sized(1e300), [frame(0)]).0.len());
}

#[test]
fn voxels_are_two_pixels_wide_unless_said_otherwise() {
    // Median depth 3.5 and fx = 2.
    let automatic = PointOptions { voxel_size: None, ..EVERY_POINT };
    assert!(cloud(automatic, [frame(0)]).1.ends_with("one per voxel of 3.500e0"));
    let mut blind = frame(0);
    blind.intrinsics.fx = 0.0;
    assert_eq!(cloud(automatic, [blind]).1, "0 points");
}

#[test]
fn a_share_of_each_frame_is_left_out() {
    let share = |percent| PointOptions { min_confidence: MinConfidence::Percent(percent), ..EVERY_POINT };
    let left = |options, frame| cloud(options, [frame]).0.iter().map(|v| v.1[0]).collect::<Vec<_>>();
    assert_eq!(left(share(0.0), frame(0)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(left(share(50.0), frame(0)), [3, 4, 5]);
    assert_eq!(left(share(100.0), frame(0)), [5]);
    // Of the four pixels that are shown.
    assert_eq!(left(share(50.0), padded(frame(0))), [3, 4]);
    assert!(left(share(50.0), unsure(frame(0))).is_empty());
}

/// A frame whose camera has moved sideways.
fn moved(index: usize) -> FrameOutput {
    let mut frame = frame(index);
    frame.camera_to_world.translation.z += 0.37 * index as f64;
    frame
}

#[test]
fn voxels_grow_when_there_are_too_many_points() {
    let sized = |size, max_points| PointOptions { voxel_size: Some(size), max_points, ..EVERY_POINT };
    let (all, _) = cloud(sized(0.01, 1000), (0..20).map(moved));
    assert!(all.len() > 100, "{}", all.len());
    let (few, note) = cloud(sized(0.01, 30), (0..20).map(moved));
    assert!((1..=30).contains(&few.len()), "{}", few.len());
    assert!(note.ends_with(" (larger than asked for, to keep no more than 30)"), "{note}");
    // As if voxels had had that size from the start.
    let sizes = (0..20).map(|doubled| 0.01 * f64::from(1 << doubled));
    assert!(sizes.into_iter().any(|size| cloud(sized(size, 1000), (0..20).map(moved)).0 == few));
    // Where all points are kept, voxels of two pixels are the first.
    let (first, note) = cloud(sized(0.0, 11), [frame(0), frame(1)]);
    assert!(first.len() <= 6 && note.contains("one per voxel of 3.500e0"), "{note}");
    assert_eq!(cloud(sized(0.01, 0), (0..3).map(moved)).0.len(), 1, "a cloud has at least one point");
}
