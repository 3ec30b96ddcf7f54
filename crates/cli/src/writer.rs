//! Results are written in a thread of their own, so that network and disk do not wait for each other.

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use periplus::FrameOutput;

use crate::failure::Failure;
use crate::sinks::Sinks;

/// Frames that may wait to be written: enough for a disk that takes its time now and then. Each is some megabytes.
const MOST_WAITING: usize = 8;

/// The thread that writes.
pub(crate) struct Writer {
    queue: SyncSender<FrameOutput>,
    thread: JoinHandle<Written>,
}

/// What became of the frames.
pub(crate) struct Written {
    /// Frames that every place has.
    pub(crate) frames: usize,
    /// Keyframes among them.
    pub(crate) keyframes: usize,
    /// A line for each place.
    pub(crate) lines: Vec<String>,
    /// How it went.
    pub(crate) result: Result<(), Failure>,
}

impl Writer {
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(sinks: Sinks) -> io::Result<Self> {
        let (queue, frames) = sync_channel(MOST_WAITING);
        let thread = thread::Builder::new().name("writer".into()).spawn(|| write(frames, sinks))?;
        Ok(Self { queue, thread })
    }

    /// Hands a frame over; waits while too many do. Whether it is taken: after an error, which [`Writer::finish`] tells, no
    /// more are.
    pub(crate) fn write(&self, output: FrameOutput) -> bool {
        self.queue.send(output).is_ok()
    }

    /// Waits until all is written and the files are complete.
    pub(crate) fn finish(self) -> Written {
        drop(self.queue);
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

fn write(frames: Receiver<FrameOutput>, mut sinks: Sinks) -> Written {
    let (mut count, mut keyframes) = (0, 0);
    // Ends with the first error, and lets go of the queue, so that the network does not go on for nothing.
    let result = frames.into_iter().try_for_each(|output| {
        sinks.write(&output)?;
        count += 1;
        keyframes += usize::from(output.keyframe);
        Ok(())
    });
    let (lines, finished) = sinks.finish();
    Written { frames: count, keyframes, lines, result: result.and(finished) }
}
