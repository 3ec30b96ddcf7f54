//! A session: one video, frames in and outputs out.

use std::sync::Arc;
use std::time::Instant;

use candle_core::Device;
use periplus_checkpoint::config::{Config, StreamSettings};
use periplus_frames::Frame;
use periplus_geometry::FrameOutput;
use periplus_model::{Model, Outputs, PassKind};

use crate::keyframes::KeyframeHistory;
use crate::network::Network;
use crate::{EngineError, Keyframes};

/// Settings of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionConfig {
    /// Scale frames, window, camera iterations, and what is retained of frames that leave the window.
    pub stream: StreamSettings,
    /// Which frames stay in the cache.
    pub keyframes: Keyframes,
    /// Which outputs to compute. If only the trajectory is needed, [`Outputs::Poses`] saves the time for depth.
    pub outputs: Outputs,
}

impl From<&Config> for SessionConfig {
    /// The settings that the checkpoint suggests, every frame a keyframe, all outputs.
    fn from(config: &Config) -> Self {
        Self { stream: config.stream.clone(), keyframes: Keyframes::Every(1), outputs: Outputs::All }
    }
}

/// Frame counts and memory of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionStats {
    /// Number of frames with an output.
    pub frames: usize,
    /// Number of frames kept in the cache, which is also the time index of the next frame.
    pub keyframes: usize,
    /// Frame pages of the key-value cache in use: one for each frame in the window.
    pub frame_pages_in_use: usize,
    /// Special tokens retained from frames that left the window.
    pub special_rows: usize,
    /// Bytes of the key-value cache, free pages included.
    pub cache_bytes: usize,
    /// Bytes of the camera head's cache.
    pub camera_bytes: usize,
}

/// A session for one video, made by [`crate::Engine::session`]. It may move from thread to thread between calls.
pub struct Session {
    network: Network,
    config: SessionConfig,
    phase: Phase,
    /// Frames with an output.
    frames: usize,
}

/// The phase of a session: before or after the scale pass.
pub(crate) enum Phase {
    /// Scale frames that have arrived. They go through the network together.
    Waiting(Vec<Frame>),
    /// The scale frames have run.
    Streaming {
        /// Width and height of all frames.
        size: (usize, usize),
        history: KeyframeHistory,
    },
}

impl Session {
    pub(crate) fn new(model: Arc<Model>, config: SessionConfig) -> Result<Self, EngineError> {
        config.keyframes.check(config.outputs).map_err(EngineError::Setting)?;
        let network = Network::new(model, &config)?;
        Ok(Self { network, config, phase: Phase::Waiting(Vec::new()), frames: 0 })
    }

    /// Takes the next frame. Returns nothing until the scale frames are complete, then the outputs of all of them, then
    /// one output per frame.
    ///
    /// # Errors
    /// If the frame is not made of whole patches, has an invalid viewport, or has another size than the frames before
    /// it; if an output is not finite; if the device fails. The frame is then dropped and the session is unchanged.
    pub fn push(&mut self, frame: Frame) -> Result<Vec<FrameOutput>, EngineError> {
        self.check(&frame)?;
        match &mut self.phase {
            Phase::Streaming { .. } => Ok(vec![self.stream(&frame)?]),
            Phase::Waiting(waiting) if waiting.len() + 1 < self.config.stream.scale_frames => {
                waiting.push(frame);
                Ok(Vec::new())
            }
            Phase::Waiting(waiting) => {
                let frames: Vec<&Frame> = waiting.iter().chain([&frame]).collect();
                let (phase, outputs) = self.network.scale_pass(&frames)?;
                Ok(self.begin(phase, outputs))
            }
        }
    }

    /// Ends the video. If it has fewer frames than the scale frames, they run now. Frames may still be pushed
    /// afterwards, as in a longer video.
    ///
    /// # Errors
    /// If an output is not finite, or the device fails. The frames then still wait.
    pub fn finish(&mut self) -> Result<Vec<FrameOutput>, EngineError> {
        match &self.phase {
            Phase::Waiting(waiting) if !waiting.is_empty() => {
                let (phase, outputs) = self.network.scale_pass(&waiting.iter().collect::<Vec<_>>())?;
                Ok(self.begin(phase, outputs))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Removes all frames, to start a new video. Keeps the allocated memory. The next video may have another picture
    /// size.
    pub fn reset(&mut self) {
        self.network.state.reset();
        self.phase = Phase::Waiting(Vec::new());
        self.frames = 0;
    }

    /// Frame counts and memory.
    pub fn stats(&self) -> SessionStats {
        let cache = self.network.state.stats();
        SessionStats {
            frames: self.frames,
            keyframes: cache.frames,
            frame_pages_in_use: cache.frame_pages_in_use,
            special_rows: cache.special_rows,
            cache_bytes: cache.bytes,
            camera_bytes: self.network.state.camera_bytes(),
        }
    }

    /// The device of the session. On a GPU, it has its own [CUDA stream](crate::device::cuda_stream).
    pub fn device(&self) -> &Device {
        self.network.state.device()
    }

    /// The settings of the session.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// Checks a frame on arrival, so that an invalid one does not wait with others.
    fn check(&self, frame: &Frame) -> Result<(), EngineError> {
        let patch = self.network.model.config().patch_size;
        let (width, height) = size(frame);
        let (waiting, expected) = match &self.phase {
            Phase::Waiting(frames) => (frames.len(), frames.first().map(size)),
            Phase::Streaming { size, .. } => (0, Some(*size)),
        };
        let index = self.frames + waiting;
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

    /// The scale frames have run.
    fn begin(&mut self, phase: Phase, outputs: Vec<FrameOutput>) -> Vec<FrameOutput> {
        self.phase = phase;
        self.frames = outputs.len();
        outputs
    }

    fn stream(&mut self, frame: &Frame) -> Result<FrameOutput, EngineError> {
        let Phase::Streaming { history, .. } = &mut self.phase else {
            return Err(EngineError::Shape("a frame was streamed before the scale frames".into()));
        };
        let started = Instant::now();
        let rule = self.config.keyframes;
        let kind = if history.foreseen(rule) { PassKind::Keyframe } else { PassKind::Candidate };
        let (pass, mut results) = self.network.run(&[frame], kind, self.frames)?;
        let result = results.pop().ok_or_else(|| EngineError::Shape("no frame".into()))?;
        let keyframe = history.decide(rule, &result.pose_encoding, result.depth_map.as_ref());
        if keyframe {
            pass.accept()?;
        }
        history.record(keyframe, result.pose_encoding);
        let index = self.frames;
        self.frames += 1;
        Ok(result.output(frame, index, keyframe, started.elapsed()))
    }
}

/// Width and height of the network's picture.
pub(crate) fn size(frame: &Frame) -> (usize, usize) {
    (frame.pixels.width(), frame.pixels.height())
}
