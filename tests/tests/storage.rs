//! What happens to weights that the storage asked for cannot hold.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use candle_core::{DType, Device};
use periplus::checkpoint::FloatType;
use periplus::{Engine, EngineError, ModelError, Weights};
use periplus_tests::Golden;

/// 1e6 is beyond float16 (65504) and well within bfloat16.
#[test]
fn weights_beyond_float16_are_named_instead_of_becoming_infinite() {
    const TENSOR: &str = "aggregator.frame_blocks.1.mlp.fc1.weight";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    Weights::synthetic(Golden::open("stream").config, 1).unwrap().write(&path, FloatType::F32).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let start = 8 + header + metadata.info(TENSOR).unwrap().data_offsets.0;
    bytes[start..start + 4].copy_from_slice(&1e6_f32.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();

    let weights = Weights::open(&path, None).unwrap();
    let Err(error) = Engine::load(&weights, DType::F16, &Device::Cpu) else { panic!("it should not load") };
    assert!(matches!(&error, EngineError::Model(ModelError::Float16 { place }) if TENSOR.starts_with(place.as_str())));
    assert!(Engine::load(&weights, DType::BF16, &Device::Cpu).is_ok());
}
