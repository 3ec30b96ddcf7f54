//! Observing the tensors between the stages, to find the first stage that is wrong.

use candle_core::Tensor;

use crate::ModelError;

/// Called with a stage's name and what it produced: `patch_tokens` (`[frames, patches, channels]`), `frame_blocks.N` and
/// `global_blocks.N` (`[frames, tokens, channels]`, special tokens first), float32, and last `pose_enc` (`[frames, 9]`).
///
/// The next block writes over the tokens in place: copy (`Tensor::copy`) what you want to keep, since a clone shares their memory.
pub type Observer<'a> = &'a mut dyn FnMut(&str, &Tensor) -> candle_core::Result<()>;

/// An observer, or none.
pub(crate) struct Trace<'a>(pub(crate) Option<Observer<'a>>);

impl Trace<'_> {
    pub(crate) fn note(&mut self, name: impl FnOnce() -> String, tokens: &Tensor) -> Result<(), ModelError> {
        match &mut self.0 {
            Some(observer) => Ok(observer(&name(), tokens)?),
            None => Ok(()),
        }
    }
}
