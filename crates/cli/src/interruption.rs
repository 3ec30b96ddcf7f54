//! The request of the user, or of the system, to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// Whether the program has been asked to end. By default nobody listens.
#[derive(Clone, Default)]
pub(crate) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Listens from now on. A command that has done so has to ask; the second request ends it at once. `said` is told at the
    /// first, by a command that may take a while to ask.
    pub(crate) fn listen(said: Option<&'static str>) -> Result<Self, Failure> {
        let interruption = Self::default();
        let flag = Arc::clone(&interruption.0);
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(Failure::INTERRUPTED.into());
            }
            if let Some(said) = said {
                crate::console::line(said);
            }
        })?;
        Ok(interruption)
    }

    pub(crate) fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
