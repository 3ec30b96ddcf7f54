//! Cameras with extreme values, and intrinsics in pixels of the original picture.

#![allow(clippy::float_cmp, reason = "these numbers are exact")]

use nalgebra::{Isometry3, Vector3};
use periplus_geometry::{Intrinsics, PoseEncoding, Raster, Viewport};

fn encoding(quaternion: [f32; 4]) -> PoseEncoding {
    let [x, y, z, w] = quaternion;
    PoseEncoding([1.0, 2.0, 3.0, x, y, z, w, 1.0, 1.5])
}

#[test]
fn a_quaternion_of_any_length_is_a_rotation() {
    // A quarter turn about z, with quaternions of ordinary length and of the smallest and largest f32 values.
    for length in [1e-30, 0.1, 1.0, 7.0, 1e30, f32::MAX] {
        let pose = encoding([0.0, 0.0, length, length]).camera_to_world();
        let turned = pose * Vector3::x();
        assert!((turned - Vector3::y()).norm() < 1e-12, "length {length}: {turned}");
        assert_eq!(pose.translation.vector, Vector3::new(1.0, 2.0, 3.0));
    }
}

#[test]
fn a_quaternion_without_a_direction_is_the_identity() {
    for quaternion in [[0.0; 4], [f32::NAN; 4], [0.0, f32::INFINITY, 0.0, 1.0], [1.0, 0.0, 0.0, f32::NAN]] {
        assert_eq!(encoding(quaternion).camera_to_world(), Isometry3::translation(1.0, 2.0, 3.0));
    }
}

#[test]
fn no_field_of_view_is_an_infinite_focal_length() {
    let Intrinsics { fx, fy, cx, cy } = PoseEncoding([0.0; 9]).intrinsics(84, 56);
    assert_eq!([fx, fy, cx, cy], [f64::INFINITY, f64::INFINITY, 42.0, 28.0]);
}

#[test]
fn projection_undoes_unprojection() {
    let intrinsics = PoseEncoding([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.8, 1.1]).intrinsics(518, 378);
    let point = intrinsics.unproject(17.0, 300.0, 2.5);
    let [u, v] = intrinsics.project(&point);
    assert!((u - 17.0).abs() < 1e-9 && (v - 300.0).abs() < 1e-9 && point.z == 2.5);
    let homogeneous = intrinsics.matrix() * point / point.z;
    assert!((homogeneous - Vector3::new(17.0, 300.0, 1.0)).norm() < 1e-9);
}

#[test]
fn the_original_camera_sees_the_same_ray_at_the_original_pixel() {
    // 1000 x 2000 pixels, resized to 500 x 1002 and cropped to 500 x 500 at the centre.
    let viewport = Viewport { original: [1000, 2000], network: [500, 500], scale: [0.5, 0.501], offset: [0.0, -251.0] };
    let network = encoding([0.0, 0.0, 0.0, 1.0]).intrinsics(500, 500);
    let original = network.in_original(&viewport);
    assert!((original.cx - 500.0).abs() < 1e-9 && (original.cy - 1000.0).abs() < 1e-9);
    let (u, v) = (123.0, 1234.0);
    let ray = network.unproject(u * 0.5, v * 0.501 - 251.0, 1.0);
    assert!((original.unproject(u, v, 1.0) - ray).norm() < 1e-12);
    assert_eq!(network.in_original(&Viewport::identity(500, 500)), network);
}

#[test]
fn the_bars_of_a_padded_picture_do_not_show_the_original() {
    let shown = |viewport: Viewport| viewport.shown().values().iter().map(|&shown| u8::from(shown)).collect::<Vec<_>>();
    // 30 x 20 pixels, scaled by 1/3 and 1/2, after one column and two rows of padding.
    let padded = Viewport { original: [30, 20], network: [12, 14], scale: [1.0 / 3.0, 0.5], offset: [1.0, 2.0] };
    let row = [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0];
    let expected: Vec<_> = (0..14).flat_map(|y| if (2..12).contains(&y) { row } else { [0; 12] }).collect();
    assert_eq!(shown(padded), expected);
    // Whole pictures, and cropped pictures with a rounded scale.
    assert_eq!(shown(Viewport::identity(3, 2)), [1; 6]);
    let cropped = Viewport { original: [1000, 2000], network: [7, 7], scale: [0.007, 0.0069], offset: [0.0, -3.0] };
    assert_eq!(shown(cropped), [1; 49]);
}

#[test]
fn a_raster_holds_as_many_values_as_it_has_pixels() {
    assert!(Raster::new(2, 3, vec![0; 5]).is_none());
    assert!(Raster::<u8>::new(usize::MAX, 2, vec![]).is_none());
    let raster = Raster::new(2, 3, vec![0, 1, 2, 3, 4, 5]).unwrap();
    assert_eq!(raster.get(1, 2), Some(&5));
    assert_eq!((raster.get(2, 0), raster.get(0, 3)), (None, None));
    let places = raster.map_pixels(|x, y, value| 2 * y + x == *value);
    assert_eq!(places.values(), [true; 6]);
}
