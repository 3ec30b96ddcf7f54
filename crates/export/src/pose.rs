//! Poses as arrays.

use nalgebra::Isometry3;

/// The rotation as quaternion x y z w. Of the two equal ones, the one with w >= 0, as most tools write it.
pub(crate) fn quaternion(pose: &Isometry3<f64>) -> [f64; 4] {
    let q = pose.rotation.quaternion();
    let sign = if q.w < 0.0 { -1.0 } else { 1.0 };
    [q.i, q.j, q.k, q.w].map(|value| sign * value)
}

/// Rows of the 3 x 4 matrix [R | t].
pub(crate) fn matrix_rows(pose: &Isometry3<f64>) -> [[f64; 4]; 3] {
    let matrix = pose.to_homogeneous();
    [0, 1, 2].map(|row| [0, 1, 2, 3].map(|column| matrix[(row, column)]))
}
