//! Patches: pictures cut into the rows that the patch embedding multiplies.

use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operand::{reading, slice, zeros};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, WithDType, bail};

/// Cuts pictures `[frames, height, width, 3]` of bytes into patches of `patch` x `patch` pixels. A patch becomes one
/// row in the order row, column, colour: `[frames, patches, patch * patch * 3]`, each element `byte * scale - shift`,
/// with scale and shift `[3]` float32. The result has the given `dtype`: float32 on the CPU; on a GPU also bfloat16 or
/// float16.
///
/// # Errors
/// When width or height is not a multiple of `patch`, shapes do not match, an operand is not contiguous, or a dtype is
/// wrong.
pub fn patches(pixels: &Tensor, scale: &Tensor, shift: &Tensor, patch: usize, dtype: DType) -> Result<Tensor> {
    reading(pixels.device(), &[scale, shift], || pixels.apply_op3_no_bwd(scale, shift, &Patches { patch, dtype }))
}

struct Patches {
    patch: usize,
    dtype: DType,
}

/// How pictures are cut: rows and columns of patches in each.
struct Cut {
    frames: usize,
    rows: usize,
    columns: usize,
    patch: usize,
}

impl Cut {
    fn shape(&self) -> [usize; 3] {
        [self.frames, self.rows * self.columns, self.patch * self.patch * 3]
    }
}

impl Patches {
    fn check(&self, pixels: &Layout, scale: &Layout, shift: &Layout) -> Result<Cut> {
        let patch = self.patch;
        match (pixels.dims(), scale.dims(), shift.dims()) {
            (&[frames, height, width, 3], [3], [3])
                if patch > 0 && height.is_multiple_of(patch) && width.is_multiple_of(patch) =>
            {
                Ok(Cut { frames, rows: height / patch, columns: width / patch, patch })
            }
            shapes => bail!(
                "patches: pixels, scale and shift {shapes:?} must be [frames, height, width, 3], [3] and [3], in patches of \
                 {patch} x {patch}"
            ),
        }
    }
}

impl CustomOp3 for Patches {
    fn name(&self) -> &'static str {
        "patches"
    }

    fn cpu_fwd(
        &self,
        pixels: &CpuStorage,
        pixels_layout: &Layout,
        scale: &CpuStorage,
        scale_layout: &Layout,
        shift: &CpuStorage,
        shift_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let cut = self.check(pixels_layout, scale_layout, shift_layout)?;
        if self.dtype != DType::F32 {
            bail!("patches: on the CPU the result is F32, not {:?}", self.dtype)
        }
        let pixels = match pixels_layout.contiguous_offsets() {
            Some((start, end)) => u8::cpu_storage_as_slice(pixels)?.get(start..end),
            None => None,
        };
        let Some(pixels) = pixels else { bail!("patches: pixels {:?} are not contiguous", pixels_layout.dims()) };
        let scale = slice("patches: scale", scale, scale_layout)?;
        let shift = slice("patches: shift", shift, shift_layout)?;
        let mut y = zeros("patches", &cut.shape())?;
        cpu::patches::patches(&mut y, pixels, scale, shift, cut.patch, cut.columns);
        Ok((CpuStorage::F32(y), Shape::from_dims(&cut.shape())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        pixels: &CudaStorage,
        pixels_layout: &Layout,
        scale: &CudaStorage,
        scale_layout: &Layout,
        shift: &CudaStorage,
        shift_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let cut = self.check(pixels_layout, scale_layout, shift_layout)?;
        let device = &pixels.device;
        let colours = [
            cuda::memory("patches: scale", device, scale, scale_layout)?,
            cuda::memory("patches: shift", device, shift, shift_layout)?,
        ];
        let x = cuda::memory("patches: pixels", device, pixels, pixels_layout)?;
        let (output, y) = cuda::output("patches", device, self.dtype, &cut.shape())?;
        let size = |size| cuda::count("patches", size);
        let [frames, rows, columns, patch] = [size(cut.frames)?, size(cut.rows)?, size(cut.columns)?, size(cut.patch)?];
        let [scale, shift] = cuda::floats("patches", colours)?;
        let (x, dtype) = (x.expect("patches: pixels", DType::U8)?, y.dtype_code("patches: y")?);
        cuda::kernels::patches(device, y, dtype, x, scale, shift, frames, rows, columns, patch)?;
        Ok((output, Shape::from_dims(&cut.shape())))
    }
}
