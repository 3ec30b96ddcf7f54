//! Benchmarks of the operations on the CPU at the sizes of the full model (518 x 294 pixels: 783 tokens), beside
//! Candle's gemm of the same size. Divan's "items" are floating-point operations; memory-bound operations are measured
//! in bytes.
//!
//! Divan runs one benchmark after the other, so compare figures of one run on a quiet machine.

#![allow(clippy::unwrap_used)] // a benchmark that fails should stop

use candle_core::{DType, Device, Result, Tensor};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use periplus_kernels::attention::{paged_attention, self_attention};
use periplus_kernels::conv::conv2d;
use periplus_kernels::linear::{Activation, linear, linear_add};
use periplus_kernels::norm::layer_norm;
use periplus_kernels::pages::{PageTable, Pools};
use periplus_kernels::resample::bilinear;
use periplus_kernels::rotary::{HeadNorms, Pairing, Rotary, norm_rotate};

const TOKENS: usize = 783;
const C: usize = 1024;
const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

fn main() {
    divan::main();
}

fn random(dims: &[usize]) -> Tensor {
    Tensor::rand(-1_f32, 1.0, dims, &Device::Cpu).unwrap()
}

fn run<T>(bencher: Bencher<'_, '_>, operations: usize, f: impl Fn() -> Result<T> + Sync) {
    bencher.counter(ItemsCount::new(operations)).bench_local(|| black_box(f().unwrap()));
}

fn stream<T>(bencher: Bencher<'_, '_>, bytes: usize, f: impl Fn() -> Result<T> + Sync) {
    bencher.counter(BytesCount::new(bytes)).bench_local(|| black_box(f().unwrap()));
}

/// Rows, outputs, inputs.
const GEMMS: [[usize; 3]; 4] = [[TOKENS, 3 * C, C], [TOKENS, C, C], [TOKENS, 4 * C, C], [TOKENS, C, 4 * C]];

#[divan::bench(args = GEMMS)]
fn candle_gemm(bencher: Bencher<'_, '_>, [rows, outputs, inputs]: [usize; 3]) {
    let (x, w) = (random(&[rows, inputs]), random(&[outputs, inputs]).t().unwrap());
    run(bencher, 2 * rows * outputs * inputs, || x.matmul(&w));
}

#[divan::bench(args = GEMMS)]
fn linear_gelu(bencher: Bencher<'_, '_>, [rows, outputs, inputs]: [usize; 3]) {
    let (x, w, b) = (random(&[rows, inputs]), random(&[outputs, inputs]), random(&[outputs]));
    run(bencher, 2 * rows * outputs * inputs, || linear(&x, &w, Some(&b), Activation::Gelu));
}

#[divan::bench(args = GEMMS)]
fn linear_gelu_bf16(bencher: Bencher<'_, '_>, [rows, outputs, inputs]: [usize; 3]) {
    let (x, b) = (random(&[rows, inputs]), random(&[outputs]));
    let w = random(&[outputs, inputs]).to_dtype(DType::BF16).unwrap();
    run(bencher, 2 * rows * outputs * inputs, || linear(&x, &w, Some(&b), Activation::Gelu));
}

#[divan::bench(args = GEMMS)]
fn linear_add_residual(bencher: Bencher<'_, '_>, [rows, outputs, inputs]: [usize; 3]) {
    let (x, w, b) = (random(&[rows, inputs]), random(&[outputs, inputs]), random(&[outputs]));
    let y = random(&[rows, outputs]);
    run(bencher, 2 * rows * outputs * inputs, || linear_add(&y, &x, &w, Some(&b)));
}

/// Gemv, as in the camera head. Twelve weights take turns, so that they come from memory and not from a cache.
#[divan::bench(args = TYPES)]
fn gemv(bencher: Bencher<'_, '_>, dtype: DType) {
    let x = random(&[1, 2 * C]);
    let w: Vec<_> = (0..12).map(|_| random(&[6 * C, 2 * C]).to_dtype(dtype).unwrap()).collect();
    let bytes = w.len() * w[0].elem_count() * dtype.size_in_bytes();
    stream(bencher, bytes, || w.iter().map(|w| linear(&x, w, None, Activation::Identity)).collect::<Result<Vec<_>>>());
}

#[divan::bench(args = [64, 128])]
fn attention_within_a_frame(bencher: Bencher<'_, '_>, dim: usize) {
    let qkv = random(&[1, TOKENS, 3, C / dim, dim]);
    run(bencher, 4 * TOKENS * TOKENS * C, || self_attention(&qkv));
}

#[divan::bench(args = TYPES)]
fn attention_over_eight_pages(bencher: Bencher<'_, '_>, dtype: DType) {
    let (pages, qkv) = (8, random(&[TOKENS, 3, 16, 64]));
    let frames = random(&[pages, 2, TOKENS, 16, 64]).to_dtype(dtype).unwrap();
    let special = frames.narrow(0, 0, 1).unwrap();
    let table = PageTable::new((0..pages as u32).collect(), vec![], TOKENS);
    let pools = Pools { frames: &frames, special: &special };
    run(bencher, 4 * TOKENS * TOKENS * pages * C, || paged_attention(&qkv, pools, &table));
}

/// Height, width, in, out.
#[divan::bench(args = [[84, 148, 256, 256], [168, 296, 256, 128], [294, 518, 128, 32]])]
fn conv_3x3(bencher: Bencher<'_, '_>, [height, width, inputs, outputs]: [usize; 4]) {
    let (x, b) = (random(&[1, height, width, inputs]), random(&[outputs]));
    let w = random(&[outputs, 3, 3, inputs]);
    run(bencher, 18 * height * width * inputs * outputs, || conv2d(&x, &w, Some(&b), 1, 1, Activation::Relu));
}

#[divan::bench]
fn norm(bencher: Bencher<'_, '_>) {
    let (x, w, b) = (random(&[TOKENS, C]), random(&[C]), random(&[C]));
    stream(bencher, 8 * TOKENS * C, || layer_norm(&x, &w, &b, 1e-6, DType::F32));
}

#[divan::bench]
fn norm_and_rope(bencher: Bencher<'_, '_>) {
    let (qkv, w, angles) = (random(&[TOKENS, 3, 16, 64]), random(&[64]), random(&[TOKENS, 32]));
    let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
    let rotary = Rotary { cos, sin, times: None, pairing: Pairing::Interleaved };
    let norms = HeadNorms { queries: (&w, &w), keys: (&w, &w), eps: 1e-5 };
    stream(bencher, 16 * TOKENS * C, || norm_rotate(&qkv, &norms, &rotary));
}

#[divan::bench]
fn upsampling(bencher: Bencher<'_, '_>) {
    let x = random(&[1, 168, 296, 128]);
    stream(bencher, 4 * 128 * (168 * 296 + 294 * 518), || bilinear(&x, 294, 518));
}
