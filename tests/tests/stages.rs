//! The tokens after every stage against expected ones, to find the first wrong one.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use periplus_model::Model;
use periplus_model::checkpoint::Weights;
use periplus_tests::{Golden, error};

const BOUND: f64 = 1e-5;

#[test]
fn every_stage() {
    let golden = Golden::open("stages");
    let weights = Weights::synthetic(golden.config.clone(), golden.weights_seed()).unwrap();
    let model = Model::load(&weights, DType::F32, &Device::Cpu).unwrap();
    let mut stream = model.stream(golden.config.stream.clone()).unwrap();
    let frames = golden.frames();
    let mut compared = 0;
    for (step, first, count) in [("scale", 0, 3), ("next", 3, 1)] {
        let mut found = HashMap::new();
        let mut observer = |name: &str, tokens: &Tensor| {
            found.insert(name.to_owned(), tokens.copy()?);
            Ok(())
        };
        let frames = frames.narrow(0, first, count).unwrap();
        let prediction = model.push_observed(&mut stream, &frames, true, Some(&mut observer)).unwrap();
        found.insert("pose_enc".into(), prediction.pose_enc);
        found.insert("depth".into(), prediction.depth);
        found.insert("depth_conf".into(), prediction.depth_conf);
        for (name, found) in found {
            let expected = &golden.tensors[&format!("{step}.{name}")];
            assert_eq!(found.dims(), expected.dims(), "{step}.{name}");
            let error = error(&found, expected).unwrap();
            println!("{step}.{name}: {error:.1e}");
            assert!(error < BOUND, "{step}.{name} is off by {error:.2e}");
            compared += 1;
        }
    }
    assert_eq!(compared, golden.tensors.len());
}
