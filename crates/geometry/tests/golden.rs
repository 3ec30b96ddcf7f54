//! Cameras, points and displacements against the reference implementation (four frames of 84 x 56 pixels).

#![allow(clippy::unwrap_used, reason = "outside of #[test] functions, but still tests")]
#![allow(clippy::float_cmp, reason = "these zeros are exact")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use periplus_geometry::{DepthMap, FrameOutput, PoseEncoding, Raster, Viewport, displacement};

struct Golden(HashMap<String, Tensor>);

impl Golden {
    fn load() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/geometry.safetensors");
        Self(candle_core::safetensors::load(path, &Device::Cpu).unwrap())
    }

    /// The values of one frame.
    fn frame(&self, name: &str, frame: usize) -> Vec<f32> {
        let tensor = self.0[name].get(frame).unwrap().to_dtype(DType::F32).unwrap();
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn output(&self, frame: usize) -> FrameOutput {
        let (width, height) = (84, 56);
        let pose_encoding = PoseEncoding(self.frame("pose_enc", frame).try_into().unwrap());
        let depth = Raster::new(width, height, self.frame("depth", frame)).unwrap();
        FrameOutput {
            index: frame,
            number: frame,
            name: None,
            timestamp: None,
            keyframe: true,
            pose_encoding,
            camera_to_world: pose_encoding.camera_to_world(),
            intrinsics: pose_encoding.intrinsics(width as u32, height as u32),
            viewport: Viewport::identity(width as u32, height as u32),
            world_points: None,
            pixels: Arc::new(depth.map_pixels(|_, _, _| [0; 3])),
            depth_map: Some(DepthMap { confidence: depth.map_pixels(|_, _, _| 1.0), depth }),
            elapsed: Duration::ZERO,
        }
    }
}

#[track_caller]
fn assert_close(ours: &[f64], expected: &[f32], tolerance: f64) {
    assert_eq!(ours.len(), expected.len());
    for (i, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        let expected = f64::from(*expected);
        assert!(
            (ours - expected).abs() <= tolerance * expected.abs().max(1.0),
            "value {i}: {ours}, expected {expected}"
        );
    }
}

#[test]
fn poses_intrinsics_and_points_are_those_of_the_reference() {
    let golden = Golden::load();
    for frame in 0..4 {
        let output = golden.output(frame);
        // nalgebra is column-major, the reference is row-major.
        let pose = output.camera_to_world.to_homogeneous().fixed_view::<3, 4>(0, 0).transpose();
        assert_close(pose.as_slice(), &golden.frame("camera_to_world", frame), 1e-6);
        assert_close(output.intrinsics.matrix().transpose().as_slice(), &golden.frame("intrinsics", frame), 1e-6);
        let map = output.depth_map.unwrap();
        let points = map.points(&output.intrinsics, &output.camera_to_world);
        assert_eq!((points.width(), points.height()), (84, 56));
        let points: Vec<f64> = points.values().iter().flat_map(|p| [p.x, p.y, p.z]).map(f64::from).collect();
        assert_close(&points, &golden.frame("points", frame), 2e-6);
    }
}

#[test]
fn displacement_is_that_of_the_reference() {
    let golden = Golden::load();
    let reference = golden.output(0).pose_encoding;
    // Expected: the reference implementation in float64.
    let expected = [0.0, 727.647_200_564_527_3, 1_894.636_463_717_063_9, 1_354.833_119_491_276_4];
    for (frame, expected) in expected.into_iter().enumerate() {
        let output = golden.output(frame);
        let ours = displacement(&output.pose_encoding, &output.depth_map.unwrap().depth, &reference);
        assert!((ours - expected).abs() < 1e-9 * expected.max(1.0), "frame {frame}: {ours}, expected {expected}");
    }
}

#[test]
fn without_a_valid_depth_the_displacement_is_0() {
    let golden = Golden::load();
    let [here, there] = [0, 1].map(|frame| golden.output(frame).pose_encoding);
    for depth in [0.0, -1.0, f32::NAN] {
        let depth = Raster::new(84, 56, vec![depth; 84 * 56]).unwrap();
        assert_eq!(displacement(&there, &depth, &here), 0.0);
    }
    assert_eq!(displacement(&there, &Raster::new(0, 0, vec![]).unwrap(), &here), 0.0);
}

#[test]
fn a_camera_that_turned_away_from_all_it_saw_has_moved_infinitely_far() {
    let here = PoseEncoding([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    // Half a turn about y.
    let turned = PoseEncoding([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    let depth = Raster::new(84, 56, vec![2.0; 84 * 56]).unwrap();
    assert_eq!(displacement(&turned, &depth, &here), f64::INFINITY);
    assert!(displacement(&here, &depth, &here) < 1e-12);
    // One valid pixel on the grid is enough.
    let mut values = vec![f32::NAN; 84 * 56];
    values[8 * 84 + 16] = 2.0;
    let depth = Raster::new(84, 56, values).unwrap();
    assert_eq!(displacement(&turned, &depth, &here), f64::INFINITY);
}
