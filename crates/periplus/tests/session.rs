//! What a session promises beside the right numbers: order, errors that leave it as it was, reset, sharing.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::sync::{Arc, Mutex};
use std::thread;

use periplus::checkpoint::synthetic;
use periplus::{
    Answers, Config, DType, Device, Engine, EngineError, Frame, FrameOutput, Keyframes, Raster, SessionConfig,
    StreamSettings, Viewport, Weights,
};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Metadata, Subscriber};

/// A network of a few thousand parameters with a point head; 2 scale frames, window 2.
fn engine(dtype: DType) -> Engine {
    let config = Config {
        embed_dim: 64,
        num_heads: 1,
        depth: 4,
        vit_depth: 1,
        vit_heads: 1,
        pos_grid: 3,
        taps: [0, 1, 2, 3],
        camera_depth: 1,
        camera_heads: 1,
        dpt_features: 16,
        dpt_hidden: 8,
        dpt_channels: [16, 16, 16, 16],
        point_head: true,
        stream: StreamSettings { scale_frames: 2, window: 2, ..StreamSettings::default() },
        ..Config::full()
    };
    Engine::load(&Weights::synthetic(config, 3).unwrap(), dtype, &Device::Cpu).unwrap()
}

fn frame(width: usize, height: usize, seed: u64) -> Frame {
    let noise = synthetic::hash_uniform(&format!("frame/{seed}"), 3 * width * height, 0);
    let bytes: Vec<u8> = noise.iter().map(|x| ((x + 1.0) * 127.0) as u8).collect();
    let pixels = bytes.as_chunks::<3>().0.to_vec();
    Frame {
        name: Some(format!("{seed}").into()),
        timestamp: None,
        viewport: Viewport::identity(width as u32, height as u32),
        pixels: Arc::new(Raster::new(width, height, pixels).unwrap()),
    }
}

fn run(engine: &Engine, frames: impl IntoIterator<Item = Frame>) -> Vec<FrameOutput> {
    run_with(engine, SessionConfig::from(engine.config()), frames)
}

fn run_with(engine: &Engine, config: SessionConfig, frames: impl IntoIterator<Item = Frame>) -> Vec<FrameOutput> {
    let mut session = engine.session(config).unwrap();
    let mut outputs = Vec::new();
    for frame in frames {
        outputs.extend(session.push(frame).unwrap());
    }
    outputs.extend(session.finish().unwrap());
    outputs
}

/// The same answers, whatever the time they took.
fn assert_same(a: &[FrameOutput], b: &[FrameOutput]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert_eq!((a.index, a.keyframe, &a.name), (b.index, b.keyframe, &b.name));
        assert_eq!((a.pose_encoding, &a.depth_map), (b.pose_encoding, &b.depth_map));
    }
}

#[test]
fn answers_come_in_order_and_none_is_lost() {
    let engine = engine(DType::F32);
    let mut session = engine.session(SessionConfig::from(engine.config())).unwrap();
    assert_eq!(session.push(frame(28, 42, 0)).unwrap().len(), 0);
    let first = session.push(frame(28, 42, 1)).unwrap();
    assert_eq!(first.iter().map(|o| (o.index, o.name.as_deref().unwrap())).collect::<Vec<_>>(), [(0, "0"), (1, "1")]);
    let next = session.push(frame(28, 42, 2)).unwrap();
    assert_eq!((next.len(), next[0].index), (1, 2));
    assert!(session.finish().unwrap().is_empty());
    assert_eq!((session.stats().frames, session.stats().keyframes), (3, 3));
    let map = next[0].depth_map.as_ref().unwrap();
    assert_eq!((map.depth.width(), map.depth.height()), (28, 42));
    assert!(map.depth.values().iter().all(|depth| *depth > 0.0));
    assert!(map.confidence.values().iter().all(|confidence| *confidence > 1.0));
}

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
    for (answers, heads) in [
        (Answers::Poses, &["camera_head"][..]),
        (Answers::Depth, &["camera_head", "depth_head"]),
        (Answers::All, &["camera_head", "depth_head", "point_head"]),
    ] {
        let expected = run_with(&engine, SessionConfig { keyframes, ..engine.config().into() }, frames());
        let entered = Entered::default();
        let outputs = with_default(entered.clone(), || {
            run_with(&engine, SessionConfig { keyframes, answers, ..engine.config().into() }, frames())
        });
        for (output, mut expected) in outputs.into_iter().zip(expected) {
            expected.elapsed = output.elapsed;
            expected.depth_map = expected.depth_map.filter(|_| answers != Answers::Poses);
            expected.world_points = expected.world_points.filter(|_| answers == Answers::All);
            assert_eq!(output, expected, "{answers:?}");
        }
        let mut found = entered.0.lock().unwrap().clone();
        found.retain(|name| name.ends_with("_head"));
        // The two scale frames go in together.
        assert_eq!(found, heads.repeat(5), "{answers:?}");
    }
}

#[test]
fn a_refused_frame_leaves_the_session_as_it_was() {
    let engine = engine(DType::F32);
    let expected = run(&engine, (0..4).map(|i| frame(28, 42, i)));
    let mut session = engine.session(SessionConfig::from(engine.config())).unwrap();
    let mut outputs = Vec::new();
    for i in 0..4 {
        assert!(matches!(session.push(frame(30, 42, 9)), Err(EngineError::Patches { patch: 14, .. })));
        if i > 0 {
            let error = session.push(frame(42, 28, 9)).unwrap_err();
            assert!(matches!(error, EngineError::FrameSize { expected_width: 28, width: 42, .. }), "{error}");
        }
        outputs.extend(session.push(frame(28, 42, i)).unwrap());
    }
    assert_same(&outputs, &expected);
}

#[test]
fn reset_forgets_the_clip_and_takes_another_size() {
    let engine = engine(DType::F32);
    let expected = run(&engine, (0..5).map(|i| frame(42, 28, i)));
    let mut session = engine.session(SessionConfig::from(engine.config())).unwrap();
    for i in 5..8 {
        session.push(frame(28, 42, i)).unwrap();
    }
    session.reset();
    assert_eq!(session.stats().frames, 0);
    let mut outputs = Vec::new();
    for i in 0..5 {
        outputs.extend(session.push(frame(42, 28, i)).unwrap());
    }
    assert_same(&outputs, &expected);
}

#[test]
fn sessions_on_several_threads_share_weights_and_nothing_else() {
    let engine = engine(DType::F32);
    let alone: Vec<_> = (0..3).map(|s| run(&engine, (0..5).map(|i| frame(28, 28, 10 * s + i)))).collect();
    let together: Vec<_> = thread::scope(|scope| {
        let engine = &engine;
        let threads: Vec<_> =
            (0..3).map(|s| scope.spawn(move || run(engine, (0..5).map(|i| frame(28, 28, 10 * s + i))))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (alone, together) in alone.iter().zip(&together) {
        assert_same(alone, together);
    }
}

#[test]
fn weights_and_cache_in_halves_stay_near() {
    let frames = || (0..5).map(|i| frame(28, 42, i));
    let exact = run(&engine(DType::F32), frames());
    // Rounding to 8 and 11 significant bits. A wrong layer is off by 1; the camera head amplifies rounding.
    for (dtype, bound) in [(DType::BF16, 5e-2), (DType::F16, 5e-3)] {
        let halves = run(&engine(dtype), frames());
        for (exact, half) in exact.iter().zip(&halves) {
            let [a, b] = [exact, half].map(|output| output.depth_map.as_ref().unwrap().depth.values());
            let difference: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let mean = a.iter().sum::<f32>() / a.len() as f32;
            let spread: f64 = a.iter().map(|a| f64::from(a - mean).powi(2)).sum();
            let error = (difference / spread).sqrt();
            assert!(error < bound && error > 0.0, "{dtype:?}: {error}");
        }
    }
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let engine = engine(DType::F32);
    let suggested = SessionConfig::from(engine.config());
    let with = |change: fn(&mut SessionConfig)| {
        let mut config = suggested.clone();
        change(&mut config);
        engine.session(config).err().map(|error| error.to_string())
    };
    assert!(with(|_| ()).is_none());
    assert!(
        with(|c| (c.keyframes, c.answers) = (Keyframes::ByMotion { pixels: 1.0, max_gap: 1 }, Answers::Depth))
            .is_none()
    );
    for refused in [
        with(|c| c.stream.scale_frames = 0),
        with(|c| c.stream.window = 0),
        with(|c| c.stream.camera_iterations = 0),
        with(|c| c.keyframes = Keyframes::Every(0)),
        with(|c| c.stream.camera_iterations = usize::MAX),
        with(|c| c.keyframes = Keyframes::ByMotion { pixels: 1.0, max_gap: 0 }),
        with(|c| c.keyframes = Keyframes::ByMotion { pixels: f64::NAN, max_gap: 1 }),
        with(|c| (c.keyframes, c.answers) = (Keyframes::ByMotion { pixels: 1.0, max_gap: 1 }, Answers::Poses)),
    ] {
        assert!(refused.unwrap().contains("must"));
    }
}
