//! The state of one video, and a frame's way through the network.

use candle_core::{DType, IndexOp, Tensor};
use periplus_cache::{CacheConfig, CacheStats, KvCache, Pass};
use periplus_kernels::rotary::Rotary;

use crate::camera_head::CameraCache;
use crate::config::StreamSettings;
use crate::position::{Grid, Rotary3d, rotary_2d};
use crate::trace::Trace;
use crate::{Model, ModelError, Observer};

/// State of one video: caches, time, and the tables that its picture size asks for.
///
/// Frames are counted in cached ones: the scale frames take 0.., each keyframe the next number.
pub struct Stream {
    settings: StreamSettings,
    cache: KvCache,
    camera: CameraCache,
    /// How many scale frames this stream began with; `None` before the first push.
    scale_frames: Option<usize>,
    tables: Option<Tables>,
    /// A frame has been run that may still be accepted.
    candidate: bool,
}

/// What depends on the picture size alone.
struct Tables {
    grid: Grid,
    positions: Tensor,
    within_frame: Rotary,
    across_frames: Rotary3d,
}

/// What the network says of the frames pushed together.
#[derive(Debug, Clone)]
pub struct Prediction {
    /// `[frames, 9]`: camera-to-world translation, quaternion x y z w, vertical and horizontal field of view in radians.
    pub pose_enc: Tensor,
    /// `[frames, height, width]`, along the camera's z axis, in the unit of the stream.
    pub depth: Tensor,
    /// `[frames, height, width]`, 1 and above.
    pub depth_conf: Tensor,
    /// `[frames, height, width, 3]` and `[frames, height, width]`: points in the world and their confidence, from a
    /// checkpoint with a point head.
    pub world_points: Option<(Tensor, Tensor)>,
}

impl Stream {
    pub(crate) fn new(model: &Model, settings: StreamSettings) -> Result<Self, ModelError> {
        let network = model.config();
        let cache = CacheConfig {
            window: settings.window,
            retention: settings.keep_special,
            pin_scale_frames: settings.include_scale_frames,
            special_tokens: network.num_special(),
        };
        let head_dim = network.embed_dim / network.num_heads;
        if settings.camera_iterations == 0 {
            return Err(ModelError::Setting { name: "camera iterations" });
        }
        Ok(Self {
            cache: KvCache::new(cache, network.depth, network.num_heads, head_dim, model.dtype, &model.device)?,
            camera: model.camera_head.cache(settings.camera_iterations, &model.device)?,
            settings,
            scale_frames: None,
            tables: None,
            candidate: false,
        })
    }

    /// The settings it runs with.
    pub fn settings(&self) -> &StreamSettings {
        &self.settings
    }

    /// Cached frames so far: the time index that the next frame gets.
    pub fn time(&self) -> usize {
        self.cache.frames()
    }

    /// Frames, pages and bytes in use.
    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Bytes of the camera head's caches.
    pub fn camera_bytes(&self) -> usize {
        self.camera.bytes()
    }

    /// Keeps the frame just pushed as a candidate, as it was written.
    ///
    /// # Errors
    /// If the last push was no candidate, or has been accepted already.
    pub fn accept(&mut self) -> Result<(), ModelError> {
        if !self.candidate {
            return Err(ModelError::NothingToAccept);
        }
        self.cache.commit()?;
        self.camera.keep();
        self.candidate = false;
        Ok(())
    }

    /// Forgets the clip and keeps the memory.
    pub fn reset(&mut self) {
        self.cache.reset();
        self.camera.reset();
        self.scale_frames = None;
        self.candidate = false;
    }

    /// Takes back whatever the last push left open.
    fn abandon(&mut self) {
        self.candidate = false;
        self.camera.discard();
        // An error only says that nothing is open.
        let _ = self.cache.rollback();
    }
}

impl Model {
    /// Runs frames `[frames, height, width, 3]` (bytes, RGB) through the network: all scale frames together on the
    /// first call, one frame at a time after that.
    ///
    /// A keyframe (the scale frames are) stays in the cache. Any other sees the cache and itself and leaves no trace,
    /// unless [`Stream::accept`] is called before the next push.
    ///
    /// # Errors
    /// Frames of the wrong shape, size or number; a device that fails or has no memory left. The stream is then as it was
    /// before.
    pub fn push(&self, stream: &mut Stream, frames: &Tensor, keyframe: bool) -> Result<Prediction, ModelError> {
        self.push_observed(stream, frames, keyframe, None)
    }

    /// As [`Model::push`], showing the tokens after each stage to `observer`.
    ///
    /// # Errors
    /// As [`Model::push`], and those of the observer.
    pub fn push_observed(
        &self,
        stream: &mut Stream,
        frames: &Tensor,
        keyframe: bool,
        observer: Option<Observer<'_>>,
    ) -> Result<Prediction, ModelError> {
        stream.abandon();
        let result = self.run(stream, frames, keyframe, &mut Trace(observer));
        match &result {
            Ok(_) if stream.candidate => {}
            Ok(_) => stream.camera.keep(),
            Err(_) => stream.abandon(),
        }
        result
    }

    fn run(
        &self,
        stream: &mut Stream,
        frames: &Tensor,
        keyframe: bool,
        trace: &mut Trace,
    ) -> Result<Prediction, ModelError> {
        let grid = self.grid(frames)?;
        let count = frames.dim(0)?;
        let first = stream.scale_frames.is_none();
        if !first && count != 1 {
            return Err(ModelError::FrameCount(count));
        }
        self.prepare(stream, grid)?;
        let Some(tables) = &stream.tables else {
            return Err(candle_core::Error::Msg("the tables of the picture size are missing".into()).into());
        };
        let pass = match (first, keyframe) {
            (true, _) => Pass::Scale(count),
            (false, true) => Pass::Keyframe,
            (false, false) => Pass::Candidate,
        };
        let time = stream.cache.frames();
        let tokens = self.config.num_special() + grid.patches();

        let x = {
            let _span = tracing::trace_span!("patch_embed").entered();
            let patches = self.patch_embed.forward(&frames.to_device(&self.device)?, grid, &tables.positions)?;
            trace.note(|| "patch_tokens".into(), &patches)?;
            self.aggregator.tokens(&patches, time, stream.scale_frames.unwrap_or(count))?
        };
        stream.cache.begin(pass, tokens)?;
        let across_frames = tables.across_frames.at(time, count, &self.device)?;
        let taps = self.aggregator.forward(&x, &tables.within_frame, &across_frames, &mut stream.cache, trace)?;
        let pose_enc = {
            let _span = tracing::trace_span!("camera_head").entered();
            let last = taps.last().ok_or_else(|| candle_core::Error::Msg("the aggregator has no taps".into()))?;
            self.camera_head.forward(&last.i((.., 0))?.contiguous()?, &mut stream.camera)?
        };
        let (depth, depth_conf) = {
            let _span = tracing::trace_span!("depth_head").entered();
            self.depth_head.forward(&taps, grid)?
        };
        let world_points = match &self.point_head {
            Some(head) => {
                let _span = tracing::trace_span!("point_head").entered();
                Some(head.forward(&taps, grid)?)
            }
            None => None,
        };
        let prediction = Prediction { pose_enc, depth: depth.squeeze(3)?, depth_conf, world_points };
        if pass == Pass::Candidate {
            stream.candidate = true;
        } else {
            stream.cache.commit()?;
        }
        if first {
            stream.scale_frames = Some(count);
        }
        Ok(prediction)
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

    /// Makes the tables for `grid`, unless they are there.
    fn prepare(&self, stream: &mut Stream, grid: Grid) -> Result<(), ModelError> {
        match &stream.tables {
            Some(tables) if tables.grid == grid => return Ok(()),
            Some(tables) if stream.scale_frames.is_some() => {
                let size = |grid: Grid| {
                    format!("{} x {}", grid.cols * self.config.patch_size, grid.rows * self.config.patch_size)
                };
                return Err(ModelError::FrameSize { expected: size(tables.grid), found: size(grid) });
            }
            _ => {}
        }
        let special = self.config.num_special();
        let head_dim = self.config.embed_dim / self.config.num_heads;
        stream.tables = Some(Tables {
            grid,
            positions: self.patch_embed.positions(grid)?,
            within_frame: rotary_2d(grid, special, head_dim, &self.device)?,
            across_frames: Rotary3d::new(grid, special),
        });
        Ok(())
    }
}
