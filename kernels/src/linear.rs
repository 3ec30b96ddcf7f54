//! Linear layers.

use crate::cpu::{self, Finish};
use crate::operand::{Operand, check_distinct, slice, slice_mut, with_element, zeros};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, InplaceOp3, Layout, Result, Shape, Tensor, bail};

/// What follows a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// x * (1 + erf(x / sqrt 2)) / 2.
    Gelu,
    /// max(x, 0).
    Relu,
}

/// `activation(x Wᵀ + b)`: x `[.., in]`, weight `[out, in]`, bias `[out]` -> `[.., out]`.
///
/// On the CPU x and bias are float32, the weight float32, bfloat16 or float16.
///
/// # Errors
/// When shapes do not fit together, an operand is not contiguous, or a dtype is another.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    let bias = bias.map(Operand::read);
    x.apply_op2_no_bwd(weight, &Linear { bias, activation })
}

/// `y += x Wᵀ + b` in place: y `[.., out]`. LayerScale is folded into W and b when weights are loaded.
///
/// # Errors
/// As [`linear`], and when y shares its memory with another operand.
pub fn linear_add(y: &Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    if let Some(bias) = bias {
        check_distinct("linear_add", y, &[bias])?;
    }
    let bias = bias.map(Operand::read);
    y.inplace_op3(x, weight, &LinearAdd { bias })
}

struct Linear<'a> {
    bias: Option<Operand<'a>>,
    activation: Activation,
}

struct LinearAdd<'a> {
    bias: Option<Operand<'a>>,
}

/// Rows of x, and the shape of the output.
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
        with_element!("linear: weight", weight.dtype(), T => {
            let weight = slice::<T>("linear: weight", weight, weight_layout)?;
            let finish = Finish { bias, add: false, activation: self.activation };
            cpu::linear::linear(&mut y, x, weight, weight_layout.shape().dims2()?.into(), finish);
        });
        Ok((CpuStorage::F32(y), shape.into()))
    }
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
        let shape = check("linear_add", x_layout, weight_layout, self.bias.as_ref())?;
        if y_layout.dims() != shape {
            bail!("linear_add: y is {:?}, but x Wᵀ is {shape:?}", y_layout.dims())
        }
        let y = slice_mut("linear_add: y", y, y_layout)?;
        let x = slice("linear_add: x", x, x_layout)?;
        let bias = self.bias.as_ref().map(|bias| bias.slice("linear_add: bias")).transpose()?;
        with_element!("linear_add: weight", weight.dtype(), T => {
            let weight = slice::<T>("linear_add: weight", weight, weight_layout)?;
            let finish = Finish { bias, add: true, activation: Activation::Identity };
            cpu::linear::linear(y, x, weight, weight_layout.shape().dims2()?.into(), finish);
        });
        Ok(())
    }
}
