//! Layer normalisation over the last dimension.
/// x `[.., c]`, weight and bias `[c]`.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor>;
