//! Pairs of blocks over all frames: one within each frame, one over the cache.

use candle_core::{IndexOp, Tensor};
use periplus_kernels::attention::{paged_attention, self_attention};
use periplus_kernels::rotary::Rotary;
use periplus_kernels::tokens::{concat, join_channels};

use crate::ModelError;
use crate::block::RotaryBlock;
use crate::forward::OpenVideo;
use crate::layers::Loader;
use crate::trace::Trace;
use periplus_checkpoint::config::Config;

/// The special tokens and the pairs of blocks.
pub(crate) struct Aggregator {
    /// Camera, register and scale token: two variants each, `[2, n, channels]`.
    camera_token: Tensor,
    register_token: Tensor,
    scale_token: Tensor,
    frame_blocks: Vec<RotaryBlock>,
    global_blocks: Vec<RotaryBlock>,
    taps: [usize; 4],
}

impl Aggregator {
    pub(crate) fn load(at: &Loader, config: &Config) -> Result<Self, ModelError> {
        let blocks = |name: &str| {
            let at = at.pp(name);
            (0..config.depth).map(|i| RotaryBlock::load(&at.pp(i), config.num_heads)).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            camera_token: at.small("camera_token")?.i(0)?,
            register_token: at.small("register_token")?.i(0)?,
            scale_token: at.small("scale_token")?.i(0)?,
            frame_blocks: blocks("frame_blocks")?,
            global_blocks: blocks("global_blocks")?,
            taps: config.taps,
        })
    }

    /// Prepends the special tokens to patches `[frames, patches, channels]`. `times` has, for each frame, its time in its
    /// video and the number of scale frames there.
    ///
    /// Camera and register tokens have a variant for the first frame of a video, the scale token one for all scale frames.
    pub(crate) fn tokens(&self, patches: &Tensor, times: &[(usize, usize)]) -> Result<Tensor, ModelError> {
        let frames = patches.dim(0)?;
        let mut rows = Vec::with_capacity(4 * frames);
        for (i, &(time, scale_frames)) in times.iter().enumerate() {
            let (opening, scale) = (usize::from(time >= 1), usize::from(time >= scale_frames));
            rows.push(self.camera_token.i(opening)?);
            rows.push(self.register_token.i(opening)?);
            rows.push(self.scale_token.i(scale)?);
            rows.push(patches.i(i)?);
        }
        let x = concat(&rows, patches.device())?;
        let (tokens, channels) = (x.dim(0)? / frames.max(1), x.dim(1)?);
        Ok(x.reshape((frames, tokens, channels))?)
    }

    /// Runs tokens x `[frames, tokens, channels]` through all pairs, in place. Each video's frames are written to its own open
    /// pass and see what that pass sees. Returns the taps, `[frames, tokens, 2 channels]` each: frame-block and global-block
    /// output side by side.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        within_frame: &Rotary,
        videos: &mut [OpenVideo],
        trace: &mut Trace,
    ) -> Result<Vec<Tensor>, ModelError> {
        let mut taps = Vec::with_capacity(self.taps.len());
        for (i, (frame_block, global_block)) in self.frame_blocks.iter().zip(&self.global_blocks).enumerate() {
            {
                let _span = tracing::trace_span!("frame_block", i).entered();
                for frame in 0..x.dim(0)? {
                    let x = x.narrow(0, frame, 1)?;
                    let attended = self_attention(&frame_block.qkv(&x, within_frame)?)?;
                    frame_block.finish(&x, &attended)?;
                }
            }
            trace.note(|| format!("frame_blocks.{i}"), x)?;
            let within = if self.taps.contains(&i) { Some(x.copy()?) } else { None };
            {
                let _span = tracing::trace_span!("global_block", i).entered();
                let qkv = global_block.qkv_unrotated(x)?;
                for video in &mut *videos {
                    let queries = qkv.narrow(0, video.first, video.count)?.flatten(0, 1)?;
                    global_block.append(&queries, &video.across_frames, &mut video.pages, i)?;
                    let attended = {
                        let _span = tracing::trace_span!("global_attention", i).entered();
                        paged_attention(&queries, video.pages.pools(i)?, video.pages.table())?
                    };
                    let x = x.narrow(0, video.first, video.count)?;
                    global_block.finish(&x, &attended.reshape(x.shape())?)?;
                }
            }
            trace.note(|| format!("global_blocks.{i}"), x)?;
            if let Some(within) = within {
                taps.push(join_channels(&within, x)?);
            }
        }
        Ok(taps)
    }
}
