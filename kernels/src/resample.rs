//! Bilinear resampling of pictures, with aligned corners.

use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operand::{slice, slice_mut, zeros};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, InplaceOp2, Layout, Result, Shape, Tensor, bail};

/// x `[frames, h, w, c]` -> `[frames, height, width, c]`. Corners map to corners; a height or width of 1 takes the
/// first row or column. x is float32; on a GPU also bfloat16 or float16.
///
/// # Errors
/// When x has another rank, is not contiguous or has no pixels, or the output would not fit in memory.
pub fn bilinear(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    x.apply_op1_no_bwd(&Bilinear { height, width })
}

/// `y += bilinear(x)` in place, with x resampled to the size of y.
///
/// # Errors
/// As [`bilinear`], and when frames or channels differ.
pub fn bilinear_add(y: &Tensor, x: &Tensor) -> Result<()> {
    y.inplace_op2(x, &BilinearAdd)
}

struct Bilinear {
    height: usize,
    width: usize,
}

struct BilinearAdd;

/// Checks that x has pixels if the output has; returns frames, height, width and channels of x.
fn check(op: &str, x: &Layout, height: usize, width: usize) -> Result<[usize; 4]> {
    let &[frames, h, w, c] = x.dims() else {
        bail!("{op}: x {:?} must be [frames, height, width, channels]", x.dims())
    };
    if frames != 0 && c != 0 && height != 0 && width != 0 && (h == 0 || w == 0) {
        bail!("{op}: x {:?} has no pixels to make {height} x {width} of", x.dims())
    }
    Ok([frames, h, w, c])
}

impl BilinearAdd {
    fn check(y: &Layout, x: &Layout) -> Result<[usize; 4]> {
        if let [frames, height, width, c] = *y.dims() {
            let x = check("bilinear_add", x, height, width)?;
            if (x[0], x[3]) == (frames, c) {
                return Ok([frames, height, width, c]);
            }
        }
        bail!("bilinear_add: y {:?} and x {:?} must be [frames, height, width, channels]", y.dims(), x.dims())
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(
    device: &candle_core::CudaDevice,
    (y, [frames, height, width, channels]): (cuda::Memory, [usize; 4]),
    (x, x_dims): (cuda::Memory, &[usize]),
    add: bool,
) -> Result<()> {
    let size = |size| cuda::count("bilinear", size);
    let operation = cuda::kernels::Bilinear {
        y: y.pointer_mut(),
        x: x.expect("bilinear: x", y.dtype())?.pointer(),
        frames: size(frames)?,
        height: size(height)?,
        width: size(width)?,
        x_height: size(x_dims[1])?,
        x_width: size(x_dims[2])?,
        channels: size(channels)?,
        dtype: y.dtype_code("bilinear: y")?,
        add: u32::from(add),
    };
    cuda::kernels::bilinear(device, &operation)
}

impl CustomOp1 for Bilinear {
    fn name(&self) -> &'static str {
        "bilinear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let [frames, h, w, c] = check("bilinear", layout, self.height, self.width)?;
        let mut y = zeros("bilinear", &[frames, self.height, self.width, c])?;
        let x = slice("bilinear: x", x, layout)?;
        cpu::resample::bilinear(&mut y, x, (h, w), (self.height, self.width), c, false);
        Ok((CpuStorage::F32(y), (frames, self.height, self.width, c).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let [frames, _, _, c] = check("bilinear", layout, self.height, self.width)?;
        let device = &x.device;
        let x = cuda::memory("bilinear: x", device, x, layout)?;
        let dims = [frames, self.height, self.width, c];
        let (output, y) = cuda::output("bilinear", device, x.dtype(), &dims)?;
        on_gpu(device, (y, dims), (x, layout.dims()), false)?;
        Ok((output, Shape::from_dims(&dims)))
    }
}

impl InplaceOp2 for BilinearAdd {
    fn name(&self) -> &'static str {
        "bilinear_add"
    }

    fn cpu_fwd(&self, y: &mut CpuStorage, y_layout: &Layout, x: &CpuStorage, x_layout: &Layout) -> Result<()> {
        let [_, height, width, c] = Self::check(y_layout, x_layout)?;
        let y = slice_mut("bilinear_add: y", y, y_layout)?;
        let x = slice("bilinear_add: x", x, x_layout)?;
        cpu::resample::bilinear(y, x, (x_layout.dims()[1], x_layout.dims()[2]), (height, width), c, true);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, y: &mut CudaStorage, y_layout: &Layout, x: &CudaStorage, x_layout: &Layout) -> Result<()> {
        let dims = Self::check(y_layout, x_layout)?;
        let device = &x.device;
        let y = cuda::target("bilinear_add: y", device, y, y_layout)?;
        let x = cuda::memory("bilinear_add: x", device, x, x_layout)?;
        on_gpu(device, (y, dims), (x, x_layout.dims()), true)
    }
}
