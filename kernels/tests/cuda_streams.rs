//! Operations that read operands of another CUDA stream, as all videos do with weights.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod common;

use candle_core::{DType, Device, Tensor};
use common::{Random, assert_error, wide};
use periplus_kernels::attention::paged_attention;
use periplus_kernels::conv::{add_plane, conv2d, conv2d_add};
use periplus_kernels::device::{cuda_stream, memory_used, open_cuda, synchronize, trim_memory_pool};
use periplus_kernels::linear::{Activation, linear, linear_add};
use periplus_kernels::modulation::modulate;
use periplus_kernels::norm::layer_norm;
use periplus_kernels::pages::{PageTable, Pools};
use periplus_kernels::patches::patches;
use periplus_kernels::prediction::{ValueActivation, predict};
use periplus_kernels::rotary::{HeadNorms, Pairing, Rotary, norm_rotate, norm_rotate_append};
use periplus_kernels::tokens::{concat, join_channels};

/// An operation and the shapes of its operands that may belong to another CUDA stream.
type Shared<'a> = (&'a str, Vec<Vec<usize>>, Box<dyn Fn(&[Tensor]) -> Tensor + 'a>);

/// Calls `run` with norms and RoPE angles made of six tensors.
fn rotate(t: &[Tensor], run: impl Fn(&HeadNorms<'_>, &Rotary)) {
    let rotary = Rotary { cos: t[4].clone(), sin: t[5].clone(), times: None, pairing: Pairing::SplitHalves };
    run(&HeadNorms { queries: (&t[0], &t[1]), keys: (&t[2], &t[3]), eps: 1e-5 }, &rotary);
}

/// Checks that operations give the same results when their operands belong to another CUDA stream, and are dropped and
/// their memory reused before the operation has run.
fn check_not_freed(gpu: &Device, mut random: Random, operations: &[Shared<'_>]) {
    let owner = &cuda_stream(gpu).unwrap();
    // Keeps the stream busy for some milliseconds, so that the operation runs after the drop.
    let slow = random.tensor(&[2048, 8192], DType::BF16).to_device(gpu).unwrap();
    let mut freed = Vec::new();
    for (name, shapes, run) in operations {
        let stored: Vec<_> = shapes.iter().map(|shape| random.f32(shape)).collect();
        let place = |device: &Device| stored.iter().map(|t| t.to_device(device).unwrap()).collect::<Vec<_>>();
        let expected = wide(&run(&place(gpu)).to_device(&Device::Cpu).unwrap());
        assert!(expected.iter().all(|value| value.is_finite()), "{name}");
        for _ in 0..3 {
            let operands = place(owner);
            synchronize(owner).unwrap();
            for _ in 0..50 {
                linear(&slow, &slow, None, Activation::Identity).unwrap();
            }
            let result = run(&operands);
            drop(operands);
            // Reuses the memory, if it was freed, in the order of its own stream.
            let reused: Vec<_> = [1, 2]
                .iter()
                .flat_map(|_| &stored)
                .map(|t| Tensor::from_vec(vec![f32::NAN; t.elem_count()], t.elem_count(), owner).unwrap())
                .collect();
            synchronize(owner).unwrap();
            if wide(&result.to_device(&Device::Cpu).unwrap()) != expected {
                freed.push(*name);
            }
            drop(reused);
        }
    }
    assert!(freed.is_empty(), "freed while read: {freed:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn operands_of_layers_are_not_freed_while_they_are_read() {
    let (gpu, mut random) = (open_cuda(0).unwrap(), Random::new(14));
    let mut on_gpu = |dims: &[usize]| random.f32(dims).to_device(&gpu).unwrap();
    let (rows, c) = (96, 256);
    let x = on_gpu(&[rows, c]);
    let picture = on_gpu(&[1, 8, 12, c]);
    let pixels = Tensor::from_vec(vec![77_u8; 28 * 28 * 3], (1, 28, 28, 3), &gpu).unwrap();
    let operations: Vec<Shared<'_>> = vec![
        (
            "linear",
            vec![vec![512, c], vec![512]],
            Box::new(|t| linear(&x, &t[0], Some(&t[1]), Activation::Gelu).unwrap()),
        ),
        (
            "linear_add",
            vec![vec![512, c], vec![512]],
            Box::new(|t| {
                let y = Tensor::zeros((rows, 512), DType::F32, &gpu).unwrap();
                linear_add(&y, &x, &t[0], Some(&t[1])).unwrap();
                y
            }),
        ),
        (
            "conv2d",
            vec![vec![64, 3, 3, c], vec![64]],
            Box::new(|t| conv2d(&picture, &t[0], Some(&t[1]), 1, 1, Activation::Relu).unwrap()),
        ),
        (
            "conv2d_add",
            vec![vec![64, 3, 3, c], vec![64]],
            Box::new(|t| {
                let y = Tensor::zeros((1, 8, 12, 64), DType::F32, &gpu).unwrap();
                conv2d_add(&y, &picture, &t[0], Some(&t[1]), 1).unwrap();
                y
            }),
        ),
        (
            "add_plane",
            vec![vec![12, c / 2], vec![8, c / 2]],
            Box::new(|t| {
                let y = picture.copy().unwrap();
                add_plane(&y, &t[0], &t[1]).unwrap();
                y
            }),
        ),
        ("layer_norm", vec![vec![c], vec![c]], Box::new(|t| layer_norm(&x, &t[0], &t[1], 1e-5, DType::F32).unwrap())),
        ("modulate", vec![vec![rows, c], vec![rows, 3 * c]], Box::new(|t| modulate(&x, &t[0], &t[1]).unwrap())),
        (
            "predict",
            vec![vec![3, c], vec![3]],
            Box::new(|t| predict(&picture, &t[0], &t[1], ValueActivation::InverseLog).unwrap().values),
        ),
        ("patches", vec![vec![3], vec![3]], Box::new(|t| patches(&pixels, &t[0], &t[1], 14, DType::F32).unwrap())),
    ];
    check_not_freed(&gpu, random, &operations);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn operands_of_attention_are_not_freed_while_they_are_read() {
    let (gpu, mut random) = (open_cuda(0).unwrap(), Random::new(17));
    let mut on_gpu = |dims: &[usize]| random.f32(dims).to_device(&gpu).unwrap();
    let (rows, c) = (96, 256);
    let x = on_gpu(&[rows, c]);
    let qkv = on_gpu(&[rows, 3, 4, 64]);
    let norms_and_angles = || vec![vec![64], vec![64], vec![64], vec![64], vec![rows, 32], vec![rows, 32]];
    let operations: Vec<Shared<'_>> = vec![
        ("join_channels", vec![vec![rows, 40]], Box::new(|t| join_channels(&x, &t[0]).unwrap())),
        ("concat", vec![vec![5, c]], Box::new(|t| concat(&[x.clone(), t[0].clone()], &gpu).unwrap())),
        (
            "paged_attention",
            vec![vec![3, 2, 70, 4, 64], vec![2, 2, 70, 4, 64]],
            Box::new(|t| {
                let table = PageTable::new(vec![2, 0], vec![1], 33);
                paged_attention(&qkv, Pools { frames: &t[0], special: &t[1] }, &table).unwrap()
            }),
        ),
        (
            "norm_rotate",
            norms_and_angles(),
            Box::new(|t| {
                let y = qkv.copy().unwrap();
                rotate(t, |norms, rotary| norm_rotate(&y, norms, rotary).unwrap());
                y
            }),
        ),
        (
            "norm_rotate_append",
            norms_and_angles(),
            Box::new(|t| {
                let pool = Tensor::zeros((1, 2, rows, 4, 64), DType::F32, &gpu).unwrap();
                let y = qkv.copy().unwrap();
                rotate(t, |norms, rotary| norm_rotate_append(&y, norms, rotary, &pool, 0).unwrap());
                pool
            }),
        ),
    ];
    check_not_freed(&gpu, random, &operations);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn operands_of_other_cuda_streams_are_freed_after_synchronize() {
    let gpu = open_cuda(0).unwrap();
    let owner = cuda_stream(&gpu).unwrap();
    let used = || {
        trim_memory_pool(&owner).unwrap();
        memory_used(&owner).unwrap().unwrap() as f64 / f64::from(1 << 30)
    };
    // 8 GiB, beside which the tests that run at the same time use little.
    let (inputs, outputs) = (1 << 16, 1 << 16);
    let weight = Tensor::zeros((outputs, inputs), DType::BF16, &owner).unwrap();
    let x = Tensor::zeros((1, inputs), DType::BF16, &gpu).unwrap();
    synchronize(&owner).unwrap();
    drop(linear(&x, &weight, None, Activation::Identity).unwrap());
    drop(weight);
    let held = used();
    synchronize(&gpu).unwrap();
    let freed = held - used();
    assert!(freed > 4.0, "{freed} GiB freed");
}

/// Operands are also released without a call of [`synchronize`].
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn held_operands_do_not_pile_up() {
    let gpu = open_cuda(0).unwrap();
    let owner = cuda_stream(&gpu).unwrap();
    let x = Tensor::zeros((1, 1024), DType::BF16, &gpu).unwrap();
    let mut most = 0;
    let before = memory_used(&owner).unwrap().unwrap();
    for _ in 0..16 << 10 {
        // 4 MiB each: 64 GiB in all, 4 GiB per batch.
        let weight = Tensor::zeros((2048, 1024), DType::BF16, &owner).unwrap();
        linear(&x, &weight, None, Activation::Identity).unwrap();
        most = most.max(memory_used(&owner).unwrap().unwrap());
    }
    let grown = most.saturating_sub(before) >> 30;
    println!("{grown} GiB held at most");
    assert!(grown < 40, "{grown} GiB held");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_per_thread_stream_is_refused() {
    let device = Device::new_cuda(0).unwrap();
    let x = Tensor::zeros((4, 8), DType::F32, &device).unwrap();
    assert_error(linear(&x, &x, None, Activation::Identity), &["device::cuda_stream"]);
}
