//! How far a run has come: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use periplus::Weights;

use crate::console;
use crate::interruption::Interruption;

/// Time between two lines where there is no terminal: a log of an hour's run stays readable.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Shows the progress of one run on standard error.
pub(crate) struct Progress {
    display: Display,
    total: Option<usize>,
    started: Instant,
}

enum Display {
    Nothing,
    Bar(ProgressBar),
    Lines { last: Instant },
}

impl Progress {
    /// Starts the clock. `total` is the number of frames to come, where it is known.
    pub(crate) fn start(total: Option<usize>, quiet: bool) -> Self {
        let display = if quiet {
            Display::Nothing
        } else if !io::stderr().is_terminal() {
            Display::Lines { last: Instant::now() }
        } else {
            let bar = ProgressBar::new(0).with_style(style(total.is_some()));
            if let Some(total) = total {
                bar.set_length(total as u64);
            }
            // The clock goes on while a frame takes its time.
            bar.enable_steady_tick(Duration::from_millis(250));
            Display::Bar(bar)
        };
        Self { display, total, started: Instant::now() }
    }

    /// `done` frames have been answered or skipped.
    pub(crate) fn reached(&mut self, done: usize) {
        match &mut self.display {
            Display::Nothing => {}
            Display::Bar(bar) => bar.set_position(done as u64),
            Display::Lines { last } => {
                if last.elapsed() >= BETWEEN_LINES {
                    *last = Instant::now();
                    console::line(&progress_line(done, self.total, self.started.elapsed()));
                }
            }
        }
    }

    /// Takes the bar away and tells the time since the start.
    pub(crate) fn end(self) -> Duration {
        if let Display::Bar(bar) = self.display {
            bar.finish_and_clear();
        }
        self.started.elapsed()
    }
}

#[allow(clippy::expect_used)] // the templates are these two
fn style(total_known: bool) -> ProgressStyle {
    let template = if total_known {
        "{bar:30} {pos}/{len} frames in {elapsed}  {per_sec}  {eta} left"
    } else {
        "{spinner} {pos} frames in {elapsed}  {per_sec}"
    };
    ProgressStyle::with_template(template).expect("the template is well formed")
}

/// The weights with a bar that follows them as they are read, on a terminal and unless `quiet`. An interruption ends the
/// reading.
#[allow(clippy::expect_used)] // the template is this one
pub(crate) fn show_loading(weights: Weights, quiet: bool, interruption: &Interruption) -> Weights {
    let bar = if quiet || !io::stderr().is_terminal() { ProgressBar::hidden() } else { ProgressBar::no_length() };
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} of weights  {eta} left");
    let bar = bar.with_style(style.expect("the template is well formed"));
    let interruption = interruption.clone();
    weights.with_progress(move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        let stop = interruption.requested();
        if stop || done >= total {
            bar.finish_and_clear();
        }
        if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

fn progress_line(done: usize, total: Option<usize>, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(f64::EPSILON);
    match total {
        Some(total) if rate > 0.0 => {
            let left = total.saturating_sub(done) as f64 / rate;
            format!("{done} of {total} frames, {rate:.2} frames/s, {left:.0} s left")
        }
        Some(total) => format!("{done} of {total} frames"),
        None => format!("{done} frames, {rate:.2} frames/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_rate_and_time_left() {
        let line = |done, total| progress_line(done, total, Duration::from_secs(10));
        assert_eq!(line(20, Some(60)), "20 of 60 frames, 2.00 frames/s, 20 s left");
        assert_eq!(line(0, Some(60)), "0 of 60 frames");
        assert_eq!(line(5, None), "5 frames, 0.50 frames/s");
        // Frames that were left out as bad may be counted late, never twice.
        assert_eq!(line(61, Some(60)), "61 of 60 frames, 6.10 frames/s, 0 s left");
    }
}
