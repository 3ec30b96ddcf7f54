//! `periplus synth`: a synthetic checkpoint of any network.

use std::path::PathBuf;

use clap::Args;
use periplus::Weights;

use crate::console;
use crate::convert::write;
use crate::failure::Failure;
use crate::options::{Float, from_zero, network, start_threads};

/// Write a checkpoint of seeded synthetic weights, for benchmarks and tests
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// The file to write
    #[arg(value_name = "OUT.safetensors")]
    output: PathBuf,
    /// The network's configuration (JSON) [default: the published network]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = from_zero::<u64>)]
    seed: u64,
    /// Dtype of the weights
    #[arg(long, value_name = "f32|bf16|f16", hide_possible_values = true, default_value = "f32")]
    dtype: Float,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    start_threads(None)?;
    let weights = Weights::synthetic(network(arguments.config.as_deref())?, arguments.seed)?;
    write(weights, &arguments.output, arguments.dtype.into())?;
    console::line(&format!("wrote {}", arguments.output.display()));
    Ok(())
}
