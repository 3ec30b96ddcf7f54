//! `periplus bench attention`: the paged attention alone, at chosen sizes.

use std::num::NonZeroUsize;

use clap::Args;
use periplus::checkpoint::synthetic::hash_uniform;
use periplus::device::{Event, main_memory_holds};
use periplus::kernels::attention::paged_attention;
use periplus::kernels::pages::{PageTable, Pools};
use periplus::{DType, Device, EngineError, ModelError, Tensor};
use serde::Serialize;

use crate::console;
use crate::failure::Failure;
use crate::options::{ComputeOptions, at_least_one, place};

/// Measure attention over pages of keys and values alone, on random numbers
///
/// The default sizes are those of a frame of 518 x 378 pixels at a full window in one layer of the published network.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// Tokens that look
    #[arg(long, value_name = "N", default_value = "1005", value_parser = at_least_one)]
    queries: NonZeroUsize,
    /// Tokens that are seen
    #[arg(long, value_name = "N", default_value = "74425", value_parser = at_least_one)]
    keys: NonZeroUsize,
    /// Rows of a page
    #[arg(long, value_name = "N", default_value = "1005", value_parser = at_least_one)]
    page_size: NonZeroUsize,
    /// Heads
    #[arg(long, value_name = "N", default_value = "16", value_parser = at_least_one)]
    heads: NonZeroUsize,
    /// Channels of a head
    #[arg(long, value_name = "N", default_value = "64", value_parser = at_least_one)]
    head_dim: NonZeroUsize,
    /// Times it is run
    #[arg(long, value_name = "N", default_value = "20", value_parser = at_least_one)]
    repeats: NonZeroUsize,
    #[command(flatten)]
    compute: ComputeOptions,
    /// Print one JSON object instead of a sentence
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Serialize)]
struct Measurement {
    queries: usize,
    keys: usize,
    page_size: usize,
    heads: usize,
    head_dim: usize,
    device: &'static str,
    dtype: String,
    repeats: usize,
    median_milliseconds: f64,
    fastest_milliseconds: f64,
    /// Two products of two operations a term, by the median.
    teraflops: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let device = arguments.compute.start()?;
    let measurement = measure(arguments, &device)?;
    console::print(&if arguments.json { serde_json::to_string(&measurement)? } else { measurement.sentence() })
}

fn measure(arguments: &Arguments, device: &Device) -> Result<Measurement, Failure> {
    let [queries, keys, page_size, heads, head_dim, repeats] = arguments.sizes();
    let float = arguments.compute.float(device);
    let pages = keys.div_ceil(page_size);
    u32::try_from(pages).map_err(|_| too_large())?;
    check_memory(&[queries, 3, heads, head_dim])?;
    // One page is made here. On a card, the pool of all of them is there.
    check_memory(&[if device.is_cuda() { 1 } else { pages }, 2, page_size, heads, head_dim])?;
    let mut times = times(arguments, float.into(), device).map_err(|error| match error {
        EngineError::Model(ModelError::CardFull) => too_large(),
        error => error.into(),
    })?;
    times.sort_unstable_by(f64::total_cmp);
    let median = f64::midpoint(times[(times.len() - 1) / 2], times[times.len() / 2]);
    let operations = 4.0 * queries as f64 * keys as f64 * (heads * head_dim) as f64;
    Ok(Measurement {
        queries,
        keys,
        page_size,
        heads,
        head_dim,
        device: place(device),
        dtype: float.to_string(),
        repeats,
        median_milliseconds: median * 1e3,
        fastest_milliseconds: times[0] * 1e3,
        teraflops: operations / median / 1e12,
    })
}

/// Seconds that each run takes, over pages that are stored as `stored`.
fn times(arguments: &Arguments, stored: DType, device: &Device) -> Result<Vec<f64>, EngineError> {
    let [queries, keys, page_size, heads, head_dim, repeats] = arguments.sizes();
    let pages = keys.div_ceil(page_size);
    let random = |name: &str, shape: &[usize], dtype: DType| -> Result<Tensor, EngineError> {
        let numbers = hash_uniform(name, shape.iter().product(), 0);
        Ok(Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?)
    };
    // On the CPU queries are float32 whatever pages are stored in.
    let qkv = random("queries", &[queries, 3, heads, head_dim], if device.is_cuda() { stored } else { DType::F32 })?;
    let page = random("page", &[1, 2, page_size, heads, head_dim], stored)?;
    // Attention takes as long over equal pages, and they are made faster.
    let pool = Tensor::cat(&vec![&page; pages], 0)?;
    // Not in order, which kernels know without being told.
    let numbers = (0..pages as u32).rev().collect();
    let mut table = PageTable::new(numbers, Vec::new(), (keys - 1) % page_size + 1);
    table.upload(device)?;
    let pools = Pools { frames: &pool, special: &pool };

    let mut times = Vec::new();
    // The first runs load code and allocate.
    for _ in 0..repeats.saturating_add(3) {
        let begin = Event::record(device)?;
        drop(paged_attention(&qkv, pools, &table)?);
        times.push(Event::record(device)?.elapsed_since(&begin)?.as_secs_f64());
    }
    Ok(times.split_off(3))
}

impl Arguments {
    /// Queries, keys, page size, heads, head width and repeats.
    fn sizes(&self) -> [usize; 6] {
        [self.queries, self.keys, self.page_size, self.heads, self.head_dim, self.repeats].map(NonZeroUsize::get)
    }
}

/// That main memory has room for as many float32 numbers twice, as they are made.
fn check_memory(shape: &[usize]) -> Result<(), Failure> {
    let bytes = shape.iter().try_fold(8_usize, |bytes, &size| bytes.checked_mul(size)).ok_or_else(too_large)?;
    if main_memory_holds(bytes as u64) { Ok(()) } else { Err(too_large()) }
}

fn too_large() -> Failure {
    Failure::Usage("so many queries or keys do not fit in memory: give smaller sizes".into())
}

impl Measurement {
    fn sentence(&self) -> String {
        let Self { queries, keys, page_size, heads, head_dim, device, dtype, repeats, .. } = self;
        let rate = if self.teraflops < 1.0 {
            format!("{:.1} GFLOP/s", self.teraflops * 1e3)
        } else {
            format!("{:.1} TFLOP/s", self.teraflops)
        };
        format!(
            "{queries} queries x {keys} keys x {heads} heads x {head_dim} in {dtype} on {device}, pages of {page_size}: {:.3} ms in \
             the median of {repeats}, {:.3} at best; {rate}",
            self.median_milliseconds, self.fastest_milliseconds
        )
    }
}
