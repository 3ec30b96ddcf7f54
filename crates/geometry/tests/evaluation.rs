//! Evaluation of trajectories up to a similarity, and of depth up to a scale.

#![allow(clippy::float_cmp, reason = "these numbers are exact")]

use nalgebra::{Isometry3, Point3, Similarity3, Translation3, UnitQuaternion, Vector3};
use periplus_geometry::{AlignmentError, absolute_trajectory_error, align, depth_error, path_length};
use proptest::prelude::*;

fn points(rows: &[[f64; 3]]) -> Vec<Point3<f64>> {
    rows.iter().copied().map(Point3::from).collect()
}

/// Two curved paths that are roughly similar.
fn ways() -> (Vec<Point3<f64>>, Vec<Point3<f64>>) {
    let estimate = [[0.0, 0.0, 0.0], [1.0, 0.1, 0.0], [2.0, 0.0, 0.5], [2.5, 1.0, 1.0], [3.0, 2.0, 1.2]];
    let truth = [[5.0, 1.0, 0.0], [5.1, 3.0, 0.1], [5.0, 5.0, 1.0], [3.0, 6.0, 2.2], [1.0, 7.0, 2.5]];
    (points(&estimate), points(&truth))
}

#[test]
fn numbers_are_those_of_the_singular_value_decomposition() {
    // Expected: Umeyama's formulas in NumPy. The second truth is mirrored, which needs the correction of the sign.
    let (estimate, truth) = ways();
    let mirrored: Vec<_> = truth.iter().map(|p| Point3::new(p.x, p.y, -p.z)).collect();
    for (truth, scale, error, translation) in [
        (truth, 2.025_960_681_188_451_4, 0.128_289_657_398_896_64, [5.103_274_5, 0.984_245_67, 0.009_984_6]),
        (mirrored, 2.002_356_886_772_452_6, 0.457_063_892_187_664_74, [4.994_913_55, 1.132_538_11, 0.336_966_73]),
    ] {
        let found = align(&estimate, &truth).unwrap();
        assert!((found.scaling() - scale).abs() < 1e-12);
        assert!((found.isometry.translation.vector - Vector3::from(translation)).norm() < 1e-7);
        assert!((absolute_trajectory_error(&estimate, &truth).unwrap() - error).abs() < 1e-12);
    }
}

#[test]
fn what_cannot_be_aligned_says_why() {
    let (estimate, truth) = ways();
    let error =
        |estimate: &[Point3<f64>], truth: &[Point3<f64>]| absolute_trajectory_error(estimate, truth).unwrap_err();
    assert_eq!(error(&estimate[..4], &truth), AlignmentError::LengthsDiffer { estimate: 4, truth: 5 });
    assert_eq!(error(&estimate[..2], &truth[..2]), AlignmentError::TooFew(2));
    assert_eq!(error(&[], &[]), AlignmentError::TooFew(0));
    let still = vec![Point3::new(0.1, 0.2, 0.3); 5];
    assert_eq!(error(&still, &truth), AlignmentError::NoScale);
    assert_eq!(error(&estimate, &still), AlignmentError::NoScale);
    assert_eq!(error(&estimate, &[Point3::origin(); 5]), AlignmentError::NoScale);
    for value in [f64::NAN, f64::INFINITY, 1e300] {
        let mut bad = estimate.clone();
        bad[1].y = value;
        assert_eq!(error(&bad, &truth), AlignmentError::NotFinite);
        assert_eq!(error(&truth, &bad), AlignmentError::NotFinite);
    }
}

#[test]
fn a_straight_way_can_be_aligned() {
    let estimate: Vec<_> = (0..5).map(|i| Point3::new(0.0, 0.0, f64::from(i))).collect();
    let truth: Vec<_> = (0..5).map(|i| Point3::new(1.0 + 3.0 * f64::from(i), 2.0, 0.0)).collect();
    assert!((align(&estimate, &truth).unwrap().scaling() - 3.0).abs() < 1e-12);
    assert!(absolute_trajectory_error(&estimate, &truth).unwrap() < 1e-12);
    assert!((path_length(&truth) - 12.0).abs() < 1e-12);
    assert_eq!(path_length(&truth[..1]), 0.0);
}

proptest! {
    #[test]
    fn a_transformed_trajectory_has_no_error(
        way in prop::collection::vec(prop::array::uniform3(-10.0..10.0), 3..40),
        axis_angle in prop::array::uniform3(-4.0..4.0),
        shift in prop::array::uniform3(-100.0..100.0),
        scale in 1e-3..1e3,
    ) {
        let way = points(&way);
        let rotation = UnitQuaternion::from_scaled_axis(Vector3::from(axis_angle));
        let isometry = Isometry3::from_parts(Translation3::from(Vector3::from(shift)), rotation);
        let similarity = Similarity3::from_isometry(isometry, scale);
        let truth: Vec<_> = way.iter().map(|point| similarity * point).collect();
        let error = absolute_trajectory_error(&way, &truth).unwrap();
        prop_assert!(error < 1e-11 * (100.0 + 10.0 * scale), "error {error}");
    }

    #[test]
    fn any_numbers_give_an_answer_or_an_error(
        rows in prop::collection::vec((prop::array::uniform3(any::<f64>()), prop::array::uniform3(any::<f64>())), 0..6),
    ) {
        let (estimate, truth): (Vec<_>, Vec<_>) = rows.into_iter().map(|(a, b)| (Point3::from(a), Point3::from(b))).unzip();
        if let Ok(similarity) = align(&estimate, &truth) {
            prop_assert!(similarity.scaling() > 0.0 && similarity.scaling().is_finite());
        }
    }
}

#[test]
fn depths_are_compared_at_the_median_scale() {
    let pairs = [(2.0, 1.0), (1.0, 2.0), (4.0, 2.0), (3.0, 3.0)];
    let even = depth_error(pairs).unwrap();
    // Expected, in NumPy: s = median(truth / estimate), mean(|s * estimate - truth| / truth).
    assert!((even.scale - 0.75).abs() < 1e-12 && (even.abs_rel - 0.46875).abs() < 1e-12);
    let odd = depth_error(pairs[..3].iter().copied()).unwrap();
    assert!((odd.scale - 0.5).abs() < 1e-12 && (odd.abs_rel - 0.25).abs() < 1e-12);
}

#[test]
fn pixels_without_a_depth_do_not_count() {
    let pairs = [(2.0, 4.0), (0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (f32::NAN, 1.0), (1.0, f32::INFINITY)];
    let found = depth_error(pairs).unwrap();
    assert_eq!((found.scale, found.abs_rel), (2.0, 0.0));
    assert_eq!(depth_error(pairs[1..].iter().copied()), None);
    assert_eq!(depth_error([]), None);
}
