//! Bilinear resampling with aligned corners.

use crate::cpu;
use crate::operand::{slice, zeros};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

/// x `[frames, h, w, c]` -> `[frames, height, width, c]`; corners map to corners, and the first row and column are
/// all that a height or width of 1 takes. Float32 on the CPU.
///
/// # Errors
/// When x has another rank, is not contiguous, has no pixels to take, or the output would not fit in memory.
pub fn bilinear(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    x.apply_op1_no_bwd(&Bilinear { height, width })
}

struct Bilinear {
    height: usize,
    width: usize,
}

impl CustomOp1 for Bilinear {
    fn name(&self) -> &'static str {
        "bilinear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let &[frames, h, w, c] = layout.dims() else {
            bail!("bilinear: x {:?} must be [frames, height, width, channels]", layout.dims())
        };
        let shape = (frames, self.height, self.width, c);
        let mut y = zeros("bilinear", &[frames, self.height, self.width, c])?;
        if !y.is_empty() && (h == 0 || w == 0) {
            bail!("bilinear: x {:?} has no pixels to make {shape:?} of", layout.dims())
        }
        let x = slice("bilinear: x", x, layout)?;
        cpu::resample::bilinear(&mut y, x, (h, w), (self.height, self.width), c);
        Ok((CpuStorage::F32(y), shape.into()))
    }
}
