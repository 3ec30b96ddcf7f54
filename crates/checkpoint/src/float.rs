//! The dtypes that weights are stored in.

use candle_core::{DType, Device};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use periplus_kernels::try_zeros;
use rayon::prelude::*;
use std::fmt;

/// Values that a thread converts at a time: enough to outweigh the cost of a task, few enough for its stack and cache.
const CHUNK: usize = 4096;

/// A dtype that weights are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FloatType {
    /// 32 bits.
    F32,
    /// 16 bits with the range of float32.
    Bf16,
    /// 16 bits, up to 65504.
    F16,
}

impl FloatType {
    /// The type that tensors of `dtype` are stored in, if weights can be.
    pub fn of(dtype: DType) -> Option<Self> {
        [Self::F32, Self::Bf16, Self::F16].into_iter().find(|&float| DType::from(float) == dtype)
    }

    /// The default for `device`: float32 on the CPU, where all arithmetic is float32, and bfloat16 on a GPU.
    pub fn suited_to(device: &Device) -> Self {
        if device.is_cuda() { Self::Bf16 } else { Self::F32 }
    }

    /// Bytes of a value.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Its name in safetensors files.
    pub(crate) fn safetensors(self) -> ::safetensors::Dtype {
        match self {
            Self::F32 => ::safetensors::Dtype::F32,
            Self::Bf16 => ::safetensors::Dtype::BF16,
            Self::F16 => ::safetensors::Dtype::F16,
        }
    }

    /// The values that little-endian bytes stand for. An incomplete last one is left out. `None` where they do not fit in memory.
    pub(crate) fn decode(self, bytes: &[u8]) -> Option<Vec<f32>> {
        let mut values = try_zeros(&[bytes.len() / self.size()])?;
        let chunks = values.par_chunks_mut(CHUNK).zip(bytes.par_chunks(CHUNK * self.size()));
        match self {
            Self::F32 => chunks.for_each(|(values, bytes)| {
                let words = bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word));
                values.iter_mut().zip(words).for_each(|(value, word)| *value = word);
            }),
            Self::Bf16 => chunks.for_each(|(values, bytes)| {
                let words = bytes.as_chunks().0.iter().map(|&word| bf16::from_le_bytes(word).to_f32());
                values.iter_mut().zip(words).for_each(|(value, word)| *value = word);
            }),
            Self::F16 => chunks.for_each(|(values, bytes)| {
                // Whole slices go through the processor's conversion instructions.
                let mut halves = [f16::ZERO; CHUNK];
                let words = bytes.as_chunks().0.iter().map(|&word| f16::from_le_bytes(word));
                halves.iter_mut().zip(words).for_each(|(half, word)| *half = word);
                halves[..values.len()].convert_to_f32_slice(values);
            }),
        }
        Some(values)
    }

    /// The little-endian bytes of the values, rounded to nearest, ties to even.
    ///
    /// # Errors
    /// How many finite values would become infinite, if any.
    pub fn encode(self, values: &[f32]) -> Result<Vec<u8>, usize> {
        let mut bytes = vec![0u8; values.len() * self.size()];
        let chunks = bytes.par_chunks_mut(CHUNK * self.size()).zip(values.par_chunks(CHUNK));
        let lost: usize = match self {
            Self::F32 => chunks
                .map(|(bytes, values)| {
                    let words = bytes.as_chunks_mut().0.iter_mut();
                    words.zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
                    0
                })
                .sum(),
            Self::Bf16 => chunks
                .map(|(bytes, values)| {
                    encode_halves(bytes, values, |value| {
                        let half = bf16::from_f32(value);
                        (half.to_le_bytes(), half.is_finite())
                    })
                })
                .sum(),
            Self::F16 => chunks
                .map(|(bytes, values)| {
                    encode_halves(bytes, values, |value| {
                        let half = f16::from_f32(value);
                        (half.to_le_bytes(), half.is_finite())
                    })
                })
                .sum(),
        };
        if lost == 0 { Ok(bytes) } else { Err(lost) }
    }
}

/// Writes the halves and counts the finite values whose half is not.
fn encode_halves(bytes: &mut [u8], values: &[f32], half: impl Fn(f32) -> ([u8; 2], bool)) -> usize {
    let mut lost = 0;
    for (word, &value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        let (encoded, finite) = half(value);
        *word = encoded;
        lost += usize::from(value.is_finite() && !finite);
    }
    lost
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

impl From<FloatType> for DType {
    fn from(float: FloatType) -> Self {
        match float {
            FloatType::F32 => Self::F32,
            FloatType::Bf16 => Self::BF16,
            FloatType::F16 => Self::F16,
        }
    }
}
