//! A look at what passes between the stages, for finding the first wrong one.

use candle_core::Tensor;

use crate::ModelError;

/// Called with a stage's name (of the tensors that produced it) and its tokens.
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
