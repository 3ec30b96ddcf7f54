//! Bilinear resampling with aligned corners.
/// x `[frames, h, w, c]` -> `[frames, height, width, c]`; corners map to corners.
pub fn bilinear(x: &Tensor, height: usize, width: usize) -> Result<Tensor>;
