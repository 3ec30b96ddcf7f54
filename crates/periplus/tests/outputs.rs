//! A session computes only the outputs that are asked for.
//!
//! This is a separate test program: `tracing` caches per span whether a subscriber is interested, so spans that other
//! tests reach first, without a subscriber, would be disabled for this one.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod common;

use std::sync::{Arc, Mutex};

use common::{engine, frame, run, run_with};
use periplus::{DType, Keyframes, Outputs, SessionConfig};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Metadata, Subscriber};

/// Counts how often this thread enters each span.
#[derive(Clone, Default)]
struct Entered(Arc<Mutex<Vec<&'static str>>>);

impl Subscriber for Entered {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.lock().unwrap().push(span.metadata().name());
        Id::from_u64(1)
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}
}

#[test]
fn what_is_not_wanted_is_not_computed_and_the_rest_stays_the_same() {
    let engine = engine(DType::F32);
    let frames = || (0..6).map(|i| frame(28, 42, i));
    let all = run(&engine, frames());
    assert!(all.iter().all(|output| output.depth_map.is_some() && output.world_points.is_some()));
    let keyframes = Keyframes::Every(2);
    for (outputs, heads) in [
        (Outputs::Poses, &["camera_head"][..]),
        (Outputs::Depth, &["camera_head", "depth_head"]),
        (Outputs::All, &["camera_head", "depth_head", "point_head"]),
    ] {
        let expected = run_with(&engine, SessionConfig { keyframes, ..engine.config().into() }, frames());
        let entered = Entered::default();
        let found = with_default(entered.clone(), || {
            run_with(&engine, SessionConfig { keyframes, outputs, ..engine.config().into() }, frames())
        });
        for (output, mut expected) in found.into_iter().zip(expected) {
            expected.elapsed = output.elapsed;
            expected.depth_map = expected.depth_map.filter(|_| outputs != Outputs::Poses);
            expected.world_points = expected.world_points.filter(|_| outputs == Outputs::All);
            assert_eq!(output, expected, "{outputs:?}");
        }
        let mut found = entered.0.lock().unwrap().clone();
        found.retain(|name| name.ends_with("_head"));
        // The two scale frames go in together.
        assert_eq!(found, heads.repeat(5), "{outputs:?}");
    }
}
