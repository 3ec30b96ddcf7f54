//! Trajectory evaluation: Sim(3) alignment (Umeyama) and absolute trajectory error.

use nalgebra::{Isometry3, Matrix3, Matrix4, Point3, Quaternion, Similarity3, Translation3, UnitQuaternion, Vector3};

/// Why two trajectories cannot be aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AlignmentError {
    /// The trajectories differ in length, so it is not known which positions belong together.
    #[error("the trajectories have {estimate} and {truth} positions; give one position of each per frame")]
    LengthsDiffer {
        /// Number of positions of the estimate.
        estimate: usize,
        /// Number of positions of the truth.
        truth: usize,
    },
    /// There are fewer than three positions. A similarity takes any two positions to any two others, without error.
    #[error("{0} positions are too few to align; at least 3 are needed")]
    TooFew(usize),
    /// A coordinate is NaN or infinite, or its square overflows.
    #[error("a position is not finite or too large to align")]
    NotFinite,
    /// One trajectory does not move, or the two are not correlated, so there is no scale between them.
    #[error("one of the trajectories stands still, so there is no scale between the two")]
    NoScale,
}

/// The similarity that takes `estimate` to `truth` with the least squared error. Both are camera centres in world
/// coordinates, one per frame.
///
/// This is the closed-form solution of Umeyama, "Least-squares estimation of transformation parameters between two
/// point patterns" (PAMI 1991). The rotation is computed as a quaternion after Horn, "Closed-form solution of absolute
/// orientation using unit quaternions" (JOSA A 1987), which has the same optimum, is always a proper rotation, and
/// needs no special case for positions in a plane. If all positions are on a line, the rotation about the line is
/// arbitrary; residuals do not depend on it.
///
/// # Errors
/// If the lengths differ, there are fewer than three positions, one is not finite, or one trajectory stands still.
pub fn align(estimate: &[Point3<f64>], truth: &[Point3<f64>]) -> Result<Similarity3<f64>, AlignmentError> {
    let count = estimate.len();
    if count != truth.len() {
        return Err(AlignmentError::LengthsDiffer { estimate: count, truth: truth.len() });
    }
    if count < 3 {
        return Err(AlignmentError::TooFew(count));
    }
    let (from_mean, to_mean) = (mean(estimate), mean(truth));
    let mut covariance = Matrix3::zeros();
    let (mut from_variance, mut to_variance) = (0.0, 0.0);
    for (from, to) in estimate.iter().zip(truth) {
        let (from, to) = (from.coords - from_mean, to.coords - to_mean);
        covariance += from * to.transpose() / count as f64;
        from_variance += from.norm_squared() / count as f64;
        to_variance += to.norm_squared() / count as f64;
    }
    if !(f64::is_finite(from_variance) && f64::is_finite(to_variance)) {
        return Err(AlignmentError::NotFinite);
    }
    // Equal positions have a spread of rounding errors, about 1e-16 of their size.
    let stands_still = |variance: f64, mean: &Vector3<f64>| variance.sqrt() <= 1e-12 * mean.norm();
    if stands_still(from_variance, &from_mean) || stands_still(to_variance, &to_mean) {
        return Err(AlignmentError::NoScale);
    }
    let (rotation, correlation) = closest_rotation(&covariance).ok_or(AlignmentError::NotFinite)?;
    let scale = correlation / from_variance;
    if !(scale.is_finite() && scale > 0.0) {
        return Err(AlignmentError::NoScale);
    }
    let translation = to_mean - rotation * from_mean * scale;
    Ok(Similarity3::from_isometry(Isometry3::from_parts(Translation3::from(translation), rotation), scale))
}

/// Absolute trajectory error (ATE): the root mean square of the distances after [`align`], in the unit of `truth`.
///
/// # Errors
/// Those of [`align`].
pub fn absolute_trajectory_error(estimate: &[Point3<f64>], truth: &[Point3<f64>]) -> Result<f64, AlignmentError> {
    let similarity = align(estimate, truth)?;
    let squares = estimate.iter().zip(truth).map(|(from, to)| (similarity * from - to).norm_squared());
    Ok((squares.sum::<f64>() / truth.len() as f64).sqrt())
}

/// The length of the path through `positions`, in their unit. 0 for fewer than two positions.
pub fn path_length(positions: &[Point3<f64>]) -> f64 {
    positions.windows(2).map(|pair| (pair[1] - pair[0]).norm()).sum()
}

fn mean(points: &[Point3<f64>]) -> Vector3<f64> {
    points.iter().map(|point| point.coords / points.len() as f64).sum()
}

/// The rotation R that maximises trace(R * covariance), with covariance = mean of from * to^T, and the maximum.
#[rustfmt::skip]
fn closest_rotation(covariance: &Matrix3<f64>) -> Option<(UnitQuaternion<f64>, f64)> {
    let s = covariance;
    let (xx, xy, xz) = (s[(0, 0)], s[(0, 1)], s[(0, 2)]);
    let (yx, yy, yz) = (s[(1, 0)], s[(1, 1)], s[(1, 2)]);
    let (zx, zy, zz) = (s[(2, 0)], s[(2, 1)], s[(2, 2)]);
    // Horn's N: q^T N q = trace(R(q) * covariance) for a unit quaternion q = (w, x, y, z).
    let quadratic_form = Matrix4::new(
        xx + yy + zz, yz - zy,      zx - xz,      xy - yx,
        yz - zy,      xx - yy - zz, xy + yx,      zx + xz,
        zx - xz,      xy + yx,      yy - xx - zz, yz + zy,
        xy - yx,      zx + xz,      yz + zy,      zz - xx - yy,
    );
    let eigen = quadratic_form.try_symmetric_eigen(f64::EPSILON, 1000)?;
    let (largest, value) = eigen.eigenvalues.argmax();
    let q = eigen.eigenvectors.column(largest);
    Some((UnitQuaternion::new_normalize(Quaternion::new(q[0], q[1], q[2], q[3])), value))
}
