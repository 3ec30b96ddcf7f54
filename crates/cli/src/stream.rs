//! `periplus stream`: a clip goes in, outputs come out.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use periplus::frames::{
    Clip, ClipOptions, FolderOptions, FolderSource, OnBadFrame, Order, PictureWarning, Preprocess, Resize, SampleBits,
    TimestampList, globset,
};
use periplus::{Config, Engine, Frame, FrameOutput, Keyframes, Outputs, Session, SessionConfig, keyframe_interval};

use crate::console::{self, counted};
use crate::demo::{self, DemoSource};
use crate::failure::Failure;
use crate::interruption::{Interruption, no_thread};
use crate::judge::Judge;
use crate::memory::{check_stream, check_weights};
use crate::options::{
    ComputeOptions, StreamOptions, WeightsOptions, at_least_one, from_zero, is_demo, measure, mention_key,
    open_weights, pixels, place,
};
use crate::progress::{Progress, show_loading};
use crate::sinks::{SinkOptions, Sinks};
use crate::writer::Writer;

/// Stream a clip: camera pose, depth and confidence of every frame
///
/// Without FRAMES, the bundled clip; without --weights, the bundled demo network.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// Folder with the pictures of the clip, in natural order of their names [default: the bundled clip]
    frames: Option<PathBuf>,
    #[command(flatten)]
    weights: WeightsOptions,
    #[command(flatten)]
    sinks: SinkOptions,
    #[command(flatten)]
    clip: ClipArguments,
    #[command(flatten)]
    stream: StreamOptions,
    /// Keep every N-th frame in the cache, besides the scale frames; auto keeps all up to 320 frames, and of longer
    /// clips every so-many-th that leaves 160 to 320
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = interval)]
    keyframe_interval: Interval,
    #[command(flatten)]
    compute: ComputeOptions,
    /// Say nothing but warnings and errors
    #[arg(long)]
    quiet: bool,
}

/// Which frames, and how they become what the network sees.
#[derive(Args)]
struct ClipArguments {
    /// Width of the picture that the network sees, in pixels [default: what it was trained on, 518 for published ones]
    #[arg(long, value_name = "PIXELS", value_parser = pixels)]
    image_size: Option<u32>,
    /// Fit the width and crop what is too high, or fit the longer side and pad to a square
    #[arg(long, value_name = "crop|pad", hide_possible_values = true, default_value = "crop")]
    resize: Fit,
    /// Take only pictures whose names fit a pattern, such as '*.color.png'
    #[arg(long, value_name = "PATTERN", value_parser = globset::Glob::new)]
    glob: Option<globset::Glob>,
    /// Order of the names: natural (frame2 before frame10), name (byte by byte) or time (0.25 before 0.5)
    /// [default: time if all end in a number with a fraction, else natural]
    #[arg(long, value_name = "natural|name|time", hide_possible_values = true)]
    order: Option<NameOrder>,
    /// Frames per second, for timestamps [default: the times in the names, if they are times]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    fps: Option<f64>,
    /// Text file with the times of the pictures: `seconds name` (TUM) or `nanoseconds,name` in each line, or one time for each
    /// picture
    #[arg(long, value_name = "FILE", conflicts_with = "fps")]
    timestamps: Option<PathBuf>,
    /// Take every N-th picture
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    stride: NonZeroUsize,
    /// Take the first N of those
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    first: Option<NonZeroUsize>,
    /// Leave out N pictures at the start
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = from_zero::<usize>)]
    skip: usize,
    /// Bits that 16-bit pictures really use, from 8 to 16: with 12, 4095 is white; auto takes as many as the first picture needs
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = sample_bits)]
    sample_bits: Bits,
    /// What to do about a picture that cannot be read or is of another size than the first
    #[arg(long, value_name = "stop|skip", hide_possible_values = true, default_value = "stop")]
    on_bad_frame: BadFrame,
}

#[derive(Clone, Copy, ValueEnum)]
enum Fit {
    Crop,
    Pad,
}

#[derive(Clone, Copy, ValueEnum)]
enum NameOrder {
    Natural,
    Name,
    Time,
}

fn rate(text: &str) -> Result<f64, String> {
    measure(text).ok().filter(|rate| *rate > 0.0).ok_or_else(|| "give a number above 0".into())
}

/// `None` is for as many as the first picture needs.
type Bits = Option<SampleBits>;

fn sample_bits(text: &str) -> Result<Bits, String> {
    if text == "auto" {
        return Ok(None);
    }
    let bits = text.parse().ok().and_then(SampleBits::new);
    bits.map(Some).ok_or_else(|| "give a whole number from 8 to 16, or auto".into())
}

#[derive(Clone, Copy, ValueEnum)]
enum BadFrame {
    Stop,
    Skip,
}

/// `None` is for as the length of the clip suggests.
type Interval = Option<NonZeroUsize>;

fn interval(text: &str) -> Result<Interval, String> {
    if text == "auto" {
        return Ok(None);
    }
    at_least_one(text).map(Some).map_err(|error| format!("{error}, or auto"))
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let device = arguments.compute.start()?;
    let weights_path = arguments.weights.weights.as_deref().unwrap_or(Path::new("demo"));
    let weights = open_weights(weights_path, arguments.weights.config.as_deref())?;
    if !arguments.quiet {
        mention_key(weights.key());
    }
    let float = arguments.compute.float(&device);
    check_weights(weights.config(), float, &device)?;
    let preprocess = arguments.clip.preprocess(weights.config())?;
    let stream = arguments.stream.over(&weights.config().stream)?;
    if let Some(frames) = &arguments.frames {
        arguments.sinks.check_apart(frames)?;
    }
    let mut clip = arguments.clip.open(arguments.frames.as_deref(), preprocess)?;
    let options = arguments.sinks.clone();
    let options = if arguments.frames.is_none() { options.for_demo() } else { options };
    // From here on there are unfinished files, which only a run that ends in order takes away.
    let interruption =
        Interruption::listen(Some("interrupted: ends after the frames in hand; once more ends it at once"))?;
    let sinks = Sinks::open(&options)?;
    let next_steps = if sinks.has_folder() { options.next_steps() } else { Vec::new() };
    if is_demo(weights_path) && arguments.frames.is_some() {
        console::line(demo::LIMITS);
    }

    let interval = arguments.keyframe_interval;
    let interval = interval.map_or_else(|| keyframe_interval(clip.len_hint().unwrap_or(0)), NonZeroUsize::get);
    let first = next_frame(&mut clip, &interruption)?;
    let warned = warn_of_pictures(clip.picture_warnings());
    if let Some(frame) = &first {
        // Of a clip whose length is not known: what a full window takes.
        let frames = clip.len_hint().unwrap_or(stream.scale_frames.saturating_add(stream.window));
        let streamed = frames.saturating_sub(stream.scale_frames);
        let keyframes = (frames - streamed).saturating_add(streamed.div_ceil(interval));
        let config = Config { stream: stream.clone(), ..weights.config().clone() };
        check_stream(&config, float, [frame.pixels.width(), frame.pixels.height()], keyframes, &device)?;
    }
    if arguments.frames.is_some() && arguments.sinks.outputs().is_none() {
        console::line("warning: nothing will be kept: --out DIR writes results to files, --json prints them");
    }
    // The engine has weights of its own: the file's map is let go before the first frame.
    let weights = show_loading(weights, arguments.quiet, &interruption);
    let engine = Engine::load(&weights, float.into(), &device);
    if interruption.requested() {
        return Err(Failure::Interrupted);
    }
    let engine = engine?;
    drop(weights);
    let judge = (arguments.frames.is_none() && !arguments.quiet).then(Judge::default);
    // Where nothing is kept, the run is there to be watched, and its speed is that of all outputs.
    let kept = options.outputs().unwrap_or(Outputs::All);
    let outputs = if judge.is_some() { kept.max(Outputs::Depth) } else { kept };
    let session = engine.session(SessionConfig { stream, keyframes: Keyframes::Every(interval), outputs })?;

    let mut run = Run {
        progress: Progress::start(clip.len_hint(), arguments.quiet || arguments.sinks.on_terminal()),
        first,
        clip,
        warned,
        session,
        writer: Writer::start(sinks).map_err(no_thread)?,
        judge,
        next_steps,
        frames: 0,
    };
    let ended = run.stream(&interruption);
    run.end(ended, arguments)
}

/// A clip on its way from the source to the writer.
struct Run {
    /// The first frame, which has left the clip already.
    first: Option<Frame>,
    clip: Clip,
    /// The number of its picture warnings that have been printed.
    warned: usize,
    session: Session,
    writer: Writer,
    /// For the bundled clip, if anybody hears it.
    judge: Option<Judge>,
    /// What to tell the user at the end.
    next_steps: Vec<String>,
    progress: Progress,
    /// Frames answered and handed to the writer.
    frames: usize,
}

impl Run {
    /// Streams frame after frame until the clip ends, or something else does: the user, a frame, or the writer, which tells its
    /// reason itself.
    fn stream(&mut self, interruption: &Interruption) -> Result<(), Failure> {
        let mut bad_frame = None;
        loop {
            if interruption.requested() {
                return Err(Failure::Interrupted);
            }
            let next = match self.first.take() {
                Some(first) => Ok(Some(first)),
                None => next_frame(&mut self.clip, interruption),
            };
            match next {
                Ok(Some(frame)) => {
                    let outputs = self.session.push(frame)?;
                    if !self.deliver(outputs) {
                        return Ok(());
                    }
                }
                Ok(None) => break,
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(error) => {
                    bad_frame = Some(error);
                    break;
                }
            }
        }
        // Before a bad frame too: the good ones ahead of it may still be waiting for the scale frames to be complete.
        let outputs = self.session.finish()?;
        self.deliver(outputs);
        match (bad_frame, self.clip.skipped()) {
            (Some(error), _) => Err(error),
            (None, _) if self.frames > 0 => Ok(()),
            (None, [first, ..]) => Err(Failure::Failed(format!("no frame could be used, the first for this: {first}"))),
            (None, []) => Err(Failure::Failed("the clip ended before its first frame: skip fewer pictures".into())),
        }
    }

    /// Hands outputs to the writer. Whether it takes them.
    fn deliver(&mut self, outputs: Vec<FrameOutput>) -> bool {
        for output in outputs {
            if let Some(judge) = &mut self.judge {
                judge.observe(&output);
            }
            if !self.writer.write(output) {
                return false;
            }
            self.frames += 1;
        }
        self.progress.reached(self.frames + self.clip.skipped_count());
        true
    }

    /// Puts in order what has been written, however the run ended, and says what there is.
    fn end(self, ended: Result<(), Failure>, arguments: &Arguments) -> Result<(), Failure> {
        let written = self.writer.finish();
        let ended = ended.and(written.result);
        let frames = written.frames;
        let elapsed = self.progress.end().as_secs_f64();
        if let [first, ..] = self.clip.skipped()
            && frames > 0
        {
            let of = self.clip.len_hint().map_or(String::new(), |total| format!(" of {total}"));
            let count = self.clip.skipped_count();
            console::line(&format!("warning: {count}{of} pictures were skipped, the first: {first}"));
        }
        warn_of_pictures(&self.clip.picture_warnings()[self.warned..]);
        let wanted = self.session.config().stream.scale_frames;
        if ended.is_ok() && frames < wanted {
            console::line(&format!(
                "warning: a clip of {} is shorter than the {wanted} scale frames: all went in together",
                counted(frames, "frame")
            ));
        }
        if arguments.quiet || frames == 0 || matches!(ended, Err(Failure::OutputClosed)) {
            return ended;
        }
        let mut lines = vec![format!(
            "{} in {elapsed:.1} s ({:.2} frames/s) on {} in {}, {}",
            counted(frames, "frame"),
            frames as f64 / elapsed.max(f64::EPSILON),
            place(self.session.device()),
            arguments.compute.float(self.session.device()),
            counted(written.keyframes, "keyframe"),
        )];
        lines.extend(written.lines);
        lines.extend(self.judge.and_then(Judge::verdict));
        lines.extend(self.next_steps);
        let said = arguments.sinks.say(&lines.join("\n"));
        ended.and(said)
    }
}

/// The next frame. A camera may have none for a long time, and an interruption ends the wait.
fn next_frame(clip: &mut Clip, interruption: &Interruption) -> Result<Option<Frame>, Failure> {
    while !clip.wait(Duration::from_millis(50)) {
        if interruption.requested() {
            return Err(Failure::Interrupted);
        }
    }
    Ok(clip.next().transpose()?)
}

/// Prints what is unusual about pictures. Returns the number of warnings.
fn warn_of_pictures(warnings: &[(PictureWarning, String, usize)]) -> usize {
    for (warning, name, count) in warnings {
        let more = if *count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
        console::line(&format!("warning: {name}{more}: {warning}"));
    }
    warnings.len()
}

/// Reads a list of timestamps.
fn timestamps(path: &Path) -> Result<TimestampList, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::Failed(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    TimestampList::parse(&text).map_err(|error| failed(&error))
}

impl ClipArguments {
    fn preprocess(&self, config: &Config) -> Result<Preprocess, Failure> {
        let image_size = self.image_size.unwrap_or_else(|| config.image_size());
        let resize = match self.resize {
            Fit::Crop => Resize::Crop,
            Fit::Pad => Resize::Pad,
        };
        periplus::preprocess(config, image_size, resize).map_err(Failure::usage)
    }

    /// Opens the source, prints what is unusual about it, and starts to read it ahead.
    fn open(&self, folder: Option<&Path>, preprocess: Preprocess) -> Result<Clip, Failure> {
        let options = ClipOptions {
            skip: self.skip,
            stride: self.stride,
            first: self.first,
            sample_bits: self.sample_bits,
            on_bad_frame: match self.on_bad_frame {
                BadFrame::Stop => OnBadFrame::Stop,
                BadFrame::Skip => OnBadFrame::Skip,
            },
        };
        let Some(folder) = folder else {
            return Ok(Clip::start(DemoSource::new(), preprocess, &options)?);
        };
        let source = FolderSource::open(folder, &self.folder_options()?)?;
        for warning in source.warnings() {
            console::line(&format!("warning: {warning}"));
        }
        Ok(Clip::start(source, preprocess, &options)?)
    }

    fn folder_options(&self) -> Result<FolderOptions, Failure> {
        Ok(FolderOptions {
            glob: self.glob.clone(),
            order: self.order.map(|order| match order {
                NameOrder::Natural => Order::Natural,
                NameOrder::Name => Order::Name,
                NameOrder::Time => Order::Time,
            }),
            frames_per_second: self.fps,
            timestamps: self.timestamps.as_deref().map(timestamps).transpose()?,
        })
    }
}
