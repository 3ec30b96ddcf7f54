//! What can go wrong between a frame and its output.

use periplus_model::ModelError;

/// Why an engine could not be made, or a frame not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The network: its weights, its memory, its input.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A frame that does not divide into patches.
    #[error("frame {index} of {width} x {height} pixels is not made of whole patches of {patch} x {patch}")]
    Patches {
        /// Number of the frame in the stream.
        index: usize,
        /// Its width.
        width: usize,
        /// Its height.
        height: usize,
        /// Side of a patch.
        patch: usize,
    },
    /// A frame whose viewport is none.
    #[error("frame {index} has a viewport that cannot be: sizes and scales must be above 0, and all numbers finite")]
    NoViewport {
        /// Number of the frame in the stream.
        index: usize,
    },
    /// A frame whose viewport is of another picture.
    #[error(
        "frame {index} is {width} x {height} pixels and its viewport is of {viewport_width} x {viewport_height}: both are of the \
         picture that the network sees"
    )]
    Viewport {
        /// Number of the frame in the stream.
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
    /// A frame of another size than those before it.
    #[error(
        "frame {index} is {width} x {height} pixels and those before it {expected_width} x \
         {expected_height}: a session keeps one size, reset it to start a new clip"
    )]
    FrameSize {
        /// Number of the frame in the stream.
        index: usize,
        /// Width of the frames before it.
        expected_width: usize,
        /// Height of the frames before it.
        expected_height: usize,
        /// Width of this one.
        width: usize,
        /// Height of this one.
        height: usize,
    },
    /// An output that is NaN or infinite: the weights are damaged, or too large for the dtype they are stored in.
    #[error("the {what} of frame {index} is not a finite number: the checkpoint is damaged, or needs float32")]
    NotFinite {
        /// Number of the frame in the stream.
        index: usize,
        /// Which output.
        what: &'static str,
    },
    /// A setting of the session that cannot be.
    #[error("{0}")]
    Setting(&'static str),
    /// The network answered in a shape that it never should.
    #[error("the output has an unexpected shape: {0}")]
    Shape(String),
}

/// What fails around the network fails as it does within.
impl From<candle_core::Error> for EngineError {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}
