//! The state of a video: several videos in one batch, and states that are saved and restored.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::collections::HashMap;

use candle_core::{DType, Device, IndexOp, Tensor};
use periplus_checkpoint::Weights;
use periplus_model::{Model, ModelError, Outputs, PassKind, Prediction, Video, VideoState, Workspace};
use periplus_tests::Golden;

/// All outputs of the network for a pass, as bits.
fn bits(prediction: &Prediction) -> Vec<u32> {
    let dense = [&prediction.depth, &prediction.world_points].into_iter().flatten();
    let parts = [&prediction.pose_enc].into_iter().chain(dense.flat_map(|dense| [&dense.values, &dense.confidence]));
    parts.flat_map(|part| part.flatten_all().unwrap().to_vec1::<f32>().unwrap()).map(f32::to_bits).collect()
}

struct Bench {
    golden: Golden,
    model: Model,
    workspace: Workspace,
    frames: Tensor,
}

impl Bench {
    fn new(golden: &str, dtype: DType) -> Self {
        let golden = Golden::open(golden);
        let weights = Weights::synthetic(golden.config.clone(), golden.weights_seed()).unwrap();
        let model = Model::load(weights.var_builder(dtype, &Device::Cpu), weights.config()).unwrap();
        let (workspace, frames) = (Workspace::new(&Device::Cpu), golden.frames());
        Self { golden, model, workspace, frames }
    }

    fn state(&self) -> VideoState {
        VideoState::new(&self.model, &self.golden.config.stream, &Device::Cpu).unwrap()
    }

    fn scale_frames(&self) -> usize {
        self.golden.config.stream.scale_frames
    }

    /// The frames of a pass from `first` on. Starts again from the beginning when the golden has no more frames.
    fn frames(&self, first: usize, kind: PassKind) -> Tensor {
        let starts = self.frames.dim(0).unwrap() - kind.frames() + 1;
        self.frames.narrow(0, first % starts, kind.frames()).unwrap()
    }

    /// Runs frames that start at `first` and keeps them, except candidates.
    fn push(&mut self, state: &mut VideoState, first: usize, kind: PassKind) -> Vec<u32> {
        let frames = self.frames(first, kind);
        let pass = self.model.forward(&mut self.workspace, &frames, Video { state, kind }, Outputs::All).unwrap();
        let bits = bits(pass.prediction());
        if kind != PassKind::Candidate {
            pass.accept().unwrap();
        }
        bits
    }

    /// A video with `frames` cached frames that began with frame `offset` of the golden.
    fn video(&mut self, offset: usize, frames: usize) -> VideoState {
        let mut state = self.state();
        let scale = self.scale_frames();
        self.push(&mut state, offset, PassKind::Scale(scale));
        for i in scale..frames {
            self.push(&mut state, offset + i, PassKind::Keyframe);
        }
        state
    }
}

/// Four videos at different times in one batch, one of them with its scale pass and one with a candidate. The outputs
/// are equal to those of each video alone, bit for bit.
#[test]
fn four_videos_in_one_batch() {
    for (golden, dtype) in [("stream", DType::F32), ("stream-point-head", DType::BF16)] {
        let mut bench = Bench::new(golden, dtype);
        let scale = bench.scale_frames();
        let kinds = [PassKind::Keyframe, PassKind::Scale(scale), PassKind::Candidate, PassKind::Keyframe];
        let cached = [scale + 1, 0, scale + 5, scale];
        let next = [0, 1, 2, 3].map(|i| i + cached[i]);
        let states = |bench: &mut Bench| -> Vec<VideoState> {
            (0..4).map(|i| if cached[i] == 0 { bench.state() } else { bench.video(i, cached[i]) }).collect()
        };
        let mut alone = states(&mut bench);
        let mut together = states(&mut bench);
        // The second round shows that the first one left correct states.
        for round in 0..2 {
            let kinds = kinds.map(|kind| match kind {
                PassKind::Scale(_) if round == 1 => PassKind::Keyframe,
                kind => kind,
            });
            let first = |i: usize| match (round, i) {
                (0, _) => next[i],
                (_, 2) => next[2], // the candidate was dropped
                _ => next[i] + if i == 1 { scale } else { 1 },
            };
            let expected: Vec<_> = (0..4).map(|i| bench.push(&mut alone[i], first(i), kinds[i])).collect();

            let frames: Vec<_> = (0..4).map(|i| bench.frames(first(i), kinds[i])).collect();
            let frames = Tensor::cat(&frames, 0).unwrap();
            let videos = together.iter_mut().zip(kinds).map(|(state, kind)| Video { state, kind }).collect();
            let passes = bench.model.forward_batch(&mut bench.workspace, &frames, videos, Outputs::All, None).unwrap();
            let found: Vec<_> = passes.iter().map(|pass| bits(pass.prediction())).collect();
            assert!(found == expected, "{golden}, round {round}");
            for (pass, kind) in passes.into_iter().zip(kinds) {
                if kind != PassKind::Candidate {
                    pass.accept().unwrap();
                }
            }
            for (alone, together) in alone.iter().zip(&together) {
                assert_eq!(alone.record(), together.record());
            }
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let mut bench = Bench::new("stream", DType::F32);
    let mut other = Bench::new("stream", DType::F32);
    let (scale, frames) = (bench.scale_frames(), bench.frames.clone());
    let mut state = bench.video(0, scale);
    let mut foreign = other.video(0, scale);
    let before = state.record();
    let mut refused = |frames: &Tensor, videos: Vec<Video>| {
        bench.model.forward_batch(&mut bench.workspace, frames, videos, Outputs::Poses, None).err().unwrap()
    };
    let two = frames.narrow(0, 0, 2).unwrap();
    let error = refused(&two, vec![Video { state: &mut state, kind: PassKind::Keyframe }]);
    assert!(matches!(error, ModelError::FrameCount { expected: 1, found: 2 }), "{error}");
    let error = refused(
        &two,
        vec![
            Video { state: &mut state, kind: PassKind::Keyframe },
            Video { state: &mut foreign, kind: PassKind::Keyframe },
        ],
    );
    assert!(matches!(error, ModelError::OtherModel), "{error}");
    let error = refused(&two, vec![Video { state: &mut state, kind: PassKind::Scale(2) }]);
    assert!(error.to_string().contains("scale pass"), "{error}");
    // Half of the rows, so another picture size.
    let half = frames.i(0..1).unwrap().narrow(1, 0, 14).unwrap().contiguous().unwrap();
    let error = refused(&half, vec![Video { state: &mut state, kind: PassKind::Keyframe }]);
    assert!(matches!(error, ModelError::FrameSize { .. }), "{error}");
    assert_eq!(state.record(), before);
}

/// A state can be saved as JSON and named tensors at any point of a video; the restored video continues bit for bit.
#[test]
fn a_restored_video_continues_bit_for_bit() {
    for (golden, dtype) in [("stream", DType::F32), ("stream-keep-camera", DType::BF16)] {
        let mut bench = Bench::new(golden, dtype);
        let (scale, all) = (bench.scale_frames(), bench.frames.dim(0).unwrap());
        for saved_at in [0, scale, scale + 1, scale + 7] {
            let mut state = if saved_at == 0 { bench.state() } else { bench.video(0, saved_at) };
            let json = serde_json::to_string(&state.record()).unwrap();
            let tensors: HashMap<_, _> =
                state.tensors().unwrap().into_iter().map(|(name, tensor)| (name, tensor.copy().unwrap())).collect();
            let mut restored = bench.state();
            restored.restore(serde_json::from_str(&json).unwrap(), &tensors).unwrap();
            assert_eq!(restored.record(), state.record());
            let mut first = saved_at;
            while first < all.min(saved_at + 6) {
                let kind = match first {
                    0 => PassKind::Scale(scale),
                    _ if first % 3 == 0 => PassKind::Candidate,
                    _ => PassKind::Keyframe,
                };
                let expected = bench.push(&mut state, first, kind);
                assert!(bench.push(&mut restored, first, kind) == expected, "{golden}: {first} after {saved_at}");
                first += kind.frames();
            }
        }
        // An incomplete state is refused and changes nothing.
        let state = bench.video(0, scale + 2);
        for missing in ["frame_pages.0", "camera.0"] {
            let mut tensors: HashMap<_, _> = state.tensors().unwrap().into_iter().collect();
            tensors.remove(missing).unwrap();
            let mut other = bench.state();
            assert!(other.restore(state.record(), &tensors).is_err(), "{missing}");
            assert_eq!(other.record(), bench.state().record());
        }
    }
}
