//! Convolutions over pictures `[frames, height, width, channels]`, and the other operations of a dense head.

use crate::cpu::{self, Finish};
#[cfg(feature = "cuda")]
use crate::cuda::{self, gemm::Target};
use crate::linear::weights;
use crate::operand::{Operand, check_distinct, reading, slice, slice_mut, with_dtype, zeros};
use crate::types::{Activation, Window};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, InplaceOp1, InplaceOp3, Layout, Result, Shape, Tensor, bail};

/// `activation(conv(x) + b)`: weight `[out, k, k, in]`, bias `[out]`, zero padding on all sides.
///
/// On the CPU, x and bias are float32, and the weight is float32, bfloat16 or float16. On a GPU, x, weight and result
/// have the same one of these dtypes, and the bias is float32.
///
/// # Errors
/// When shapes do not match, the kernel is larger than the padded picture, the stride is 0, the output would not fit in
/// memory, an operand is not contiguous, or a dtype is wrong.
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
    activation: Activation,
) -> Result<Tensor> {
    reading(x.device(), &weights(weight, bias), || {
        let bias = bias.map(Operand::read);
        x.apply_op2_no_bwd(weight, &Conv { bias, stride, padding, activation })
    })
}

/// `y += conv(x) + b`, stride 1, in place.
///
/// # Errors
/// As [`conv2d`], and when y does not have the shape of the convolution or shares its memory with another operand.
pub fn conv2d_add(y: &Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, padding: usize) -> Result<()> {
    if let Some(bias) = bias {
        check_distinct("conv2d_add", y, &[bias])?;
    }
    reading(x.device(), &weights(weight, bias), || {
        let bias = bias.map(Operand::read);
        y.inplace_op3(x, weight, &ConvAdd { bias, padding })
    })
}

/// Depth to space, the last step of a transposed convolution whose stride is its kernel size:
/// `[frames, h, w, k * k * c]` (as `[k, k, c]`) -> `[frames, h * k, w * k, c]`. x is float32; on a GPU also bfloat16 or
/// float16.
///
/// # Errors
/// When x has another rank or is not contiguous, or its channels are not a multiple of k * k.
pub fn depth_to_space(x: &Tensor, k: usize) -> Result<Tensor> {
    x.apply_op1_no_bwd(&DepthToSpace { k })
}

/// `max(x, 0)` in place, for any shape, on elements `first..` of the last dimension. x is float32; on a GPU also
/// bfloat16 or float16.
///
/// # Errors
/// When x is not contiguous.
pub fn relu_in_place(x: &Tensor, first: usize) -> Result<()> {
    x.inplace_op1(&Relu { first })
}

/// `x[f, y, x, :] += concat(u[x, :], v[y, :])` in place: u `[w, c / 2]` and v `[h, c / 2]` float32; x float32, on a GPU
/// also bfloat16 or float16.
///
/// # Errors
/// When shapes do not match, an operand is not contiguous, or x shares its memory with another operand.
pub fn add_plane(x: &Tensor, u: &Tensor, v: &Tensor) -> Result<()> {
    reading(x.device(), &[u, v], || x.inplace_op3(u, v, &AddPlane))
}

struct Conv<'a> {
    bias: Option<Operand<'a>>,
    stride: usize,
    padding: usize,
    activation: Activation,
}

struct ConvAdd<'a> {
    bias: Option<Operand<'a>>,
    padding: usize,
}

struct DepthToSpace {
    k: usize,
}

struct Relu {
    first: usize,
}

struct AddPlane;

/// Checks the operands of a convolution; returns its sizes.
fn window(
    op: &str,
    x: &Layout,
    weight: &Layout,
    bias: Option<&Operand<'_>>,
    stride: usize,
    padding: usize,
) -> Result<Window> {
    let bias = bias.map(Operand::dims);
    let positions = |size: usize, k: usize| {
        let padded = padding.checked_mul(2)?.checked_add(size)?;
        padded.checked_sub(k)?.checked_div(stride)?.checked_add(1)
    };
    match (x.dims(), weight.dims()) {
        (&[frames, h, w, c], &[out, k, columns, channels])
            if k > 0 && columns == k && channels == c && bias.is_none_or(|bias| bias == [out]) =>
        {
            let (Some(height), Some(width)) = (positions(h, k), positions(w, k)) else {
                bail!(
                    "{op}: a kernel of {k} x {k} with stride {stride} and padding {padding} does not fit in x {:?}",
                    x.dims()
                )
            };
            Ok(Window { frames, input: [h, w, c], output: [height, width, out], k, stride, padding })
        }
        (x, weight) => bail!(
            "{op}: x {x:?}, weight {weight:?} and bias {bias:?} must be [frames, h, w, in], [out, k, k, in] and [out]"
        ),
    }
}

impl CustomOp2 for Conv<'_> {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let window = window("conv2d", x_layout, weight_layout, self.bias.as_ref(), self.stride, self.padding)?;
        let x = slice("conv2d: x", x, x_layout)?;
        let bias = self.bias.as_ref().map(|bias| bias.slice("conv2d: bias")).transpose()?;
        let mut y = zeros("conv2d", &window.shape())?;
        with_dtype!("conv2d: weight", weight.dtype(), T => {
            let weight = slice::<T>("conv2d: weight", weight, weight_layout)?;
            let finish = Finish { bias, add: false, activation: self.activation };
            cpu::conv::conv2d(&mut y, x, weight, &window, finish);
        });
        Ok((CpuStorage::F32(y), Shape::from_dims(&window.shape())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let window = window("conv2d", x_layout, weight_layout, self.bias.as_ref(), self.stride, self.padding)?;
        let (output, y) = cuda::output("conv2d", &x.device, x.dtype(), &window.shape())?;
        let target = Target { y, add: false, activation: self.activation };
        let bias = self.bias.as_ref().map(|bias| bias.memory("conv2d: bias", &x.device)).transpose()?;
        let (x, weight) = ((x, x_layout), (weight, weight_layout));
        cuda::gemm::gemm("conv2d", &target, x, weight, bias, &window)?;
        Ok((output, Shape::from_dims(&window.shape())))
    }
}

impl ConvAdd<'_> {
    fn check(&self, x: &Layout, weight: &Layout, y: &Layout) -> Result<Window> {
        let window = window("conv2d_add", x, weight, self.bias.as_ref(), 1, self.padding)?;
        if y.dims() != window.shape() {
            bail!("conv2d_add: y is {:?}, but the convolution is {:?}", y.dims(), window.shape())
        }
        Ok(window)
    }
}

impl InplaceOp3 for ConvAdd<'_> {
    fn name(&self) -> &'static str {
        "conv2d_add"
    }

    fn cpu_fwd(
        &self,
        y: &mut CpuStorage,
        y_layout: &Layout,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<()> {
        let window = self.check(x_layout, weight_layout, y_layout)?;
        let y = slice_mut("conv2d_add: y", y, y_layout)?;
        let x = slice("conv2d_add: x", x, x_layout)?;
        let bias = self.bias.as_ref().map(|bias| bias.slice("conv2d_add: bias")).transpose()?;
        with_dtype!("conv2d_add: weight", weight.dtype(), T => {
            let weight = slice::<T>("conv2d_add: weight", weight, weight_layout)?;
            let finish = Finish { bias, add: true, activation: Activation::Identity };
            cpu::conv::conv2d(y, x, weight, &window, finish);
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        y: &mut CudaStorage,
        y_layout: &Layout,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
    ) -> Result<()> {
        let window = self.check(x_layout, weight_layout, y_layout)?;
        let y = cuda::target("conv2d_add: y", &x.device, y, y_layout)?;
        let target = Target { y, add: true, activation: Activation::Identity };
        let bias = self.bias.as_ref().map(|bias| bias.memory("conv2d_add: bias", &x.device)).transpose()?;
        let (x, weight) = ((x, x_layout), (weight, weight_layout));
        cuda::gemm::gemm("conv2d_add", &target, x, weight, bias, &window)
    }
}

impl DepthToSpace {
    /// The shape of the result.
    fn check(&self, layout: &Layout) -> Result<[usize; 4]> {
        let k = self.k;
        let area = k.checked_mul(k).filter(|&area| area > 0);
        let (&[frames, h, w, channels], Some(area)) = (layout.dims(), area) else {
            bail!("depth_to_space: x {:?} must be [frames, height, width, channels], k {k} not 0", layout.dims())
        };
        if channels % area != 0 {
            bail!("depth_to_space: the channels of x {:?} are not a multiple of {k} x {k}", layout.dims())
        }
        let (Some(height), Some(width)) = (h.checked_mul(k), w.checked_mul(k)) else {
            bail!("depth_to_space: x {:?} times {k} is too large", layout.dims())
        };
        Ok([frames, height, width, channels / area])
    }
}

impl CustomOp1 for DepthToSpace {
    fn name(&self) -> &'static str {
        "depth_to_space"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = self.check(layout)?;
        let (k, w, channels) = (self.k, layout.dims()[2], shape[3]);
        let x = slice("depth_to_space: x", x, layout)?;
        let mut y = zeros("depth_to_space", &shape)?;
        cpu::conv::depth_to_space(&mut y, x, w, k, channels);
        Ok((CpuStorage::F32(y), Shape::from_dims(&shape)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let shape = self.check(layout)?;
        let device = &x.device;
        let x = cuda::memory("depth_to_space: x", device, x, layout)?;
        let (output, y) = cuda::output("depth_to_space", device, x.dtype(), &shape)?;
        let size = |size| cuda::count("depth_to_space", size);
        let [frames, h, w] = [size(layout.dims()[0])?, size(layout.dims()[1])?, size(layout.dims()[2])?];
        let bytes = size(x.dtype().size_in_bytes())?;
        cuda::kernels::depth_to_space(device, y, x, bytes, frames, h, w, size(self.k)?, size(shape[3])?)?;
        Ok((output, Shape::from_dims(&shape)))
    }
}

impl InplaceOp1 for Relu {
    fn name(&self) -> &'static str {
        "relu_in_place"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let x = slice_mut("relu_in_place: x", x, layout)?;
        match (self.first, layout.dims()) {
            (0, _) | (_, []) => cpu::par_activate(x, Activation::Relu),
            (first, &[.., channels]) if first < channels => {
                x.chunks_exact_mut(channels).for_each(|x| cpu::par_activate(&mut x[first..], Activation::Relu));
            }
            _ => {}
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let device = x.device.clone();
        let x = cuda::memory("relu_in_place: x", &device, x, layout)?;
        let channels = layout.dims().last().copied().unwrap_or(1);
        let rows = layout.shape().elem_count().checked_div(channels).unwrap_or(0) as u64;
        let size = |size| cuda::count("relu_in_place", size);
        cuda::kernels::relu(&device, x, x.dtype_code("relu_in_place: x")?, rows, size(channels)?, size(self.first)?)
    }
}

impl AddPlane {
    fn check(x: &Layout, u: &Layout, v: &Layout) -> Result<[usize; 4]> {
        match (x.dims(), u.dims(), v.dims()) {
            (&[frames, h, w, c], &[columns, across], &[rows, down])
                if columns == w && rows == h && across == down && across.checked_mul(2) == Some(c) =>
            {
                Ok([frames, h, w, c])
            }
            shapes => bail!("add_plane: x, u and v {shapes:?} must be [frames, h, w, c], [w, c / 2] and [h, c / 2]"),
        }
    }
}

impl InplaceOp3 for AddPlane {
    fn name(&self) -> &'static str {
        "add_plane"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        u: &CpuStorage,
        u_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<()> {
        Self::check(x_layout, u_layout, v_layout)?;
        let x = slice_mut("add_plane: x", x, x_layout)?;
        let u = slice("add_plane: u", u, u_layout)?;
        let v = slice("add_plane: v", v, v_layout)?;
        cpu::conv::add_plane(x, u, v, x_layout.dims()[1], x_layout.dims()[2]);
        Ok(())
    }
    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &mut CudaStorage,
        x_layout: &Layout,
        u: &CudaStorage,
        u_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<()> {
        let [frames, h, w, c] = Self::check(x_layout, u_layout, v_layout)?;
        let device = &x.device;
        let waves =
            [cuda::memory("add_plane: u", device, u, u_layout)?, cuda::memory("add_plane: v", device, v, v_layout)?];
        let x = cuda::memory("add_plane: x", device, x, x_layout)?;
        let size = |size| cuda::count("add_plane", size);
        let ([u, v], dtype) = (cuda::floats("add_plane", waves)?, x.dtype_code("add_plane: x")?);
        cuda::kernels::add_plane(device, x, dtype, u, v, size(frames)?, size(h)?, size(w)?, size(c)?)
    }
}
