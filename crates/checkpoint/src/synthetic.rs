//! Seeded weights and frames that are the same bits in any language.
//!
//! The values are splitmix64 (Steele, Lea, Flood 2014) of the FNV-1a hash of a name plus an index, in float64,
//! rounded to float32 once at the end. Weights are scaled so that every tensor moves the outputs.

use candle_core::{Device, Result, Tensor};
use periplus_kernels::try_zeros;
use rayon::prelude::*;

const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01B3;
const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// FNV-1a of the key.
fn hash(key: &str) -> u64 {
    key.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ byte as u64).wrapping_mul(FNV_PRIME))
}

/// The value at `index` of the sequence that starts at `hash`, in [-1, 1).
fn uniform(hash: u64, index: u64) -> f64 {
    let z = hash.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let z = z ^ (z >> 31);
    (z >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
}

/// `count` values in [-1, 1) of the sequence of `key`, from index `start` on.
pub fn hash_uniform(key: &str, count: usize, start: u64) -> Vec<f64> {
    let hash = hash(key);
    (0..count as u64).map(|i| uniform(hash, start.wrapping_add(i))).collect()
}

/// `offset + scale * (x / divisor)` for values `x` of unit variance. Kept as separate operations, since each one
/// rounds.
#[derive(Clone, Copy, Default)]
struct Scaling {
    divisor: Option<f64>,
    scale: Option<f64>,
    offset: Option<f64>,
}

impl Scaling {
    /// Layer scales are 0.3 + 0.1 x, weights of norms 1 + 0.1 x, biases 0.1 x (0.25 more for the last one of the
    /// camera head, so that fields of view stay positive), other weights x / sqrt(fan in) (0.3 times that in last
    /// layers), all else 0.5 x.
    fn of(name: &str, shape: &[usize]) -> Self {
        let scaled = |scale| Self { scale: Some(scale), ..Self::default() };
        let offset = |offset, scale| Self { scale: Some(scale), offset: Some(offset), divisor: None };
        let pose = name.contains("pose_branch.fc2");
        match name.rsplit('.').next() {
            Some("gamma") => offset(0.3, 0.1),
            Some("weight") if name.contains("norm") => offset(1.0, 0.1),
            Some("bias") => offset(if pose { 0.25 } else { 0.0 }, 0.1),
            Some("weight") => {
                let transposed = name.contains("resize_layers.0") || name.contains("resize_layers.1");
                let fan_in = if transposed {
                    shape.first().map_or(1.0, |&inputs| inputs as f64)
                } else {
                    shape.iter().skip(1).map(|&n| n as f64).product()
                };
                let last = pose || name.contains("output_conv2.2");
                Self { divisor: Some(fan_in.sqrt()), scale: last.then_some(0.3), offset: None }
            }
            _ => scaled(0.5),
        }
    }

    fn apply(self, x: f64) -> f32 {
        let x = self.divisor.map_or(x, |divisor| x / divisor);
        let x = self.scale.map_or(x, |scale| scale * x);
        self.offset.map_or(x, |offset| offset + x) as f32
    }
}

fn filled(shape: &[usize], value: impl Fn(u64) -> f32 + Sync) -> Result<Vec<f32>> {
    // In chunks, with a plain loop in each: whether the compiler inlines a call per value makes a third of the time.
    const PART: usize = 1 << 12;
    let Some(mut values) = try_zeros(shape) else {
        candle_core::bail!("a tensor of shape {shape:?} does not fit in memory")
    };
    values.par_chunks_mut(PART).enumerate().for_each(|(part, values)| {
        for (i, to) in (part * PART..).zip(values) {
            *to = value(i as u64);
        }
    });
    Ok(values)
}

/// The values of a synthetic weight.
pub(crate) fn values(name: &str, shape: &[usize], seed: u64) -> Result<Vec<f32>> {
    let hash = hash(&format!("{seed}/{name}"));
    let scaling = Scaling::of(name, shape);
    let root = 3f64.sqrt();
    filled(shape, |i| scaling.apply(uniform(hash, i) * root))
}

/// The synthetic weight of that name and shape: float32 on the CPU.
///
/// # Errors
/// A shape that does not fit in memory.
pub fn tensor(name: &str, shape: &[usize], seed: u64) -> Result<Tensor> {
    Tensor::from_vec(values(name, shape, seed)?, shape, &Device::Cpu)
}

/// `count` pictures of noise, `[count, 3, height, width]` float32 in [0, 1], each value a whole number over 255.
///
/// # Errors
/// A shape that does not fit in memory.
pub fn frames(count: usize, height: usize, width: usize, seed: u64) -> Result<Tensor> {
    let hash = hash(&format!("frames/{seed}"));
    let shape = [count, 3, height, width];
    let values = filled(&shape, |i| (((uniform(hash, i) + 1.0) * 128.0).floor() / 255.0) as f32)?;
    Tensor::from_vec(values, &shape, &Device::Cpu)
}
