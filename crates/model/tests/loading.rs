//! Weights on their way into the network.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use periplus_checkpoint::config::Config;
use periplus_checkpoint::{CheckpointError, Weights, synthetic, tensor_shapes};
use periplus_model::{Model, ModelError, Outputs, PassKind, Video, VideoState, Workspace};

/// The smallest network there can be, or nearly so.
fn micro() -> Config {
    let json = r#"{"embed_dim": 64, "num_heads": 1, "depth": 4, "vit_depth": 1, "vit_heads": 1, "patch_size": 2,
        "pos_grid": 2, "num_registers": 1, "mlp_ratio": 1, "taps": [0, 1, 2, 3], "camera_depth": 1,
        "camera_heads": 1, "dpt_features": 8, "dpt_hidden": 4, "dpt_channels": [4, 4, 4, 4]}"#;
    Config::from_json(json).unwrap()
}

fn load(weights: &Weights, dtype: DType) -> Result<Model, ModelError> {
    Model::load(weights.var_builder(dtype, &Device::Cpu), weights.config())
}

/// All tensors of the network, in memory.
fn tensors(config: &Config) -> HashMap<String, Tensor> {
    let shapes = tensor_shapes(config).into_iter();
    shapes.map(|(name, shape)| (name.clone(), synthetic::tensor(&name, &shape, 0).unwrap())).collect()
}

#[test]
fn progress_ends_at_the_total() {
    let config = Config { point_head: true, ..micro() };
    let reports = Arc::new(Mutex::new(Vec::new()));
    let inner = Arc::clone(&reports);
    let weights = Weights::synthetic(config.clone(), 0).unwrap();
    let weights = weights.with_progress(move |done, total| {
        inner.lock().unwrap().push((done, total));
        ControlFlow::Continue(())
    });
    load(&weights, DType::F32).unwrap();
    // Once more: all has been read, so there is nothing to report.
    load(&weights, DType::BF16).unwrap();
    let reports = reports.lock().unwrap();
    assert!(reports.is_sorted_by(|before, after| before.0 < after.0));
    assert!(reports.iter().all(|report| report.1 == config.weight_bytes(4)));
    assert_eq!(reports.last(), Some(&(config.weight_bytes(4), config.weight_bytes(4))));
}

#[test]
fn the_function_that_follows_the_progress_can_stop_it() {
    let half = |done, total| if 2 * done < total { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let weights = Weights::synthetic(micro(), 0).unwrap().with_progress(half);
    assert!(matches!(load(&weights, DType::F32), Err(ModelError::Checkpoint(CheckpointError::Stopped))));
}

/// The door is Candle's own: tensors in memory give the same bits as a checkpoint.
#[test]
fn tensors_of_any_var_builder_are_loaded() {
    let config = micro();
    let weights = Weights::synthetic(config.clone(), 0).unwrap();
    let frames = synthetic::frames(1, 28, 28, 1).unwrap();
    let frames = ((frames * 255.0).unwrap().to_dtype(DType::U8).unwrap().permute((0, 2, 3, 1)).unwrap()).contiguous();
    let depth = |model: &Model| {
        let mut state = VideoState::new(model, &config.stream, &Device::Cpu).unwrap();
        let video = Video { state: &mut state, kind: PassKind::Scale(1) };
        let mut workspace = Workspace::new(&Device::Cpu);
        let pass = model.forward(&mut workspace, frames.as_ref().unwrap(), video, Outputs::Depth).unwrap();
        let depth = pass.accept().unwrap().depth.unwrap().values;
        depth.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    for dtype in [DType::F32, DType::BF16] {
        let in_memory = VarBuilder::from_tensors(tensors(&config), dtype, &Device::Cpu);
        let model = Model::load(in_memory, &config).unwrap();
        assert_eq!(depth(&model), depth(&load(&weights, dtype).unwrap()), "{dtype:?}");
    }
}

#[test]
fn tensors_that_are_missing_or_of_another_shape_are_named() {
    let config = micro();
    let name = "depth_head.norm.weight";
    let load = |tensors| Model::load(VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu), &config);
    let mut fewer = tensors(&config);
    let tensor = fewer.remove(name).unwrap();
    let error = load(fewer).err().unwrap().to_string();
    assert!(error.contains(name), "{error}");
    let mut wrong = tensors(&config);
    wrong.insert(name.into(), tensor.reshape((2, ())).unwrap());
    let error = load(wrong).err().unwrap().to_string();
    assert!(error.contains(name), "{error}");
    let impossible = Config { depth: 0, ..config.clone() };
    let weights = VarBuilder::from_tensors(tensors(&config), DType::F32, &Device::Cpu);
    assert!(matches!(Model::load(weights, &impossible), Err(ModelError::Settings(_))));
}
