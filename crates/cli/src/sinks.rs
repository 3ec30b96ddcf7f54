//! Where the outputs of a stream go.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use periplus::export::{
    DepthMaps, ExportError, JsonFile, JsonLines, NpzFiles, PointCloud, PointCloudOptions, Sink, Trajectory,
};
use periplus::{FrameOutput, Outputs};

use crate::console;
use crate::failure::Failure;
use crate::options::measure;

/// Which results, and where.
#[derive(Args)]
pub(crate) struct SinkOptions {
    /// Folder for the results, made if need be; those of an earlier run in it are replaced
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to write there: npz (everything, a file per frame), tum (trajectory), depth (16-bit PNG), ply (point cloud),
    /// jsonl
    // The defaults are the numbers, the path, and something to look at.
    #[arg(
        long,
        value_name = "FORMATS",
        value_enum,
        value_delimiter = ',',
        default_value = "npz,tum,ply",
        requires = "out"
    )]
    save: Vec<Format>,
    /// Confidence below which a point is left out of the point cloud; 1 keeps all
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = PointCloudOptions::default().min_confidence,
        value_parser = measure::<f32>,
        requires = "out"
    )]
    ply_confidence: f32,
    /// Side of the voxels that keep one point each, in the unit of depth; 0 keeps all [default: two pixels' worth]
    #[arg(long, value_name = "NUMBER", value_parser = measure::<f64>, requires = "out")]
    ply_voxel: Option<f64>,
    /// Print a JSON object per frame on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Npz,
    Tum,
    Depth,
    Ply,
    Jsonl,
}

/// All the places where one run's outputs go.
pub(crate) struct Sinks {
    files: Vec<Box<dyn Sink>>,
    /// Objects on standard output, as long as there is a reader.
    lines: Option<Box<dyn Sink>>,
}

impl Sinks {
    /// Begins the files that `options` ask for.
    pub(crate) fn open(options: &SinkOptions) -> Result<Self, Failure> {
        let mut files = Vec::new();
        if let Some(folder) = &options.out {
            let points = PointCloudOptions { min_confidence: options.ply_confidence, voxel_size: options.ply_voxel };
            let mut opened = Vec::new();
            for &format in &options.save {
                if opened.contains(&format) {
                    continue;
                }
                opened.push(format);
                files.push(match format {
                    Format::Npz => Box::new(NpzFiles::create(folder)?) as Box<dyn Sink>,
                    Format::Tum => Box::new(Trajectory::create(folder)?),
                    Format::Depth => Box::new(DepthMaps::create(folder)?),
                    Format::Ply => Box::new(PointCloud::create(folder, points)?),
                    Format::Jsonl => Box::new(JsonFile::create(folder)?),
                });
            }
        }
        let lines = || Box::new(JsonLines::new(io::stdout(), "standard output")) as Box<dyn Sink>;
        let lines = options.json.then(lines);
        Ok(Self { files, lines })
    }

    pub(crate) fn write(&mut self, output: &FrameOutput) -> Result<(), Failure> {
        for file in &mut self.files {
            file.write(output)?;
        }
        match self.lines.as_mut().map_or(Ok(()), |lines| lines.write(output)) {
            Err(ExportError::Closed { .. }) if self.files.is_empty() => return Err(Failure::OutputClosed),
            // The files are for somebody else.
            Err(ExportError::Closed { .. }) => self.lines = None,
            written => written?,
        }
        Ok(())
    }

    /// Completes the files, those that still can be after an error too, and tells what was written.
    pub(crate) fn finish(self) -> (Vec<String>, Result<(), Failure>) {
        let (mut written, mut result) = (Vec::new(), Ok(()));
        for sink in self.files.into_iter().chain(self.lines) {
            match sink.finish() {
                Ok(summary) => written.push(summary.to_string()),
                Err(error) => result = result.and(Err(error.into())),
            }
        }
        (written, result)
    }
}

impl Format {
    /// What of a frame it holds.
    fn outputs(self) -> Outputs {
        match self {
            Self::Tum => Outputs::Poses,
            Self::Depth | Self::Ply | Self::Jsonl => Outputs::Depth,
            Self::Npz => Outputs::All,
        }
    }
}

impl SinkOptions {
    /// What of a frame all the places together hold; `None` if there are none.
    pub(crate) fn outputs(&self) -> Option<Outputs> {
        let saved = self.out.iter().flat_map(|_| &self.save).copied();
        saved.chain(self.json.then_some(Format::Jsonl)).map(Format::outputs).max()
    }

    /// That the run does not replace the very pictures that it reads: those in `frames`.
    ///
    /// # Errors
    /// A usage failure that names the folder.
    pub(crate) fn check_apart(&self, frames: &Path) -> Result<(), Failure> {
        let Some(out) = self.out.as_ref().filter(|_| self.save.contains(&Format::Depth)) else { return Ok(()) };
        let results = out.join("depth");
        match (results.canonicalize(), frames.canonicalize()) {
            (Ok(results), Ok(frames)) if results == frames => Err(Failure::Usage(format!(
                "{} holds the frames, and --save depth would replace them: choose another --out",
                frames.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Whether objects scroll over the user's terminal, where a progress bar would be in their way.
    pub(crate) fn on_terminal(&self) -> bool {
        self.json && io::stdout().is_terminal()
    }

    /// Says something to the user on standard output, or beside it where that is for objects.
    pub(crate) fn say(&self, text: &str) -> Result<(), Failure> {
        if self.json {
            console::line(text);
            return Ok(());
        }
        console::print(text)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        sinks: SinkOptions,
    }

    #[test]
    fn no_more_is_asked_of_the_network_than_goes_somewhere() {
        for (arguments, expected) in [
            ("", None),
            ("--json", Some(Outputs::Depth)),
            ("--out o", Some(Outputs::All)),
            ("--out o --save tum", Some(Outputs::Poses)),
            ("--out o --save tum --json", Some(Outputs::Depth)),
            ("--out o --save ply,tum", Some(Outputs::Depth)),
            ("--out o --save depth,npz", Some(Outputs::All)),
        ] {
            let Program { sinks } = Program::parse_from([""].into_iter().chain(arguments.split_whitespace()));
            assert_eq!(sinks.outputs(), expected, "{arguments}");
        }
    }
}
