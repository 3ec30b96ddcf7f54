//! Types that operations share with their CPU and CUDA code: activations, RoPE pairing, sizes of a convolution.

/// The function applied to the outputs of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x.
    Identity,
    /// x * (1 + erf(x / sqrt 2)) / 2.
    Gelu,
    /// max(x, 0).
    Relu,
    /// x / (1 + exp(-x)).
    Silu,
}

/// The function that turns a raw output of a dense head into a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueActivation {
    /// exp(x): depth.
    Exp,
    /// sign(x) (exp(|x|) - 1): points.
    InverseLog,
}

/// Which two channels of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// 2-D, split halves: the head is cut in two halves (row, column); within each, channel j pairs with j + half / 2.
    /// Columns of the angle table: the row angles (dim / 4), then the column angles (dim / 4).
    SplitHalves,
    /// Channel 2 j pairs with 2 j + 1.
    Interleaved,
}

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) frames: usize,
    /// Height, width and channels of the input.
    pub(crate) input: [usize; 3],
    /// Height, width and channels of the output.
    pub(crate) output: [usize; 3],
    /// Height and width of the kernel.
    pub(crate) k: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
}

impl Window {
    /// The shape of the output: `[frames, height, width, channels]`.
    pub(crate) fn shape(&self) -> [usize; 4] {
        let [height, width, channels] = self.output;
        [self.frames, height, width, channels]
    }
}
