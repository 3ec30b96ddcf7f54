//! Goldens: expected outputs of the whole library (files in `goldens/`), and the error of outputs against them.
//!
//! A reference implementation computed the values in float64 from seeded weights and frames. The seeds give the same
//! values in any language, so weights and frames are not stored. The tests are in `tests/`.

#![allow(clippy::unwrap_used)] // for tests only, in which a panic is the report

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, IndexOp, Result, Tensor};
use periplus::checkpoint::synthetic;
use periplus::{Config, Engine, Frame, FrameOutput, Keyframes, Raster, Session, SessionConfig, Viewport, Weights};

/// A file of expected values, computed in float64 from seeded weights and frames.
pub struct Golden {
    /// The architecture and the settings of the stream.
    pub config: Config,
    /// Expected outputs, by name.
    pub tensors: HashMap<String, Tensor>,
    metadata: HashMap<String, String>,
}

impl Golden {
    /// Reads `goldens/NAME.safetensors`.
    ///
    /// # Panics
    /// If the file is missing or invalid.
    pub fn open(name: &str) -> Self {
        // Relative, because the tests may run on another machine, in a copy of the folder of this package.
        let path = PathBuf::from("goldens").join(name).with_extension("safetensors");
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
        Self { config: Config::from_json(&metadata["config"]).unwrap(), tensors, metadata }
    }

    /// An entry of the file's metadata, if it exists.
    pub fn metadata<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.metadata.get(key).and_then(|text| text.parse().ok())
    }

    /// Seed of the weights.
    ///
    /// # Panics
    /// If the metadata has no seed.
    pub fn weights_seed(&self) -> u64 {
        self.metadata("weights_seed").unwrap()
    }

    /// The frames, `[count, height, width, 3]` bytes.
    ///
    /// # Panics
    /// If the metadata does not describe them.
    pub fn frames(&self) -> Tensor {
        let entries: Vec<usize> = self.metadata["frames"].split(' ').map(|entry| entry.parse().unwrap()).collect();
        let [count, height, width, seed] = entries[..] else {
            panic!("not count, height, width and seed: {entries:?}")
        };
        let frames = synthetic::frames(count, height, width, seed as u64).unwrap();
        let bytes =
            |frames: Tensor| ((frames * 255.0)?.round()?.to_dtype(DType::U8)?.permute((0, 2, 3, 1)))?.contiguous();
        bytes(frames).unwrap()
    }
}

/// The first NVIDIA GPU. Tests that need one are ignored by default.
///
/// # Panics
/// If there is none. The message says why.
pub fn gpu() -> Device {
    periplus::device::open_cuda(0).unwrap()
}

/// Relative error: || a - b || / || b - mean(b) ||. The mean is over frames; for a single frame, it is over all values.
///
/// # Errors
/// If the shapes differ.
pub fn error(a: &Tensor, b: &Tensor) -> Result<f64> {
    let host = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (a, b) = (host(a)?, host(b)?);
    let mean = if b.dim(0)? > 1 { b.mean_keepdim(0)? } else { b.mean_all()?.reshape(vec![1; b.rank()])? };
    let norm = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>().map(f64::sqrt);
    Ok(norm(&(&a - &b)?)? / norm(&b.broadcast_sub(&mean)?)?)
}

/// Checks that the keyframes are those of the golden, if it lists them.
///
/// # Panics
/// If they differ.
pub fn check_keyframes(golden: &Golden, outputs: &[FrameOutput]) {
    let Some(expected) = golden.tensors.get("keyframe") else { return };
    let kept: Vec<bool> = outputs.iter().map(|output| output.keyframe).collect();
    let expected: Vec<bool> = expected.to_vec1::<f32>().unwrap().iter().map(|k| *k != 0.0).collect();
    assert_eq!(kept, expected, "keyframes");
}

/// Streams the frames of a golden through a session, one by one.
///
/// # Panics
/// If anything fails.
pub fn stream(golden: &Golden, dtype: DType, device: &Device) -> Vec<FrameOutput> {
    let mut session = session(golden, &engine(golden, dtype, device));
    let mut outputs = Vec::new();
    for frame in frames(golden) {
        outputs.extend(session.push(frame).unwrap());
    }
    outputs.extend(session.finish().unwrap());
    assert_eq!(session.stats().frames, outputs.len());
    outputs
}

/// The network of a golden.
///
/// # Panics
/// If it cannot be loaded.
pub fn engine(golden: &Golden, dtype: DType, device: &Device) -> Engine {
    let weights = Weights::synthetic(golden.config.clone(), golden.weights_seed()).unwrap();
    Engine::load(&weights, dtype, device).unwrap()
}

/// A session with the settings of a golden.
///
/// # Panics
/// If the settings are invalid.
pub fn session(golden: &Golden, engine: &Engine) -> Session {
    let keyframes = match (golden.metadata("motion_pixels"), golden.metadata("max_gap")) {
        (Some(pixels), Some(max_gap)) => Keyframes::ByMotion { pixels, max_gap },
        _ => Keyframes::Every(golden.metadata("keyframe_interval").unwrap()),
    };
    engine.session(SessionConfig { keyframes, ..engine.config().into() }).unwrap()
}

/// The frames of a golden, as a source would give them.
///
/// # Panics
/// If the golden does not describe them.
pub fn frames(golden: &Golden) -> Vec<Frame> {
    let frames = golden.frames();
    (0..frames.dim(0).unwrap()).map(|i| frame(i, &frames.i(i).unwrap())).collect()
}

/// A frame of `[height, width, 3]` bytes, as a source would give it.
fn frame(number: usize, pixels: &Tensor) -> Frame {
    let (height, width, _) = pixels.dims3().unwrap();
    let bytes = pixels.flatten_all().unwrap().to_vec1::<u8>().unwrap();
    let (pixels, _) = bytes.as_chunks::<3>();
    Frame {
        number,
        name: None,
        timestamp: None,
        viewport: Viewport::identity(width as u32, height as u32),
        pixels: Arc::new(Raster::new(width, height, pixels.to_vec()).unwrap()),
    }
}

/// Rasters as one tensor `[frames, height, width]`.
fn maps<'a>(outputs: impl Iterator<Item = &'a Raster<f32>>) -> Tensor {
    let maps: Vec<Tensor> = outputs
        .map(|map| Tensor::from_slice(map.values(), (map.height(), map.width()), &Device::Cpu).unwrap())
        .collect();
    Tensor::stack(&maps, 0).unwrap()
}

/// The errors of all outputs that a golden has, by name.
///
/// # Panics
/// If shapes differ.
pub fn errors(golden: &Golden, outputs: &[FrameOutput]) -> Vec<(String, f64)> {
    let pixel_stride = golden.metadata("pixel_stride").unwrap_or(1);
    let every = golden.metadata("dense_every").unwrap_or(1);
    let dense = || outputs.iter().step_by(every);
    let depth_maps = || dense().map(|output| output.depth_map.as_ref().unwrap());
    let stride = |map: Tensor, dim: usize| {
        let kept: Vec<u32> = (0..map.dim(dim).unwrap() as u32).step_by(pixel_stride).collect();
        map.index_select(&Tensor::new(kept, &Device::Cpu).unwrap(), dim).unwrap()
    };
    let strided = |map: Tensor| stride(stride(map, 1), 2);
    let mut errors: Vec<(String, f64)> = golden
        .tensors
        .iter()
        .filter(|(name, _)| *name != "keyframe")
        .map(|(name, expected)| {
            let found = match name.as_str() {
                "pose_enc" => {
                    let rows: Vec<f32> = outputs.iter().flat_map(|output| output.pose_encoding.0).collect();
                    Tensor::from_vec(rows, (outputs.len(), 9), &Device::Cpu).unwrap()
                }
                "depth" => strided(maps(depth_maps().map(|map| &map.depth))),
                "depth_conf" => strided(maps(depth_maps().map(|map| &map.confidence))),
                "world_points" => {
                    let points = dense().map(|output| &output.world_points.as_ref().unwrap().points);
                    let points: Vec<Tensor> = points
                        .map(|p| {
                            let shape = (p.height(), p.width(), 3);
                            Tensor::from_slice(p.values().as_flattened(), shape, &Device::Cpu).unwrap()
                        })
                        .collect();
                    Tensor::stack(&points, 0).unwrap()
                }
                "world_points_conf" => maps(dense().map(|output| &output.world_points.as_ref().unwrap().confidence)),
                other => panic!("unknown output `{other}`"),
            };
            assert_eq!(found.dims(), expected.dims(), "{name}");
            (name.clone(), error(&found, expected).unwrap())
        })
        .collect();
    errors.sort_by(|a, b| a.0.cmp(&b.0));
    errors
}
