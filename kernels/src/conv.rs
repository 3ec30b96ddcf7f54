//! Convolutions over `[frames, height, width, channels]`, and what goes with them in a dense head.

use crate::cpu::{self, Finish};
use crate::linear::Activation;
use crate::operand::{Operand, check_distinct, slice, slice_mut, with_element, zeros};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, InplaceOp1, InplaceOp3, Layout, Result, Shape, Tensor, bail};

/// `activation(conv(x) + b)`: weight `[out, k, k, in]`, bias `[out]`, zero padding on all sides.
///
/// On the CPU x and bias are float32, the weight float32, bfloat16 or float16.
///
/// # Errors
/// When shapes do not fit together, the kernel does not fit the padded picture, the stride is 0, the output would not
/// fit in memory, an operand is not contiguous, or a dtype is another.
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
    activation: Activation,
) -> Result<Tensor> {
    let bias = bias.map(Operand::read);
    x.apply_op2_no_bwd(weight, &Conv { bias, stride, padding, activation })
}

/// `y += conv(x) + b`, stride 1, in place.
///
/// # Errors
/// As [`conv2d`], and when y has another shape than the convolution or shares its memory with another operand.
pub fn conv2d_add(y: &Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, padding: usize) -> Result<()> {
    if let Some(bias) = bias {
        check_distinct("conv2d_add", y, &[bias])?;
    }
    let bias = bias.map(Operand::read);
    y.inplace_op3(x, weight, &ConvAdd { bias, padding })
}

/// The rearrangement that ends a transposed convolution whose stride is its kernel size:
/// `[frames, h, w, k * k * c]` (as `[k, k, c]`) -> `[frames, h * k, w * k, c]`. Float32 on the CPU.
///
/// # Errors
/// When x has another rank or is not contiguous, or its channels are no multiple of k * k.
pub fn depth_to_space(x: &Tensor, k: usize) -> Result<Tensor> {
    x.apply_op1_no_bwd(&DepthToSpace { k })
}

/// `max(x, 0)` in place, for any shape. Float32 on the CPU.
///
/// # Errors
/// When x is not contiguous.
pub fn relu_in_place(x: &Tensor) -> Result<()> {
    x.inplace_op1(&Relu)
}

/// `x[f, y, x, :] += concat(u[x, :], v[y, :])` in place: u `[w, c / 2]`, v `[h, c / 2]`. Float32 on the CPU.
///
/// # Errors
/// When shapes do not fit together, an operand is not contiguous, or x shares its memory with another operand.
pub fn add_plane(x: &Tensor, u: &Tensor, v: &Tensor) -> Result<()> {
    x.inplace_op3(u, v, &AddPlane)
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

struct Relu;

struct AddPlane;

/// Sizes of a convolution that fit together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) frames: usize,
    /// Height, width and channels of the input.
    pub(crate) input: [usize; 3],
    /// Height, width and channels of the output.
    pub(crate) output: [usize; 3],
    /// Height and width of the kernel.
    pub(crate) k: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
}

impl Window {
    fn check(
        op: &str,
        x: &Layout,
        weight: &Layout,
        bias: Option<&Operand<'_>>,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
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
                        "{op}: a kernel of {k} x {k} with stride {stride} and padding {padding} has no place in x {:?}",
                        x.dims()
                    )
                };
                Ok(Self { frames, input: [h, w, c], output: [height, width, out], k, stride, padding })
            }
            (x, weight) => bail!(
                "{op}: x {x:?}, weight {weight:?} and bias {bias:?} must be [frames, h, w, in], [out, k, k, in] and [out]"
            ),
        }
    }

    fn shape(&self) -> [usize; 4] {
        let [height, width, channels] = self.output;
        [self.frames, height, width, channels]
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
        let window = Window::check("conv2d", x_layout, weight_layout, self.bias.as_ref(), self.stride, self.padding)?;
        let x = slice("conv2d: x", x, x_layout)?;
        let bias = self.bias.as_ref().map(|bias| bias.slice("conv2d: bias")).transpose()?;
        let mut y = zeros("conv2d", &window.shape())?;
        with_element!("conv2d: weight", weight.dtype(), T => {
            let weight = slice::<T>("conv2d: weight", weight, weight_layout)?;
            let finish = Finish { bias, add: false, activation: self.activation };
            cpu::conv::conv2d(&mut y, x, weight, &window, finish);
        });
        Ok((CpuStorage::F32(y), Shape::from_dims(&window.shape())))
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
        let window = Window::check("conv2d_add", x_layout, weight_layout, self.bias.as_ref(), 1, self.padding)?;
        if y_layout.dims() != window.shape() {
            bail!("conv2d_add: y is {:?}, but the convolution is {:?}", y_layout.dims(), window.shape())
        }
        let y = slice_mut("conv2d_add: y", y, y_layout)?;
        let x = slice("conv2d_add: x", x, x_layout)?;
        let bias = self.bias.as_ref().map(|bias| bias.slice("conv2d_add: bias")).transpose()?;
        with_element!("conv2d_add: weight", weight.dtype(), T => {
            let weight = slice::<T>("conv2d_add: weight", weight, weight_layout)?;
            let finish = Finish { bias, add: true, activation: Activation::Identity };
            cpu::conv::conv2d(y, x, weight, &window, finish);
        });
        Ok(())
    }
}

impl CustomOp1 for DepthToSpace {
    fn name(&self) -> &'static str {
        "depth_to_space"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let k = self.k;
        let area = k.checked_mul(k).filter(|&area| area > 0);
        let (&[frames, h, w, channels], Some(area)) = (layout.dims(), area) else {
            bail!("depth_to_space: x {:?} must be [frames, height, width, channels], k {k} not 0", layout.dims())
        };
        if channels % area != 0 {
            bail!("depth_to_space: the channels of x {:?} are no multiple of {k} x {k}", layout.dims())
        }
        let (Some(height), Some(width)) = (h.checked_mul(k), w.checked_mul(k)) else {
            bail!("depth_to_space: x {:?} times {k} is too large", layout.dims())
        };
        let shape = [frames, height, width, channels / area];
        let x = slice("depth_to_space: x", x, layout)?;
        let mut y = zeros("depth_to_space", &shape)?;
        cpu::conv::depth_to_space(&mut y, x, w, k, channels / area);
        Ok((CpuStorage::F32(y), Shape::from_dims(&shape)))
    }
}

impl InplaceOp1 for Relu {
    fn name(&self) -> &'static str {
        "relu_in_place"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        cpu::par_activate(slice_mut("relu_in_place: x", x, layout)?, Activation::Relu);
        Ok(())
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
        match (x_layout.dims(), u_layout.dims(), v_layout.dims()) {
            (&[_, h, w, c], &[columns, across], &[rows, down])
                if columns == w && rows == h && across == down && across.checked_mul(2) == Some(c) => {}
            shapes => bail!("add_plane: x, u and v {shapes:?} must be [frames, h, w, c], [w, c / 2] and [h, c / 2]"),
        }
        let x = slice_mut("add_plane: x", x, x_layout)?;
        let u = slice("add_plane: u", u, u_layout)?;
        let v = slice("add_plane: v", v, v_layout)?;
        cpu::conv::add_plane(x, u, v, x_layout.dims()[1], x_layout.dims()[2]);
        Ok(())
    }
}
