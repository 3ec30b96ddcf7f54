//! Linear layers on the CPU against float64.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod common;
use candle_core::{DType, Tensor};
use common::{DTYPES, Random, assert_close, assert_error, wide};
use periplus_kernels::linear::{Activation, linear, linear_add};

/// erf by its Taylor series, with an error below 1e-9 for |x| < 4.
fn erf(x: f64) -> f64 {
    if x.abs() > 4.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn reference(x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Vec<f64> {
    let (outputs, inputs) = w.dims2().unwrap();
    let rows = x.elem_count().checked_div(inputs).unwrap_or(0);
    let (x, w) = (wide(x), wide(w));
    let b = b.map_or(vec![0.0; outputs], wide);
    let mut y = vec![0.0; rows * outputs];
    for (i, y) in y.iter_mut().enumerate() {
        let (row, out) = (i / outputs, i % outputs);
        *y = b[out] + (0..inputs).map(|k| x[row * inputs + k] * w[out * inputs + k]).sum::<f64>();
    }
    y
}

#[test]
fn agrees_with_float64() {
    let mut random = Random::new(1);
    let sizes = [
        (1, 1, 1),
        (1, 9, 64),
        (1, 2048, 513),
        (2, 130, 257),
        (7, 100, 33),
        (8, 64, 96),
        (61, 96, 1),
        (131, 77, 45),
        (257, 300, 129),
        (100, 1024, 300),
    ];
    for (rows, inputs, outputs) in sizes {
        for dtype in DTYPES {
            for bias in [false, true] {
                let x = random.f32(&[rows, inputs]);
                let w = random.tensor(&[outputs, inputs], dtype);
                let b = bias.then(|| random.f32(&[outputs]));
                let expected = reference(&x, &w, b.as_ref());
                let y = linear(&x, &w, b.as_ref(), Activation::Identity).unwrap();
                assert_eq!(y.dims(), [rows, outputs]);
                assert_close(&y, &expected, 1e-6);

                let relu: Vec<f64> = expected.iter().map(|y| y.max(0.0)).collect();
                assert_close(&linear(&x, &w, b.as_ref(), Activation::Relu).unwrap(), &relu, 1e-6);
                let gelu: Vec<f64> = expected.iter().map(|y| y * (1.0 + erf(y / 2_f64.sqrt())) / 2.0).collect();
                assert_close(&linear(&x, &w, b.as_ref(), Activation::Gelu).unwrap(), &gelu, 1e-6);

                let y = random.f32(&[rows, outputs]);
                let sum: Vec<f64> = wide(&y).iter().zip(&expected).map(|(y, e)| y + e).collect();
                linear_add(&y, &x, &w, b.as_ref()).unwrap();
                assert_close(&y, &sum, 1e-6);
            }
        }
    }
}

/// A residual is large beside the terms that are added to it, so it must be rounded a few times, not once per term.
#[test]
fn a_large_residual_is_rounded_few_times() {
    let mut random = Random::new(9);
    let (rows, inputs, outputs) = (23, 4096, 40);
    let x = random.f32(&[rows, inputs]);
    let w = random.f32(&[outputs, inputs]);
    let y = (random.f32(&[rows, outputs]) + 1000.0).unwrap();
    let expected: Vec<f64> = wide(&y).iter().zip(reference(&x, &w, None)).map(|(y, sum)| y + sum).collect();
    linear_add(&y, &x, &w, None).unwrap();
    assert_close(&y, &expected, 2e-7);
}

#[test]
fn gelu_is_accurate_over_its_range() {
    let points: Vec<f32> = (-6000..6000).map(|i| i as f32 / 1000.0).collect();
    let expected: Vec<f64> = points.iter().map(|&x| x as f64 * (1.0 + erf(x as f64 / 2_f64.sqrt())) / 2.0).collect();
    let x = Tensor::from_vec(points, (12_000, 1), &candle_core::Device::Cpu).unwrap();
    let one = x.ones_like().unwrap().narrow(0, 0, 1).unwrap();
    let y = wide(&linear(&x, &one, None, Activation::Gelu).unwrap());
    for ((y, e), x) in y.iter().zip(&expected).zip(wide(&x)) {
        assert!((y - e).abs() < 2e-7 * x.abs().max(1.0), "{y} for {e} at {x}");
    }
}

#[test]
fn keeps_leading_dimensions_and_views_with_an_offset() {
    let mut random = Random::new(2);
    let x = random.f32(&[5, 3, 2, 20]).narrow(0, 1, 3).unwrap();
    let w = random.f32(&[7, 20]);
    let y = linear(&x, &w, None, Activation::Identity).unwrap();
    assert_eq!(y.dims(), [3, 3, 2, 7]);
    assert_close(&y, &reference(&x, &w, None), 4e-7);
}

#[test]
fn nothing_in_nothing_out() {
    let mut random = Random::new(3);
    let (w, b) = (random.f32(&[7, 20]), random.f32(&[7]));
    let none = random.f32(&[0, 20]);
    assert_eq!(linear(&none, &w, Some(&b), Activation::Gelu).unwrap().dims(), [0, 7]);
    let y = linear(&random.f32(&[2, 0]), &random.f32(&[7, 0]), Some(&b), Activation::Identity).unwrap();
    assert_close(&y, &[wide(&b), wide(&b)].concat(), 1e-30);
}

#[test]
fn a_nan_stays_visible() {
    let x = Tensor::new(&[[f32::NAN, 1.0]], &candle_core::Device::Cpu).unwrap();
    let w = Random::new(4).f32(&[33, 2]);
    // One row for gemv, and more rows than gemv takes.
    for x in [x.clone(), x.repeat((20, 1)).unwrap()] {
        for activation in [Activation::Identity, Activation::Gelu, Activation::Relu] {
            assert!(wide(&linear(&x, &w, None, activation).unwrap()).iter().all(|y| y.is_nan()));
        }
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let mut random = Random::new(5);
    let (x, w, b) = (random.f32(&[4, 20]), random.f32(&[7, 20]), random.f32(&[7]));
    let id = Activation::Identity;
    assert_error(linear(&x, &random.f32(&[7, 21]), None, id), &["[4, 20]", "[7, 21]"]);
    assert_error(linear(&x, &w, Some(&random.f32(&[8])), id), &["[8]"]);
    assert_error(linear(&x, &random.f32(&[20]), None, id), &["[20]"]);
    assert_error(linear(&random.f32(&[20, 4]).t().unwrap(), &w, None, id), &["contiguous", "[4, 20]"]);
    assert_error(linear(&x, &random.f32(&[20, 7]).t().unwrap(), None, id), &["contiguous"]);
    assert_error(linear(&x.to_dtype(DType::BF16).unwrap(), &w, None, id), &["BF16"]);
    assert_error(linear(&x, &w.to_dtype(DType::F64).unwrap(), None, id), &["F64"]);
    assert_error(linear(&x, &w, Some(&b.to_dtype(DType::F16).unwrap()), id), &["F16"]);
    assert_error(linear_add(&random.f32(&[4, 8]), &x, &w, None), &["[4, 8]", "[4, 7]"]);
    let square = random.f32(&[20, 20]);
    assert_error(linear_add(&square, &square, &random.f32(&[20, 20]), None), &["storage"]);
    let row = random.f32(&[1, 20]);
    let bias = row.reshape(20).unwrap();
    assert_error(linear_add(&row, &random.f32(&[1, 20]), &random.f32(&[20, 20]), Some(&bias)), &["memory"]);
}
