//! Behaviour of sessions: order of outputs, errors that leave a session unchanged, reset, sharing of an engine.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod common;

use std::thread;

use common::{engine, frame, run};
use periplus::{
    DType, Device, Engine, EngineError, Frame, FrameOutput, Keyframes, ModelError, Outputs, SessionConfig, Viewport,
    Weights,
};

/// The outputs without their times.
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

#[test]
fn a_refused_frame_leaves_the_session_as_it_was() {
    let engine = engine(DType::F32);
    let expected = run(&engine, (0..4).map(|i| frame(28, 42, i)));
    let mut session = engine.session(SessionConfig::from(engine.config())).unwrap();
    let mut outputs = Vec::new();
    for i in 0..4 {
        assert!(matches!(session.push(frame(30, 42, 9)), Err(EngineError::Patches { patch: 14, .. })));
        let elsewhere = Frame { viewport: Viewport::identity(280, 420), ..frame(28, 42, 9) };
        assert!(matches!(session.push(elsewhere), Err(EngineError::Viewport { width: 28, viewport_width: 280, .. })));
        for scale in [0.0, -1.0, f64::NAN] {
            let viewport = Viewport { scale: [scale, 1.0], ..Viewport::identity(28, 42) };
            let error = session.push(Frame { viewport, ..frame(28, 42, 9) }).unwrap_err();
            assert!(matches!(error, EngineError::NoViewport { .. }), "{scale}: {error}");
        }
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
    // The errors of rounding to 8 and 11 significant bits; the camera head amplifies them. A wrong layer has an error
    // of 1.
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
fn weights_are_not_stored_in_any_type() {
    let weights = Weights::synthetic(engine(DType::F32).config().clone(), 3).unwrap();
    for dtype in [DType::F64, DType::U8] {
        let error = Engine::load(&weights, dtype, &Device::Cpu).err().unwrap();
        assert!(matches!(error, EngineError::Model(ModelError::DType(found)) if found == dtype), "{error}");
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
        with(|c| (c.keyframes, c.outputs) = (Keyframes::ByMotion { pixels: 1.0, max_gap: 1 }, Outputs::Depth))
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
        with(|c| (c.keyframes, c.outputs) = (Keyframes::ByMotion { pixels: 1.0, max_gap: 1 }, Outputs::Poses)),
    ] {
        assert!(refused.unwrap().contains("must"));
    }
}
