//! The whole library against expected outputs: every kind of stream, from pixels to poses and maps.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::sync::Arc;

use candle_core::{IndexOp, Tensor};
use periplus::{DType, Device, Engine, Frame, FrameOutput, Keyframes, Raster, SessionConfig, Viewport, Weights};
use periplus_tests::{Golden, error};

/// A correct float32 run lands near 2e-6.
const BOUND: f64 = 1e-5;

/// Streams the frames of a golden through a session, one by one.
fn stream(golden: &Golden, dtype: DType) -> Vec<FrameOutput> {
    let weights = Weights::synthetic(golden.config.clone(), golden.weights_seed()).unwrap();
    let engine = Engine::load(&weights, dtype, &Device::Cpu).unwrap();
    let keyframes = match (golden.metadata("motion_pixels"), golden.metadata("max_gap")) {
        (Some(pixels), Some(max_gap)) => Keyframes::ByMotion { pixels, max_gap },
        _ => Keyframes::Every(golden.metadata("keyframe_interval").unwrap()),
    };
    let mut session = engine.session(SessionConfig { keyframes, ..engine.config().into() }).unwrap();
    let frames = golden.frames();
    let mut outputs = Vec::new();
    for i in 0..frames.dim(0).unwrap() {
        outputs.extend(session.push(frame(&frames.i(i).unwrap())).unwrap());
    }
    outputs.extend(session.finish().unwrap());
    assert_eq!(session.stats().frames, outputs.len());
    outputs
}

/// A frame of `[height, width, 3]` bytes, as a source would give it.
fn frame(pixels: &Tensor) -> Frame {
    let (height, width, _) = pixels.dims3().unwrap();
    let bytes = pixels.flatten_all().unwrap().to_vec1::<u8>().unwrap();
    let (pixels, _) = bytes.as_chunks::<3>();
    Frame {
        name: None,
        timestamp: None,
        viewport: Viewport::identity(width as u32, height as u32),
        pixels: Arc::new(Raster::new(width, height, pixels.to_vec()).unwrap()),
    }
}

/// Rasters as one tensor `[frames, height, width]`.
fn maps<'a>(outputs: impl Iterator<Item = &'a Raster<f32>>) -> Tensor {
    let maps: Vec<Tensor> = outputs
        .map(|map| Tensor::from_slice(map.values(), (map.height(), map.width()), &Device::Cpu).unwrap())
        .collect();
    Tensor::stack(&maps, 0).unwrap()
}

/// Errors of all that a golden expects, by name.
fn errors(golden: &Golden, outputs: &[FrameOutput], pixel_stride: usize) -> Vec<(String, f64)> {
    let every = golden.metadata("dense_every").unwrap_or(1);
    let dense = || outputs.iter().step_by(every);
    let stride = |map: Tensor, dim: usize| {
        let kept: Vec<u32> = (0..map.dim(dim).unwrap() as u32).step_by(pixel_stride).collect();
        map.index_select(&Tensor::new(kept, &Device::Cpu).unwrap(), dim).unwrap()
    };
    let strided = |map: Tensor| stride(stride(map, 1), 2);
    let mut errors: Vec<(String, f64)> = golden
        .tensors
        .iter()
        .filter(|(name, _)| *name != "keyframe")
        .map(|(name, expected)| {
            let found = match name.as_str() {
                "pose_enc" => {
                    let rows: Vec<f32> = outputs.iter().flat_map(|output| output.pose_encoding.0).collect();
                    Tensor::from_vec(rows, (outputs.len(), 9), &Device::Cpu).unwrap()
                }
                "depth" => strided(maps(dense().map(|output| &output.depth))),
                "depth_conf" => strided(maps(dense().map(|output| &output.confidence))),
                "world_points" => {
                    let points = dense().map(|output| &output.world_points.as_ref().unwrap().points);
                    let points: Vec<Tensor> = points
                        .map(|p| {
                            let shape = (p.height(), p.width(), 3);
                            Tensor::from_slice(p.values().as_flattened(), shape, &Device::Cpu).unwrap()
                        })
                        .collect();
                    Tensor::stack(&points, 0).unwrap()
                }
                "world_points_conf" => maps(dense().map(|output| &output.world_points.as_ref().unwrap().confidence)),
                other => panic!("nothing is known of `{other}`"),
            };
            assert_eq!(found.dims(), expected.dims(), "{name}");
            (name.clone(), error(&found, expected).unwrap())
        })
        .collect();
    errors.sort_by(|a, b| a.0.cmp(&b.0));
    errors
}

fn check(name: &str, dtype: DType, bound: f64) {
    let golden = Golden::open(name);
    let outputs = stream(&golden, dtype);
    let errors = errors(&golden, &outputs, golden.metadata("pixel_stride").unwrap_or(1));
    for (what, error) in &errors {
        println!("{name}: {what} {error:.1e}");
    }
    assert!(errors.len() >= 3);
    for (what, error) in errors {
        assert!(error < bound, "{name}: {what} is off by {error:.2e}");
    }
    if let Some(expected) = golden.tensors.get("keyframe") {
        let kept: Vec<bool> = outputs.iter().map(|output| output.keyframe).collect();
        let expected: Vec<bool> = expected.to_vec1::<f32>().unwrap().iter().map(|k| *k != 0.0).collect();
        assert_eq!(kept, expected, "{name}: keyframes");
    }
}

macro_rules! float32 {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check($name, DType::F32, BOUND);
        })*
    };
}

float32! {
    stream_of_keyframes: "stream",
    portrait_with_every_third_a_keyframe: "stream-portrait-interval3",
    grid_of_the_position_embedding: "stream-native-grid",
    grid_larger_than_the_position_embedding: "stream-larger-grid",
    camera_tokens_retained: "stream-keep-camera",
    nothing_retained: "stream-keep-none",
    scale_frames_leave_with_the_window: "stream-scale-frames-slide",
    point_head: "stream-point-head",
    one_frame: "stream-one-frame",
    fewer_frames_than_scale_frames: "stream-two-frames",
    three_heads_and_two_registers: "stream-three-heads",
    three_hundred_frames: "stream-long",
    long_with_every_fourth_a_keyframe: "stream-long-interval4",
    keyframes_by_motion: "stream-by-motion",
}

/// The published size: 20 frames of 518 x 378 through 1.158 billion parameters. Needs 10 GB and some minutes:
/// `cargo test --release -p periplus-tests -- --ignored full_size`.
#[test]
#[ignore = "needs 10 GB of memory and some minutes"]
fn full_size() {
    check("full-size", DType::F32, 1e-4);
}
