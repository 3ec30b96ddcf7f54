//! Attention on the CPU against float64.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod common;
use candle_core::{DType, Device, Tensor};
use common::{DTYPES, Random, assert_close, assert_error, wide};
use periplus_kernels::attention::{paged_attention, self_attention};
use periplus_kernels::pages::{PageTable, Pools};

/// Rows of keys and values, each `[heads, dim]`.
type Row = (Vec<f64>, Vec<f64>);

fn reference(qkv: &[f64], tokens: usize, heads: usize, dim: usize, rows: &[Row]) -> Vec<f64> {
    let mut y = vec![0.0; tokens * heads * dim];
    for (i, y) in y.chunks_exact_mut(dim).enumerate() {
        let (token, head) = (i / heads, i % heads);
        let q = &qkv[(token * 3 * heads + head) * dim..][..dim];
        let of_head = |row: &[f64]| row[head * dim..][..dim].to_vec();
        let dot = |k: Vec<f64>| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt();
        let scores: Vec<f64> = rows.iter().map(|(k, _)| dot(of_head(k))).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (weight, (_, v)) in weights.iter().zip(rows) {
            y.iter_mut().zip(of_head(v)).for_each(|(y, v)| *y += weight / total * v);
        }
    }
    y
}

#[test]
fn within_frames() {
    let mut random = Random::new(1);
    for (frames, tokens, heads, dim) in [
        (1, 1, 1, 64),
        (2, 5, 3, 32),
        (1, 23, 2, 48),
        (3, 64, 2, 64),
        (2, 131, 1, 80),
        (1, 250, 3, 128),
        (1, 97, 2, 7),
        (1, 300, 1, 1),
    ] {
        // Large queries and keys make the softmax sharp, so the rounding of scores (up to 600) matters.
        for sharpness in [1.0, 12.0] {
            let qkv = random.f32(&[frames, tokens, 3, heads, dim]).affine(sharpness, 0.0).unwrap();
            let y = self_attention(&qkv).unwrap();
            assert_eq!(y.dims(), [frames, tokens, heads * dim]);
            let width = heads * dim;
            let mut expected = Vec::new();
            for qkv in wide(&qkv).chunks_exact(tokens * 3 * width) {
                let rows: Vec<Row> = qkv
                    .chunks_exact(3 * width)
                    .map(|qkv| (qkv[width..2 * width].to_vec(), qkv[2 * width..].to_vec()))
                    .collect();
                expected.extend(reference(qkv, tokens, heads, dim, &rows));
            }
            assert_close(&y, &expected, if sharpness > 1.0 { 1e-5 } else { 1e-6 });
        }
    }
}

fn listed(frames: &Tensor, special: &Tensor, table: &PageTable) -> Vec<Row> {
    let (_, _, page_size, heads, dim) = frames.dims5().unwrap();
    let half = page_size * heads * dim;
    let pools = [wide(frames), wide(special)];
    let frame_pages = table.frames().iter().map(|&page| (0, page));
    let pages: Vec<_> = frame_pages.chain(table.special().iter().map(|&page| (1, page))).collect();
    let mut rows = Vec::new();
    for (i, &(pool, page)) in pages.iter().enumerate() {
        let page = &pools[pool][page as usize * 2 * half..][..2 * half];
        let count = if i + 1 == pages.len() { table.last_rows() } else { page_size };
        for row in 0..count {
            let at = row * heads * dim..(row + 1) * heads * dim;
            rows.push((page[..half][at.clone()].to_vec(), page[half..][at].to_vec()));
        }
    }
    rows
}

#[test]
fn against_pages() {
    let mut random = Random::new(2);
    let table =
        |frames: &[u32], special: &[u32], last_rows| PageTable::new(frames.to_vec(), special.to_vec(), last_rows);
    // (tokens, page size, heads, dim, pages, table)
    let cases = [
        (1, 1, 1, 64, [1, 0], table(&[0], &[], 1)),
        (1, 1, 2, 32, [9, 3], table(&[8, 0, 3], &[2, 0], 1)),
        (29, 13, 3, 48, [4, 2], table(&[3, 1], &[1], 6)),
        (50, 70, 2, 64, [5, 1], table(&[4, 0, 2], &[], 69)),
        (131, 37, 1, 80, [3, 4], table(&[], &[3, 0, 1], 37)),
        (7, 65, 2, 128, [3, 1], table(&[2, 1], &[0], 1)),
        (200, 100, 2, 64, [6, 2], table(&[5, 3, 1, 0], &[1], 18)),
    ];
    for (tokens, page_size, heads, dim, [frame_pages, special_pages], table) in cases {
        for dtype in DTYPES {
            let qkv = random.f32(&[tokens, 3, heads, dim]);
            let frames = random.tensor(&[frame_pages, 2, page_size, heads, dim], dtype);
            let special = random.tensor(&[special_pages, 2, page_size, heads, dim], dtype);
            let y = paged_attention(&qkv, Pools { frames: &frames, special: &special }, &table).unwrap();
            assert_eq!(y.dims(), [tokens, heads * dim]);
            let rows = listed(&frames, &special, &table);
            assert_close(&y, &reference(&wide(&qkv), tokens, heads, dim, &rows), 8e-7);
        }
    }
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    // Scores of ± 10000 / sqrt(64): only the largest one has weight, so the output is exactly its value.
    let mut random = Random::new(3);
    let mut data = vec![0.0_f32; 100 * 3 * 64];
    for (token, qkv) in data.chunks_exact_mut(3 * 64).enumerate() {
        qkv[0] = 100.0;
        qkv[64] = if token == 41 { 100.0 } else { -100.0 };
        qkv[128..].fill_with(|| random.value() as f32);
    }
    let values = data[41 * 192 + 128..][..64].to_vec();
    let y = self_attention(&Tensor::from_vec(data, (1, 100, 3, 1, 64), &Device::Cpu).unwrap()).unwrap();
    for row in y.squeeze(0).unwrap().to_vec2::<f32>().unwrap() {
        assert_eq!(row, values);
    }
}

/// Adding 20 000 terms one by one to a running sum has an error of more than 1e-6. With sums per tile it is about 3e-7.
#[test]
fn many_keys_round_no_worse_than_few() {
    let mut random = Random::new(8);
    let (page_size, pages, dim) = (1000, 20, 32);
    let qkv = random.f32(&[3, 3, 1, dim]);
    // Values around 2 add up instead of cancelling.
    let frames = (random.f32(&[pages, 2, page_size, 1, dim]) + 2.0).unwrap();
    let special = frames.narrow(0, 0, 1).unwrap();
    let table = PageTable::new((0..pages as u32).collect(), vec![], page_size);
    let y = paged_attention(&qkv, Pools { frames: &frames, special: &special }, &table).unwrap();
    let expected = reference(&wide(&qkv), 3, 1, dim, &listed(&frames, &special, &table));
    assert_close(&y, &expected, 6e-7);
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let qkv = Random::new(4).f32(&[1, 301, 3, 5, 64]);
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| wide(&self_attention(&qkv).unwrap()))
    };
    assert_eq!(on(1), on(2));
    assert_eq!(on(1), on(7));
}

#[test]
fn a_nan_stays_visible() {
    let qkv = Random::new(5).f32(&[1, 90, 3, 1, 32]);
    let nan = Tensor::new(f32::NAN, &Device::Cpu).unwrap().reshape((1, 1, 1, 1, 1)).unwrap();
    for part in [0, 1, 2] {
        let qkv = qkv.slice_assign(&[0..1, 70..71, part..part + 1, 0..1, 3..4], &nan).unwrap();
        let y = wide(&self_attention(&qkv).unwrap());
        assert!(y[70 * 32 + 3].is_nan(), "a NaN in part {part} of qkv is lost");
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let mut random = Random::new(6);
    assert_error(self_attention(&random.f32(&[4, 3, 2, 8])), &["[4, 3, 2, 8]"]);
    assert_error(self_attention(&random.f32(&[1, 4, 2, 2, 8])), &["[1, 4, 2, 2, 8]"]);
    assert_error(self_attention(&random.f32(&[4, 5, 3, 2, 8]).transpose(0, 1).unwrap()), &["contiguous"]);
    assert_error(self_attention(&random.tensor(&[1, 4, 3, 2, 8], DType::F16)), &["F16"]);
    assert_eq!(self_attention(&random.f32(&[1, 0, 3, 2, 8])).unwrap().dims(), [1, 0, 16]);

    let qkv = random.f32(&[4, 3, 2, 8]);
    let frames = random.f32(&[3, 2, 5, 2, 8]);
    let special = random.f32(&[1, 2, 5, 2, 8]);
    let pools = Pools { frames: &frames, special: &special };
    let table = |frames: &[u32], last_rows| PageTable::new(frames.to_vec(), vec![], last_rows);
    assert_error(paged_attention(&qkv, pools, &PageTable::default()), &["no page"]);
    assert_error(paged_attention(&qkv, pools, &table(&[0], 0)), &["without rows"]);
    assert_error(paged_attention(&qkv, pools, &table(&[0], 6)), &["6 rows"]);
    assert_error(paged_attention(&qkv, pools, &table(&[3], 5)), &["page 3"]);
    assert_error(paged_attention(&qkv, pools, &table(&[0], usize::MAX)), &["rows"]);
    let other = random.f32(&[1, 2, 6, 2, 8]);
    let mixed = Pools { frames: &frames, special: &other };
    assert_error(paged_attention(&qkv, mixed, &table(&[0], 5)), &["[1, 2, 6, 2, 8]"]);
    let half = special.to_dtype(DType::BF16).unwrap();
    assert_error(paged_attention(&qkv, Pools { frames: &frames, special: &half }, &table(&[0], 5)), &["BF16"]);
    assert_error(paged_attention(&random.f32(&[4, 3, 1, 8]), pools, &table(&[0], 5)), &["[4, 3, 1, 8]"]);
    assert_error(paged_attention(&random.f32(&[3, 2, 8]), pools, &table(&[0], 5)), &["[3, 2, 8]"]);
}
