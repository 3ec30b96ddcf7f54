//! Rotary position embedding (RoPE), with the LayerNorm of queries and keys before it.

use crate::cpu;
use crate::cpu::rotary::Angles;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operand::{Operand, check_distinct, reading, slice_mut};
use crate::pages::append;
#[cfg(feature = "cuda")]
use crate::pages::locate;
pub use crate::types::Pairing;
use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, DType};

/// RoPE angles of the tokens of a frame: cos and sin `[tokens, head_dim / 2]` float32.
#[derive(Debug, Clone)]
pub struct Rotary {
    /// Cosines of the angles.
    pub cos: Tensor,
    /// Sines of the angles.
    pub sin: Tensor,
    /// Cosines and sines `[frames, 2, pairs]` of the angles that depend on a frame's time instead of a token's
    /// position. They replace the first columns of the tables. Only for [`Pairing::Interleaved`].
    pub times: Option<Tensor>,
    /// Which channels are rotated together.
    pub pairing: Pairing,
}

impl Rotary {
    /// The angles of one frame of `times`.
    ///
    /// # Errors
    /// When `times` has no frame `frame`.
    pub fn of_frame(&self, frame: usize) -> Result<Self> {
        let times = self.times.as_ref().map(|times| times.narrow(0, frame, 1)).transpose()?;
        Ok(Self { times, ..self.clone() })
    }
}

/// Weight and bias `[head_dim]`, float32, of the `LayerNorm`s of queries and keys. All heads share them.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorms<'a> {
    /// Weight and bias for queries.
    pub queries: (&'a Tensor, &'a Tensor),
    /// Weight and bias for keys.
    pub keys: (&'a Tensor, &'a Tensor),
    /// Added to the variance.
    pub eps: f32,
}

/// LayerNorm on the queries and keys of each head, then RoPE, in place. Values are not changed.
///
/// qkv is `[tokens, 3, heads, head_dim]`, where `tokens` is a multiple of the table's tokens: frames share the table.
/// RoPE changes a pair (a, b) to (a cos - b sin, b cos + a sin).
///
/// # Errors
/// When shapes do not match, an operand is not contiguous or not float32 (on a GPU, qkv may also be bfloat16
/// or float16), or qkv shares its memory with another operand.
pub fn norm_rotate(qkv: &Tensor, norms: &HeadNorms<'_>, rotary: &Rotary) -> Result<()> {
    reading(qkv.device(), &operands(norms, rotary), || qkv.inplace_op1(&NormRotate::new(qkv, norms, rotary)?))
}

/// [`norm_rotate`], then copies keys and values to rows `0..tokens` of page `page` of `pool`. On a GPU, this is one
/// kernel, `pool` has qkv's dtype, and the keys in qkv are not changed; on the CPU they are.
///
/// # Errors
/// As [`norm_rotate`] and [`append`].
pub fn norm_rotate_append(
    qkv: &Tensor,
    norms: &HeadNorms<'_>,
    rotary: &Rotary,
    pool: &Tensor,
    page: usize,
) -> Result<()> {
    if qkv.device().is_cuda() {
        return reading(qkv.device(), &operands(norms, rotary), || {
            let norm_rotate = NormRotate::new(qkv, norms, rotary)?;
            pool.inplace_op2(qkv, &NormRotateAppend { norm_rotate, page })
        });
    }
    norm_rotate(qkv, norms, rotary)?;
    append(pool, page, 0, qkv)
}

/// Operands that may belong to another CUDA stream.
fn operands<'a>(norms: &HeadNorms<'a>, rotary: &'a Rotary) -> Vec<&'a Tensor> {
    let HeadNorms { queries, keys, .. } = *norms;
    [queries.0, queries.1, keys.0, keys.1, &rotary.cos, &rotary.sin].into_iter().chain(&rotary.times).collect()
}

struct NormRotate<'a> {
    /// Weight and bias for queries, weight and bias for keys, cosines, sines.
    operands: [Operand<'a>; 6],
    times: Option<Operand<'a>>,
    eps: f32,
    pairing: Pairing,
}

/// Runs on GPUs only.
struct NormRotateAppend<'a> {
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    norm_rotate: NormRotate<'a>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    page: usize,
}

/// Sizes of qkv and of the table of angles, after the check.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
struct Sizes {
    tokens: usize,
    period: usize,
    heads: usize,
    dim: usize,
    time_pairs: usize,
}

impl<'a> NormRotate<'a> {
    fn new(qkv: &Tensor, norms: &HeadNorms<'a>, rotary: &'a Rotary) -> Result<Self> {
        let HeadNorms { queries, keys, eps } = *norms;
        let operands = [queries.0, queries.1, keys.0, keys.1, &rotary.cos, &rotary.sin];
        check_distinct("norm_rotate", qkv, &operands)?;
        if let Some(times) = &rotary.times {
            check_distinct("norm_rotate", qkv, &[times])?;
        }
        let times = rotary.times.as_ref().map(Operand::read);
        Ok(Self { operands: operands.map(Operand::read), times, eps, pairing: rotary.pairing })
    }

    fn check(&self, qkv: &[usize]) -> Result<Sizes> {
        let [norms @ .., cos, sin] = self.operands.each_ref().map(Operand::dims);
        let times = self.times.as_ref().map(Operand::dims);
        let channels = match self.pairing {
            Pairing::SplitHalves => 4,
            Pairing::Interleaved => 2,
        };
        match (qkv, cos) {
            (&[tokens, 3, heads, dim], &[period, half])
                if half * 2 == dim
                    && dim % channels == 0
                    && cos == sin
                    && (tokens == 0 || (period != 0 && tokens % period == 0))
                    && norms.iter().all(|norm| *norm == [dim]) =>
            {
                let frames = tokens.checked_div(period).unwrap_or(0);
                match times {
                    None => Ok(Sizes { tokens, period, heads, dim, time_pairs: 0 }),
                    Some(&[count, 2, time_pairs])
                        if count == frames && time_pairs <= half && self.pairing == Pairing::Interleaved =>
                    {
                        Ok(Sizes { tokens, period, heads, dim, time_pairs })
                    }
                    Some(times) => bail!(
                        "norm_rotate: times {times:?} must be [{frames}, 2, at most {half}] of interleaved pairs for qkv \
                         {qkv:?} and cos {cos:?}"
                    ),
                }
            }
            _ => bail!(
                "norm_rotate: qkv {qkv:?}, norms {norms:?}, cos {cos:?} and sin {sin:?} must be [tokens, 3, heads, dim], \
                 [dim] and [tokens or a divisor, dim / 2], dim a multiple of {channels}"
            ),
        }
    }

    /// `target`: the pool, its dimensions, and the page to write to.
    #[cfg(feature = "cuda")]
    fn on_gpu(
        &self,
        (qkv, layout): (&CudaStorage, &Layout),
        target: Option<(cuda::Memory, &[usize], usize)>,
    ) -> Result<()> {
        const OP: &str = "norm_rotate";
        let sizes = self.check(layout.dims())?;
        let device = &qkv.device;
        let qkv = cuda::memory(OP, device, qkv, layout)?;
        let [q_weight, q_bias, k_weight, k_bias, cos, sin] =
            self.operands.each_ref().map(|operand| operand.memory(OP, device));
        let operands = [q_weight?, q_bias?, k_weight?, k_bias?, cos?, sin?];
        let [norms @ .., cosines, sines] = cuda::floats(OP, operands)?.map(cuda::Memory::pointer);
        let times = match &self.times {
            Some(times) => times.memory(OP, device)?.expect(OP, DType::F32)?.pointer(),
            None => std::ptr::null(),
        };
        let (keys, value_offset) = match target {
            Some((pool, dims, page)) => {
                let [keys, values] = locate("norm_rotate_append", dims, page, 0, sizes.tokens)?;
                if dims[3..] != [sizes.heads, sizes.dim] || pool.dtype() != qkv.dtype() {
                    let dtypes = (pool.dtype(), qkv.dtype());
                    bail!("norm_rotate_append: pool {dims:?} and qkv {:?} of {dtypes:?} do not fit", layout.dims())
                }
                (pool.skip(keys.start).pointer_mut(), (values.start - keys.start) as i64)
            }
            None => (std::ptr::null_mut(), 0),
        };
        let size = |size| cuda::count(OP, size);
        let operation = cuda::kernels::NormRotate {
            qkv: qkv.pointer_mut(),
            norms,
            cosines,
            sines,
            times,
            time_pairs: size(sizes.time_pairs)?,
            pairing: match self.pairing {
                Pairing::SplitHalves => 0,
                Pairing::Interleaved => 1,
            },
            keys,
            value_offset,
            tokens: size(sizes.tokens)?,
            period: size(sizes.period)?,
            heads: size(sizes.heads)?,
            head_dim: size(sizes.dim)?,
            eps: self.eps,
            dtype: qkv.dtype_code(OP)?,
        };
        cuda::kernels::norm_rotate(device, &operation)
    }
}

impl InplaceOp2 for NormRotateAppend<'_> {
    fn name(&self) -> &'static str {
        "norm_rotate_append"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        bail!("norm_rotate_append: queries and pool are not on the same device")
    }

    /// This also writes the queries in place, although `qkv` is a shared reference. That is sound: the storage only has
    /// the address of device memory, and all work on that memory runs in the order of the CUDA stream.
    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        pool: &mut CudaStorage,
        pool_layout: &Layout,
        qkv: &CudaStorage,
        qkv_layout: &Layout,
    ) -> Result<()> {
        let pool = cuda::target("norm_rotate_append: pool", &qkv.device, pool, pool_layout)?;
        self.norm_rotate.on_gpu((qkv, qkv_layout), Some((pool, pool_layout.dims(), self.page)))
    }
}

impl InplaceOp1 for NormRotate<'_> {
    fn name(&self) -> &'static str {
        "norm_rotate"
    }

    fn cpu_fwd(&self, qkv: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Sizes { time_pairs, .. } = self.check(layout.dims())?;
        let qkv = slice_mut("norm_rotate: qkv", qkv, layout)?;
        let [q_weight, q_bias, k_weight, k_bias, cos, sin] =
            self.operands.each_ref().map(|operand| operand.slice("norm_rotate: norms and angles"));
        let norms = [(q_weight?, q_bias?), (k_weight?, k_bias?)];
        let times: &[f32] = match &self.times {
            Some(times) => times.slice("norm_rotate: times")?,
            None => &[],
        };
        let angles = Angles { cos: cos?, sin: sin?, times, time_pairs, pairing: self.pairing };
        cpu::rotary::norm_rotate(qkv, layout.dims()[2], norms, self.eps, &angles);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, qkv: &mut CudaStorage, layout: &Layout) -> Result<()> {
        self.on_gpu((qkv, layout), None)
    }
}
