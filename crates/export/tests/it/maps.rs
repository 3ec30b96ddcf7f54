//! Confidence as PNG, depth as NumPy array and EXR, and the layout of the published batch program.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use periplus_export::{BatchFiles, ConfidenceMaps, ExrFiles, NpyFiles};
use periplus_geometry::FrameOutput;
use zip::ZipArchive;

use crate::{export, frame, listing, padded, with_points};

#[test]
fn a_confidence_is_the_value_over_the_recorded_scale() {
    let folder = tempfile::tempdir().unwrap();
    let mut sure = frame(1);
    let map = sure.depth_map.as_mut().unwrap();
    map.confidence = map.confidence.map_pixels(|x, y, _| [[f32::NAN, 65.536, f32::INFINITY], [1.0, 1.5, 1e30]][y][x]);
    export(ConfidenceMaps::create(folder.path()), [padded(frame(0)), sure]);
    let maps = folder.path().join("confidence");
    assert_eq!(listing(&maps), ["000000.png", "000001.png", "scale.json"]);
    let scale: serde_json::Value = serde_json::from_slice(&fs::read(maps.join("scale.json")).unwrap()).unwrap();
    assert_eq!(scale, serde_json::json!({ "scale": 1000.0, "invalid": 0, "saturated": 65535 }));
    let read = |name| image::open(maps.join(name)).unwrap().into_luma16().into_raw();
    assert_eq!(read("000000.png"), [1000, 1250, 0, 2000, 3000, 0], "the last column is a bar");
    assert_eq!(read("000001.png"), [0, 65535, 0, 1000, 1500, 65535]);
}

#[test]
fn an_npy_file_is_the_depth() {
    let folder = tempfile::tempdir().unwrap();
    export(NpyFiles::create(folder.path()), [frame(0), padded(frame(1))]);
    let read = |name| {
        let bytes = fs::read(folder.path().join("npy").join(name)).unwrap();
        let array = npyz::NpyFile::new(bytes.as_slice()).unwrap();
        assert_eq!(array.shape(), [2, 3]);
        array.into_vec::<f32>().unwrap()
    };
    assert_eq!(read("000000.npy"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.5]);
    let padded = read("000001.npy");
    assert!(padded[2].is_nan() && padded[5].is_nan());
    assert_eq!([&padded[..2], &padded[3..5]].concat(), [1.0, 2.0, 4.0, 5.0]);
}

#[test]
fn an_exr_file_has_the_channels_of_depth_and_confidence() {
    let folder = tempfile::tempdir().unwrap();
    export(ExrFiles::create(folder.path()), [frame(0), padded(frame(1))]);
    let read = |name: &str| {
        let image = exr::prelude::read_first_flat_layer_from_file(folder.path().join("exr").join(name)).unwrap();
        let channels = image.layer_data.channel_data.list;
        assert_eq!(image.layer_data.size, exr::math::Vec2(3, 2));
        assert_eq!(channels.iter().map(|channel| channel.name.to_string()).collect::<Vec<_>>(), ["Z", "confidence"]);
        channels.iter().map(|channel| channel.sample_data.values_as_f32().collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let channels = read("000000.exr");
    assert_eq!(channels[0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.5]);
    assert_eq!(channels[1], [1.0, 1.25, 1.5, 2.0, 3.0, 5.25]);
    let channels = read("000001.exr");
    assert!(channels[0][2].is_nan() && channels[0][5].is_nan());
    assert_eq!(channels[1], [1.0, 1.25, 0.0, 2.0, 3.0, 0.0]);
}

/// Shape, type and bytes of an array.
fn read(file: &Path, name: &str) -> (Vec<u64>, String, Vec<u8>) {
    let mut archive = ZipArchive::new(File::open(file).unwrap()).unwrap();
    let mut bytes = Vec::new();
    archive.by_name(&format!("{name}.npy")).unwrap().read_to_end(&mut bytes).unwrap();
    let array = npyz::NpyFile::new(bytes.as_slice()).unwrap();
    let (shape, dtype) = (array.shape().to_vec(), array.dtype().descr());
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    (shape, dtype, bytes[start..].to_vec())
}

fn floats(file: &Path, name: &str) -> (Vec<u64>, Vec<f32>) {
    let (shape, dtype, bytes) = read(file, name);
    assert_eq!(dtype, "'<f4'");
    (shape, bytes.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value)).collect())
}

#[test]
fn the_layout_of_the_batch_program_has_world_to_camera_poses() {
    let folder = tempfile::tempdir().unwrap();
    let other = FrameOutput { keyframe: false, ..frame(9) };
    export(BatchFiles::create(folder.path()), [with_points(3), other]);
    let files = folder.path().join("batch");
    assert_eq!(listing(&files), ["frame_000000.npz", "frame_000001.npz", "meta.npz"], "without gaps");
    let file = files.join("frame_000000.npz");
    assert_eq!(floats(&file, "depth"), (vec![2, 3, 1], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.5]));
    assert_eq!(floats(&file, "depth_conf"), (vec![2, 3], vec![1.0, 1.25, 1.5, 2.0, 3.0, 5.25]));
    assert_eq!(floats(&file, "intrinsic"), (vec![3, 3], vec![2.0, 0.0, 1.5, 0.0, 4.0, 1.0, 0.0, 0.0, 1.0]));
    assert_eq!(floats(&file, "pose_enc").0, [9]);
    assert_eq!(floats(&file, "world_points").0, [2, 3, 3]);
    let (shape, images) = floats(&file, "images");
    assert_eq!((shape, images[7].to_bits()), (vec![3, 2, 3], (11.0_f32 / 255.0).to_bits()), "channel by channel");
    // The camera stands at (0.5, -1, 2) and looks along the world's x: its inverse maps that place to the origin.
    let (shape, extrinsic) = floats(&file, "extrinsic");
    assert_eq!(shape, [3, 4]);
    let expected = [0.0, 0.0, -1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, -0.5];
    assert!(extrinsic.iter().zip(expected).all(|(ours, expected)| (ours - expected).abs() < 1e-6), "{extrinsic:?}");
    let meta = files.join("meta.npz");
    assert_eq!(read(&meta, "frame_type"), (vec![1, 2], "'|u1'".to_owned(), vec![1, 2]));
    assert_eq!(read(&meta, "is_keyframe"), (vec![1, 2], "'|b1'".to_owned(), vec![1, 0]));
}
