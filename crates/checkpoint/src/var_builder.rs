//! Weights as a backend of Candle's `VarBuilder`.

use std::io;

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::{SimpleBackend, VarBuilder};

use crate::{CheckpointError, Weights};

impl Weights {
    /// The weights in the form that every Candle model takes. `dtype` and `device` are those of the model.
    ///
    /// Candle has one error type for all backends. [`CheckpointError::from_candle`] takes the error of this crate out of it.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> VarBuilder<'_> {
        VarBuilder::from_backend(Box::new(self), dtype, device.clone())
    }
}

impl SimpleBackend for &Weights {
    fn get(&self, shape: Shape, name: &str, _: candle_nn::Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if *tensor.shape() != shape {
            let error = candle_core::Error::UnexpectedShape {
                msg: format!("shape mismatch for {name}"),
                expected: shape,
                got: tensor.shape().clone(),
            };
            return Err(error);
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        // An I/O error is the one error of Candle that carries another error as a value.
        let tensor = Weights::get(self, name).map_err(|error| candle_core::Error::Io(io::Error::other(error)))?;
        tensor.to_dtype(dtype)?.to_device(device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        Weights::contains(self, name)
    }
}

impl CheckpointError {
    /// The checkpoint's own error, if `error` of a [`VarBuilder`] is one.
    ///
    /// # Errors
    /// `error` itself, if it is not.
    pub fn from_candle(error: candle_core::Error) -> std::result::Result<Self, candle_core::Error> {
        match error {
            candle_core::Error::Io(error) => error.downcast().map_err(candle_core::Error::Io),
            candle_core::Error::WithBacktrace { inner, backtrace } => Self::from_candle(*inner)
                .map_err(|inner| candle_core::Error::WithBacktrace { inner: Box::new(inner), backtrace }),
            other => Err(other),
        }
    }
}
