//! What can go wrong.

use candle_core::DType;
use periplus_units::Bytes;

/// Why an operation on the cache failed. A failed operation has no visible effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size that must be positive is 0.
    #[error("the {what} of the cache must be at least 1, not 0")]
    Zero {
        /// Which size.
        what: &'static str,
    },
    /// Pools hold float32, bfloat16 or float16.
    #[error("the cache cannot store {dtype:?}; use f32, bf16 or f16")]
    UnsupportedDType {
        /// The requested dtype.
        dtype: DType,
    },
    /// The scale pass starts a clip, but the cache is not empty.
    #[error("the scale pass cannot begin because {frames} frames are cached; reset the cache first")]
    ScalePassNotFirst {
        /// Frames cached.
        frames: usize,
    },
    /// The cache is empty, and the pass is not the scale pass.
    #[error("no frame is cached yet; begin the clip with its scale pass")]
    ScalePassMissing,
    /// Rows to keep that were never written.
    #[error("{kept} rows cannot be kept because only {written} were written")]
    NoSuchRows {
        /// Rows to keep.
        kept: usize,
        /// Rows written.
        written: usize,
    },
    /// A snapshot that this cache cannot restore.
    #[error("the snapshot does not fit this cache: {0}")]
    Snapshot(&'static str),
    /// Nothing was stored yet, so there are no pools.
    #[error("nothing was stored in the cache yet")]
    Empty,
    /// The frame has another number of tokens than those of the clip.
    #[error(
        "a frame of {got} tokens cannot join frames of {expected} tokens; reset the cache before a clip of another size"
    )]
    PageSize {
        /// Tokens of a frame of this clip.
        expected: usize,
        /// Tokens of the new frame.
        got: usize,
    },
    /// The frame has fewer tokens than a frame has special tokens.
    #[error("a frame of {page_size} tokens has no room for {special_tokens} special tokens")]
    NoRoomForSpecialTokens {
        /// Tokens of the frame.
        page_size: usize,
        /// Special tokens of a frame.
        special_tokens: usize,
    },
    /// The layer does not exist.
    #[error("the cache has {layers} layers and none with number {layer}")]
    NoSuchLayer {
        /// The requested layer, from 0.
        layer: usize,
        /// Layers of the cache.
        layers: usize,
    },
    /// The layer was already written in this pass.
    #[error("layer {layer} is already written; write each layer once in a pass")]
    WrittenTwice {
        /// The layer, from 0.
        layer: usize,
    },
    /// The layer was not written in this pass.
    #[error("layer {layer} is not written; write every layer before the commit")]
    NotWritten {
        /// The layer, from 0.
        layer: usize,
    },
    /// The queries, keys and values have a wrong shape.
    #[error("queries, keys and values have shape {got:?} where the cache needs {expected:?}")]
    Shape {
        /// `[tokens, 3, heads, head_dim]`.
        expected: Vec<usize>,
        /// The shape given.
        got: Vec<usize>,
    },
    /// The pools cannot grow to the size needed.
    #[error("there is no memory for another {} of keys and values: use smaller pictures, a smaller window or a 16-bit dtype", Bytes(*bytes as u64))]
    OutOfMemory {
        /// How much the pools would have grown.
        bytes: usize,
    },
    /// A GPU has no memory left for a pool.
    #[error(
        "the GPU has no memory left for {} of keys and values: use smaller pictures, a smaller window, a 16-bit dtype or the CPU",
        Bytes(*bytes as u64)
    )]
    GpuFull {
        /// Size of the pool. Each layer has two.
        bytes: usize,
    },
    /// The number of pages or rows would overflow.
    #[error("the clip is too long for the cache; reset it and begin a new clip")]
    TooLong,
    /// The tensor library or the device failed.
    #[error("the device failed to store keys and values: {0}")]
    Tensor(#[from] candle_core::Error),
}

/// A result with the [`Error`] of this crate.
pub type Result<T> = std::result::Result<T, Error>;
