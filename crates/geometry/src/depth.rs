//! Depth evaluation: absolute relative error under one common scale.

/// The result of [`depth_error`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthError {
    /// The factor that multiplies the estimate: the median of truth / estimate.
    pub scale: f64,
    /// Absolute relative error: the mean over pixels of |scale * estimate - truth| / truth.
    pub abs_rel: f64,
}

/// Compares the depths of a whole clip, given as (estimate, truth) per pixel, with one scale for all.
///
/// Pixels whose estimate or truth is 0, negative or not finite are ignored. `None` if no pixels remain. Uses eight
/// bytes of memory per pixel.
pub fn depth_error(pixels: impl IntoIterator<Item = (f32, f32)>) -> Option<DepthError> {
    let known = |depth: f32| depth.is_finite() && depth > 0.0;
    let mut ratios: Vec<f64> = pixels
        .into_iter()
        .filter(|&(estimate, truth)| known(estimate) && known(truth))
        .map(|(estimate, truth)| f64::from(truth) / f64::from(estimate))
        .collect();
    let scale = median(&mut ratios)?;
    let errors = ratios.iter().map(|ratio| (scale / ratio - 1.0).abs());
    Some(DepthError { scale, abs_rel: errors.sum::<f64>() / ratios.len() as f64 })
}

/// The median as in NumPy: the middle value, or the mean of the two middle ones. `None` if `values` is empty. Reorders
/// `values`.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    let even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = if even { below.iter().copied().max_by(f64::total_cmp) } else { None };
    Some(lower.map_or(upper, |lower| f64::midpoint(lower, upper)))
}
