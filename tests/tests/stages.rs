//! The tokens after every stage against expected ones, to find the first wrong one.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use periplus_model::checkpoint::Weights;
use periplus_model::{Model, Outputs, Stream};
use periplus_tests::{Golden, card, error};

const BOUND: f64 = 1e-5;

#[test]
fn every_stage() {
    every_stage_on(&Device::Cpu, BOUND);
}

#[test]
fn every_stage_on_a_card() {
    if let Some(card) = card() {
        every_stage_on(&card, 1e-4);
    }
}

fn every_stage_on(device: &Device, bound: f64) {
    let golden = Golden::open("stages");
    let weights = Weights::synthetic(golden.config.clone(), golden.weights_seed()).unwrap();
    let model = Model::load(&weights, DType::F32, device).unwrap();
    let mut stream = Stream::new(Arc::new(model), &golden.config.stream, Outputs::All).unwrap();
    let frames = golden.frames();
    let mut compared = 0;
    for (step, first, count) in [("scale", 0, 3), ("next", 3, 1)] {
        let mut found = HashMap::new();
        let mut observer = |name: &str, tokens: &Tensor| {
            found.insert(name.to_owned(), tokens.copy()?);
            Ok(())
        };
        let frames = frames.narrow(0, first, count).unwrap();
        let prediction = stream.push_observed(&frames, true, Some(&mut observer)).unwrap();
        stream.accept().unwrap();
        let (depth, confidence) = prediction.depth.unwrap();
        found.insert("depth".into(), depth);
        found.insert("depth_conf".into(), confidence);
        for (name, found) in found {
            let expected = &golden.tensors[&format!("{step}.{name}")];
            assert_eq!(found.dims(), expected.dims(), "{step}.{name}");
            let error = error(&found, expected).unwrap();
            println!("{step}.{name}: {error:.1e}");
            assert!(error < bound, "{step}.{name} is off by {error:.2e}");
            compared += 1;
        }
    }
    assert_eq!(compared, golden.tensors.len());
}

#[test]
fn a_pass_that_fails_leaves_no_trace() {
    no_trace_on(&Device::Cpu, BOUND);
}

#[test]
fn a_pass_that_fails_leaves_no_trace_on_a_card() {
    if let Some(card) = card() {
        no_trace_on(&card, 1e-4);
    }
}

/// Wherever a pass fails, the stream goes on as if it had not been: caches of both kinds, retained rows, time.
fn no_trace_on(device: &Device, bound: f64) {
    let golden = Golden::open("stream");
    let weights = Weights::synthetic(golden.config.clone(), golden.weights_seed()).unwrap();
    let model = Arc::new(Model::load(&weights, DType::F32, device).unwrap());
    let mut stream = Stream::new(model, &golden.config.stream, Outputs::Poses).unwrap();
    let frames = golden.frames();
    let scale_frames = golden.config.stream.scale_frames;
    let mut poses = Vec::new();
    let mut first = 0;
    while first < frames.dim(0).unwrap() {
        let count = if first == 0 { scale_frames } else { 1 };
        let frames = frames.narrow(0, first, count).unwrap();
        for stage in ["patch_tokens", "frame_blocks.2", "global_blocks.0", "global_blocks.3", "pose_enc"] {
            for keyframe in [true, false] {
                let mut observer = |name: &str, _: &Tensor| {
                    let error = || Err(candle_core::Error::Msg("no more".into()));
                    if name == stage { error() } else { Ok(()) }
                };
                assert!(stream.push_observed(&frames, keyframe, Some(&mut observer)).is_err(), "{stage}");
                assert!(stream.accept().is_err(), "{stage}: nothing to keep");
            }
        }
        // Run in full and not kept is no trace either.
        stream.push(&frames, false).unwrap();
        poses.push(stream.push(&frames, true).unwrap().pose_enc);
        stream.accept().unwrap();
        assert!(stream.accept().is_err(), "a frame is kept once");
        first += count;
    }
    let error = error(&Tensor::cat(&poses, 0).unwrap(), &golden.tensors["pose_enc"]).unwrap();
    assert!(error < bound, "off by {error:.2e}");
}
