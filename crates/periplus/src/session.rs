//! One video on its way through the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use periplus_frames::Frame;
use periplus_geometry::{DepthMap, FrameOutput, PoseEncoding, Raster, WorldPoints};
use periplus_kernels::download::Download;
use periplus_kernels::tokens::concat;
use periplus_model::config::{Config, StreamSettings};
use periplus_model::{Model, Outputs, Prediction, Stream};

use crate::keyframes::KeyframeHistory;
use crate::{EngineError, Keyframes};

/// How a session streams.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionConfig {
    /// Scale frames, window, passes of the camera head, and what is retained of frames that leave the window.
    pub stream: StreamSettings,
    /// Which frames stay in the cache.
    pub keyframes: Keyframes,
    /// What is wanted of every frame: where only the trajectory is, [`Outputs::Poses`] saves the time for depth.
    pub outputs: Outputs,
}

impl From<&Config> for SessionConfig {
    /// What the checkpoint suggests, every frame a keyframe, all outputs.
    fn from(config: &Config) -> Self {
        Self { stream: config.stream.clone(), keyframes: Keyframes::Every(1), outputs: Outputs::All }
    }
}

/// What a session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionStats {
    /// Frames answered.
    pub frames: usize,
    /// Frames that were kept; the time index of the next.
    pub keyframes: usize,
    /// Pages of the key-value cache in use: one for each frame that is visible in full.
    pub frame_pages_in_use: usize,
    /// Rows retained of frames that left the window.
    pub special_rows: usize,
    /// Bytes of the key-value cache, free pages included.
    pub cache_bytes: usize,
    /// Bytes of the camera head's caches.
    pub camera_bytes: usize,
}

/// The state of one video. Make it with [`crate::Engine::session`]. It may go from thread to thread between its calls.
pub struct Session {
    stream: Stream,
    config: SessionConfig,
    phase: Phase,
    download: Download,
    answered: usize,
}

/// Where in its video a session is.
enum Phase {
    /// Scale frames that have come so far; they go in together.
    Waiting(Vec<Frame>),
    /// They have been answered.
    Streaming {
        /// Width and height of all frames.
        size: (usize, usize),
        history: KeyframeHistory,
    },
}

impl Session {
    pub(crate) fn new(model: Arc<Model>, config: SessionConfig) -> Result<Self, EngineError> {
        config.keyframes.check(config.outputs).map_err(EngineError::Setting)?;
        let stream = Stream::new(model, &config.stream, config.outputs)?;
        Ok(Self { stream, config, phase: Phase::Waiting(Vec::new()), download: Download::default(), answered: 0 })
    }

    /// Takes the next frame. Returns nothing until the scale frames are complete, then all of them, then one answer
    /// per frame.
    ///
    /// # Errors
    /// A frame that is not made of whole patches, whose viewport is impossible or of another picture, or that is of another
    /// size than the first; an answer that is not a number; a device that fails. The frame is then dropped and the session is as it was before.
    pub fn push(&mut self, frame: Frame) -> Result<Vec<FrameOutput>, EngineError> {
        self.check(&frame)?;
        let waiting = match &mut self.phase {
            Phase::Waiting(waiting) => waiting,
            Phase::Streaming { .. } => return Ok(vec![self.streamed(&frame)?]),
        };
        waiting.push(frame);
        if waiting.len() < self.config.stream.scale_frames {
            return Ok(Vec::new());
        }
        let answered = self.scale_pass();
        if let (Err(_), Phase::Waiting(waiting)) = (&answered, &mut self.phase) {
            waiting.pop();
        }
        answered
    }

    /// Says that no more frames come: a clip shorter than the scale frames is answered with those there are. (Should more
    /// come, they follow as if it had been long enough.)
    ///
    /// # Errors
    /// An answer that is not a number, or a device that fails. The frames then wait on.
    pub fn finish(&mut self) -> Result<Vec<FrameOutput>, EngineError> {
        self.scale_pass()
    }

    /// Forgets the clip and keeps the memory. The next clip may have another size.
    pub fn reset(&mut self) {
        self.stream.reset();
        self.phase = Phase::Waiting(Vec::new());
        self.answered = 0;
    }

    /// What the session holds.
    pub fn stats(&self) -> SessionStats {
        let cache = self.stream.stats();
        SessionStats {
            frames: self.answered,
            keyframes: cache.frames,
            frame_pages_in_use: cache.frame_pages_in_use,
            special_rows: cache.special_rows,
            cache_bytes: cache.bytes,
            camera_bytes: self.stream.camera_bytes(),
        }
    }

    /// Where it computes: on a card, a [`queue`](crate::device::queue) of its own, for [`Moment`](crate::device::Moment)s in its work.
    pub fn device(&self) -> &Device {
        self.stream.device()
    }

    /// How it streams.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// Checks what the network would refuse, before the frame waits with others.
    fn check(&self, frame: &Frame) -> Result<(), EngineError> {
        let patch = self.stream.model().config().patch_size;
        let (width, height) = size(frame);
        let (waiting, expected) = match &self.phase {
            Phase::Waiting(frames) => (frames.len(), frames.first().map(size)),
            Phase::Streaming { size, .. } => (0, Some(*size)),
        };
        let index = self.answered + waiting;
        if width == 0 || height == 0 || width % patch != 0 || height % patch != 0 {
            return Err(EngineError::Patches { index, width, height, patch });
        }
        if !frame.viewport.is_possible() {
            return Err(EngineError::NoViewport { index });
        }
        let [viewport_width, viewport_height] = frame.viewport.network;
        if (viewport_width as usize, viewport_height as usize) != (width, height) {
            return Err(EngineError::Viewport { index, width, height, viewport_width, viewport_height });
        }
        match expected {
            Some((expected_width, expected_height)) if (expected_width, expected_height) != (width, height) => {
                Err(EngineError::FrameSize { index, expected_width, expected_height, width, height })
            }
            _ => Ok(()),
        }
    }

    /// Outputs the frames that wait, if any do. They are accepted once their outputs have been read, so that an error on
    /// the way leaves no trace.
    fn scale_pass(&mut self) -> Result<Vec<FrameOutput>, EngineError> {
        let frames = match &self.phase {
            Phase::Waiting(frames) if !frames.is_empty() => frames,
            _ => return Ok(Vec::new()),
        };
        let started = Instant::now();
        let tensors = frames.iter().map(|frame| pixels(frame, self.stream.device())).collect::<Result<Vec<_>, _>>()?;
        let prediction = self.stream.push(&concat(&tensors, self.stream.device())?, true)?;
        let Host(numbers) = Host::read(&prediction, &mut self.download)?;
        let elapsed = started.elapsed() / u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let outputs = frames
            .iter()
            .zip(numbers)
            .enumerate()
            .map(|(i, (frame, numbers))| numbers.output(frame, self.answered + i, true, elapsed))
            .collect::<Result<Vec<_>, _>>()?;
        self.stream.accept()?;
        self.answered += outputs.len();
        if let (Some(frame), Some(output)) = (frames.last(), outputs.last()) {
            let history = KeyframeHistory::after_scale_frames(output.pose_encoding);
            self.phase = Phase::Streaming { size: size(frame), history };
        }
        Ok(outputs)
    }

    fn streamed(&mut self, frame: &Frame) -> Result<FrameOutput, EngineError> {
        let Phase::Streaming { history, .. } = &mut self.phase else {
            return Err(EngineError::Shape("a frame was streamed before the scale frames".into()));
        };
        let started = Instant::now();
        let rule = self.config.keyframes;
        let tensor = pixels(frame, self.stream.device())?;
        let prediction = self.stream.push(&tensor, history.foreseen(rule))?;
        let Host(mut numbers) = Host::read(&prediction, &mut self.download)?;
        let numbers = numbers.pop().ok_or_else(|| EngineError::Shape("no frame".into()))?;
        let mut output = numbers.output(frame, self.answered, false, Duration::ZERO)?;
        output.keyframe = history.decide(rule, &output.pose_encoding, output.depth_map.as_ref());
        if output.keyframe {
            self.stream.accept()?;
        }
        history.record(output.keyframe, output.pose_encoding);
        self.answered += 1;
        output.elapsed = started.elapsed();
        Ok(output)
    }
}

/// Width and height of the picture that the network sees.
fn size(frame: &Frame) -> (usize, usize) {
    (frame.pixels.width(), frame.pixels.height())
}

/// `[1, height, width, 3]` bytes.
fn pixels(frame: &Frame, device: &Device) -> Result<Tensor, EngineError> {
    let (width, height) = size(frame);
    let _span = tracing::trace_span!("copies").entered();
    Ok(Tensor::from_slice(frame.pixels.values().as_flattened(), (1, height, width, 3), device)?)
}

/// A prediction copied to main memory, frame by frame.
struct Host(Vec<FrameNumbers>);

/// What the network says of one frame.
struct FrameNumbers {
    pose: Vec<f32>,
    /// Depth and its confidence.
    depth: Option<(Vec<f32>, Vec<f32>)>,
    /// Points and their confidence.
    world_points: Option<(Vec<f32>, Vec<f32>)>,
}

impl Host {
    fn read(prediction: &Prediction, download: &mut Download) -> Result<Self, EngineError> {
        let Prediction { pose_enc, depth, world_points } = prediction;
        let mut parts = vec![pose_enc];
        parts.extend(depth.iter().chain(world_points).flat_map(|(values, confidence)| [values, confidence]));
        let frames = pose_enc.dim(0)?;
        let tensors = (0..frames)
            .flat_map(|i| parts.iter().map(move |part| part.narrow(0, i, 1)))
            .collect::<Result<Vec<_>, _>>()?;
        let _span = tracing::trace_span!("copies").entered();
        let mut numbers = download.read(&tensors)?.into_iter();
        let frame = || {
            let pose = numbers.next()?;
            let mut pair = |_: &(Tensor, Tensor)| numbers.next().zip(numbers.next());
            let depth = depth.as_ref().and_then(&mut pair);
            let world_points = world_points.as_ref().and_then(&mut pair);
            Some(FrameNumbers { pose, depth, world_points })
        };
        Ok(Self(std::iter::from_fn(frame).take(frames).collect()))
    }
}

impl FrameNumbers {
    /// The answer for `frame`, which is number `index` of the stream.
    fn output(
        self,
        frame: &Frame,
        index: usize,
        keyframe: bool,
        elapsed: Duration,
    ) -> Result<FrameOutput, EngineError> {
        let pose = <[f32; 9]>::try_from(self.pose.as_slice())
            .map_err(|_| EngineError::Shape(format!("a pose of {} numbers", self.pose.len())))?;
        if pose.iter().any(|number| !number.is_finite()) {
            return Err(EngineError::NotFinite { index });
        }
        let pose_encoding = PoseEncoding(pose);
        let [width, height] = frame.viewport.network;
        let size = size(frame);
        Ok(FrameOutput {
            index,
            number: frame.number,
            name: frame.name.clone(),
            timestamp: frame.timestamp,
            keyframe,
            pose_encoding,
            camera_to_world: pose_encoding.camera_to_world(),
            intrinsics: pose_encoding.intrinsics(width, height),
            viewport: frame.viewport,
            depth_map: match self.depth {
                Some((depth, confidence)) => {
                    Some(DepthMap { depth: raster(size, depth)?, confidence: raster(size, confidence)? })
                }
                None => None,
            },
            world_points: match self.world_points {
                Some((points, confidence)) => {
                    let (points, _) = points.as_chunks::<3>();
                    Some(WorldPoints { points: raster(size, points.to_vec())?, confidence: raster(size, confidence)? })
                }
                None => None,
            },
            pixels: Arc::clone(&frame.pixels),
            elapsed,
        })
    }
}

/// A value for every pixel.
fn raster<T>((width, height): (usize, usize), values: Vec<T>) -> Result<Raster<T>, EngineError> {
    let count = values.len();
    Raster::new(width, height, values)
        .ok_or_else(|| EngineError::Shape(format!("{count} values for {width} x {height} pixels")))
}
