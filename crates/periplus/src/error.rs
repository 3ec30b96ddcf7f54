//! Errors of engines and sessions.

use periplus_model::ModelError;

/// Why an engine could not be loaded, or a frame has no output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An error of the network: its weights, its memory, its input.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A frame whose width or height is not a multiple of the patch size.
    #[error("frame {index} of {width} x {height} pixels is not made of whole patches of {patch} x {patch}")]
    Patches {
        /// Index of the frame's output.
        index: usize,
        /// Width of the frame.
        width: usize,
        /// Height of the frame.
        height: usize,
        /// Side of a patch.
        patch: usize,
    },
    /// A frame with an invalid viewport.
    #[error("frame {index} has an invalid viewport: sizes and scales must be above 0, and all values finite")]
    NoViewport {
        /// Index of the frame's output.
        index: usize,
    },
    /// A frame whose viewport is for another size.
    #[error(
        "frame {index} is {width} x {height} pixels, but its viewport is for {viewport_width} x {viewport_height}: both must have \
         the size of the network's picture"
    )]
    Viewport {
        /// Index of the frame's output.
        index: usize,
        /// Width of its pixels.
        width: usize,
        /// Height of its pixels.
        height: usize,
        /// Width of its viewport.
        viewport_width: u32,
        /// Height of its viewport.
        viewport_height: u32,
    },
    /// A frame with another size than the frames before it.
    #[error(
        "frame {index} is {width} x {height} pixels, but the frames before it are {expected_width} x \
         {expected_height}: all frames of a session must have one size, reset it to start a new clip"
    )]
    FrameSize {
        /// Index of the frame's output.
        index: usize,
        /// Width of the frames before it.
        expected_width: usize,
        /// Height of the frames before it.
        expected_height: usize,
        /// Width of this frame.
        width: usize,
        /// Height of this frame.
        height: usize,
    },
    /// An output that is NaN or infinite: the weights are damaged, or too large for the dtype they are stored in.
    #[error("the {what} of frame {index} is NaN or infinite: the checkpoint is damaged, or needs float32")]
    NotFinite {
        /// Index of the frame's output.
        index: usize,
        /// Name of the output.
        what: &'static str,
    },
    /// An invalid setting of a session.
    #[error("{0}")]
    Setting(&'static str),
    /// An output of the network has the wrong shape. This is a bug.
    #[error("the output has an unexpected shape: {0}")]
    Shape(String),
}

/// Candle errors outside of the network are reported like those inside.
impl From<candle_core::Error> for EngineError {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}
