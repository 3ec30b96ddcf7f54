//! The cache on a GPU that is nearly full. It is a separate test program because it allocates all memory.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use candle_core::IndexOp;
use periplus::device::cuda_stream;
use periplus::{CacheError, DType, Retention, Tensor};
use periplus_cache::{CacheConfig, KvCache, PassKind};
use periplus_kernels::pages::append;
use periplus_tests::gpu;

/// Rows per page of 64 MiB. All of them are special tokens that are retained.
const ROWS: usize = 16_384;
const PAGE: usize = 64 << 20;
const LAYERS: usize = 3;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_pool_grows_where_twice_its_size_does_not_fit() {
    let device = cuda_stream(&gpu()).unwrap();
    let block = |bytes: usize| Tensor::zeros(bytes, DType::U8, &device);
    // Fill the memory, then free enough for the pages of two frames in each layer, for queries, keys and values, and
    // for 18 pages of special tokens per layer. So 32 pages per layer do not fit, but 17 do, beside the 16 old ones of
    // one layer.
    let kept: Vec<_> = (0..).map_while(|_| block(PAGE).ok()).collect();
    let room = LAYERS * (2 + 18) + 18 + 4;
    assert!(kept.len() > room, "a GPU with more than a few gigabytes");
    let kept: Vec<_> = kept.into_iter().skip(room).collect();

    let config = CacheConfig { window: 1, retention: Retention::All, pin_scale_frames: false, special_tokens: ROWS };
    let mut cache = KvCache::new(config, LAYERS, 16, 64, DType::BF16, &device).unwrap();
    let mut push = |frame: usize| {
        let qkv = Tensor::full(frame as f32, (), &device)?.to_dtype(DType::BF16)?.broadcast_as((ROWS, 3, 16, 64))?;
        let qkv = qkv.contiguous()?;
        let mut pass = cache.begin(if frame == 0 { PassKind::Scale(1) } else { PassKind::Keyframe }, ROWS)?;
        for layer in 0..LAYERS {
            pass.write(layer, &qkv, |pool, page, qkv, _| append(pool, page, 0, qkv))?;
        }
        pass.commit()?;
        Ok(cache.stats().special_pages_in_use)
    };
    let mut held = 0;
    let error: CacheError = (0..60).find_map(|frame| push(frame).map(|pages| held = pages).err()).unwrap();
    println!("{held} special pages per layer, then: {error}");
    assert!(matches!(error, CacheError::GpuFull { .. }), "{error}");
    assert!((17..32).contains(&held), "{held} pages");
    for layer in 0..LAYERS {
        let special = cache.pools(layer).unwrap().special;
        for page in 0..held {
            let last =
                special.i((page, 1, ROWS - 1, 15)).unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(last[63].to_bits(), (page as f32).to_bits(), "page {page} of layer {layer}");
        }
    }
    drop(kept);
}
