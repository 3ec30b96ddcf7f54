//! `periplus bench`: frames per second, and where the time goes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use periplus::checkpoint::synthetic::hash_uniform;
use periplus::{Config, Device, Engine, Frame, Raster, Session, SessionConfig, StreamSettings, Viewport, Weights};
use periplus_units::Bytes;
use serde::Serialize;

use crate::console;
use crate::failure::Failure;
use crate::interruption::Interruption;
use crate::memory::check_stream;
use crate::options::{ComputeOptions, PictureOptions, at_least_one, checked, from_zero, network, open_weights, place};
use crate::process::status;
use crate::progress::show_loading;
use crate::spans::StageTimes;

/// The library's spans and what they are called here, in the order of the network. `global_attention` lies within
/// `global_block`.
const STAGES: [(&str, &str); 8] = [
    ("patch_embed", "patch embedding"),
    ("frame_block", "frame blocks"),
    ("global_block", "global blocks"),
    ("global_attention", "  of which attention"),
    ("camera_head", "camera head"),
    ("depth_head", "depth head"),
    ("point_head", "point head"),
    ("copies", "copies"),
];

/// Measure frames per second and the time of each stage on this machine, on frames of noise
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// The checkpoint: a safetensors file, or "demo" for the bundled one [default: synthetic weights]
    #[arg(long, value_name = "FILE|demo")]
    weights: Option<PathBuf>,
    /// The network's configuration (JSON) [default: the checkpoint's own, or the published network]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    picture: PictureOptions,
    /// Frames that go in together at first; few, since their pass is measured by itself
    #[arg(long, value_name = "N", default_value = "2", value_parser = at_least_one)]
    scale_frames: NonZeroUsize,
    /// Frames to stream after them before any is measured: as many as the window has, and it is full
    #[arg(long, value_name = "N", default_value = "0", value_parser = from_zero::<usize>)]
    warm_up: usize,
    /// Frames to stream after them, one at a time
    #[arg(long, value_name = "N", default_value = "4", value_parser = at_least_one)]
    frames: NonZeroUsize,
    /// Latest keyframes that a new frame sees in full [default: the checkpoint's, or 64]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    window: Option<NonZeroUsize>,
    #[command(flatten)]
    compute: ComputeOptions,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Serialize)]
struct Measurement {
    parameters: u64,
    device: &'static str,
    dtype: String,
    width: u32,
    height: u32,
    threads: usize,
    window: usize,
    /// Seconds until the weights were in place.
    load_seconds: f64,
    /// All scale frames together.
    scale_pass: Times,
    /// One streamed frame, on average.
    streamed_frame: Times,
    fastest_milliseconds: f64,
    median_milliseconds: f64,
    /// By the median.
    frames_per_second: f64,
    /// Of each streamed frame.
    frame_milliseconds: Vec<f64>,
    cache_bytes: usize,
    /// Of the GPU, used by any process.
    peak_device_bytes: Option<u64>,
    /// Of the whole process, where the system tells.
    peak_resident_bytes: Option<u64>,
}

/// What a pass through the network took.
#[derive(Serialize)]
struct Times {
    /// Frames that were measured.
    frames: usize,
    milliseconds: f64,
    /// By the name of the stage's span.
    stages: BTreeMap<&'static str, f64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let device = arguments.compute.start()?;
    let config = arguments.config.as_deref();
    let weights = match &arguments.weights {
        Some(weights) => open_weights(weights, config)?,
        None => Weights::synthetic(network(config)?, 0)?,
    };
    let picture = arguments.picture.size(weights.config())?;
    let suggested = &weights.config().stream;
    let stream = checked(StreamSettings {
        scale_frames: arguments.scale_frames.get(),
        window: arguments.window.map_or(suggested.window, NonZeroUsize::get),
        ..suggested.clone()
    })?;
    let float = arguments.compute.float(&device);
    let frames = [arguments.scale_frames.get(), arguments.warm_up, arguments.frames.get()];
    let frames = frames.into_iter().fold(0, usize::saturating_add);
    let config = Config { stream: stream.clone(), ..weights.config().clone() };
    check_stream(&config, float, picture.map(|side| side as usize), frames, &device)?;
    let measurement =
        measure(arguments, picture, stream, show_loading(weights, false, &Interruption::default()), &device)?;
    console::print(&if arguments.json { serde_json::to_string(&measurement)? } else { measurement.table() })
}

fn measure(
    arguments: &Arguments,
    [width, height]: [u32; 2],
    stream: StreamSettings,
    weights: Weights,
    device: &Device,
) -> Result<Measurement, Failure> {
    let started = Instant::now();
    let float = arguments.compute.float(device);
    let engine = Engine::load(&weights, float.into(), device)?;
    drop(weights);
    let load_seconds = started.elapsed().as_secs_f64();

    let window = stream.window;
    let mut session = engine.session(SessionConfig { stream, ..engine.config().into() })?;
    let mut noise = (0..).map(|index| noise([width, height], index));
    let stages = StageTimes::new(session.device());
    let mut times = |session: &mut Session, count: usize| -> Result<Vec<_>, Failure> {
        noise.by_ref().take(count).map(|frame| timed(&stages, session, frame)).collect()
    };
    if device.is_cuda() {
        // A card loads code when it first runs it, and the driver its memory.
        times(&mut session, arguments.scale_frames.get() + 1)?;
        stages.take()?;
        session.reset();
    }
    let scale_pass = Times::new(&times(&mut session, arguments.scale_frames.get())?, 1, &stages.take()?);
    times(&mut session, arguments.warm_up)?;
    stages.take()?;
    let mut times = times(&mut session, arguments.frames.get())?;
    let streamed_frame = Times::new(&times, times.len(), &stages.take()?);
    let frame_milliseconds = times.iter().copied().map(milliseconds).collect();
    times.sort_unstable();
    let median = (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2;
    Ok(Measurement {
        parameters: engine.config().parameters(),
        device: place(device),
        dtype: float.to_string(),
        width,
        height,
        threads: rayon::current_num_threads(),
        window,
        load_seconds,
        scale_pass,
        streamed_frame,
        fastest_milliseconds: milliseconds(times[0]),
        median_milliseconds: milliseconds(median),
        frames_per_second: 1.0 / median.as_secs_f64(),
        frame_milliseconds,
        cache_bytes: session.stats().cache_bytes,
        // What is freed on a card stays with the program, so that this is the most there has been.
        peak_device_bytes: periplus::device::memory_used(device)?,
        peak_resident_bytes: peak_resident_bytes(),
    })
}

/// The time that a frame takes.
fn timed(stages: &StageTimes, session: &mut Session, frame: Frame) -> Result<Duration, Failure> {
    let started = Instant::now();
    stages.measure(|| session.push(frame))?;
    Ok(started.elapsed())
}

/// A frame of noise, seeded.
fn noise([width, height]: [u32; 2], number: usize) -> Frame {
    let (columns, rows) = (width as usize, height as usize);
    let values = hash_uniform(&format!("bench/{number}"), 3 * columns * rows, 0);
    let bytes: Vec<u8> = values.into_iter().map(|value| ((value + 1.0) * 128.0) as u8).collect();
    let (pixels, _) = bytes.as_chunks();
    #[allow(clippy::expect_used)] // three values were made for each
    let pixels = Raster::new(columns, rows, pixels.to_vec()).expect("a value for every pixel");
    Frame { number, name: None, timestamp: None, viewport: Viewport::identity(width, height), pixels: Arc::new(pixels) }
}

impl Times {
    /// `passes` went through the network in the time of all frames.
    fn new(frames: &[Duration], passes: usize, stages: &HashMap<&'static str, Duration>) -> Self {
        let each = |total: Duration| milliseconds(total) / passes as f64;
        let stages = stages.iter().map(|(&name, &time)| (name, each(time))).collect();
        Self { frames: frames.len(), milliseconds: each(frames.iter().sum()), stages }
    }
}

impl Measurement {
    fn table(&self) -> String {
        let mut text = format!(
            "{:.1} M parameters in {} on {}, {} x {} pixels, window {}, {}; loaded in {:.1} s\n\n{:<22}{:>14}{:>16}\n",
            self.parameters as f64 / 1e6,
            self.dtype,
            self.device,
            self.width,
            self.height,
            self.window,
            console::counted(self.threads, "thread"),
            self.load_seconds,
            "milliseconds",
            console::counted(self.scale_pass.frames, "scale frame"),
            "streamed frame",
        );
        let (scale, streamed) = (&self.scale_pass, &self.streamed_frame);
        let mut row = |name: &str, scale: f64, streamed: f64| {
            let _ = writeln!(text, "{name:<22}{scale:>14.1}{streamed:>16.1}");
        };
        let mut rest = (scale.milliseconds, streamed.milliseconds);
        for (span, name) in STAGES {
            let (Some(scale), Some(streamed)) = (scale.stages.get(span), streamed.stages.get(span)) else { continue };
            row(name, *scale, *streamed);
            if span != "global_attention" {
                rest = (rest.0 - scale, rest.1 - streamed);
            }
        }
        row("the rest", rest.0, rest.1);
        row("all", scale.milliseconds, streamed.milliseconds);
        let _ = write!(
            text,
            "\n{:.3} frames per second: {:.1} ms a frame in the median of {}, {:.1} at best; cache {}",
            self.frames_per_second,
            self.median_milliseconds,
            self.streamed_frame.frames,
            self.fastest_milliseconds,
            Bytes(self.cache_bytes as u64),
        );
        if let Some(bytes) = self.peak_device_bytes {
            let _ = write!(text, ", memory taken on the card {}", Bytes(bytes));
        }
        if let Some(bytes) = self.peak_resident_bytes {
            let _ = write!(text, ", peak memory {}", Bytes(bytes));
        }
        text
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The most memory that this process has held so far; `None` where the system does not tell (it does on Linux).
fn peak_resident_bytes() -> Option<u64> {
    status("VmHWM")?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
