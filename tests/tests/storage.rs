//! What happens to weights that the storage asked for cannot hold.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::sync::Arc;

use candle_core::{DType, Device};
use periplus::checkpoint::FloatType;
use periplus::{Engine, EngineError, Frame, ModelError, Raster, SessionConfig, Viewport, Weights};
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

/// A damaged checkpoint must not answer with poses that look like outputs.
#[test]
fn weights_that_are_no_numbers_are_an_error_at_the_first_frame() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.safetensors");
    let golden = Golden::open("stream");
    Weights::synthetic(golden.config.clone(), 1).unwrap().write(&path, FloatType::F32).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let (start, end) = metadata.info("camera_head.pose_branch.fc2.bias").unwrap().data_offsets;
    for number in bytes[8 + header + start..8 + header + end].chunks_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();

    let engine = Engine::load(&Weights::open(&path, None).unwrap(), DType::F32, &Device::Cpu).unwrap();
    let mut session = engine.session(SessionConfig::from(engine.config())).unwrap();
    let pixels = Arc::new(Raster::new(28, 28, vec![[7; 3]; 28 * 28]).unwrap());
    let viewport = Viewport::identity(28, 28);
    session.push(Frame { number: 0, name: None, timestamp: None, viewport, pixels }).unwrap();
    assert!(matches!(session.finish(), Err(EngineError::NotFinite { index: 0 })));
    assert_eq!(session.stats().frames, 0);
}
