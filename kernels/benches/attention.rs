//! Benchmark of paged attention at any sizes, on the CPU or a GPU.
//!
//! The default sizes are those of one layer of the published network for a frame of 518 x 378 pixels and a full window.
//! The program needs no other files, so it can be copied to a machine with a GPU.

use candle_core::{DType, Device, Result, Tensor, bail};
use clap::Parser;
use periplus_kernels::attention::paged_attention;
use periplus_kernels::device::{Event, main_memory_holds, open_cuda};
use periplus_kernels::pages::{PageTable, Pools};

/// Measure attention over pages of keys and values, on random values
#[derive(Parser)]
struct Arguments {
    /// Number of queries
    #[arg(long, value_name = "N", default_value_t = 1005)]
    queries: usize,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 74_425)]
    keys: usize,
    /// Rows of a page
    #[arg(long, value_name = "N", default_value_t = 1005)]
    page_size: usize,
    /// Number of heads
    #[arg(long, value_name = "N", default_value_t = 16)]
    heads: usize,
    /// Channels of a head
    #[arg(long, value_name = "N", default_value_t = 64)]
    head_dim: usize,
    /// Number of measured runs
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeats: usize,
    /// f32, bf16 or f16: dtype of keys and values, on a GPU also of queries
    #[arg(long, value_name = "DTYPE", default_value = "bf16")]
    dtype: DType,
    /// cpu, or the index of a GPU
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Set by cargo bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let device = match arguments.device.as_str() {
        "cpu" => Device::Cpu,
        index => match index.parse().map(open_cuda) {
            Ok(opened) => opened.map_err(candle_core::Error::wrap)?,
            Err(_) => bail!("--device {index} is neither cpu nor the index of a GPU"),
        },
    };
    let mut seconds = measure(&arguments, &device)?;
    seconds.sort_unstable_by(f64::total_cmp);
    let median = f64::midpoint(seconds[(seconds.len() - 1) / 2], seconds[seconds.len() / 2]);
    let Arguments { queries, keys, page_size, heads, head_dim, dtype, .. } = arguments;
    // Two matrix products, each with a multiplication and an addition per term.
    let operations = 4.0 * queries as f64 * keys as f64 * (heads * head_dim) as f64;
    println!(
        "{queries} queries x {keys} keys x {heads} heads x {head_dim} channels in {dtype:?}, pages of {page_size}: median {:.3} ms, \
         fastest {:.3} ms, {:.3} TFLOP/s",
        median * 1e3,
        seconds[0] * 1e3,
        operations / median / 1e12
    );
    Ok(())
}

/// Seconds of each run.
fn measure(arguments: &Arguments, device: &Device) -> Result<Vec<f64>> {
    let &Arguments { queries, keys, page_size, heads, head_dim, repeats, dtype, .. } = arguments;
    let pages = keys.div_ceil(page_size.max(1));
    if [queries, keys, page_size, heads, head_dim, repeats].contains(&0) || u32::try_from(pages).is_err() {
        bail!("all sizes must be at least 1, and there must be fewer than 2^32 pages")
    }
    let random = |shape: &[usize], dtype: DType, times: usize| {
        let bytes = shape.iter().try_fold(8 * times, |bytes, &size| bytes.checked_mul(size));
        if !bytes.is_some_and(|bytes| main_memory_holds(bytes as u64)) {
            bail!("tensors of these sizes do not fit in memory")
        }
        Tensor::rand(-1_f32, 1.0, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    };
    // On the CPU, queries are always float32.
    let qkv = random(&[queries, 3, heads, head_dim], if device.is_cuda() { dtype } else { DType::F32 }, 1)?;
    // All pages have the same values. This does not change the time of attention, and is faster to make.
    let copies = if device.is_cuda() { 1 } else { pages };
    let page = random(&[1, 2, page_size, heads, head_dim], dtype, copies)?;
    let pool = Tensor::cat(&vec![&page; pages], 0)?;
    // In reverse order, because kernels do not read a table for pages in order.
    let mut table = PageTable::new((0..pages as u32).rev().collect(), Vec::new(), (keys - 1) % page_size + 1);
    table.upload(device)?;
    let pools = Pools { frames: &pool, special: &pool };

    // The first runs load code and allocate.
    let warmup = 3;
    let mut seconds = Vec::new();
    for _ in 0..repeats.saturating_add(warmup) {
        let begin = Event::record(device)?;
        drop(paged_attention(&qkv, pools, &table)?);
        seconds.push(Event::record(device)?.elapsed_since(&begin)?.as_secs_f64());
    }
    Ok(seconds.split_off(warmup))
}
