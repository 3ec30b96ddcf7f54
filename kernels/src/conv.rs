//! Convolutions over `[frames, height, width, channels]`.

/// weight `[out, k, k, in]`, bias `[out]`. Zero padding.
pub fn conv2d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, stride: usize, padding: usize, activation: Activation) -> Result<Tensor>;
/// y += conv(x) + b, stride 1, in place.
pub fn conv2d_add(y: &Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, padding: usize) -> Result<()>;
/// The rearrangement that ends a transposed convolution whose stride is its kernel size:
/// `[frames, h, w, k * k * c]` (as `[k, k, c]`) -> `[frames, h * k, w * k, c]`.
pub fn depth_to_space(x: &Tensor, k: usize) -> Result<Tensor>;
/// max(x, 0) in place.
pub fn relu_in_place(x: &Tensor) -> Result<()>;
/// x[f, y, x, :] += concat(u[x, :], v[y, :]) in place: u `[w, c / 2]`, v `[h, c / 2]`.
pub fn add_plane(x: &Tensor, u: &Tensor, v: &Tensor) -> Result<()>;
