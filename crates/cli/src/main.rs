//! The `periplus` program: every command is a module, each error one sentence.

mod bench;
mod console;
mod convert;
mod demo;
mod failure;
mod inspect;
mod interruption;
mod judge;
mod memory;
mod options;
mod process;
mod progress;
mod sinks;
mod spans;
mod stream;
mod synth;
mod writer;

use std::io::{self, Write};
use std::process::ExitCode;
use std::{panic, thread};

use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// Streaming 3D reconstruction: a video goes in; camera pose, depth and confidence come out for every frame.
#[derive(Parser)]
#[command(name = "periplus", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Stream(Box<stream::Arguments>),
    Inspect(inspect::Arguments),
    Convert(convert::Arguments),
    Synth(synth::Arguments),
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    quiet_decoders();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// A decoder that panics makes its frame an error, which is reported as any other. The panic itself is not printed.
fn quiet_decoders() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if thread::current().name() != Some(periplus::frames::READ_AHEAD_THREAD) {
            default(panic);
        }
    }));
}

fn run() -> Result<(), Failure> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => match error.kind() {
            DisplayHelp | DisplayVersion => {
                return error.print().and_then(|()| io::stdout().flush()).map_err(console::unwritten);
            }
            DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            _ => return Err(Failure::usage(sentence(&error.to_string()))),
        },
    };
    match cli.command {
        Command::Stream(arguments) => stream::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Synth(arguments) => synth::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}

/// What clap has to say of a wrong command line, without the usage that it puts below.
fn sentence(message: &str) -> String {
    let paragraphs = message.split("\n\n").map(str::trim);
    let said = paragraphs.take_while(|text| !text.starts_with("Usage:") && !text.starts_with("For more information"));
    let said = said.collect::<Vec<_>>().join("; ");
    format!("{} (see --help)", said.strip_prefix("error: ").unwrap_or(&said))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_command_line_gets_a_sentence_that_names_what_is_wrong() {
        let said = |words: &[&str]| {
            let error = Cli::try_parse_from(["periplus"].iter().chain(words)).err().unwrap();
            sentence(&error.to_string())
        };
        assert_eq!(
            said(&["stream", "--window", "0"]),
            "invalid value '0' for '--window <N>': give a whole number from 1 on (see --help)"
        );
        assert!(said(&["stream", "--windw", "3"]).contains("similar argument exists: '--window'"));
    }
}
