//! Inference for a session: upload of pixels, the forward pass, readback of results.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use periplus_frames::Frame;
use periplus_geometry::{DepthMap, FrameOutput, PoseEncoding, Raster, WorldPoints};
use periplus_kernels::device::cuda_stream;
use periplus_kernels::readback::Readback;
use periplus_kernels::tokens::concat;
use periplus_model::{DenseOutput, Model, Outputs, Pass, PassKind, Prediction, Video, VideoState, Workspace};

use crate::keyframes::KeyframeHistory;
use crate::session::{Phase, size};
use crate::{EngineError, SessionConfig};

/// The network, and the state of one video in it.
pub(crate) struct Network {
    // Dropped before the weights, which its CUDA stream may still read.
    pub(crate) state: VideoState,
    workspace: Workspace,
    readback: Readback,
    outputs: Outputs,
    pub(crate) model: Arc<Model>,
}

/// The network's results for one frame.
pub(crate) struct FrameResult {
    pub(crate) pose_encoding: PoseEncoding,
    pub(crate) depth_map: Option<DepthMap>,
    world_points: Option<WorldPoints>,
}

impl Network {
    pub(crate) fn new(model: Arc<Model>, config: &SessionConfig) -> Result<Self, EngineError> {
        let device = cuda_stream(model.device()).map_err(|error| EngineError::Model(error.into()))?;
        Ok(Self {
            state: VideoState::new(&model, &config.stream, &device)?,
            workspace: Workspace::new(&device),
            readback: Readback::default(),
            outputs: config.outputs,
            model,
        })
    }

    /// Runs the scale frames, which start the video, and keeps them in the cache.
    pub(crate) fn scale_pass(&mut self, frames: &[&Frame]) -> Result<(Phase, Vec<FrameOutput>), EngineError> {
        let started = Instant::now();
        let (pass, results) = self.run(frames, PassKind::Scale(frames.len()), 0)?;
        pass.accept()?;
        let (Some(frame), Some(last)) = (frames.last(), results.last()) else {
            return Err(EngineError::Shape("no frame".into()));
        };
        let history = KeyframeHistory::after_scale_frames(last.pose_encoding);
        let phase = Phase::Streaming { size: size(frame), history };
        let elapsed = started.elapsed() / u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let outputs = results.into_iter().zip(frames).enumerate();
        Ok((phase, outputs.map(|(index, (result, frame))| result.output(frame, index, true, elapsed)).collect()))
    }

    /// Runs frames. `index` is that of the first output. The frames become part of the video when the pass is accepted.
    ///
    /// # Errors
    /// If a result is not finite, or the device fails.
    pub(crate) fn run(
        &mut self,
        frames: &[&Frame],
        kind: PassKind,
        index: usize,
    ) -> Result<(Pass<'_>, Vec<FrameResult>), EngineError> {
        let device = self.state.device().clone();
        let tensors = frames.iter().map(|frame| pixels(frame, &device)).collect::<Result<Vec<_>, _>>()?;
        let video = Video { state: &mut self.state, kind };
        let pass = self.model.forward(&mut self.workspace, &concat(&tensors, &device)?, video, self.outputs)?;
        let read = read(pass.prediction(), &mut self.readback)?;
        if read.len() != frames.len() {
            return Err(EngineError::Shape(format!("{} frames instead of {}", read.len(), frames.len())));
        }
        let results = read.into_iter().zip(frames).enumerate();
        let results = results.map(|(i, (values, frame))| values.result(frame, index + i)).collect::<Result<_, _>>()?;
        Ok((pass, results))
    }
}

/// Uploads the pixels of a frame: `[1, height, width, 3]` bytes.
fn pixels(frame: &Frame, device: &Device) -> Result<Tensor, EngineError> {
    let (width, height) = size(frame);
    let _span = tracing::trace_span!("copies").entered();
    Ok(Tensor::from_slice(frame.pixels.values().as_flattened(), (1, height, width, 3), device)?)
}

/// The results for one frame in main memory.
struct FrameValues {
    pose: Vec<f32>,
    depth: Option<DenseValues>,
    world_points: Option<DenseValues>,
}

/// Values, their confidence, and whether any of them is not finite.
struct DenseValues {
    values: Vec<f32>,
    confidence: Vec<f32>,
    not_finite: bool,
}

/// Copies a prediction to main memory, frame by frame.
fn read(prediction: &Prediction, readback: &mut Readback) -> Result<Vec<FrameValues>, EngineError> {
    let Prediction { pose_enc, depth, world_points } = prediction;
    let mut parts = vec![pose_enc];
    let dense = depth.iter().chain(world_points);
    parts.extend(dense.flat_map(|DenseOutput { values, confidence, not_finite }| [values, confidence, not_finite]));
    let frames = pose_enc.dim(0)?;
    let tensors =
        (0..frames).flat_map(|i| parts.iter().map(move |part| part.narrow(0, i, 1))).collect::<Result<Vec<_>, _>>()?;
    let _span = tracing::trace_span!("copies").entered();
    let mut values = readback.read(&tensors)?.into_iter();
    let frame = || {
        let pose = values.next()?;
        let mut dense = |_: &DenseOutput| {
            let (values, confidence, not_finite) = (values.next()?, values.next()?, values.next()?);
            Some(DenseValues { values, confidence, not_finite: not_finite != [0.0] })
        };
        let depth = depth.as_ref().and_then(&mut dense);
        let world_points = world_points.as_ref().and_then(&mut dense);
        Some(FrameValues { pose, depth, world_points })
    };
    Ok(std::iter::from_fn(frame).take(frames).collect())
}

impl FrameValues {
    /// Checks the values of `frame`, whose output has this index.
    fn result(self, frame: &Frame, index: usize) -> Result<FrameResult, EngineError> {
        let pose = <[f32; 9]>::try_from(self.pose.as_slice())
            .map_err(|_| EngineError::Shape(format!("a pose of {} values", self.pose.len())))?;
        let not_finite = |what| Err(EngineError::NotFinite { index, what });
        if pose.iter().any(|value| !value.is_finite()) {
            return not_finite("pose");
        }
        let pose_encoding = PoseEncoding(pose);
        if self.depth.as_ref().is_some_and(|depth| depth.not_finite) {
            return not_finite("depth");
        }
        if self.world_points.as_ref().is_some_and(|points| points.not_finite) {
            return not_finite("world points");
        }
        let size = size(frame);
        let depth_map = |DenseValues { values, confidence, .. }| {
            Ok::<_, EngineError>(DepthMap { depth: raster(size, values)?, confidence: raster(size, confidence)? })
        };
        let points = |DenseValues { values, confidence, .. }: DenseValues| {
            let points = raster(size, values.as_chunks::<3>().0.to_vec())?;
            Ok::<_, EngineError>(WorldPoints { points, confidence: raster(size, confidence)? })
        };
        Ok(FrameResult {
            pose_encoding,
            depth_map: self.depth.map(depth_map).transpose()?,
            world_points: self.world_points.map(points).transpose()?,
        })
    }
}

impl FrameResult {
    /// The output for `frame`.
    pub(crate) fn output(self, frame: &Frame, index: usize, keyframe: bool, elapsed: Duration) -> FrameOutput {
        let [width, height] = frame.viewport.network;
        FrameOutput {
            index,
            number: frame.number,
            name: frame.name.clone(),
            timestamp: frame.timestamp,
            keyframe,
            pose_encoding: self.pose_encoding,
            camera_to_world: self.pose_encoding.camera_to_world(),
            intrinsics: self.pose_encoding.intrinsics(width, height),
            viewport: frame.viewport,
            depth_map: self.depth_map,
            world_points: self.world_points,
            pixels: Arc::clone(&frame.pixels),
            elapsed,
        }
    }
}

/// A raster of `values`, if there is one value per pixel.
fn raster<T>((width, height): (usize, usize), values: Vec<T>) -> Result<Raster<T>, EngineError> {
    let count = values.len();
    Raster::new(width, height, values)
        .ok_or_else(|| EngineError::Shape(format!("{count} values for {width} x {height} pixels")))
}
