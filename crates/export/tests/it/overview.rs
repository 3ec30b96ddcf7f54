use std::fs;
use std::io::Cursor;

use image::RgbImage;
use periplus_export::{Overview, Revision, Sink};
use periplus_geometry::FrameOutput;

use crate::{export, frame, padded, unsure, with_depth};

fn picture(frames: impl IntoIterator<Item = FrameOutput>) -> RgbImage {
    let folder = tempfile::tempdir().unwrap();
    export(Overview::create(folder.path()), frames);
    let bytes = fs::read(folder.path().join("overview.png")).unwrap();
    image::ImageReader::new(Cursor::new(bytes)).with_guessed_format().unwrap().decode().unwrap().to_rgb8()
}

/// The frame, with its camera further along the world's x axis.
fn moved(index: usize) -> FrameOutput {
    let mut frame = frame(index);
    frame.camera_to_world.translation.x += index as f64;
    frame
}

#[test]
fn the_first_tile_is_the_first_picture() {
    let overview = picture((0..100).map(moved));
    // Tiles are not enlarged: 3 pixels in the middle of a column of 300, below a margin of 16.
    let left = 16 + (300 - 3) / 2;
    let pixels: Vec<_> = (0..6).map(|at| overview.get_pixel(left + at % 3, 16 + at / 3).0).collect();
    assert_eq!(pixels, (0..6).map(|i| [i, 10 + i, 20 + i]).collect::<Vec<_>>());
}

#[test]
fn the_same_frames_give_the_same_picture_and_others_another() {
    let overview = picture((0..40).map(moved));
    assert!(overview == picture((0..40).map(moved)));
    assert!(overview != picture((0..41).map(frame)));
}

#[test]
fn the_size_does_not_depend_on_the_length() {
    let sizes = [5, 16, 17, 1000].map(|count| picture((0..count).map(moved)).dimensions());
    assert!(sizes.iter().all(|size| *size == sizes[0]), "{sizes:?}");
}

#[test]
fn frames_without_values_are_drawn_without_them() {
    let mut lost = frame(0);
    lost.camera_to_world.translation.x = f64::NAN;
    let mut blind = frame(0);
    blind.intrinsics.fx = f64::INFINITY;
    let mut far = frame(1);
    far.camera_to_world.translation.x = 1e300;
    let poses = FrameOutput { depth_map: None, ..frame(0) };
    let broken = with_depth(0, [f32::NAN, f32::INFINITY, -1.0, 0.0, f32::MAX, 1e-40]);
    for frames in [vec![lost], vec![blind], vec![poses], vec![broken], vec![unsure(frame(0))], vec![frame(0), far]] {
        assert_eq!(picture(frames).width(), 1596);
    }
    assert_eq!(picture([padded(frame(0))]).width(), 1596);
}

#[test]
fn revised_poses_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = Overview::create(folder.path()).unwrap();
    for index in 0..3 {
        sink.write(&frame(index)).unwrap();
    }
    let revision = |index| Revision { index, camera_to_world: moved(index).camera_to_world, scale: 1.0 };
    sink.revise(&[0, 1, 2].map(revision)).unwrap();
    Box::new(sink).finish().unwrap();
    let revised = image::open(folder.path().join("overview.png")).unwrap().to_rgb8();
    assert!(revised == picture((0..3).map(moved)));
}
