//! The whole library against expected outputs: every kind of stream, from pixels to poses and maps.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use periplus::{DType, Device};
use periplus_tests::{Golden, check_keyframes, errors, stream};

/// The largest errors of correct float32 code are 9e-7 to 1.8e-6, by golden.
const BOUND: f64 = 4e-6;

fn check(name: &str, bound: impl Fn(&str) -> f64) {
    let golden = Golden::open(name);
    let outputs = stream(&golden, DType::F32, &Device::Cpu);
    let errors = errors(&golden, &outputs);
    for (what, error) in &errors {
        println!("{name}: {what} {error:.1e}, bound {:.1e}", bound(what));
    }
    assert!(errors.len() >= 3);
    for (what, error) in errors {
        assert!(error < bound(&what), "{name}: {what} is off by {error:.2e}");
    }
    check_keyframes(&golden, &outputs);
}

macro_rules! float32 {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check($name, |_| BOUND);
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

/// The published size: 20 frames of 518 x 378 through 1.158 billion parameters. Needs 10 GB and some minutes: `cargo
/// test --release -p periplus-tests -- --ignored full_size`. Measured: pose 1.0e-5, depth 2.6e-6, confidence 2.8e-6.
#[test]
#[ignore = "needs 10 GB of memory and some minutes"]
fn full_size() {
    check("full-size", |what| if what == "pose_enc" { 5e-5 } else { 1.3e-5 });
}
