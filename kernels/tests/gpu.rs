//! Every operation on a GPU against the same operation on the CPU in float32, which other tests compare with float64.
//!
//! The gemm and attention kernels have their own checks against float64 in `cuda/tests`. Inputs are random. Freed
//! memory, which the next output reuses, is filled with NaN.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod common;

use candle_core::{DType, Device, Tensor};
use common::{Random, assert_close, assert_error, wide};
use periplus_kernels::attention::{paged_attention, self_attention};
use periplus_kernels::conv::{add_plane, conv2d, conv2d_add, depth_to_space, relu_in_place};
use periplus_kernels::device::{cuda_stream, open_cuda};
use periplus_kernels::linear::{Activation, linear, linear_add};
use periplus_kernels::modulation::modulate;
use periplus_kernels::norm::layer_norm;
use periplus_kernels::pages::{PageTable, Pools, Rows, append, copy_rows};
use periplus_kernels::patches::patches;
use periplus_kernels::prediction::{ValueActivation, predict};
use periplus_kernels::readback::Readback;
use periplus_kernels::resample::{bilinear, bilinear_add};
use periplus_kernels::rotary::{HeadNorms, Pairing, Rotary, norm_rotate, norm_rotate_append};
use periplus_kernels::tokens::{concat, join_channels};

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
const ACTIVATIONS: [Activation; 4] = [Activation::Identity, Activation::Gelu, Activation::Relu, Activation::Silu];

/// A GPU, and random operands on both devices.
struct Bench {
    gpu: Device,
    random: Random,
}

impl Bench {
    fn new(seed: u64) -> Self {
        Self { gpu: open_cuda(0).unwrap(), random: Random::new(seed) }
    }

    /// A random tensor: on the GPU in `dtype`, and the same values in float32 on the CPU.
    fn pair(&mut self, dims: &[usize], dtype: DType) -> (Tensor, Tensor) {
        let stored = self.random.tensor(dims, dtype);
        self.poison(dims.iter().product());
        (stored.to_device(&self.gpu).unwrap(), stored.to_dtype(DType::F32).unwrap())
    }

    fn float(&mut self, dims: &[usize]) -> (Tensor, Tensor) {
        self.pair(dims, DType::F32)
    }

    /// Frees memory that is filled with NaN.
    fn poison(&self, count: usize) {
        for count in [count, 2 * count, 4 * count] {
            drop(Tensor::from_vec(vec![f32::NAN; count.max(1)], count.max(1), &self.gpu).unwrap());
        }
    }

    fn count(&mut self, most: usize) -> usize {
        (f64::midpoint(self.random.value(), 1.0) * most as f64) as usize + 1
    }
}

/// The largest allowed distance of results in `dtype` from results in float32, given that of float32: at most five times the
/// distance measured on an H200.
fn bound(dtype: DType, float32: f64) -> f64 {
    match dtype {
        DType::F16 => 5e-4,
        DType::BF16 => 4e-3,
        _ => float32,
    }
}

#[track_caller]
fn assert_same(on_gpu: &Tensor, on_cpu: &Tensor, bound: f64) {
    assert_eq!(on_gpu.dims(), on_cpu.dims());
    let on_gpu = on_gpu.to_device(&Device::Cpu).unwrap();
    assert_close(&on_gpu, &wide(on_cpu), bound);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn linear_layers() {
    let mut bench = Bench::new(1);
    for dtype in DTYPES {
        for case in 0..24 {
            let (rows, inputs, outputs) = (bench.count(200), bench.count(300), bench.count(300));
            // Shapes of the network: whole tiles, and few rows.
            let (inputs, outputs) = if case % 2 == 0 { (inputs * 8, outputs * 16) } else { (inputs, outputs) };
            let rows = if case % 3 == 0 { rows % 8 + 1 } else { rows };
            let ((x, cpu_x), (w, cpu_w)) = (bench.pair(&[rows, inputs], dtype), bench.pair(&[outputs, inputs], dtype));
            let (b, cpu_b) = bench.float(&[outputs]);
            let (b, cpu_b) = if case % 4 == 3 { (None, None) } else { (Some(&b), Some(&cpu_b)) };
            let activation = ACTIVATIONS[case % 4];
            let y = linear(&x, &w, b, activation).unwrap();
            assert_eq!(y.dtype(), dtype);
            assert_same(&y, &linear(&cpu_x, &cpu_w, cpu_b, activation).unwrap(), bound(dtype, 1.5e-6));

            let (sum, cpu_sum) = bench.float(&[rows, outputs]);
            linear_add(&sum, &x, &w, b).unwrap();
            linear_add(&cpu_sum, &cpu_x, &cpu_w, cpu_b).unwrap();
            assert_same(&sum, &cpu_sum, 3e-6);
        }
    }
    let ((x, _), (w, _)) = (bench.pair(&[4, 8], DType::BF16), bench.pair(&[8, 8], DType::F16));
    assert_error(linear(&x, &w, None, Activation::Identity), &["BF16", "F16"]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn convolutions() {
    let mut bench = Bench::new(2);
    for dtype in DTYPES {
        for (dims, outputs, k, stride, padding) in [
            ([1, 19, 14, 64], 32, 3, 1, 1),
            ([2, 9, 13, 24], 10, 3, 1, 1),
            ([1, 37, 27, 128], 256, 3, 2, 1),
            ([1, 31, 40, 128], 32, 3, 1, 1),
            ([1, 5, 6, 3], 7, 2, 1, 0),
            ([3, 8, 8, 16], 16, 1, 1, 0),
        ] {
            let (x, cpu_x) = bench.pair(&dims, dtype);
            let (w, cpu_w) = bench.pair(&[outputs, k, k, dims[3]], dtype);
            let (b, cpu_b) = bench.float(&[outputs]);
            let y = conv2d(&x, &w, Some(&b), stride, padding, Activation::Relu).unwrap();
            let cpu_y = conv2d(&cpu_x, &cpu_w, Some(&cpu_b), stride, padding, Activation::Relu).unwrap();
            assert_same(&y, &cpu_y, bound(dtype, 1.2e-6));
            if stride == 1 {
                let (sum, cpu_sum) = bench.pair(y.dims(), dtype);
                conv2d_add(&sum, &x, &w, None, padding).unwrap();
                conv2d_add(&cpu_sum, &cpu_x, &cpu_w, None, padding).unwrap();
                assert_same(&sum, &cpu_sum, bound(dtype, 1.2e-6));
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn norms() {
    let mut bench = Bench::new(3);
    for dtype in DTYPES {
        for (rows, channels) in [(1, 1), (7, 33), (1005, 1024), (9, 2048), (3, 4096), (5, 500), (0, 8)] {
            let (x, cpu_x) = bench.float(&[rows, channels]);
            let ((w, cpu_w), (b, cpu_b)) = (bench.float(&[channels]), bench.float(&[channels]));
            let y = layer_norm(&x, &w, &b, 1e-5, dtype).unwrap();
            assert_eq!(y.dtype(), dtype);
            assert_same(&y, &layer_norm(&cpu_x, &cpu_w, &cpu_b, 1e-5, DType::F32).unwrap(), bound(dtype, 3e-7));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rotation_of_queries_and_keys() {
    let mut bench = Bench::new(4);
    for dtype in DTYPES {
        for (frames, period, heads, dim) in [(1, 1, 1, 4), (1, 77, 3, 64), (3, 7, 2, 48), (2, 20, 16, 128)] {
            for pairing in [Pairing::SplitHalves, Pairing::Interleaved] {
                let tokens = frames * period;
                let (qkv, cpu_qkv) = bench.pair(&[tokens, 3, heads, dim], dtype);
                let norms: Vec<_> = (0..4).map(|_| bench.float(&[dim])).collect();
                let [cos, sin] = [(); 2].map(|()| bench.float(&[period, dim / 2]));
                let times = bench.float(&[frames, 2, dim / 6]);
                let timed = pairing == Pairing::Interleaved && dim > 4;
                let side = |gpu: bool| {
                    let pick = |pair: &(Tensor, Tensor)| if gpu { pair.0.clone() } else { pair.1.clone() };
                    let rotary =
                        Rotary { cos: pick(&cos), sin: pick(&sin), times: timed.then(|| pick(&times)), pairing };
                    (norms.iter().map(pick).collect::<Vec<_>>(), rotary)
                };
                let ((norms, rotary), (cpu_norms, cpu_rotary)) = (side(true), side(false));
                let head_norms = |n: &'_ [Tensor]| -> [Tensor; 4] { n.to_vec().try_into().unwrap() };
                let (n, c) = (head_norms(&norms), head_norms(&cpu_norms));
                let n = HeadNorms { queries: (&n[0], &n[1]), keys: (&n[2], &n[3]), eps: 1e-5 };
                let c = HeadNorms { queries: (&c[0], &c[1]), keys: (&c[2], &c[3]), eps: 1e-5 };

                let (pool, cpu_pool) = bench.pair(&[3, 2, tokens + 5, heads, dim], dtype);
                let moved = qkv.copy().unwrap();
                norm_rotate(&qkv, &n, &rotary).unwrap();
                norm_rotate_append(&moved, &n, &rotary, &pool, 1).unwrap();
                norm_rotate_append(&cpu_qkv, &c, &cpu_rotary, &cpu_pool, 1).unwrap();
                assert_same(&qkv, &cpu_qkv, bound(dtype, 4e-7));
                assert_same(&moved.narrow(1, 0, 1).unwrap(), &cpu_qkv.narrow(1, 0, 1).unwrap(), bound(dtype, 5e-7));
                // All pages, so that the test sees changes to other rows.
                assert_same(&pool, &cpu_pool, bound(dtype, 1.6e-7));
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn attention_within_frames_and_over_pages() {
    let mut bench = Bench::new(5);
    for dtype in DTYPES {
        for (frames, tokens, heads) in [(1, 1, 1), (2, 65, 3), (1, 1005, 2), (3, 130, 16)] {
            let (qkv, cpu_qkv) = bench.pair(&[frames, tokens, 3, heads, 64], dtype);
            let y = self_attention(&qkv).unwrap();
            assert_same(&y, &self_attention(&cpu_qkv).unwrap(), bound(dtype, 1.5e-6));
        }
        let tables =
            [(vec![0, 1, 2], vec![], 9), (vec![2, 0], vec![1, 0], 37), (vec![], vec![1], 1), (vec![3], vec![0, 2], 20)];
        for (frames, special, last_rows) in tables {
            for uploaded in [false, true] {
                let (qkv, cpu_qkv) = bench.pair(&[41, 3, 2, 64], dtype);
                let [pool, other] = [4, 3].map(|pages| bench.pair(&[pages, 2, 37, 2, 64], dtype));
                let mut table = PageTable::new(frames.clone(), special.clone(), last_rows);
                if uploaded {
                    table.upload(&bench.gpu).unwrap();
                }
                let y = paged_attention(&qkv, Pools { frames: &pool.0, special: &other.0 }, &table).unwrap();
                let cpu_pools = Pools { frames: &pool.1, special: &other.1 };
                assert_same(&y, &paged_attention(&cpu_qkv, cpu_pools, &table).unwrap(), bound(dtype, 1e-6));
            }
        }
    }
    let ((qkv, _), (pool, _)) = (bench.float(&[4, 3, 2, 64]), bench.float(&[3, 2, 5, 2, 64]));
    let pools = Pools { frames: &pool, special: &pool };
    let run = |frames: Vec<u32>, last_rows| paged_attention(&qkv, pools, &PageTable::new(frames, vec![], last_rows));
    assert_error(run(vec![], 0), &["no page"]);
    assert_error(run(vec![0], 0), &["without rows"]);
    assert_error(run(vec![0], 6), &["6 rows"]);
    assert_error(run(vec![3], 5), &["page 3"]);
    let (narrow, _) = bench.float(&[1, 4, 3, 2, 48]);
    assert_error(self_attention(&narrow), &["48 channels"]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rows_of_pages() {
    let mut bench = Bench::new(6);
    for dtype in DTYPES {
        let [pool, other] = [3, 2].map(|pages| bench.pair(&[pages, 2, 7, 2, 5], dtype));
        let (qkv, cpu_qkv) = bench.pair(&[4, 3, 2, 5], dtype);
        for (pool, other, qkv) in [(&pool.0, &other.0, &qkv), (&pool.1, &other.1, &cpu_qkv)] {
            append(pool, 1, 2, qkv).unwrap();
            copy_rows(pool, Rows { page: 1, row: 3 }, pool, Rows { page: 2, row: 0 }, 3).unwrap();
            copy_rows(pool, Rows { page: 1, row: 2 }, other, Rows { page: 0, row: 1 }, 2).unwrap();
        }
        assert_same(&pool.0, &pool.1, 0.0_f64.next_up());
        assert_same(&other.0, &other.1, 0.0_f64.next_up());
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn pictures() {
    let mut bench = Bench::new(7);
    let bytes: Vec<u8> = (0..2 * 28 * 42 * 3).map(|_| (bench.random.value() * 127.0 + 128.0) as u8).collect();
    let cpu_pixels = Tensor::from_vec(bytes, (2, 28, 42, 3), &Device::Cpu).unwrap();
    let pixels = cpu_pixels.to_device(&bench.gpu).unwrap();
    let ((scale, cpu_scale), (shift, cpu_shift)) = (bench.float(&[3]), bench.float(&[3]));
    let expected = patches(&cpu_pixels, &cpu_scale, &cpu_shift, 14, DType::F32).unwrap();
    for dtype in DTYPES {
        assert_same(&patches(&pixels, &scale, &shift, 14, dtype).unwrap(), &expected, bound(dtype, 2.5e-7));
        for (dims, height, width) in
            [([1, 19, 14, 256], 37, 27), ([2, 5, 7, 3], 11, 7), ([1, 1, 1, 8], 3, 4), ([1, 6, 5, 16], 1, 1)]
        {
            let (x, cpu_x) = bench.pair(&dims, dtype);
            let y = bilinear(&x, height, width).unwrap();
            let cpu_y = bilinear(&cpu_x, height, width).unwrap();
            assert_same(&y, &cpu_y, bound(dtype, 1.5e-7));
            let (sum, cpu_sum) = bench.pair(&[dims[0], height, width, dims[3]], dtype);
            bilinear_add(&sum, &x).unwrap();
            bilinear_add(&cpu_sum, &cpu_x).unwrap();
            assert_same(&sum, &cpu_sum, bound(dtype, 1.4e-7));
        }
        for (dims, k) in [([1, 5, 7, 64], 2), ([2, 3, 4, 48], 4), ([1, 2, 3, 9], 3)] {
            let (x, cpu_x) = bench.pair(&dims, dtype);
            assert_same(&depth_to_space(&x, k).unwrap(), &depth_to_space(&cpu_x, k).unwrap(), 1e-30);
        }
        let (x, cpu_x) = bench.pair(&[2, 9, 11, 24], dtype);
        let ((u, cpu_u), (v, cpu_v)) = (bench.float(&[11, 12]), bench.float(&[9, 12]));
        add_plane(&x, &u, &v).unwrap();
        add_plane(&cpu_x, &cpu_u, &cpu_v).unwrap();
        assert_same(&x, &cpu_x, bound(dtype, 1e-30));
        for first in [0, 7, 99] {
            let (x, cpu_x) = bench.pair(&[13, 24], dtype);
            relu_in_place(&x, first).unwrap();
            relu_in_place(&cpu_x, first).unwrap();
            assert_same(&x, &cpu_x, 1e-30);
        }
        for (outputs, activation) in [(2, ValueActivation::Exp), (4, ValueActivation::InverseLog)] {
            for channels in [32, 9] {
                let (x, cpu_x) = bench.pair(&[1, 21, 17, channels], dtype);
                let ((w, cpu_w), (b, cpu_b)) = (bench.float(&[outputs, channels]), bench.float(&[outputs]));
                let found = predict(&x, &w, &b, activation).unwrap();
                let expected = predict(&cpu_x, &cpu_w, &cpu_b, activation).unwrap();
                assert_same(&found.values, &expected.values, 3e-7);
                assert_same(&found.confidence, &expected.confidence, 3e-7);
                assert_eq!(found.not_finite.to_vec1::<f32>().unwrap(), [0.0]);
                // A bias that makes every confidence infinite.
                let large = Tensor::from_vec(vec![200_f32; outputs], outputs, &Device::Cpu).unwrap();
                let large = large.to_device(&bench.gpu).unwrap();
                let found = predict(&x, &w, &large, activation).unwrap();
                assert_eq!(found.not_finite.to_vec1::<f32>().unwrap(), [(21 * 17 * outputs) as f32]);
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn tokens_side_by_side_and_modulated() {
    let mut bench = Bench::new(8);
    for dtype in DTYPES {
        let [a, b, c] = [3, 1, 5].map(|rows| bench.pair(&[rows, 7], dtype));
        let cpu = concat(&[a.1, b.1.clone(), c.1], &Device::Cpu).unwrap();
        bench.gpu.synchronize().unwrap();
        let other = cuda_stream(&bench.gpu).unwrap();
        for stream in [&bench.gpu, &other] {
            for (rows, expected) in [(vec![a.0.clone(), b.0.clone(), c.0.clone()], &cpu), (vec![b.0.clone()], &b.1)] {
                let joined = concat(&rows, stream).unwrap();
                assert!(joined.device().same_device(stream));
                assert_same(&joined, expected, 1e-30);
            }
        }
    }
    let ((a, cpu_a), (b, cpu_b)) = (bench.float(&[2, 9, 12]), bench.float(&[2, 9, 5]));
    assert_error(concat(&[a.clone(), b.narrow(0, 0, 1).unwrap()], a.device()), &["[2, 9, 12]"]);
    assert_error(concat(std::slice::from_ref(&a), &Device::Cpu), &["not on the requested device"]);
    assert_same(&join_channels(&a, &b).unwrap(), &join_channels(&cpu_a, &cpu_b).unwrap(), 1e-30);
    let ((x, cpu_x), (n, cpu_n)) = (bench.float(&[3, 40]), bench.float(&[3, 40]));
    let (m, cpu_m) = bench.float(&[3, 120]);
    assert_same(&modulate(&x, &n, &m).unwrap(), &modulate(&cpu_x, &cpu_n, &cpu_m).unwrap(), 2e-7);
}

/// Operands that are read may belong to another CUDA stream, those that are written may not.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn nothing_is_written_in_another_cuda_stream() {
    let mut bench = Bench::new(10);
    let other = cuda_stream(&bench.gpu).unwrap();
    let elsewhere = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &other).unwrap();
    let (x, (w, _)) = (bench.float(&[4, 8]).0, bench.float(&[8, 8]));
    assert_error(linear_add(&elsewhere(&[4, 8]), &x, &w, None), &["linear_add: y", "CUDA stream"]);
    let (x, (w, _)) = (bench.float(&[1, 4, 4, 8]).0, bench.float(&[8, 1, 1, 8]));
    assert_error(conv2d_add(&elsewhere(&[1, 4, 4, 8]), &x, &w, None, 0), &["conv2d_add: y", "CUDA stream"]);
    assert_error(bilinear_add(&elsewhere(&[1, 6, 6, 8]), &x), &["bilinear_add: y", "CUDA stream"]);
    let qkv = bench.float(&[2, 3, 1, 64]).0;
    assert_error(append(&elsewhere(&[1, 2, 2, 1, 64]), 0, 0, &qkv), &["append: pool", "CUDA stream"]);
    let [w, b] = [(); 2].map(|()| bench.float(&[64]).0);
    let [cos, sin] = [(); 2].map(|()| bench.float(&[2, 32]).0);
    let norms = HeadNorms { queries: (&w, &b), keys: (&w, &b), eps: 1e-5 };
    let rotary = Rotary { cos, sin, times: None, pairing: Pairing::SplitHalves };
    let pool = elsewhere(&[1, 2, 2, 1, 64]);
    assert_error(norm_rotate_append(&qkv, &norms, &rotary, &pool, 0), &["norm_rotate_append: pool", "CUDA stream"]);
    let (pool, start) = (bench.float(&[1, 2, 2, 1, 64]).0, Rows { page: 0, row: 0 });
    assert_error(copy_rows(&pool, start, &elsewhere(&[1, 2, 2, 1, 64]), start, 1), &["copy_rows: to", "CUDA stream"]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn layers_without_inputs_give_their_bias() {
    let mut bench = Bench::new(11);
    for dtype in DTYPES {
        for rows in [1, 4, 70] {
            let ((x, cpu_x), (w, cpu_w)) = (bench.pair(&[rows, 0], dtype), bench.pair(&[24, 0], dtype));
            let (b, cpu_b) = bench.float(&[24]);
            let y = linear(&x, &w, Some(&b), Activation::Gelu).unwrap();
            assert_same(&y, &linear(&cpu_x, &cpu_w, Some(&cpu_b), Activation::Gelu).unwrap(), bound(dtype, 6e-7));
        }
    }
}

/// A CUDA stream that nothing uses any more is given to the next caller. Streams in use are not.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_streams_are_reused() {
    let bench = Bench::new(12);
    let name = |stream: &Device| format!("{stream:?}");
    let distinct = |names: &[String]| names.iter().collect::<std::collections::HashSet<_>>().len();
    let take = || cuda_stream(&bench.gpu).unwrap();
    let (held, tensor) = {
        let first = take();
        (name(&first), Tensor::zeros(5, DType::F32, &first).unwrap())
    };
    let taken = {
        let streams: Vec<_> = (0..8).map(|_| take()).collect();
        assert!(streams.iter().all(|stream| !stream.same_device(&bench.gpu)));
        streams.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(distinct(&taken), 8);
    assert!(!taken.contains(&held), "a tensor uses it");
    // One after the other. Tests that run at the same time open streams, too.
    let again: Vec<_> = (0..64).map(|_| name(&take())).collect();
    assert!(distinct(&again) <= 32 && taken.iter().any(|name| again.contains(name)), "{again:?}");
    drop(tensor);
}

/// An operation that reads a tensor which another kernel is writing, and returns its result. The pool is for operations
/// that write to pages.
type Reader<'a> = (&'a str, DType, Box<dyn Fn(&Tensor, &Tensor) -> Tensor + 'a>);

/// Kernels may start before the previous kernel has ended (`early_launch.cuh`), and must wait before they read its
/// results.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_wait_for_what_they_read() {
    let mut bench = Bench::new(13);
    let gpu = bench.gpu.clone();
    // A gemm of few blocks that take a millisecond each, so the next kernel has free multiprocessors and time to start
    // early.
    let (rows, outputs, inputs) = (192, 256, 1 << 18);
    let [x, w] = [rows, outputs].map(|size| {
        let some = bench.random.tensor(&[size, 1 << 10], DType::BF16).to_device(&gpu).unwrap();
        Tensor::cat(&vec![&some; inputs >> 10], 1).unwrap()
    });
    let [(half, _), (single, _)] = [DType::BF16, DType::F32].map(|dtype| bench.pair(&[rows, outputs], dtype));
    let [vector, head, modulation] =
        [vec![outputs], vec![64], vec![rows, 3 * outputs]].map(|dims| bench.float(&dims).0);
    let [cos, sin] = [(); 2].map(|()| bench.float(&[64, 32]).0);
    let rotary = Rotary { cos, sin, times: None, pairing: Pairing::SplitHalves };
    let norms = HeadNorms { queries: (&head, &head), keys: (&head, &head), eps: 1e-5 };
    let rows_of = |x: &Tensor, first: usize| x.narrow(0, first, 4).unwrap();
    // The same values as 64 tokens of 4 heads, and as 6 pages of keys and values; for few queries, many blocks share
    // the keys.
    let tokens = |x: &Tensor| x.reshape((64, 3, 4, 64)).unwrap();
    let whole = |x: &Tensor, _: &Tensor| self_attention(&x.reshape((1, 64, 3, 4, 64)).unwrap()).unwrap();
    let split = |x: &Tensor, _: &Tensor| {
        let pages = x.reshape((6, 2, 64, 1, 64)).unwrap();
        let query = x.flatten_all().unwrap().narrow(0, 0, 192).unwrap().reshape((1, 3, 1, 64)).unwrap();
        let table = PageTable::new((0..6).collect(), vec![], 64);
        paged_attention(&query, Pools { frames: &pages, special: &pages }, &table).unwrap()
    };
    let rotated = |x: &Tensor, _: &Tensor| {
        norm_rotate(&tokens(x), &norms, &rotary).unwrap();
        x.clone()
    };
    let moved = |x: &Tensor, pool: &Tensor| {
        norm_rotate_append(&tokens(x), &norms, &rotary, pool, 0).unwrap();
        pool.clone()
    };
    let appended = |x: &Tensor, pool: &Tensor| {
        append(pool, 0, 0, &tokens(x)).unwrap();
        pool.clone()
    };
    let readers: Vec<Reader<'_>> = vec![
        ("layer_norm", DType::F32, Box::new(|x, _| layer_norm(x, &vector, &vector, 1e-5, DType::F32).unwrap())),
        ("modulate", DType::F32, Box::new(|x, _| modulate(x, &single, &modulation).unwrap())),
        ("linear: x", DType::BF16, Box::new(|x, _| linear(x, &half, None, Activation::Gelu).unwrap())),
        ("linear: weight", DType::BF16, Box::new(|x, _| linear(&half, x, None, Activation::Identity).unwrap())),
        (
            "few rows: x",
            DType::F32,
            Box::new(|x, _| linear(&rows_of(x, 188), &single, None, Activation::Silu).unwrap()),
        ),
        (
            "few rows: weight",
            DType::BF16,
            Box::new(|x, _| linear(&rows_of(&half, 0), x, None, Activation::Relu).unwrap()),
        ),
        ("norm_rotate", DType::BF16, Box::new(rotated)),
        ("norm_rotate_append", DType::F32, Box::new(moved)),
        ("append", DType::BF16, Box::new(appended)),
        ("attention", DType::BF16, Box::new(whole)),
        ("attention", DType::F32, Box::new(whole)),
        ("split attention", DType::BF16, Box::new(split)),
        ("split attention", DType::F32, Box::new(split)),
    ];
    let mut early = Vec::new();
    for (name, dtype, read) in &readers {
        let run = |wait: bool| {
            // The gemm adds to zeros, so a kernel that reads too early reads zeros.
            let y = Tensor::zeros((rows, outputs), *dtype, &gpu).unwrap();
            let pool = Tensor::zeros((1, 2, 64, 4, 64), *dtype, &gpu).unwrap();
            gpu.synchronize().unwrap();
            linear_add(&y, &x, &w, None).unwrap();
            if wait {
                gpu.synchronize().unwrap();
            }
            let result = read(&y, &pool);
            gpu.synchronize().unwrap();
            wide(&result.to_device(&Device::Cpu).unwrap())
        };
        let expected = run(true);
        assert!(
            expected.iter().all(|number| number.is_finite()) && expected.iter().any(|&number| number != 0.0),
            "{name}"
        );
        if (0..3).any(|_| run(false) != expected) {
            early.push((name, dtype));
        }
    }
    assert!(early.is_empty(), "read before it is written: {early:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn results_come_to_main_memory_together() {
    let mut bench = Bench::new(9);
    let mut readback = Readback::default();
    for scale in [1, 3, 2] {
        let pairs: Vec<_> = [5, 0, 700].map(|count| bench.float(&[scale, count])).into();
        let views: Vec<_> = pairs.iter().map(|(gpu, _)| gpu.narrow(0, scale - 1, 1).unwrap()).collect();
        for (found, (_, cpu)) in readback.read(&views).unwrap().iter().zip(&pairs) {
            assert_eq!(*found, cpu.narrow(0, scale - 1, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
        }
    }
    let elsewhere = Tensor::zeros(3, DType::F32, &cuda_stream(&bench.gpu).unwrap()).unwrap();
    assert_error(readback.read(&[bench.float(&[3]).0, elsewhere]), &["more than one CUDA stream"]);
    let (half, _) = bench.pair(&[4], DType::BF16);
    assert_error(readback.read(&[half]), &["BF16"]);
}
