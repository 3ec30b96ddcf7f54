//! The state of one video, and a frame's way through the network.

use std::sync::Arc;

use candle_core::{DType, Device, IndexOp, Tensor};
use periplus_cache::{CacheStats, KvCache, Pass};
use periplus_kernels::device::{enter, queue};
use periplus_kernels::rotary::Rotary;
use periplus_kernels::tokens::concat;

use crate::camera_head::CameraCache;
use crate::config::StreamSettings;
use crate::dense_head::Planes;
use crate::position::{Grid, Rotary3d, rotary_2d};
use crate::trace::Trace;
use crate::{Model, ModelError, Observer};

/// State of one video: caches, time, and the tables that its picture size asks for.
///
/// Frames are counted in cached ones: the scale frames take 0.., each keyframe the next number.
///
/// On a card it has a [`queue`](periplus_kernels::device::queue) of its own, so that streams do not wait for each other, and may go from
/// thread to thread.
pub struct Stream {
    model: Arc<Model>,
    device: Device,
    outputs: Outputs,
    cache: KvCache,
    camera: CameraCache,
    /// How many scale frames this stream began with; `None` before they are accepted.
    scale_frames: Option<usize>,
    tables: Option<Tables>,
}

/// What depends on the picture size alone.
struct Tables {
    grid: Grid,
    start: Tensor,
    within_frame: Rotary,
    across_frames: Rotary3d,
    /// `None` where the head is not asked.
    depth_planes: Option<Planes>,
    point_planes: Option<Planes>,
}

/// What is wanted of every frame. Each says all that the ones before it say; what is not wanted is not computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outputs {
    /// Pose and intrinsics.
    Poses,
    /// Also depth and its confidence for every pixel.
    Depth,
    /// All that the checkpoint can say: with a point head also points in the world and their confidence.
    #[default]
    All,
}

/// What the network says of the frames pushed together. On a card it is being computed when `push` returns, and reading it waits.
/// A thread that has not used the card calls [`enter`] before it drops what it has not read.
#[derive(Debug, Clone)]
pub struct Prediction {
    /// `[frames, 9]`: camera-to-world translation, quaternion x y z w, vertical and horizontal field of view in radians.
    pub pose_enc: Tensor,
    /// `[frames, height, width]` both: depth along the camera's z axis, in the unit of the stream, and its confidence, 1
    /// and above. `None` where only [`Outputs::Poses`] are wanted.
    pub depth: Option<(Tensor, Tensor)>,
    /// `[frames, height, width, 3]` and `[frames, height, width]`: points in the world and their confidence. From a
    /// checkpoint with a point head, where [`Outputs::All`] is wanted.
    pub world_points: Option<(Tensor, Tensor)>,
}

impl Stream {
    /// The state of a new video, to be run through `model` for `outputs`.
    ///
    /// # Errors
    /// Settings out of range; a card that has no memory left for another [`queue`](periplus_kernels::device::queue).
    pub fn new(model: Arc<Model>, settings: &StreamSettings, outputs: Outputs) -> Result<Self, ModelError> {
        settings.validate()?;
        let device = queue(&model.device)?;
        let network = model.config();
        let cache = settings.cache(network.num_special());
        let head_dim = network.embed_dim / network.num_heads;
        Ok(Self {
            cache: KvCache::new(cache, network.depth, network.num_heads, head_dim, model.dtype, &device)?,
            camera: model.camera_head.cache(settings.camera_iterations, &device)?,
            device,
            model,
            outputs,
            scale_frames: None,
            tables: None,
        })
    }

    /// The network that it runs through.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Where it computes: on a card, its own [`queue`](periplus_kernels::device::queue), in which everything that it outputs is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Frames, pages and bytes in use.
    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Bytes of the camera head's caches.
    pub fn camera_bytes(&self) -> usize {
        self.camera.bytes()
    }

    /// Runs frames `[frames, height, width, 3]` (bytes, RGB) through the network: all scale frames together at first, one
    /// frame at a time after that.
    ///
    /// A keyframe sees the window that it will be part of; any other frame sees all that is cached, and itself (scale
    /// frames see each other in full, whatever is said of them). Either leaves no trace unless [`Stream::accept`]
    /// is called before the next push.
    ///
    /// Frames from another device than [`Stream::device`] go through main memory; those of a card must have been waited for
    /// if they are in a queue of another thread's (as Candle's own device has them).
    ///
    /// # Errors
    /// Frames of the wrong shape, size or number; a device that fails or has no memory left. The stream is then as it
    /// was before.
    pub fn push(&mut self, frames: &Tensor, keyframe: bool) -> Result<Prediction, ModelError> {
        self.push_observed(frames, keyframe, None)
    }

    /// As [`Stream::push`], showing the tokens after each stage, and last the pose encodings, to `observer`.
    ///
    /// # Errors
    /// As [`Stream::push`], and those of the observer.
    pub fn push_observed(
        &mut self,
        frames: &Tensor,
        keyframe: bool,
        observer: Option<Observer<'_>>,
    ) -> Result<Prediction, ModelError> {
        enter(&self.device);
        self.abandon();
        let prediction = self.run(frames, keyframe, &mut Trace(observer));
        if prediction.is_err() {
            self.abandon();
        }
        prediction
    }

    /// Keeps the frames just pushed: later ones will see them.
    ///
    /// # Errors
    /// If there are none to keep, or a device fails.
    pub fn accept(&mut self) -> Result<(), ModelError> {
        enter(&self.device);
        self.cache.commit()?;
        self.camera.keep();
        self.scale_frames.get_or_insert(self.cache.frames());
        Ok(())
    }

    /// Forgets the clip and keeps the memory.
    pub fn reset(&mut self) {
        enter(&self.device);
        self.cache.reset();
        self.camera.reset();
        self.scale_frames = None;
    }

    /// Frames on the stream's own device.
    fn own(&self, frames: &Tensor) -> Result<Tensor, ModelError> {
        let foreign = frames.device().is_cuda() && !frames.device().same_device(&self.device);
        // Nothing orders two queues, so frames of another come by way of main memory.
        let frames = if foreign { &frames.to_device(&Device::Cpu)? } else { frames };
        Ok(frames.to_device(&self.device)?)
    }

    /// Takes back what the last push left open.
    fn abandon(&mut self) {
        self.camera.discard();
        // An error only says that nothing is open.
        let _ = self.cache.rollback();
    }

    fn run(&mut self, frames: &Tensor, keyframe: bool, trace: &mut Trace) -> Result<Prediction, ModelError> {
        let model = Arc::clone(&self.model);
        let grid = model.grid(frames)?;
        let count = frames.dim(0)?;
        let pass = match (self.scale_frames, keyframe) {
            (None, _) => Pass::Scale(count),
            (Some(_), _) if count != 1 => return Err(ModelError::FrameCount(count)),
            (Some(_), true) => Pass::Keyframe,
            (Some(_), false) => Pass::Candidate,
        };
        let frames = self.own(frames)?;
        let time = self.cache.frames();
        let scale_frames = self.scale_frames.unwrap_or(count);
        let tables = match &mut self.tables {
            Some(tables) if tables.grid == grid => tables,
            Some(tables) if self.scale_frames.is_some() => return Err(model.other_size(tables.grid, grid)),
            tables => tables.insert(Tables::new(&model, grid, self.outputs, &self.device)?),
        };

        let x = {
            let _span = tracing::trace_span!("patch_embed").entered();
            let patches = model.patch_embed.forward(&frames, grid, &tables.start)?;
            trace.note(|| "patch_tokens".into(), &patches)?;
            model.aggregator.tokens(&patches, time, scale_frames)?
        };
        self.cache.begin(pass, x.dim(1)?)?;
        let across_frames = tables.across_frames.at(time, count)?;
        let taps = model.aggregator.forward(&x, &tables.within_frame, &across_frames, &mut self.cache, trace)?;
        let pose_enc = {
            let _span = tracing::trace_span!("camera_head").entered();
            let last = taps.last().ok_or_else(|| candle_core::Error::Msg("the aggregator has no taps".into()))?;
            let first = (0..count).map(|frame| last.i((frame, 0..1))).collect::<Result<Vec<_>, _>>()?;
            model.camera_head.forward(&concat(&first, &self.device)?, &mut self.camera)?
        };
        trace.note(|| "pose_enc".into(), &pose_enc)?;
        let depth = match &tables.depth_planes {
            Some(planes) => {
                let _span = tracing::trace_span!("depth_head").entered();
                let (depth, confidence) = model.depth_head.forward(&taps, grid, planes)?;
                Some((depth.squeeze(3)?, confidence))
            }
            None => None,
        };
        let world_points = match (&model.point_head, &tables.point_planes) {
            (Some(head), Some(planes)) => {
                let _span = tracing::trace_span!("point_head").entered();
                Some(head.forward(&taps, grid, planes)?)
            }
            _ => None,
        };
        Ok(Prediction { pose_enc, depth, world_points })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        enter(&self.device);
        // The weights may be freed next, if nothing else uses them, in another queue than this one, which reads them. A card that has
        // failed reads nothing any more.
        let _ = self.device.synchronize();
    }
}

impl Tables {
    fn new(model: &Model, grid: Grid, outputs: Outputs, device: &Device) -> Result<Self, ModelError> {
        let depth_head = (outputs >= Outputs::Depth).then_some(&model.depth_head);
        let point_head = model.point_head.as_ref().filter(|_| outputs == Outputs::All);
        let special = model.config.num_special();
        let head_dim = model.config.embed_dim / model.config.num_heads;
        Ok(Self {
            grid,
            start: model.patch_embed.start(grid, device)?,
            within_frame: rotary_2d(grid, special, head_dim, device)?,
            across_frames: Rotary3d::new(grid, special, device)?,
            depth_planes: depth_head.map(|head| head.planes(grid, device)).transpose()?,
            point_planes: point_head.map(|head| head.planes(grid, device)).transpose()?,
        })
    }
}

impl Model {
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
