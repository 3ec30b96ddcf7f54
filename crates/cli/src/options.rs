//! Options that several commands share.

use std::hint;
use std::num::{IntErrorKind, NonZeroUsize, ParseIntError};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use periplus::checkpoint::{CheckpointError, FloatType};
use periplus::config::ConfigError;
use periplus::frames::Resize;
use periplus::{Config, Device, Retention, StreamSettings, Weights};

use crate::failure::Failure;
use crate::memory::check_threads;
use crate::{console, demo};

/// Reads a count that cannot be zero.
pub(crate) fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    whole_number(text, 1)
}

/// Reads a count.
pub(crate) fn from_zero<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    whole_number(text, 0)
}

/// Reads a number of pixels. Zero is left to what knows the sizes that it can suggest instead.
pub(crate) fn pixels(text: &str) -> Result<u32, String> {
    whole_number(text, 1)
}

fn whole_number<T: FromStr<Err = ParseIntError>>(text: &str, least: u8) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "the number is too large: give a smaller one".into(),
        _ => format!("give a whole number from {least} on"),
    })
}

/// Reads a number that is a measure of something: no less than zero, and finite.
pub(crate) fn measure<T: FromStr + Into<f64> + Copy>(text: &str) -> Result<T, String> {
    let is_measure = |number: f64| number.is_finite() && number >= 0.0;
    text.parse().ok().filter(|&number: &T| is_measure(number.into())).ok_or_else(|| "give a number from 0 on".into())
}

/// Which weights, and of which network.
#[derive(Args)]
pub(crate) struct WeightsOptions {
    /// The checkpoint: a safetensors file, or "demo" for the bundled one
    #[arg(long, value_name = "FILE|demo")]
    pub(crate) weights: Option<PathBuf>,
    /// The network's configuration (JSON), for a checkpoint that does not carry its own
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Opens a checkpoint to stream with, and says once what is odd about it.
pub(crate) fn open_weights(weights: &Path, config: Option<&Path>) -> Result<Weights, Failure> {
    open_by(Weights::open, weights, config)
}

/// Opens a checkpoint to look at or to convert, a PyTorch file too, and says once what is odd about it.
pub(crate) fn open_any_weights(weights: &Path, config: Option<&Path>, key: Option<&str>) -> Result<Weights, Failure> {
    open_by(|weights, config| Weights::open_any(weights, config, key), weights, config)
}

fn open_by(
    open: impl Fn(&Path, Option<&Path>) -> Result<Weights, CheckpointError>,
    weights: &Path,
    config: Option<&Path>,
) -> Result<Weights, Failure> {
    let weights = if is_demo(weights) {
        demo::weights(config)?
    } else {
        open(weights, config).map_err(|error| with_option(&error))?
    };
    mention_unexpected(&weights);
    Ok(weights)
}

/// An error of the library with the option that cures it.
fn with_option(error: &CheckpointError) -> Failure {
    let option = match error {
        CheckpointError::SeveralWeights { .. } | CheckpointError::NoSuchKey { .. } => {
            " (--key KEY of convert and inspect)"
        }
        CheckpointError::Inference { .. } => " (--config FILE)",
        _ => "",
    };
    Failure::Failed(format!("{error}{option}"))
}

/// Says where in its file the weights are, if they are not where they are expected.
pub(crate) fn mention_key(key: &str) {
    if !key.is_empty() {
        console::line(&format!("note: the weights in use are those under `{key}`"));
    }
}

/// Names the tensors and the other contents of a checkpoint that will not be used.
fn mention_unexpected(weights: &Weights) {
    if let [first, more @ ..] = weights.passed_over() {
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        console::line(&format!("warning: the file also holds {first}{more}, which was passed over and not run"));
    }
    let mut names = weights.unexpected();
    if let Some(first) = names.next() {
        let (are, more) = match names.count() {
            0 => ("is", String::new()),
            count => ("are", format!(" and {count} more")),
        };
        console::line(&format!("warning: {first}{more} {are} no part of the network and will not be used"));
    }
}

/// The network that a configuration file describes, or the published one.
pub(crate) fn network(config: Option<&Path>) -> Result<Config, Failure> {
    Ok(config.map(Config::read).transpose()?.unwrap_or_else(Config::full))
}

/// Whether the word on the command line names the bundled checkpoint.
pub(crate) fn is_demo(weights: &Path) -> bool {
    weights == Path::new("demo")
}

/// How to stream; what is not given is as the checkpoint suggests, or as published.
#[derive(Args)]
pub(crate) struct StreamOptions {
    /// Frames that go in together at first [default: the checkpoint's, or 8]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) scale_frames: Option<NonZeroUsize>,
    /// Latest keyframes that a new frame sees in full [default: the checkpoint's, or 64]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) window: Option<NonZeroUsize>,
    /// Refinement passes of the camera head [default: the checkpoint's, or 4]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) camera_iterations: Option<NonZeroUsize>,
    /// What stays visible of a keyframe that leaves the window: its special tokens, its camera token, or nothing
    /// [default: the checkpoint's, or all]
    #[arg(long, value_name = "all|camera|none", hide_possible_values = true)]
    pub(crate) keep_special: Option<Keep>,
}

impl StreamOptions {
    /// The settings: the ones given, else those `suggested`.
    ///
    /// # Errors
    /// A usage failure for numbers that no stream can have.
    pub(crate) fn over(&self, suggested: &StreamSettings) -> Result<StreamSettings, Failure> {
        let settings = StreamSettings {
            scale_frames: self.scale_frames.map_or(suggested.scale_frames, NonZeroUsize::get),
            window: self.window.map_or(suggested.window, NonZeroUsize::get),
            camera_iterations: self.camera_iterations.map_or(suggested.camera_iterations, NonZeroUsize::get),
            keep_special: self.keep_special.map_or(suggested.keep_special, Keep::into),
            include_scale_frames: suggested.include_scale_frames,
        };
        checked(settings)
    }
}

/// The settings, of which those that the checkpoint suggests are known to be possible.
///
/// # Errors
/// A usage failure that names the option whose number no stream can have.
pub(crate) fn checked(settings: StreamSettings) -> Result<StreamSettings, Failure> {
    match settings.validate() {
        Ok(()) => Ok(settings),
        Err(ConfigError::Size { field, value, largest }) => {
            let option = field.replace('_', "-");
            Err(Failure::Usage(format!("--{option} cannot be {value}: give a whole number from 1 to {largest}")))
        }
        Err(error) => Err(Failure::usage(error)),
    }
}

/// [`Retention`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Keep {
    All,
    Camera,
    None,
}

impl From<Keep> for Retention {
    fn from(keep: Keep) -> Self {
        match keep {
            Keep::All => Self::All,
            Keep::Camera => Self::Camera,
            Keep::None => Self::None,
        }
    }
}

/// [`FloatType`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Float {
    /// 32 bits, the fastest on a CPU
    #[value(alias = "float32")]
    F32,
    /// 16 bits with the range of float32
    #[value(alias = "bfloat16")]
    Bf16,
    /// 16 bits
    #[value(alias = "float16")]
    F16,
}

impl From<Float> for FloatType {
    fn from(float: Float) -> Self {
        match float {
            Float::F32 => Self::F32,
            Float::Bf16 => Self::Bf16,
            Float::F16 => Self::F16,
        }
    }
}

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The best device there is.
    Auto,
    Cpu,
    /// The CUDA device of that number.
    Cuda(usize),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|number| number.parse().ok().map(Self::Cuda))
                .ok_or_else(|| "give auto, cpu, cuda or cuda:N".into()),
        }
    }
}

impl Place {
    /// The device.
    ///
    /// # Errors
    /// If it cannot be had.
    fn device(self) -> Result<Device, Failure> {
        match self {
            Self::Auto => {
                let (device, reason) = periplus::device::best();
                if let Some(reason) = reason {
                    console::line(&format!("warning: computing on the CPU: {reason}"));
                }
                Ok(device)
            }
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(number) => Ok(periplus::device::open_cuda(number)?),
        }
    }
}

/// What a device is called in results.
pub(crate) fn place(device: &Device) -> &'static str {
    if device.is_cuda() { "cuda" } else { "cpu" }
}

/// More than any machine profits from. With some thousands, starting the pool hangs.
const MOST_THREADS: usize = 256;

fn threads(text: &str) -> Result<NonZeroUsize, String> {
    let threads = text.parse().ok().filter(|&threads: &NonZeroUsize| threads.get() <= MOST_THREADS);
    threads.ok_or_else(|| format!("give a whole number from 1 to {MOST_THREADS}"))
}

/// The number of threads without `--threads`: that of the variable `RAYON_NUM_THREADS`, or one per core.
fn default_threads() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.parse().ok()).filter(|&count| count > 0);
    if let Some(count) = asked.filter(|&count: &usize| count > MOST_THREADS) {
        console::line(&format!(
            "warning: RAYON_NUM_THREADS asks for {count} threads, but {MOST_THREADS} is the maximum and is used"
        ));
    }
    asked.or_else(|| std::thread::available_parallelism().ok().map(NonZeroUsize::get)).unwrap_or(1).min(MOST_THREADS)
}

/// Where to compute, in which numbers and how many threads.
#[derive(Args)]
pub(crate) struct ComputeOptions {
    /// Where to compute; auto takes the first NVIDIA GPU if there is one
    #[arg(long, value_name = "auto|cpu|cuda|cuda:N", default_value = "auto")]
    device: Place,
    /// Number type of weights and cache, and on a card of all between products (f16: for weights that keep within its range)
    /// [default: f32 on the CPU, bf16 on a card]
    #[arg(long, value_name = "f32|bf16|f16", hide_possible_values = true)]
    dtype: Option<Float>,
    /// Threads to compute in [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<NonZeroUsize>,
}

impl ComputeOptions {
    /// Starts the threads that compute and returns the device. To be called once, before any computation.
    ///
    /// # Errors
    /// If threads cannot be started, or this build has no code for the device.
    pub(crate) fn start(&self) -> Result<Device, Failure> {
        start_threads(self.threads)?;
        self.device.device()
    }

    /// The number type of weights and cache on `device`.
    pub(crate) fn float(&self, device: &Device) -> FloatType {
        self.dtype.map_or_else(|| FloatType::suited_to(device), Float::into)
    }
}

/// Starts the pool of threads that all computation on the CPU runs in: one per core unless `threads` says otherwise.
///
/// # Errors
/// If threads cannot be started.
pub(crate) fn start_threads(threads: Option<NonZeroUsize>) -> Result<(), Failure> {
    let count = threads.map_or_else(default_threads, NonZeroUsize::get);
    check_threads(count)?;
    rayon::ThreadPoolBuilder::new()
        .num_threads(count)
        .build_global()
        .map_err(|error| Failure::Failed(format!("the threads to compute in cannot be started: {error}")))?;
    // Each thread now takes its part of the address space, before anybody asks whether there is enough left.
    rayon::broadcast(|_| drop(hint::black_box(Box::new(0_u8))));
    Ok(())
}

/// The picture that the network sees, for commands that have no frames to take its height from.
#[derive(Args)]
pub(crate) struct PictureOptions {
    /// Width of the picture that the network sees, in pixels [default: what it was trained on, 518 for published ones]
    #[arg(long, value_name = "PIXELS", value_parser = pixels)]
    pub(crate) image_size: Option<u32>,
    /// Its height, in pixels [default: that of a 16:9 picture]
    #[arg(long, value_name = "PIXELS", value_parser = pixels)]
    pub(crate) image_height: Option<u32>,
}

impl PictureOptions {
    /// Width and height for a network of `config`.
    ///
    /// # Errors
    /// A usage failure for sides that `stream` cannot have.
    pub(crate) fn size(&self, config: &Config) -> Result<[u32; 2], Failure> {
        let width = self.image_size.unwrap_or_else(|| config.image_size());
        // The limits of the width are those of `stream`.
        periplus::preprocess(config, width, Resize::Crop).map_err(Failure::usage)?;
        let patch = config.patch_size as u32;
        let wide = (f64::from(width) * 9.0 / 16.0 / f64::from(patch)).round() as u32 * patch;
        let height = self.image_height.unwrap_or_else(|| wide.max(patch));
        // Pictures that are higher than wide are cropped.
        if height == 0 || !height.is_multiple_of(patch) || height > width {
            return Err(Failure::Usage(format!(
                "the image height cannot be {height}: use a multiple of the patch size {patch} up to the width {width}"
            )));
        }
        Ok([width, height])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_as_other_programs_name_them() {
        let parse = |text: &str| text.parse::<Place>();
        assert_eq!(parse("auto"), Ok(Place::Auto));
        assert_eq!(parse("cuda"), Ok(Place::Cuda(0)));
        assert_eq!(parse("cuda:3"), Ok(Place::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU "] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_picture_is_as_wide_as_in_stream_and_16_to_9() {
        let size = |image_size, image_height| PictureOptions { image_size, image_height }.size(&Config::full());
        assert_eq!(size(None, None).unwrap(), [518, 294]);
        assert_eq!(size(Some(14), None).unwrap(), [14, 14]);
        assert_eq!(size(Some(518), Some(378)).unwrap(), [518, 378]);
        for (wrong, words) in [
            ((Some(0), None), "image size 0 is smaller"),
            ((Some(75), None), "use 70 or 84"),
            ((Some(4_200_000_000), None), "too large"),
            ((None, Some(0)), "the image height cannot be 0"),
            ((None, Some(300)), "multiple of the patch size 14 up to the width 518"),
            ((None, Some(532)), "up to the width 518"),
        ] {
            let Err(Failure::Usage(said)) = size(wrong.0, wrong.1) else { panic!("{wrong:?}") };
            assert!(said.contains(words), "{said}");
        }
    }
}
