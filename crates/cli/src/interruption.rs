//! The request of the user, or of the system, to end.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;
use crate::process::status;

/// Whether the program has been asked to end. By default nobody listens.
#[derive(Clone, Default)]
pub(crate) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Listens from now on. A command that has done so has to ask; the second request ends it at once. `said` is told at the
    /// first, by a command that may take a while to ask.
    ///
    /// What whoever started the program has it ignore stays ignored: hang-ups under nohup, Ctrl-C in the background of a script.
    pub(crate) fn listen(said: Option<&'static str>) -> Result<Self, Failure> {
        let interruption = Self::default();
        let ignored = ignored();
        for signal in requests().into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0) {
            // In this order, so that the first request does not find what it sets itself.
            flag::register_conditional_shutdown(signal, Failure::INTERRUPTED.into(), Arc::clone(&interruption.0))?;
            flag::register(signal, Arc::clone(&interruption.0))?;
        }
        if let Some(said) = said {
            let interruption = interruption.clone();
            // A handler of signals must not write, so a thread watches what it sets.
            let watching = thread::Builder::new().name("interruption".into()).spawn(move || {
                while !interruption.requested() {
                    thread::sleep(Duration::from_millis(50));
                }
                crate::console::line(said);
            });
            watching.map_err(no_thread)?;
        }
        Ok(interruption)
    }

    pub(crate) fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The failure of a thread that could not be started.
#[allow(clippy::needless_pass_by_value)] // as `map_err` wants it
pub(crate) fn no_thread(error: io::Error) -> Failure {
    Failure::Failed(format!("the system does not start another thread, close other programs: {error}"))
}

/// The signals that ask a program to end.
fn requests() -> Vec<c_int> {
    #[cfg(unix)]
    return vec![SIGINT, SIGTERM, signal_hook::consts::SIGHUP];
    #[cfg(not(unix))]
    vec![SIGINT, SIGTERM]
}

/// The signals that are ignored, a bit each from that of number 1 on; none where the system does not tell (it does on Linux).
fn ignored() -> u64 {
    status("SigIgn").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0)
}
