//! The forward pass of the network.

use candle_core::{DType, Device, IndexOp, Tensor};
use periplus_cache::{OpenPass, PassKind};
use periplus_kernels::device::bind_to_thread;
use periplus_kernels::rotary::Rotary;
use periplus_kernels::tokens::concat;

use crate::camera_head::CameraCache;
use crate::position::Grid;
use crate::trace::Trace;
use crate::{Model, ModelError, Observer, Outputs, Prediction, VideoState, Workspace};

/// A video in a batch: its state, and the kind of its pass.
pub struct Video<'a> {
    /// The state of the video.
    pub state: &'a mut VideoState,
    /// The kind of pass. The scale pass names its number of frames; other passes have one.
    pub kind: PassKind,
}

/// Frames that have run and are not yet part of their video. [`Pass::accept`] keeps them; dropping the pass leaves the state as
/// it was.
#[must_use = "a pass that is dropped leaves no trace"]
pub struct Pass<'a> {
    pages: OpenPass<'a>,
    prediction: Prediction,
}

impl Pass<'_> {
    /// The outputs for the frames.
    pub fn prediction(&self) -> &Prediction {
        &self.prediction
    }

    /// Keeps the frames, so that later frames see them.
    ///
    /// # Errors
    /// When the device fails. The state is then as it was before the pass.
    pub fn accept(self) -> Result<Prediction, ModelError> {
        bind_to_thread(self.prediction.pose_enc.device());
        self.pages.commit()?;
        Ok(self.prediction)
    }
}

/// A video whose pass is open.
pub(crate) struct OpenVideo<'a> {
    pub(crate) pages: OpenPass<'a>,
    camera: &'a mut CameraCache,
    /// Frames cached before this pass.
    time: usize,
    /// Its frames in the batch.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Rotary angles of its frames in the global blocks.
    pub(crate) across_frames: Rotary,
}

impl Model {
    /// Runs frames `[frames, height, width, 3]` (bytes, RGB) of one video through the network.
    ///
    /// Frames from another device than the state's are copied through main memory. Frames on a GPU must have been waited for
    /// if another CUDA stream computes them.
    ///
    /// # Errors
    /// Frames of the wrong shape, size or number, a pass out of order, a state of another model or CUDA stream than the
    /// workspace's, a device that fails or has no memory left. The state is then unchanged.
    pub fn forward<'a>(
        &self,
        workspace: &mut Workspace,
        frames: &Tensor,
        video: Video<'a>,
        outputs: Outputs,
    ) -> Result<Pass<'a>, ModelError> {
        let mut passes = self.forward_batch(workspace, frames, vec![video], outputs, None)?;
        passes.pop().ok_or(ModelError::FrameCount { expected: 1, found: 0 })
    }

    /// As [`Model::forward`], for several videos of one picture size at once: `frames` are those of the first video, then
    /// those of the second, and so on. Layers that look at one frame alone run over the whole batch; global attention and the
    /// camera head see each video's own state. On the CPU the outputs are those of each video alone, bit for bit.
    ///
    /// `observer` is called with the tokens after each stage, and last with the pose encodings.
    ///
    /// # Errors
    /// As [`Model::forward`], and those of the observer. All states are then unchanged.
    pub fn forward_batch<'a>(
        &self,
        workspace: &mut Workspace,
        frames: &Tensor,
        videos: Vec<Video<'a>>,
        outputs: Outputs,
        observer: Option<Observer<'_>>,
    ) -> Result<Vec<Pass<'a>>, ModelError> {
        let trace = &mut Trace(observer);
        bind_to_thread(workspace.device());
        let device = workspace.device().clone();
        let grid = self.check(frames, &videos, &device)?;
        let frames = on_device(frames, &device)?;
        let tables = workspace.tables(self, grid, outputs)?;

        let x = {
            let _span = tracing::trace_span!("patch_embed").entered();
            let patches = self.patch_embed.forward(&frames, grid, &tables.start)?;
            trace.note(|| "patch_tokens".into(), &patches)?;
            self.aggregator.tokens(&patches, &times(&videos))?
        };
        let mut first = 0;
        let mut open = Vec::with_capacity(videos.len());
        for Video { state, kind } in videos {
            let (time, count) = (state.frames(), kind.frames());
            if time == 0 {
                state.grid = Some(grid);
            }
            let VideoState { pages, camera, .. } = state;
            let (pages, across_frames) = (pages.begin(kind, x.dim(1)?)?, tables.across_frames.at(time, count)?);
            open.push(OpenVideo { pages, camera, time, first, count, across_frames });
            first += count;
        }
        let taps = self.aggregator.forward(&x, &tables.within_frame, &mut open, trace)?;
        let pose_enc = {
            let _span = tracing::trace_span!("camera_head").entered();
            let last = taps.last().ok_or_else(|| candle_core::Error::Msg("the aggregator has no taps".into()))?;
            let poses = open.iter_mut().map(|video| {
                let frames = video.first..video.first + video.count;
                let tokens = frames.map(|frame| last.i((frame, 0..1))).collect::<Result<Vec<_>, _>>()?;
                self.camera_head.forward(&concat(&tokens, &device)?, video.time, video.camera)
            });
            concat(&poses.collect::<Result<Vec<_>, _>>()?, &device)?
        };
        trace.note(|| "pose_enc".into(), &pose_enc)?;
        let depth = match &tables.depth_planes {
            Some(planes) if outputs >= Outputs::Depth => {
                let _span = tracing::trace_span!("depth_head").entered();
                let mut depth = self.depth_head.forward(&taps, grid, planes)?;
                depth.values = depth.values.squeeze(3)?;
                Some(depth)
            }
            _ => None,
        };
        let world_points = match (&self.point_head, &tables.point_planes) {
            (Some(head), Some(planes)) if outputs >= Outputs::All => {
                let _span = tracing::trace_span!("point_head").entered();
                Some(head.forward(&taps, grid, planes)?)
            }
            _ => None,
        };
        let all = Prediction { pose_enc, depth, world_points };
        open.into_iter()
            .map(|OpenVideo { pages, first, count, .. }| Ok(Pass { pages, prediction: all.frames(first, count)? }))
            .collect()
    }

    /// Checks frames and states against each other. The grid of patches of the frames.
    fn check(&self, frames: &Tensor, videos: &[Video], device: &Device) -> Result<Grid, ModelError> {
        let grid = self.grid(frames)?;
        let (expected, found) = (videos.iter().map(|video| video.kind.frames()).sum(), frames.dim(0)?);
        if expected != found {
            return Err(ModelError::FrameCount { expected, found });
        }
        for Video { state, .. } in videos {
            if state.model != self.id {
                return Err(ModelError::OtherModel);
            }
            if !state.device.same_device(device) {
                return Err(ModelError::OtherStream);
            }
            if let Some(expected) = state.grid().filter(|&expected| expected != grid) {
                return Err(self.other_size(expected, grid));
            }
        }
        Ok(grid)
    }

    /// The grid of patches of `frames`.
    fn grid(&self, frames: &Tensor) -> Result<Grid, ModelError> {
        let patch = self.config.patch_size;
        match *frames.dims() {
            [count, height, width, 3]
                if frames.dtype() == DType::U8
                    && count > 0
                    && height >= patch
                    && width >= patch
                    && height % patch == 0
                    && width % patch == 0 =>
            {
                Ok(Grid { rows: height / patch, cols: width / patch })
            }
            _ => Err(ModelError::FrameShape { patch, found: format!("{:?} of {:?}", frames.dims(), frames.dtype()) }),
        }
    }

    fn other_size(&self, expected: Grid, found: Grid) -> ModelError {
        let patch = self.config.patch_size;
        let size = |grid: Grid| format!("{} x {}", grid.cols * patch, grid.rows * patch);
        ModelError::FrameSize { expected: size(expected), found: size(found) }
    }
}

/// For each frame of the batch, its time and the number of scale frames of its video.
fn times(videos: &[Video]) -> Vec<(usize, usize)> {
    let mut times = Vec::new();
    for Video { state, kind } in videos {
        let scale_frames = state.pages.scale_frames().unwrap_or(kind.frames());
        times.extend((state.frames()..).take(kind.frames()).map(|time| (time, scale_frames)));
    }
    times
}

/// Frames on the CUDA stream that computes.
fn on_device(frames: &Tensor, device: &Device) -> Result<Tensor, ModelError> {
    let foreign = frames.device().is_cuda() && !frames.device().same_device(device);
    // Nothing orders two CUDA streams, so frames of another one come through main memory.
    let frames = if foreign { &frames.to_device(&Device::Cpu)? } else { frames };
    Ok(frames.to_device(device)?)
}
