//! Weights that are out of range for their dtype, or not finite.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::sync::Arc;

use candle_core::{DType, Device};
use periplus::checkpoint::FloatType;
use periplus::{Engine, EngineError, Frame, ModelError, Outputs, Raster, SessionConfig, Viewport, Weights};
use periplus_tests::Golden;

/// 1e6 is out of range for float16 (65504) but not for bfloat16.
#[test]
fn weights_out_of_range_for_float16_are_named_instead_of_becoming_infinite() {
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

/// NaN anywhere in the weights gives an error that names the affected output. The session stays unchanged.
#[test]
fn weights_that_are_not_finite_are_an_error_at_the_first_frame() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.safetensors");
    let golden = Golden::open("stream-point-head");
    let frame = || {
        let pixels = Arc::new(Raster::new(28, 28, vec![[7; 3]; 28 * 28]).unwrap());
        Frame { number: 0, name: None, timestamp: None, viewport: Viewport::identity(28, 28), pixels }
    };
    for (tensor, value, outputs, expected) in [
        ("aggregator.camera_token", f32::NAN, Outputs::Poses, Some("pose")),
        ("camera_head.pose_branch.fc2.bias", f32::NAN, Outputs::All, Some("pose")),
        // The ReLU of the last layer gives a field of view of 0, which is finite.
        ("camera_head.pose_branch.fc2.bias", -1e4, Outputs::Poses, None),
        ("depth_head.norm.weight", f32::NAN, Outputs::Depth, Some("depth")),
        ("depth_head.scratch.layer1_rn.weight", f32::NAN, Outputs::Depth, Some("depth")),
        ("depth_head.scratch.refinenet1.resConfUnit2.conv1.weight", f32::NAN, Outputs::Depth, Some("depth")),
        ("depth_head.scratch.output_conv2.0.bias", f32::NAN, Outputs::Depth, Some("depth")),
        ("depth_head.scratch.output_conv2.2.bias", f32::NAN, Outputs::Depth, Some("depth")),
        // exp(1e3) is infinite.
        ("depth_head.scratch.output_conv2.2.bias", 1e3, Outputs::Depth, Some("depth")),
        ("point_head.scratch.output_conv2.2.bias", f32::NAN, Outputs::All, Some("world points")),
        ("point_head.scratch.output_conv2.2.bias", f32::NAN, Outputs::Depth, None),
    ] {
        Weights::synthetic(golden.config.clone(), 1).unwrap().write(&path, FloatType::F32).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let (start, end) = metadata.info(tensor).unwrap().data_offsets;
        for stored in bytes[8 + header + start..8 + header + end].chunks_mut(4) {
            stored.copy_from_slice(&value.to_le_bytes());
        }
        std::fs::write(&path, bytes).unwrap();

        let engine = Engine::load(&Weights::open(&path, None).unwrap(), DType::F32, &Device::Cpu).unwrap();
        let mut session = engine.session(SessionConfig { outputs, ..engine.config().into() }).unwrap();
        session.push(frame()).unwrap();
        match (session.finish(), expected) {
            (Err(EngineError::NotFinite { index: 0, what }), Some(expected)) => assert_eq!(what, expected, "{tensor}"),
            (Ok(outputs), None) => assert_eq!(outputs.len(), 1),
            (found, expected) => panic!("{tensor}: {:?} instead of {expected:?}", found.map(|outputs| outputs.len())),
        }
        assert_eq!(session.stats().frames, usize::from(expected.is_none()));
        assert_eq!(session.stats().keyframes, usize::from(expected.is_none()));
    }
}
