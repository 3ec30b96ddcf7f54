//! The tokens after every stage against expected values, to find the first stage that is wrong.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use periplus_checkpoint::Weights;
use periplus_model::{Model, Outputs, PassKind, Video, VideoState, Workspace};
use periplus_tests::{Golden, error, gpu};

/// Bounds of errors, at most five times the largest one measured.
struct Bounds {
    tokens: f64,
    /// Pose, depth and confidence.
    outputs: f64,
}

/// Measured: tokens 6e-7, outputs 1.6e-6.
const CPU: Bounds = Bounds { tokens: 1.5e-6, outputs: 4e-6 };
/// Measured: tokens 3.5e-7, outputs 1.5e-6.
const GPU: Bounds = Bounds { tokens: 9e-7, outputs: 4e-6 };

#[test]
fn every_stage() {
    every_stage_on(&Device::Cpu, &CPU);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_stage_on_a_gpu() {
    every_stage_on(&gpu(), &GPU);
}

fn every_stage_on(device: &Device, bounds: &Bounds) {
    let golden = Golden::open("stages");
    let weights = Weights::synthetic(golden.config.clone(), golden.weights_seed()).unwrap();
    let model = Model::load(weights.var_builder(DType::F32, device), weights.config()).unwrap();
    let mut state = VideoState::new(&model, &golden.config.stream, model.device()).unwrap();
    let mut workspace = Workspace::new(model.device());
    let frames = golden.frames();
    let mut compared = 0;
    for (step, first, kind) in [("scale", 0, PassKind::Scale(3)), ("next", 3, PassKind::Keyframe)] {
        let mut found = HashMap::new();
        let mut observer = |name: &str, tokens: &Tensor| {
            found.insert(name.to_owned(), tokens.copy()?);
            Ok(())
        };
        let frames = frames.narrow(0, first, kind.frames()).unwrap();
        let videos = vec![Video { state: &mut state, kind }];
        let mut passes =
            model.forward_batch(&mut workspace, &frames, videos, Outputs::All, Some(&mut observer)).unwrap();
        let depth = passes.pop().unwrap().accept().unwrap().depth.unwrap();
        found.insert("depth".into(), depth.values);
        found.insert("depth_conf".into(), depth.confidence);
        for (name, found) in found {
            let expected = &golden.tensors[&format!("{step}.{name}")];
            assert_eq!(found.dims(), expected.dims(), "{step}.{name}");
            let error = error(&found, expected).unwrap();
            let is_output = ["pose_enc", "depth", "depth_conf"].contains(&name.as_str());
            let bound = if is_output { bounds.outputs } else { bounds.tokens };
            println!("{step}.{name}: {error:.1e}, bound {bound:.1e}");
            assert!(error < bound, "{step}.{name} is off by {error:.2e}");
            compared += 1;
        }
    }
    assert_eq!(compared, golden.tensors.len());
}

#[test]
fn a_pass_that_fails_leaves_no_trace() {
    no_trace_on(&Device::Cpu);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_pass_that_fails_leaves_no_trace_on_a_gpu() {
    no_trace_on(&gpu());
}

/// Wherever a pass fails, the state of the video stays unchanged: both caches, retained rows, time.
fn no_trace_on(device: &Device) {
    // Measured: 1.3e-6 on the CPU, 6e-7 on a GPU.
    let bound = 3e-6;
    let golden = Golden::open("stream");
    let weights = Weights::synthetic(golden.config.clone(), golden.weights_seed()).unwrap();
    let model = Model::load(weights.var_builder(DType::F32, device), weights.config()).unwrap();
    let mut state = VideoState::new(&model, &golden.config.stream, model.device()).unwrap();
    let mut workspace = Workspace::new(model.device());
    let frames = golden.frames();
    let mut poses = Vec::new();
    let mut first = 0;
    while first < frames.dim(0).unwrap() {
        let kinds = match first {
            0 => vec![PassKind::Scale(golden.config.stream.scale_frames)],
            _ => vec![PassKind::Keyframe, PassKind::Candidate],
        };
        let kept = kinds[0];
        let frames = frames.narrow(0, first, kept.frames()).unwrap();
        let before = state.record();
        for kind in kinds {
            for stage in ["patch_tokens", "frame_blocks.2", "global_blocks.0", "global_blocks.3", "pose_enc"] {
                let mut observer = |name: &str, _: &Tensor| {
                    let error = || Err(candle_core::Error::Msg("no more".into()));
                    if name == stage { error() } else { Ok(()) }
                };
                let videos = vec![Video { state: &mut state, kind }];
                let observer = Some(&mut observer as periplus_model::Observer);
                let passes = model.forward_batch(&mut workspace, &frames, videos, Outputs::Poses, observer);
                assert!(passes.is_err(), "{stage}");
                drop(passes);
                assert_eq!(state.record(), before, "{stage}");
            }
            // A complete pass that is dropped leaves no trace either.
            drop(model.forward(&mut workspace, &frames, Video { state: &mut state, kind }, Outputs::Poses).unwrap());
            assert_eq!(state.record(), before);
        }
        let video = Video { state: &mut state, kind: kept };
        let pass = model.forward(&mut workspace, &frames, video, Outputs::Poses).unwrap();
        poses.push(pass.accept().unwrap().pose_enc);
        first += kept.frames();
    }
    let error = error(&Tensor::cat(&poses, 0).unwrap(), &golden.tensors["pose_enc"]).unwrap();
    println!("pose_enc: {error:.1e}, bound {bound:.1e}");
    assert!(error < bound, "off by {error:.2e}");
}
