//! Expected outputs of the whole library (`goldens/`), and how far something is from them. The tests are in `tests/`.
//!
//! The values were computed in float64 from seeded weights and frames, which are exact in any language and so are not
//! stored.

#![allow(clippy::unwrap_used)] // Serves tests alone, in which a panic is the report.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Result, Tensor};
use periplus::Config;
use periplus::checkpoint::synthetic;

/// A file of expected values, computed in float64 from seeded weights and frames.
pub struct Golden {
    /// The architecture and the settings of the stream.
    pub config: Config,
    /// What is expected, by name.
    pub tensors: HashMap<String, Tensor>,
    metadata: HashMap<String, String>,
}

impl Golden {
    /// Reads `goldens/NAME.safetensors`.
    ///
    /// # Panics
    /// If it is not there or not what it should be.
    pub fn open(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens").join(name).with_extension("safetensors");
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
        Self { config: Config::from_json(&metadata["config"]).unwrap(), tensors, metadata }
    }

    /// An entry of the file's metadata, if it is there.
    pub fn metadata<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.metadata.get(key).and_then(|text| text.parse().ok())
    }

    /// Seed of the weights.
    ///
    /// # Panics
    /// If the file does not say.
    pub fn weights_seed(&self) -> u64 {
        self.metadata("weights_seed").unwrap()
    }

    /// The frames, `[count, height, width, 3]` bytes.
    ///
    /// # Panics
    /// If the file does not say which.
    pub fn frames(&self) -> Tensor {
        let numbers: Vec<usize> = self.metadata["frames"].split(' ').map(|n| n.parse().unwrap()).collect();
        let [count, height, width, seed] = numbers[..] else { panic!("four numbers") };
        let frames = synthetic::frames(count, height, width, seed as u64).unwrap();
        let bytes =
            |frames: Tensor| ((frames * 255.0)?.round()?.to_dtype(DType::U8)?.permute((0, 2, 3, 1)))?.contiguous();
        bytes(frames).unwrap()
    }
}

/// || a - b || / || b - mean over frames of b ||; of a single frame: minus the mean of all its values.
///
/// # Errors
/// Shapes that differ.
pub fn error(a: &Tensor, b: &Tensor) -> Result<f64> {
    let (a, b) = (a.to_dtype(DType::F64)?, b.to_dtype(DType::F64)?);
    let mean = if b.dim(0)? > 1 { b.mean_keepdim(0)? } else { b.mean_all()?.reshape(vec![1; b.rank()])? };
    let norm = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>().map(f64::sqrt);
    Ok(norm(&(&a - &b)?)? / norm(&b.broadcast_sub(&mean)?)?)
}
