//! A small network and frames for it.

use std::sync::Arc;

use periplus::checkpoint::synthetic;
use periplus::{
    Config, DType, Device, Engine, Frame, FrameOutput, Raster, SessionConfig, StreamSettings, Viewport, Weights,
};

/// A network of a few thousand parameters with a point head; 2 scale frames, window 2.
pub(crate) fn engine(dtype: DType) -> Engine {
    let config = Config {
        embed_dim: 64,
        num_heads: 1,
        depth: 4,
        vit_depth: 1,
        vit_heads: 1,
        pos_grid: 3,
        taps: [0, 1, 2, 3],
        camera_depth: 1,
        camera_heads: 1,
        dpt_features: 16,
        dpt_hidden: 8,
        dpt_channels: [16, 16, 16, 16],
        point_head: true,
        stream: StreamSettings { scale_frames: 2, window: 2, ..StreamSettings::default() },
        ..Config::full()
    };
    Engine::load(&Weights::synthetic(config, 3).unwrap(), dtype, &Device::Cpu).unwrap()
}

pub(crate) fn frame(width: usize, height: usize, seed: u64) -> Frame {
    let noise = synthetic::hash_uniform(&format!("frame/{seed}"), 3 * width * height, 0);
    let bytes: Vec<u8> = noise.iter().map(|x| ((x + 1.0) * 127.0) as u8).collect();
    let pixels = bytes.as_chunks::<3>().0.to_vec();
    Frame {
        number: seed as usize,
        name: Some(format!("{seed}").into()),
        timestamp: None,
        viewport: Viewport::identity(width as u32, height as u32),
        pixels: Arc::new(Raster::new(width, height, pixels).unwrap()),
    }
}

pub(crate) fn run(engine: &Engine, frames: impl IntoIterator<Item = Frame>) -> Vec<FrameOutput> {
    run_with(engine, SessionConfig::from(engine.config()), frames)
}

pub(crate) fn run_with(
    engine: &Engine,
    config: SessionConfig,
    frames: impl IntoIterator<Item = Frame>,
) -> Vec<FrameOutput> {
    let mut session = engine.session(config).unwrap();
    let mut outputs = Vec::new();
    for frame in frames {
        outputs.extend(session.push(frame).unwrap());
    }
    outputs.extend(session.finish().unwrap());
    outputs
}
