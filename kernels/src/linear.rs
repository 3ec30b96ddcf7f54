//! Linear layers.
use candle_core::{Result, Tensor};

/// What follows a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// x * (1 + erf(x / sqrt 2)) / 2.
    Gelu,
    /// max(x, 0).
    Relu,
}

/// `activation(x Wᵀ + b)`: x `[.., in]`, weight `[out, in]`, bias `[out]` -> `[.., out]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor>;

/// `y += x Wᵀ + b` in place: y `[.., out]`. LayerScale is folded into W and b when weights are loaded.
pub fn linear_add(y: &Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()>;
