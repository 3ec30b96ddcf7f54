//! Shared by the tests: random operands, and the distance from a float64 result.
#![allow(dead_code)] // each test file uses a part of it

use candle_core::{DType, Device, Tensor};

/// A small random generator (xorshift64*, Vigna 2016). Inputs need not be unpredictable.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A value in [-1, 1).
    pub(crate) fn value(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11;
        bits as f64 / (1_u64 << 52) as f64 - 1.0
    }

    pub(crate) fn tensor(&mut self, dims: &[usize], dtype: DType) -> Tensor {
        let count = dims.iter().product();
        let data: Vec<f32> = (0..count).map(|_| self.value() as f32).collect();
        Tensor::from_vec(data, dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    }

    pub(crate) fn f32(&mut self, dims: &[usize]) -> Tensor {
        self.tensor(dims, DType::F32)
    }
}

/// All elements in float64.
pub(crate) fn wide(x: &Tensor) -> Vec<f64> {
    x.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// ||a - b|| / ||b||.
pub(crate) fn distance(a: &Tensor, b: &[f64]) -> f64 {
    let a = wide(a);
    assert_eq!(a.len(), b.len());
    let error: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    let norm: f64 = b.iter().map(|b| b * b).sum();
    if norm == 0.0 { error.sqrt() } else { (error / norm).sqrt() }
}

#[track_caller]
pub(crate) fn assert_close(a: &Tensor, b: &[f64], bound: f64) {
    let d = distance(a, b);
    assert!(d < bound, "{d:e} from the float64 result, bound {bound:e}, shape {:?}", a.dims());
}

/// The message of an error, which must name the given words.
#[track_caller]
pub(crate) fn assert_error<T: std::fmt::Debug>(result: candle_core::Result<T>, words: &[&str]) {
    let message = result.unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} does not say {word:?}");
    }
}

pub(crate) const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
