//! Where the outputs of a stream go.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use periplus::export::{
    BatchFiles, Colmap, ConfidenceMaps, DepthMaps, ExportError, ExrFiles, Glb, JsonFile, JsonLines, KittiPoses,
    MinConfidence, Nerfstudio, NpyFiles, NpzFiles, OutputFolder, Overview, PointCloud, PointOptions, Sink, Trajectory,
};
use periplus::{FrameOutput, Outputs};

use crate::console;
use crate::failure::Failure;
use crate::judge::GroundTruth;
use crate::options::measure;

/// Folder for the results of the bundled clip, in the current directory, unless the user names another.
const DEMO_FOLDER: &str = "periplus-demo";

/// Which results, and where.
#[derive(Args, Clone)]
pub(crate) struct SinkOptions {
    /// Folder for the results, created if needed; results of an earlier run in it are replaced
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to write there: npz (all outputs, one file per frame), tum (trajectory), depth (16-bit PNG), ply (point
    /// cloud), colmap (model with original intrinsics), kitti (trajectory), jsonl (one JSON object per frame), overview
    /// (one picture of the run), nerfstudio (transforms.json with seed points, and depth if that is saved too), glb (points,
    /// cameras and trajectory for Blender), npy (depth), exr (depth and confidence), confidence (16-bit PNG), batch (the
    /// layout of the published batch program)
    #[arg(
        long,
        value_name = "FORMATS",
        value_enum,
        value_delimiter = ',',
        default_value = "npz,tum,ply",
        requires = "out"
    )]
    save: Vec<Format>,
    /// Confidence below which a point is left out of point clouds; 1 keeps all. Or the share of each frame's pixels to leave
    /// out, those of the lowest confidence, such as 20%
    #[arg(long, value_name = "NUMBER|PERCENT%", default_value = "1.5", value_parser = min_confidence, requires = "out")]
    ply_confidence: MinConfidence,
    /// Side of the voxels that keep one point each, in the unit of depth; 0 keeps all [default: two pixels' worth]
    #[arg(long, value_name = "NUMBER", value_parser = measure::<f64>, requires = "out")]
    ply_voxel: Option<f64>,
    /// Largest number of points of a point cloud: when there are more, voxels grow
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = PointOptions::default().max_points,
        requires = "out"
    )]
    ply_points: usize,
    /// Print a JSON object per frame on standard output, and nothing else there
    #[arg(long)]
    json: bool,
    /// The clip is the bundled one: its ground truth goes beside the results.
    #[arg(skip)]
    ground_truth: bool,
    /// The folder is not the user's choice: the run goes on without files if it cannot be written.
    #[arg(skip)]
    optional: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Npz,
    Tum,
    Depth,
    Ply,
    Colmap,
    Kitti,
    Jsonl,
    Overview,
    Nerfstudio,
    Glb,
    Npy,
    Exr,
    Confidence,
    Batch,
}

/// Reads a confidence, or a share in percent.
fn min_confidence(text: &str) -> Result<MinConfidence, String> {
    match text.strip_suffix('%') {
        None => measure(text).map(MinConfidence::Value),
        Some(percent) => match measure(percent) {
            Ok(percent) if percent <= 100.0 => Ok(MinConfidence::Percent(percent)),
            _ => Err("give a share from 0% to 100%".into()),
        },
    }
}

/// All sinks of a run.
pub(crate) struct Sinks {
    folder: Option<OutputFolder>,
    /// Objects on standard output, as long as there is a reader.
    lines: Option<Box<dyn Sink>>,
}

impl Sinks {
    /// Opens the sinks that `options` ask for.
    pub(crate) fn open(options: &SinkOptions) -> Result<Self, Failure> {
        let folder = match options.out.as_deref().map(|out| options.open_folder(out)).transpose() {
            Err(error) if options.optional => {
                console::line(&format!("warning: {error}; this run writes no files"));
                None
            }
            opened => opened?,
        };
        if options.json && is_discarded() {
            console::line("warning: standard output is closed or discarded, --json prints nothing");
            return Ok(Self { folder, lines: None });
        }
        let lines = || Box::new(JsonLines::new(io::stdout(), "standard output")) as Box<dyn Sink>;
        Ok(Self { folder, lines: options.json.then(lines) })
    }

    /// Whether results go to a folder.
    pub(crate) fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    pub(crate) fn write(&mut self, output: &FrameOutput) -> Result<(), Failure> {
        self.folder.as_mut().map_or(Ok(()), |folder| folder.write(output))?;
        match self.lines.as_mut().map_or(Ok(()), |lines| lines.write(output)) {
            Err(ExportError::Closed { .. }) if self.folder.is_none() => return Err(Failure::OutputClosed),
            // The run goes on for the files.
            Err(ExportError::Closed { .. }) => self.lines = None,
            written => written?,
        }
        Ok(())
    }

    /// Completes the files, also after an error, and returns a line for each result.
    pub(crate) fn finish(self) -> (Vec<String>, Result<(), Failure>) {
        let (summaries, finished) = self.folder.map_or((Vec::new(), Ok(())), OutputFolder::finish);
        let mut written: Vec<_> = summaries.iter().map(ToString::to_string).collect();
        let lines = self.lines.map(Sink::finish).transpose();
        written.extend(lines.as_ref().ok().into_iter().flatten().map(ToString::to_string));
        (written, finished.and(lines.map(drop)).map_err(Failure::from))
    }
}

/// Whether standard output was closed when the program started (`>&-`). Rust's runtime then opens `/dev/null` for reading
/// and writing in its place; a redirection by a shell opens it for writing only.
fn is_discarded() -> bool {
    let is_null = fs::read_link("/proc/self/fd/1").is_ok_and(|target| target == Path::new("/dev/null"));
    let flags = fs::read_to_string("/proc/self/fdinfo/1").unwrap_or_default();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    // The access mode is in the two lowest bits; 2 is O_RDWR.
    is_null && flags.is_some_and(|flags| flags & 3 == 2)
}

impl Format {
    /// Which outputs of a frame it needs.
    fn outputs(self) -> Outputs {
        match self {
            Self::Tum | Self::Kitti => Outputs::Poses,
            Self::Npz | Self::Batch => Outputs::All,
            _ => Outputs::Depth,
        }
    }

    /// Its folder of numbered pictures, in the output folder.
    fn pictures(self) -> Option<&'static str> {
        match self {
            Self::Depth => Some("depth"),
            Self::Confidence => Some("confidence"),
            Self::Nerfstudio => Some("nerfstudio/depth"),
            _ => None,
        }
    }

    /// A file or folder among its results, and how to look at it.
    fn next_step(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::Overview => ("overview.png", "open it in any picture viewer"),
            Self::Ply => ("points.ply", "open it in MeshLab or CloudCompare"),
            Self::Glb => ("scene.glb", "import it into Blender (File > Import > glTF 2.0)"),
            Self::Colmap => ("colmap/sparse/0", "open it in COLMAP (File > Import model)"),
            _ => return None,
        })
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl SinkOptions {
    fn open_folder(&self, out: &Path) -> Result<OutputFolder, ExportError> {
        let points = PointOptions {
            min_confidence: self.ply_confidence,
            voxel_size: self.ply_voxel,
            max_points: self.ply_points,
        };
        let mut folder = OutputFolder::open(out)?;
        let mut opened = Vec::new();
        for &format in &self.save {
            if opened.contains(&format) {
                continue;
            }
            opened.push(format);
            match format {
                Format::Npz => folder.add(NpzFiles::create(out)?),
                Format::Tum => folder.add(Trajectory::create(out)?),
                Format::Depth => folder.add(DepthMaps::create(out)?),
                Format::Ply => folder.add(PointCloud::create(out, points)?),
                Format::Colmap => folder.add(Colmap::create(out, points)?),
                Format::Kitti => folder.add(KittiPoses::create(out)?),
                Format::Jsonl => folder.add(JsonFile::create(out)?),
                Format::Overview => folder.add(Overview::create(out)?),
                Format::Nerfstudio => {
                    folder.add(Nerfstudio::create(out, points, self.save.contains(&Format::Depth))?);
                }
                Format::Glb => folder.add(Glb::create(out, points)?),
                Format::Npy => folder.add(NpyFiles::create(out)?),
                Format::Exr => folder.add(ExrFiles::create(out)?),
                Format::Confidence => folder.add(ConfidenceMaps::create(out)?),
                Format::Batch => folder.add(BatchFiles::create(out)?),
            }
        }
        if self.ground_truth {
            folder.add(GroundTruth::create(out)?);
        }
        Ok(folder)
    }

    /// These options for the bundled clip. Its results go to a folder of their own unless the user says where.
    pub(crate) fn for_demo(mut self) -> Self {
        self.ground_truth = true;
        if self.out.is_none() && !self.json {
            self.optional = true;
            self.out = Some(DEMO_FOLDER.into());
            self.save = vec![Format::Tum, Format::Ply, Format::Overview];
        }
        self
    }

    /// Where the results are, and for each that a tool opens, a line that names the tool.
    pub(crate) fn next_steps(&self) -> Vec<String> {
        let Some(out) = &self.out else { return Vec::new() };
        let mut lines = vec![format!("The results are in the folder {}:", out.display())];
        for format in &self.save {
            let Some((name, step)) = format.next_step() else { continue };
            lines.push(format!("  {}: {step}", out.join(name).display()));
        }
        if self.save.contains(&Format::Tum) {
            let truth = if self.ground_truth { out.join(GroundTruth::NAME) } else { "GROUNDTRUTH".into() };
            let trajectory = out.join("trajectory.txt");
            lines.push(format!(
                "  compare the trajectory with a ground truth: pip install evo; evo_ape tum {} {} -as",
                truth.display(),
                trajectory.display()
            ));
        }
        // A folder with a line break in its name must not break these lines.
        lines.iter().map(|line| line.replace(['\n', '\r'], "\u{fffd}")).collect()
    }

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
        let Some(out) = &self.out else { return Ok(()) };
        for format in &self.save {
            let Some(results) = format.pictures().map(|folder| out.join(folder)) else { continue };
            if results.canonicalize().is_ok_and(|results| frames.canonicalize().is_ok_and(|frames| results == frames)) {
                return Err(Failure::Usage(format!(
                    "{} holds the frames, and --save {} would replace them: choose another --out",
                    frames.display(),
                    format.name()
                )));
            }
        }
        Ok(())
    }

    /// Whether objects scroll over the user's terminal, where a progress bar would be in their way.
    pub(crate) fn on_terminal(&self) -> bool {
        self.json && io::stdout().is_terminal()
    }

    /// Says something to the user on standard output, or beside it where that is for objects.
    pub(crate) fn say(&self, text: &str) -> Result<(), Failure> {
        if self.json {
            text.lines().for_each(console::line);
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
            ("--out o --save glb,nerfstudio", Some(Outputs::Depth)),
            ("--out o --save batch", Some(Outputs::All)),
        ] {
            let Program { sinks } = Program::parse_from([""].into_iter().chain(arguments.split_whitespace()));
            assert_eq!(sinks.outputs(), expected, "{arguments}");
        }
    }

    #[test]
    fn a_confidence_is_a_number_or_a_share() {
        assert_eq!(min_confidence("1.5"), Ok(MinConfidence::Value(1.5)));
        assert_eq!(min_confidence("20%"), Ok(MinConfidence::Percent(20.0)));
        assert!(["", "%", "101%", "-1%", "nan%", "20 %", "x"].iter().all(|text| min_confidence(text).is_err()));
    }
}
