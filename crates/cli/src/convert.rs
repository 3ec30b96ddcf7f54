//! `periplus convert`: writes a checkpoint as one safetensors file.

use std::path::{Path, PathBuf};

use clap::Args;
use periplus::Weights;
use periplus::checkpoint::{CheckpointError, FloatType};

use crate::console;
use crate::failure::Failure;
use crate::interruption::Interruption;
use crate::memory::check_writing;
use crate::options::{Float, mention_key, open_any_weights, start_threads};
use crate::progress::show_loading;

/// Convert a checkpoint to one safetensors file: a PyTorch file (.pt), or safetensors files to join them or change their dtype
///
/// Code in a PyTorch file is not run. Tensors that the network does not have are left out. If the file has checksums, as PyTorch's have,
/// its data is checked first.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The checkpoint: a .pt or .safetensors file, the index of several .safetensors files, or their folder
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT.safetensors")]
    output: PathBuf,
    /// The network's configuration (JSON) [default: the one in the file, or the one that the shapes tell]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The weights to use, if the file holds several sets: the keys that lead to them, such as model or ema.model
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Dtype of the weights [default: the one that they are stored in, f32 if there are several]
    #[arg(long, value_name = "f32|bf16|f16", hide_possible_values = true)]
    dtype: Option<Float>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let (Ok(input), Ok(output)) = (arguments.input.canonicalize(), arguments.output.canonicalize())
        && input == output
    {
        return Err(Failure::Usage(format!("{} would be replaced: give another OUT.safetensors", input.display())));
    }
    start_threads(None)?;
    let weights = open_any_weights(&arguments.input, arguments.config.as_deref(), arguments.key.as_deref())?;
    let checked = weights.check_sums()?;
    let float = arguments.dtype.map_or(weights.float_type(), Float::into);
    let key = weights.key().to_owned();
    write(weights, &arguments.output, float)?;
    if !checked {
        console::line("note: the data was not checked for damage, since the file has no checksums");
    }
    mention_key(&key);
    console::line(&format!("wrote {} in {float}", arguments.output.display()));
    Ok(())
}

/// Writes a checkpoint, unless the user interrupts it, which leaves nothing of it.
pub(crate) fn write(weights: Weights, output: &Path, float: FloatType) -> Result<(), Failure> {
    check_writing(weights.config())?;
    let interruption = Interruption::listen(None)?;
    match show_loading(weights, false, &interruption).write(output, float) {
        Err(CheckpointError::Stopped) => {
            console::line(&format!("interrupted: {} was not written", output.display()));
            Err(Failure::Interrupted)
        }
        written => Ok(written?),
    }
}
