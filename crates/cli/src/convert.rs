//! `periplus convert`: PyTorch checkpoints become safetensors.

use std::path::{Path, PathBuf};

use clap::Args;
use periplus::Weights;
use periplus::checkpoint::{CheckpointError, FloatType};

use crate::console;
use crate::failure::Failure;
use crate::interruption::Interruption;
use crate::options::{Float, mention_unexpected};
use crate::progress::show_loading;

/// Convert a PyTorch checkpoint (.pt) to safetensors, without running any code that it may hold
#[derive(Args)]
pub(crate) struct Arguments {
    /// The .pt file
    #[arg(value_name = "IN.pt")]
    input: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT.safetensors")]
    output: PathBuf,
    /// The network's configuration (JSON) [default: as the shapes tell]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
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
    let weights = Weights::open_any(&arguments.input, arguments.config.as_deref())?;
    mention_unexpected(&weights);
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
