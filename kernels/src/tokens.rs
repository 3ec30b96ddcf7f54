//! Concatenation of tokens, by channels and by rows.

#[cfg(feature = "cuda")]
use crate::cuda;
#[cfg(feature = "cuda")]
use crate::operand::Operand;
use crate::operand::{reading, slice, zeros};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor, bail};

/// Concatenates channels: a `[.., c]` and b `[.., d]` -> `[.., c + d]`, float32.
///
/// # Errors
/// When shapes do not match, or an operand is not contiguous or not float32.
pub fn join_channels(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    reading(a.device(), &[b], || a.apply_op2_no_bwd(b, &JoinChannels))
}

/// Concatenates rows: `[a, ..]`, `[b, ..]`, .. -> `[a + b + .., ..]`, all of one dtype. On a GPU this copies memory
/// without a Candle kernel, which the driver would compile at its first use.
///
/// The result belongs to the [CUDA stream](crate::device::cuda_stream) of `device`. The tensors may belong to others,
/// as weights do.
///
/// # Errors
/// When there are no tensors, shapes or dtypes do not match, they are not on `device`, or, on a GPU, one is
/// not contiguous.
pub fn concat(tensors: &[Tensor], device: &Device) -> Result<Tensor> {
    match (tensors, device) {
        ([], _) => bail!("concat: no tensors"),
        ([first, ..], _) if first.device().location() != device.location() => {
            bail!("concat: the tensors are not on the requested device")
        }
        ([one], _) if one.device().same_device(device) => Ok(one.clone()),
        #[cfg(feature = "cuda")]
        ([first, ..], Device::Cuda(cuda)) => {
            let operands: Vec<_> = tensors.iter().collect();
            reading(device, &operands, || concat_on_gpu(first, tensors, cuda))
        }
        _ => Tensor::cat(tensors, 0),
    }
}

#[cfg(feature = "cuda")]
fn concat_on_gpu(first: &Tensor, tensors: &[Tensor], device: &candle_core::CudaDevice) -> Result<Tensor> {
    use candle_core::{Storage, op::BackpropOp};
    let mut rows = 0;
    for tensor in tensors {
        match (tensor.dims(), first.dims()) {
            ([own, rest @ ..], [_, others @ ..]) if rest == others => rows += own,
            shapes => bail!("concat: {shapes:?} differ in more than their rows"),
        }
    }
    let shape = [&[rows], &first.dims()[1..]].concat();
    let (output, mut to) = cuda::output("concat", device, first.dtype(), &shape)?;
    for tensor in tensors {
        let from = Operand::read(tensor).memory("concat", device)?.expect("concat", first.dtype())?;
        cuda::copy(device, to, from, tensor.elem_count())?;
        to = to.skip(tensor.elem_count());
    }
    Ok(Tensor::from_storage(Storage::Cuda(output), shape, BackpropOp::none(), false))
}

struct JoinChannels;

/// Checks the shapes; returns rows, channels of a and of b, and the shape of the result.
fn check(a: &Layout, b: &Layout) -> Result<([usize; 3], Vec<usize>)> {
    match (a.dims(), b.dims()) {
        ([rows @ .., c], [other @ .., d]) if rows == other => {
            Ok(([rows.iter().product(), *c, *d], [rows, &[c + d]].concat()))
        }
        shapes => bail!("join_channels: {shapes:?} must be [.., c] and [.., d]"),
    }
}

impl CustomOp2 for JoinChannels {
    fn name(&self) -> &'static str {
        "join_channels"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ([_, c, d], shape) = check(a_layout, b_layout)?;
        let a = slice::<f32>("join_channels: a", a, a_layout)?;
        let b = slice::<f32>("join_channels: b", b, b_layout)?;
        let mut y = zeros("join_channels", &shape)?;
        if !y.is_empty() {
            for (row, y) in y.chunks_exact_mut(c + d).enumerate() {
                let (left, right) = y.split_at_mut(c);
                left.copy_from_slice(&a[row * c..][..c]);
                right.copy_from_slice(&b[row * d..][..d]);
            }
        }
        Ok((CpuStorage::F32(y), shape.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        a_layout: &Layout,
        b: &CudaStorage,
        b_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        use candle_core::DType::F32;
        let ([rows, c, d], shape) = check(a_layout, b_layout)?;
        let device = &a.device;
        let a = cuda::memory("join_channels: a", device, a, a_layout)?.expect("join_channels: a", F32)?;
        let b = cuda::memory("join_channels: b", device, b, b_layout)?.expect("join_channels: b", F32)?;
        let (output, y) = cuda::output("join_channels", device, F32, &shape)?;
        let size = |size| cuda::count("join_channels", size);
        cuda::kernels::join_channels(device, y, a, b, rows as u64, size(c)?, size(d)?)?;
        Ok((output, shape.into()))
    }
}
