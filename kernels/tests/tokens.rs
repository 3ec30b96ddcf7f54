//! Norms, RoPE and pages on the CPU against float64.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod common;
use candle_core::{DType, Tensor};
use common::{DTYPES, Random, assert_close, assert_error, wide};
use periplus_kernels::norm::layer_norm;
use periplus_kernels::pages::{Rows, append, copy_rows};
use periplus_kernels::rotary::{HeadNorms, Pairing, Rotary, norm_rotate};

fn normed(x: &[f64], weight: &[f64], bias: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scaled = x.iter().map(|x| (x - mean) / (variance + eps).sqrt());
    scaled.zip(weight).zip(bias).map(|((x, w), b)| x * w + b).collect()
}

#[test]
fn layer_norm_agrees_with_float64() {
    let mut random = Random::new(1);
    for shape in [vec![1, 1], vec![3, 7], vec![2, 5, 64], vec![131, 1024], vec![40]] {
        let c = *shape.last().unwrap();
        // A mean far from 0, where computing the variance in one pass would be inaccurate.
        let x = random.f32(&shape).affine(1.0, 10.0).unwrap();
        let (w, b) = (random.f32(&[c]), random.f32(&[c]));
        let y = layer_norm(&x, &w, &b, 1e-6, DType::F32).unwrap();
        assert_eq!(y.dims(), shape);
        let rows = wide(&x);
        let expected: Vec<f64> = rows.chunks(c).flat_map(|x| normed(x, &wide(&w), &wide(&b), 1e-6)).collect();
        assert_close(&y, &expected, 3e-6);
    }
    let (x, w) = (random.f32(&[4, 8]), random.f32(&[8]));
    assert_error(layer_norm(&x, &w, &random.f32(&[7]), 1e-6, DType::F32), &["[4, 8]", "[7]"]);
    assert_error(layer_norm(&random.f32(&[8, 4]).t().unwrap(), &w, &w, 1e-6, DType::F32), &["contiguous"]);
    assert_error(layer_norm(&x.to_dtype(DType::F64).unwrap(), &w, &w, 1e-6, DType::F32), &["F64"]);
    assert_eq!(layer_norm(&random.f32(&[0, 8]), &w, &w, 1e-6, DType::F32).unwrap().dims(), [0, 8]);
}

#[test]
fn norm_rotate_agrees_with_float64() {
    let mut random = Random::new(2);
    for (frames, period, heads, dim) in [(1, 1, 1, 4), (1, 11, 3, 64), (3, 7, 2, 48), (2, 20, 1, 128)] {
        for pairing in [Pairing::SplitHalves, Pairing::Interleaved] {
            let tokens = frames * period;
            let qkv = random.f32(&[tokens, 3, heads, dim]);
            let before = wide(&qkv);
            let norms: Vec<Tensor> = (0..4).map(|_| random.f32(&[dim])).collect();
            let angles = random.f32(&[period, dim / 2]).affine(3.0, 0.0).unwrap();
            // Pairs rotated by the frame's time, for interleaved pairs only.
            let time_pairs = if pairing == Pairing::Interleaved { dim / 6 } else { 0 };
            let times = random.f32(&[frames, 2, time_pairs]);
            let rotary = Rotary {
                cos: angles.cos().unwrap(),
                sin: angles.sin().unwrap(),
                times: (time_pairs > 0).then(|| times.clone()),
                pairing,
            };
            norm_rotate(&qkv, &head_norms(&norms), &rotary).unwrap();
            let (cos, sin, times) = (wide(&rotary.cos), wide(&rotary.sin), wide(&times));
            let mut expected = Vec::new();
            for (i, x) in before.chunks_exact(dim).enumerate() {
                let (part, token) = (i / heads % 3, i / heads / 3);
                if part == 2 {
                    expected.extend(x);
                    continue;
                }
                let x = normed(x, &wide(&norms[2 * part]), &wide(&norms[2 * part + 1]), 1e-5);
                let mut y = x.clone();
                for j in 0..dim / 2 {
                    let quarter = dim / 4;
                    let (a, b) = match pairing {
                        Pairing::Interleaved => (2 * j, 2 * j + 1),
                        Pairing::SplitHalves if j < quarter => (j, j + quarter),
                        Pairing::SplitHalves => (j + quarter, j + 2 * quarter),
                    };
                    let at = token % period * (dim / 2) + j;
                    let of_time = token / period * 2 * time_pairs + j;
                    let (cos, sin) =
                        if j < time_pairs { (times[of_time], times[of_time + time_pairs]) } else { (cos[at], sin[at]) };
                    y[a] = x[a] * cos - x[b] * sin;
                    y[b] = x[b] * cos + x[a] * sin;
                }
                expected.extend(y);
            }
            assert_close(&qkv, &expected, 3e-7);
            assert_eq!(wide(&qkv.narrow(1, 2, 1).unwrap()), wide(&before_values(&before, tokens, heads * dim)));
        }
    }
}

fn head_norms(norms: &[Tensor]) -> HeadNorms<'_> {
    HeadNorms { queries: (&norms[0], &norms[1]), keys: (&norms[2], &norms[3]), eps: 1e-5 }
}

fn before_values(before: &[f64], tokens: usize, width: usize) -> Tensor {
    let all = Tensor::from_slice(before, (tokens, 3, width), &candle_core::Device::Cpu).unwrap();
    all.narrow(1, 2, 1).unwrap()
}

#[test]
fn norm_rotate_refuses_what_does_not_fit() {
    let mut random = Random::new(3);
    let qkv = random.f32(&[6, 3, 2, 8]);
    let norm = random.f32(&[8]);
    let table = |cos: Tensor, pairing| Rotary { sin: cos.clone(), cos, times: None, pairing };
    let run = |qkv: &Tensor, norm: &Tensor, rotary: &Rotary| {
        norm_rotate(qkv, &HeadNorms { queries: (norm, norm), keys: (norm, norm), eps: 1e-5 }, rotary)
    };
    let good = table(random.f32(&[3, 4]), Pairing::Interleaved);
    run(&qkv, &norm, &good).unwrap();
    assert_error(run(&qkv, &norm, &table(random.f32(&[4, 4]), Pairing::Interleaved)), &["[4, 4]"]);
    assert_error(run(&qkv, &norm, &table(random.f32(&[0, 4]), Pairing::Interleaved)), &["[0, 4]"]);
    assert_error(run(&qkv, &norm, &table(random.f32(&[3, 5]), Pairing::Interleaved)), &["[3, 5]"]);
    assert_error(run(&qkv, &random.f32(&[7]), &good), &["[7]"]);
    let timed = |times: Tensor| Rotary { times: Some(times), ..good.clone() };
    run(&qkv, &norm, &timed(random.f32(&[2, 2, 4]))).unwrap();
    assert_error(run(&qkv, &norm, &timed(random.f32(&[2, 2, 5]))), &["[2, 2, 5]"]);
    assert_error(run(&qkv, &norm, &timed(random.f32(&[3, 2, 1]))), &["[3, 2, 1]"]);
    assert_error(run(&random.f32(&[6, 2, 2, 8]), &norm, &good), &["[6, 2, 2, 8]"]);
    let six = table(random.f32(&[6, 3]), Pairing::SplitHalves);
    assert_error(run(&random.f32(&[6, 3, 2, 6]), &random.f32(&[6]), &six), &["multiple of 4"]);
    let shared = random.f32(&[1, 3, 1, 8]);
    let own = shared.reshape((3, 8)).unwrap().narrow(0, 2, 1).unwrap().reshape(8).unwrap();
    assert_error(run(&shared, &own, &table(random.f32(&[1, 4]), Pairing::Interleaved)), &["memory"]);
}

#[test]
fn rows_are_appended_to_pages_and_copied_between_them() {
    let mut random = Random::new(4);
    for dtype in DTYPES {
        let (heads, dim) = (2, 5);
        let pool = random.tensor(&[3, 2, 7, heads, dim], dtype);
        let before = wide(&pool);
        let qkv = random.f32(&[4, 3, heads, dim]);
        append(&pool, 1, 2, &qkv).unwrap();
        let rounded = wide(&qkv.to_dtype(dtype).unwrap());
        let width = heads * dim;
        let mut expected = before;
        for (half, row) in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)] {
            let to = ((2 + half) * 7 + 2 + row) * width;
            expected[to..to + width].copy_from_slice(&rounded[(row * 3 + 1 + half) * width..][..width]);
        }
        assert_eq!(wide(&pool), expected);

        // Within one pool, and to a pool with another page size.
        let other = random.tensor(&[2, 2, 4, heads, dim], dtype);
        let mut other_expected = wide(&other);
        copy_rows(&pool, Rows { page: 1, row: 3 }, &pool, Rows { page: 2, row: 0 }, 3).unwrap();
        copy_rows(&pool, Rows { page: 1, row: 2 }, &other, Rows { page: 0, row: 1 }, 2).unwrap();
        for half in 0..2 {
            let from = ((2 + half) * 7 + 3) * width;
            expected.copy_within(from..from + 3 * width, (4 + half) * 7 * width);
            let from = ((2 + half) * 7 + 2) * width;
            other_expected[(half * 4 + 1) * width..][..2 * width].copy_from_slice(&expected[from..][..2 * width]);
        }
        assert_eq!(wide(&pool), expected);
        assert_eq!(wide(&other), other_expected);
    }
}

#[test]
fn pages_refuse_what_does_not_fit() {
    let mut random = Random::new(5);
    let pool = random.f32(&[3, 2, 7, 2, 5]);
    let qkv = random.f32(&[4, 3, 2, 5]);
    assert_error(append(&pool, 3, 0, &qkv), &["page 3"]);
    assert_error(append(&pool, 0, 4, &qkv), &["row 4"]);
    assert_error(append(&pool, usize::MAX, usize::MAX, &qkv), &["not within"]);
    assert_error(append(&pool, 0, 0, &random.f32(&[4, 3, 5, 2])), &["[4, 3, 5, 2]"]);
    assert_error(append(&random.f32(&[3, 7, 2, 5]), 0, 0, &qkv), &["[3, 7, 2, 5]"]);
    assert_error(append(&pool, 0, 0, &qkv.to_dtype(DType::BF16).unwrap()), &["BF16"]);
    assert_error(append(&pool.to_dtype(DType::F64).unwrap(), 0, 0, &qkv), &["F64"]);
    append(&pool, 2, 7, &random.f32(&[0, 3, 2, 5])).unwrap();

    let at = |page, row| Rows { page, row };
    assert_error(copy_rows(&pool, at(0, 0), &pool, at(0, 2), 3), &["overlap"]);
    assert_error(copy_rows(&pool, at(0, 5), &pool, at(1, 0), 3), &["page 0"]);
    assert_error(copy_rows(&pool, at(0, 0), &pool, at(3, 0), 3), &["page 3"]);
    assert_error(copy_rows(&pool, at(0, 0), &random.f32(&[3, 2, 7, 2, 4]), at(0, 0), 1), &["[3, 2, 7, 2, 4]"]);
    assert_error(copy_rows(&pool, at(0, 0), &pool.narrow(0, 1, 2).unwrap(), at(1, 0), 1), &["views"]);
    let half = random.tensor(&[3, 2, 7, 2, 5], DType::F16);
    assert_error(copy_rows(&pool, at(0, 0), &half, at(0, 0), 1), &["F16"]);
    copy_rows(&pool, at(0, 0), &pool, at(0, 3), 3).unwrap();
}
