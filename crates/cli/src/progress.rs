//! Progress of a run: one line that is redrawn on a terminal, a new line every ten seconds elsewhere.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use periplus::Weights;
use periplus_units::Bytes;

use crate::console;
use crate::interruption::Interruption;

/// Time between two lines without a terminal. A log of an hour's run stays readable.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Time between two steps of the spinner.
const TICK: Duration = Duration::from_millis(250);

/// Shows the progress of one run on standard error.
pub(crate) struct Progress {
    display: Display,
    total: Option<usize>,
    started: Instant,
}

impl Progress {
    /// Starts the clock. `total` is the number of frames to come, if it is known.
    pub(crate) fn start(total: Option<usize>, quiet: bool) -> Self {
        let progress = Self { display: Display::new(quiet), total, started: Instant::now() };
        progress.reached(0);
        progress
    }

    /// `done` frames have an output or were skipped.
    pub(crate) fn reached(&self, done: usize) {
        self.display.show(|| frames_line(done, self.total, self.started.elapsed()));
    }

    /// Removes the line from the terminal and returns the time since the start.
    pub(crate) fn end(self) -> Duration {
        self.display.clear();
        self.started.elapsed()
    }
}

/// The weights with a display of how far they are read, unless `quiet`. An interruption ends the reading.
pub(crate) fn show_loading(weights: Weights, quiet: bool, interruption: &Interruption) -> Weights {
    let display = Display::new(quiet);
    let (interruption, started) = (interruption.clone(), Instant::now());
    weights.with_progress(move |done, total| {
        display.show(|| weights_line(done, total, started.elapsed()));
        let stop = interruption.requested();
        if stop || done >= total {
            display.clear();
        }
        if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// Where a line of progress goes.
enum Display {
    Nothing,
    /// A line that is cut to the width of the terminal.
    Terminal(ProgressBar),
    /// The time of the last line.
    Lines(Mutex<Instant>),
}

impl Display {
    fn new(quiet: bool) -> Self {
        if quiet {
            return Self::Nothing;
        }
        let bar = line_on(ProgressDrawTarget::stderr());
        // Standard error is no terminal, or one that cannot move its cursor (TERM=dumb).
        if bar.is_hidden() {
            return Self::Lines(Mutex::new(Instant::now()));
        }
        // The spinner turns while a frame takes its time. Indicatif's own thread for this panics where the system gives none.
        let line = bar.downgrade();
        let _ = thread::Builder::new().name("spinner".into()).spawn(move || {
            while let Some(line) = line.upgrade().filter(|line| !line.is_finished()) {
                line.tick();
                thread::sleep(TICK);
            }
        });
        Self::Terminal(bar)
    }

    fn show(&self, line: impl FnOnce() -> String) {
        match self {
            Self::Nothing => {}
            Self::Terminal(bar) => bar.set_message(line()),
            Self::Lines(last) => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.elapsed() >= BETWEEN_LINES {
                    *last = Instant::now();
                    console::line(&line());
                }
            }
        }
    }

    fn clear(&self) {
        if let Self::Terminal(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// A line on `terminal` that never wraps.
#[allow(clippy::expect_used)] // the template is this one
fn line_on(terminal: ProgressDrawTarget) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {wide_msg}").expect("the template is well formed");
    ProgressBar::with_draw_target(None, terminal).with_style(style)
}

/// Rate and time left follow the first output: before it nothing is known.
fn frames_line(done: usize, total: Option<usize>, elapsed: Duration) -> String {
    let mut line = match total {
        Some(total) => format!("{done} of {total} frames"),
        None => console::counted(done, "frame"),
    };
    if done > 0 {
        let _ = write!(line, ", {:.2} frames/s", done as f64 / elapsed.as_secs_f64().max(f64::EPSILON));
        line += &time_left(done as f64, total.unwrap_or(done) as f64, elapsed);
    }
    line
}

fn weights_line(done: u64, total: u64, elapsed: Duration) -> String {
    let left = time_left(done as f64, total as f64, elapsed);
    format!("{} of {} of weights{left}", Bytes(done), Bytes(total))
}

/// The time that the rest takes at the pace so far, if it is a second or more.
fn time_left(done: f64, total: f64, elapsed: Duration) -> String {
    match Duration::try_from_secs_f64(elapsed.as_secs_f64() * (total - done) / done) {
        Ok(left) if left >= Duration::from_secs(1) => format!(", {} left", HumanDuration(left)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use indicatif::TermLike;

    use super::*;

    #[test]
    fn a_line_tells_rate_and_time_left_once_they_are_known() {
        let line = |done, total| frames_line(done, total, Duration::from_secs(10));
        assert_eq!(line(20, Some(60)), "20 of 60 frames, 2.00 frames/s, 20 seconds left");
        assert_eq!(line(3, Some(4000)), "3 of 4000 frames, 0.30 frames/s, 4 hours left");
        assert_eq!(line(0, Some(60)), "0 of 60 frames");
        assert_eq!(line(0, None), "0 frames");
        assert_eq!(line(5, None), "5 frames, 0.50 frames/s");
        assert_eq!(line(60, Some(60)), "60 of 60 frames, 6.00 frames/s");
        // Frames that were skipped may be counted late, never twice.
        assert_eq!(line(61, Some(60)), "61 of 60 frames, 6.10 frames/s");
        assert_eq!(
            frames_line(8, Some(48), Duration::from_millis(1027)),
            "8 of 48 frames, 7.79 frames/s, 5 seconds left"
        );
        let weights = |done| weights_line(done, 4 << 30, Duration::from_secs(10));
        assert_eq!(weights(1 << 30), "1 GiB of 4 GiB of weights, 30 seconds left");
        assert_eq!(weights(0), "0 bytes of 4 GiB of weights");
    }

    /// A terminal of 20 columns that records what is written to it.
    #[derive(Debug, Clone, Default)]
    struct Narrow(Arc<Mutex<Vec<String>>>);

    impl TermLike for Narrow {
        fn width(&self) -> u16 {
            20
        }
        fn move_cursor_up(&self, rows: usize) -> io::Result<()> {
            assert_eq!(rows, 0, "the line has wrapped");
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push(text.to_owned());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_cut_to_a_narrow_terminal() {
        let terminal = Narrow::default();
        let bar = line_on(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        for done in 1..=9 {
            bar.set_message(frames_line(done, Some(4800), Duration::from_secs(7)));
            bar.tick();
        }
        let written = terminal.0.lock().unwrap();
        let lines: Vec<_> = written.iter().filter(|text| text.contains("frames")).collect();
        assert!(lines.iter().any(|line| line.contains("9 of 4800 frames")), "{lines:?}");
        assert!(written.iter().all(|text| text.chars().count() <= 20), "{written:?}");
    }
}
