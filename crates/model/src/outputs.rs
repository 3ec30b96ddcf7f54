//! The outputs of the network for each frame, and which of them to compute.

use candle_core::Tensor;

use crate::ModelError;

/// Which outputs to compute for every frame. Each variant includes those before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outputs {
    /// Pose and intrinsics.
    Poses,
    /// Also depth and its confidence for every pixel.
    Depth,
    /// Everything that the checkpoint can compute: with a point head also points in the world and their confidence.
    #[default]
    All,
}

/// The network's outputs for frames of one video.
///
/// On a GPU the computation may still run when [`Model::forward`](crate::Model::forward) returns. Reading the outputs waits for it.
#[derive(Debug, Clone)]
pub struct Prediction {
    /// `[frames, 9]`: camera-to-world translation, quaternion x y z w, vertical and horizontal field of view in radians.
    pub pose_enc: Tensor,
    /// Depth along the camera's z axis, in the unit of the video: values are `[frames, height, width]`. `None` with
    /// [`Outputs::Poses`].
    pub depth: Option<DenseOutput>,
    /// Points in the world: values are `[frames, height, width, 3]`. Only with a point head and [`Outputs::All`].
    pub world_points: Option<DenseOutput>,
}

/// An output for every pixel.
#[derive(Debug, Clone)]
pub struct DenseOutput {
    /// `[frames, height, width]` or `[frames, height, width, 3]`.
    pub values: Tensor,
    /// `[frames, height, width]`: confidence, 1 and above.
    pub confidence: Tensor,
    /// `[frames]`: how many values and confidences of the frame are NaN or infinite.
    pub not_finite: Tensor,
}

impl Prediction {
    /// The outputs of `count` frames from `first` on.
    pub(crate) fn frames(&self, first: usize, count: usize) -> Result<Self, ModelError> {
        let dense = |dense: &Option<DenseOutput>| dense.as_ref().map(|dense| dense.frames(first, count)).transpose();
        Ok(Self {
            pose_enc: self.pose_enc.narrow(0, first, count)?,
            depth: dense(&self.depth)?,
            world_points: dense(&self.world_points)?,
        })
    }
}

impl DenseOutput {
    fn frames(&self, first: usize, count: usize) -> Result<Self, ModelError> {
        Ok(Self {
            values: self.values.narrow(0, first, count)?,
            confidence: self.confidence.narrow(0, first, count)?,
            not_finite: self.not_finite.narrow(0, first, count)?,
        })
    }
}
