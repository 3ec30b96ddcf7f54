//! Linear layers: `x Wᵀ + b`, with an activation or added onto a residual.

use crate::cpu::{self, Finish};
#[cfg(feature = "cuda")]
use crate::cuda::{self, gemm::Target};
use crate::operand::{Operand, check_distinct, reading, slice, slice_mut, with_dtype, zeros};
pub use crate::types::Activation;
#[cfg(feature = "cuda")]
use crate::types::Window;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, InplaceOp3, Layout, Result, Shape, Tensor, bail};

/// `activation(x Wᵀ + b)`: x `[.., in]`, weight `[out, in]`, bias `[out]` -> `[.., out]`.
///
/// On the CPU, x and bias are float32, and the weight is float32, bfloat16 or float16. On a GPU, x, weight and result
/// have the same one of these dtypes, and the bias is float32.
///
/// # Errors
/// When shapes do not match, an operand is not contiguous, or a dtype is wrong.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    reading(x.device(), &weights(weight, bias), || {
        let bias = bias.map(Operand::read);
        x.apply_op2_no_bwd(weight, &Linear { bias, activation })
    })
}

/// `y += x Wᵀ + b` in place: y `[.., out]`, float32 or, on a GPU, of x's dtype. (LayerScale is folded into W and b when
/// weights are loaded.)
///
/// # Errors
/// As [`linear`], and when y shares its memory with another operand.
pub fn linear_add(y: &Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    if let Some(bias) = bias {
        check_distinct("linear_add", y, &[bias])?;
    }
    reading(x.device(), &weights(weight, bias), || {
        let bias = bias.map(Operand::read);
        y.inplace_op3(x, weight, &LinearAdd { bias })
    })
}

/// Operands of a layer that may belong to another CUDA stream.
pub(crate) fn weights<'a>(weight: &'a Tensor, bias: Option<&'a Tensor>) -> Vec<&'a Tensor> {
    std::iter::once(weight).chain(bias).collect()
}

struct Linear<'a> {
    bias: Option<Operand<'a>>,
    activation: Activation,
}

struct LinearAdd<'a> {
    bias: Option<Operand<'a>>,
}

/// Checks the shapes; returns the shape of the output.
fn check(op: &str, x: &Layout, weight: &Layout, bias: Option<&Operand<'_>>) -> Result<Vec<usize>> {
    let bias = bias.map(Operand::dims);
    match (x.dims(), weight.dims()) {
        ([rows @ .., inputs], [outputs, columns])
            if inputs == columns && bias.is_none_or(|bias| bias == [*outputs]) =>
        {
            Ok([rows, &[*outputs]].concat())
        }
        (x, weight) => {
            bail!("{op}: x {x:?}, weight {weight:?} and bias {bias:?} must be [.., in], [out, in] and [out]")
        }
    }
}

/// Checks that y has the shape of x Wᵀ.
fn check_sum(x: &Layout, weight: &Layout, bias: Option<&Operand<'_>>, y: &Layout) -> Result<()> {
    let shape = check("linear_add", x, weight, bias)?;
    if y.dims() == shape { Ok(()) } else { bail!("linear_add: y is {:?}, but x Wᵀ is {shape:?}", y.dims()) }
}

impl CustomOp2 for Linear<'_> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = check("linear", x_layout, weight_layout, self.bias.as_ref())?;
        let x = slice("linear: x", x, x_layout)?;
        let bias = self.bias.as_ref().map(|bias| bias.slice("linear: bias")).transpose()?;
        let mut y = zeros("linear", &shape)?;
        with_dtype!("linear: weight", weight.dtype(), T => {
            let weight = slice::<T>("linear: weight", weight, weight_layout)?;
            let finish = Finish { bias, add: false, activation: self.activation };
            cpu::linear::linear(&mut y, x, weight, weight_layout.shape().dims2()?.into(), finish);
        });
        Ok((CpuStorage::F32(y), shape.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let shape = check("linear", x_layout, weight_layout, self.bias.as_ref())?;
        let (output, y) = cuda::output("linear", &x.device, x.dtype(), &shape)?;
        let target = Target { y, add: false, activation: self.activation };
        on_gpu("linear", &target, (x, x_layout), (weight, weight_layout), self.bias.as_ref())?;
        Ok((output, shape.into()))
    }
}

/// Runs a linear layer as the convolution of a picture that is one row high with a kernel of one pixel.
#[cfg(feature = "cuda")]
fn on_gpu(
    op: &'static str,
    target: &Target,
    x: (&CudaStorage, &Layout),
    weight: (&CudaStorage, &Layout),
    bias: Option<&Operand<'_>>,
) -> Result<()> {
    let (outputs, inputs) = weight.1.shape().dims2()?;
    // Not from the element count of x, which is 0 when `inputs` is 0: the result is then the bias alone.
    let rows = x.1.dims().split_last().map_or(0, |(_, rows)| rows.iter().product());
    let (input, output) = ([1, rows, inputs], [1, rows, outputs]);
    let window = Window { frames: 1, input, output, k: 1, stride: 1, padding: 0 };
    let bias = bias.map(|bias| bias.memory(op, &x.0.device)).transpose()?;
    cuda::gemm::gemm(op, target, x, weight, bias, &window)
}

impl InplaceOp3 for LinearAdd<'_> {
    fn name(&self) -> &'static str {
        "linear_add"
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
        check_sum(x_layout, weight_layout, self.bias.as_ref(), y_layout)?;
        let y = slice_mut("linear_add: y", y, y_layout)?;
        let x = slice("linear_add: x", x, x_layout)?;
        let bias = self.bias.as_ref().map(|bias| bias.slice("linear_add: bias")).transpose()?;
        with_dtype!("linear_add: weight", weight.dtype(), T => {
            let weight = slice::<T>("linear_add: weight", weight, weight_layout)?;
            let finish = Finish { bias, add: true, activation: Activation::Identity };
            cpu::linear::linear(y, x, weight, weight_layout.shape().dims2()?.into(), finish);
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
        check_sum(x_layout, weight_layout, self.bias.as_ref(), y_layout)?;
        let y = cuda::target("linear_add: y", &x.device, y, y_layout)?;
        let target = Target { y, add: true, activation: Activation::Identity };
        on_gpu("linear_add", &target, (x, x_layout), (weight, weight_layout), self.bias.as_ref())
    }
}
