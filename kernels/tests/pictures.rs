//! Convolutions and other picture operations on the CPU against float64.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod common;
use candle_core::{DType, Device, Tensor};
use common::{DTYPES, Random, assert_close, assert_error, wide};
use periplus_kernels::conv::{add_plane, conv2d, conv2d_add, depth_to_space, relu_in_place};
use periplus_kernels::linear::Activation;
use periplus_kernels::prediction::{ValueActivation, predict};
use periplus_kernels::resample::bilinear;

fn reference(x: &Tensor, w: &Tensor, b: Option<&Tensor>, stride: usize, padding: usize) -> (Vec<usize>, Vec<f64>) {
    let (frames, height, width, inputs) = x.dims4().unwrap();
    let (outputs, k, _, _) = w.dims4().unwrap();
    let (rows, columns) = ((height + 2 * padding - k) / stride + 1, (width + 2 * padding - k) / stride + 1);
    let (x, w) = (wide(x), wide(w));
    let b = b.map_or(vec![0.0; outputs], wide);
    let mut y = Vec::new();
    for i in 0..frames * rows * columns * outputs {
        let (out, column) = (i % outputs, i / outputs % columns);
        let (row, frame) = (i / (outputs * columns) % rows, i / (outputs * columns * rows));
        let mut sum = b[out];
        for (dy, dx) in (0..k * k).map(|j| (j / k, j % k)) {
            let (y, x_) = (row * stride + dy, column * stride + dx);
            if y < padding || x_ < padding || y - padding >= height || x_ - padding >= width {
                continue;
            }
            let from = ((frame * height + y - padding) * width + x_ - padding) * inputs;
            let weight = ((out * k + dy) * k + dx) * inputs;
            sum += (0..inputs).map(|c| x[from + c] * w[weight + c]).sum::<f64>();
        }
        y.push(sum);
    }
    (vec![frames, rows, columns, outputs], y)
}

#[test]
fn convolutions_agree_with_float64() {
    let mut random = Random::new(1);
    // (frames, height, width, in, out, k, stride, padding)
    for (frames, h, w, inputs, outputs, k, stride, padding) in [
        (1, 1, 1, 1, 1, 1, 1, 0),
        (2, 5, 7, 3, 8, 3, 1, 1),
        (1, 14, 17, 16, 33, 3, 1, 1),
        (2, 9, 8, 5, 4, 3, 2, 1),
        (1, 28, 42, 3, 20, 14, 14, 0),
        (1, 6, 5, 20, 9, 1, 1, 0),
        (1, 6, 5, 20, 9, 1, 2, 0),
        (1, 4, 3, 2, 3, 5, 1, 2),
        (1, 3, 40, 64, 70, 3, 1, 1),
        (1, 2, 2, 3, 4, 2, 1, 5),
        (3, 1, 30, 7, 2, 1, 1, 1),
    ] {
        for dtype in DTYPES {
            let x = random.f32(&[frames, h, w, inputs]);
            let weight = random.tensor(&[outputs, k, k, inputs], dtype);
            let b = (padding != 2).then(|| random.f32(&[outputs]));
            let (shape, expected) = reference(&x, &weight, b.as_ref(), stride, padding);
            let y = conv2d(&x, &weight, b.as_ref(), stride, padding, Activation::Identity).unwrap();
            assert_eq!(y.dims(), shape);
            assert_close(&y, &expected, 7e-7);
            let relu: Vec<f64> = expected.iter().map(|y| y.max(0.0)).collect();
            assert_close(&conv2d(&x, &weight, b.as_ref(), stride, padding, Activation::Relu).unwrap(), &relu, 8e-7);
            if stride == 1 {
                let y = random.f32(&shape);
                let sum: Vec<f64> = wide(&y).iter().zip(&expected).map(|(y, e)| y + e).collect();
                conv2d_add(&y, &x, &weight, b.as_ref(), padding).unwrap();
                assert_close(&y, &sum, 7e-7);
            }
        }
    }
}

#[test]
fn convolutions_refuse_what_does_not_fit() {
    let mut random = Random::new(2);
    let (x, w) = (random.f32(&[1, 5, 6, 3]), random.f32(&[4, 3, 3, 3]));
    let id = Activation::Identity;
    assert_error(conv2d(&x, &random.f32(&[4, 3, 3, 2]), None, 1, 1, id), &["[1, 5, 6, 3]", "[4, 3, 3, 2]"]);
    assert_error(conv2d(&x, &random.f32(&[4, 3, 2, 3]), None, 1, 1, id), &["[4, 3, 2, 3]"]);
    assert_error(conv2d(&x, &w, Some(&random.f32(&[5])), 1, 1, id), &["[5]"]);
    assert_error(conv2d(&x, &w, None, 0, 1, id), &["stride 0"]);
    assert_error(conv2d(&x, &w, None, 1, usize::MAX, id), &["padding"]);
    assert_error(conv2d(&x, &w, None, 1, usize::MAX / 4, id), &["memory"]);
    assert_error(conv2d(&x, &random.f32(&[4, 7, 7, 3]), None, 1, 0, id), &["7 x 7"]);
    assert_error(conv2d(&x, &random.f32(&[4, 0, 0, 3]), None, 1, 0, id), &["[4, 0, 0, 3]"]);
    assert_error(conv2d(&x.transpose(1, 2).unwrap(), &w, None, 1, 1, id), &["contiguous"]);
    assert_error(conv2d_add(&random.f32(&[1, 5, 6, 5]), &x, &w, None, 1), &["[1, 5, 6, 5]", "[1, 5, 6, 4]"]);
    let y = random.f32(&[1, 5, 6, 3]);
    assert_error(conv2d_add(&y, &y, &random.f32(&[3, 3, 3, 3]), None, 1), &["storage"]);
    let none = conv2d(&random.f32(&[0, 5, 6, 3]), &w, None, 1, 1, id).unwrap();
    assert_eq!(none.dims(), [0, 5, 6, 4]);
    let no_channels = conv2d(&random.f32(&[1, 5, 6, 0]), &random.f32(&[4, 3, 3, 0]), None, 1, 1, id).unwrap();
    assert_close(&no_channels, &[0.0; 120], 1e-30);
}

#[test]
fn bilinear_agrees_with_float64() {
    let mut random = Random::new(3);
    for (frames, (h, w), (height, width), c) in [
        (1, (3, 4), (7, 9), 5),
        (2, (7, 5), (3, 2), 3),
        (1, (1, 1), (4, 3), 2),
        (1, (5, 6), (1, 1), 17),
        (1, (4, 4), (4, 4), 8),
        (1, (21, 37), (42, 74), 16),
    ] {
        let x = random.f32(&[frames, h, w, c]);
        let data = wide(&x);
        let at = |position: usize, from: usize, to: usize| {
            let exact = if to > 1 { position as f64 * (from - 1) as f64 / (to - 1) as f64 } else { 0.0 };
            let low = (exact.floor() as usize).min(from - 1);
            (low, (low + 1).min(from - 1), exact - low as f64)
        };
        let mut expected = Vec::new();
        for i in 0..frames * height * width * c {
            let (channel, column) = (i % c, i / c % width);
            let (row, frame) = (i / (c * width) % height, i / (c * width * height));
            let ((top, bottom, down), (left, right, across)) = (at(row, h, height), at(column, w, width));
            let pixel = |row: usize, column: usize| data[((frame * h + row) * w + column) * c + channel];
            let above = pixel(top, left) * (1.0 - across) + pixel(top, right) * across;
            let below = pixel(bottom, left) * (1.0 - across) + pixel(bottom, right) * across;
            expected.push(above * (1.0 - down) + below * down);
        }
        let y = bilinear(&x, height, width).unwrap();
        assert_eq!(y.dims(), [frames, height, width, c]);
        assert_close(&y, &expected, 3e-7);
    }
}

#[test]
fn bilinear_refuses_what_does_not_fit() {
    let mut random = Random::new(4);
    let x = random.f32(&[1, 3, 4, 5]);
    assert_error(bilinear(&random.f32(&[3, 4, 5]), 2, 2), &["[3, 4, 5]"]);
    assert_error(bilinear(&x, usize::MAX, 2), &["memory"]);
    assert_error(bilinear(&x, usize::MAX / 64, 1), &["memory"]);
    assert_error(bilinear(&x.transpose(1, 2).unwrap(), 2, 2), &["contiguous"]);
    assert_error(bilinear(&random.f32(&[1, 0, 4, 5]), 2, 2), &["no pixels"]);
    assert_error(bilinear(&random.tensor(&[1, 3, 4, 5], DType::F16), 2, 2), &["F16"]);
    assert_eq!(bilinear(&x, 0, 2).unwrap().dims(), [1, 0, 2, 5]);
}

#[test]
fn depth_to_space_places_every_channel() {
    let mut random = Random::new(5);
    for (frames, h, w, k, c) in [(1, 1, 1, 1, 1), (2, 3, 4, 2, 5), (1, 2, 3, 4, 3)] {
        let x = random.f32(&[frames, h, w, k * k * c]);
        let y = depth_to_space(&x, k).unwrap();
        let expected = x.reshape(&[frames, h, w, k, k, c][..]).unwrap().permute([0, 1, 3, 2, 4, 5]).unwrap();
        assert_eq!(y.dims(), [frames, h * k, w * k, c]);
        assert_eq!(wide(&y), wide(&expected.contiguous().unwrap()));
    }
    let x = random.f32(&[1, 2, 3, 8]);
    assert_error(depth_to_space(&x, 0), &["k 0"]);
    assert_error(depth_to_space(&x, 3), &["[1, 2, 3, 8]", "3 x 3"]);
    assert_error(depth_to_space(&x, usize::MAX), &["[1, 2, 3, 8]"]);
    assert_error(depth_to_space(&x.transpose(1, 2).unwrap(), 2), &["contiguous"]);
}

#[test]
fn relu_and_planes_work_in_place() {
    let mut random = Random::new(6);
    let x = random.f32(&[2, 3, 5, 8]);
    let expected: Vec<f64> = wide(&x).iter().map(|x| x.max(0.0)).collect();
    relu_in_place(&x, 0).unwrap();
    assert_eq!(wide(&x), expected);

    let (u, v) = (random.f32(&[5, 4]), random.f32(&[3, 4]));
    let u_all = u.reshape((1, 1, 5, 4)).unwrap().broadcast_as((2, 3, 5, 4)).unwrap();
    let v_all = v.reshape((1, 3, 1, 4)).unwrap().broadcast_as((2, 3, 5, 4)).unwrap();
    let plane = Tensor::cat(&[u_all, v_all], 3).unwrap();
    let expected = wide(&(&x + plane).unwrap());
    add_plane(&x, &u, &v).unwrap();
    assert_close(&x, &expected, 1e-30);

    assert_error(add_plane(&x, &v, &u), &["[2, 3, 5, 8]", "[3, 4]"]);
    assert_error(add_plane(&x, &u, &random.f32(&[3, 5])), &["[3, 5]"]);
    assert_error(relu_in_place(&x.transpose(1, 2).unwrap(), 0), &["contiguous"]);
    assert_error(relu_in_place(&x.to_dtype(DType::BF16).unwrap(), 0), &["BF16"]);
}

#[test]
fn predictions_that_are_not_finite_are_counted() {
    let x = Tensor::new(vec![0.0_f32, 1.0, f32::NAN, 200.0, -200.0, f32::INFINITY], &Device::Cpu).unwrap();
    let x = x.reshape((1, 2, 3, 1)).unwrap();
    let (weight, bias) = (Tensor::new(&[[1.0_f32], [0.5]], &Device::Cpu), Tensor::new(&[0.0_f32, 0.0], &Device::Cpu));
    let found = predict(&x, &weight.unwrap(), &bias.unwrap(), ValueActivation::Exp).unwrap();
    assert_eq!(found.values.dims(), [1, 2, 3, 1]);
    // NaN and infinity in value and confidence, exp(200) in the value and exp(100) in the confidence.
    assert_eq!(found.not_finite.to_vec1::<f32>().unwrap(), [6.0]);
    let depth = found.values.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!((depth[0], depth[1]), (1.0, 1.0_f32.exp()));
}
