//! `periplus convert`: PyTorch checkpoints become safetensors.

use std::path::{Path, PathBuf};

use clap::Args;
use periplus::Weights;
use periplus::checkpoint::{CheckpointError, FloatType};

use crate::console;
use crate::failure::Failure;
use crate::interruption::Interruption;
use crate::options::{Float, open_any_weights};
use crate::progress::show_loading;

/// Convert a checkpoint to safetensors: a PyTorch file (.pt), without running any code in it, or safetensors with another dtype
#[derive(Args)]
pub(crate) struct Arguments {
    /// The checkpoint: a .pt or .safetensors file, the index of several .safetensors files, or their folder
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT.safetensors")]
    output: PathBuf,
    /// The network's configuration (JSON) [default: as the shapes tell]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Which weights, where the file holds several sets: the keys that lead to them, such as model or ema.model
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Number type of the weights [default: as they are stored]
    #[arg(long, value_enum)]
    dtype: Option<Float>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let (Ok(input), Ok(output)) = (arguments.input.canonicalize(), arguments.output.canonicalize())
        && input == output
    {
        return Err(Failure::Usage(format!("{} would be replaced: give another OUT.safetensors", input.display())));
    }
    let weights = open_any_weights(&arguments.input, arguments.config.as_deref(), arguments.key.as_deref())?;
    if !weights.check_sums()? {
        console::line("note: this file has no checksums, so its data could not be checked for damage");
    }
    let float = arguments.dtype.map_or(weights.float_type(), Float::into);
    write(weights, &arguments.output, float)?;
    console::line(&format!("wrote {} in {float}", arguments.output.display()));
    Ok(())
}

/// Writes a checkpoint, unless the user interrupts it, which leaves nothing of it.
pub(crate) fn write(weights: Weights, output: &Path, float: FloatType) -> Result<(), Failure> {
    let interruption = Interruption::listen(None)?;
    match show_loading(weights, false, &interruption).write(output, float) {
        Err(CheckpointError::Stopped) => {
            console::line(&format!("interrupted: {} was not written", output.display()));
            Err(Failure::Interrupted)
        }
        written => Ok(written?),
    }
}
