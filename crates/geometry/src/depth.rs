//! How close a depth is to another one that is known up to a scale.

/// What [`depth_error`] finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthError {
    /// The one factor by which the estimate was multiplied: the median of truth / estimate.
    pub scale: f64,
    /// Absolute relative error: mean over the pixels of |scale * estimate - truth| / truth.
    pub abs_rel: f64,
}

/// Compares depths of a whole clip, given as (estimate, truth) per pixel, under one scale for all of them.
///
/// Pixels without a depth (zero, negative or not finite, in either) are left out; `None` if that leaves none. Keeps
/// eight bytes a pixel meanwhile.
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

/// The middle value, or the mean of the two middle ones, as NumPy's; `None` of nothing. Reorders `values`.
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
