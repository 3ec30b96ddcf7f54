//! How a command ends when it does not end well: one sentence and an exit code.

use std::error::Error;
use std::process::ExitCode;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asks for what cannot be. Exit code 2, as for what clap refuses.
    Usage(String),
    /// Something went wrong on the way. Exit code 1.
    Failed(String),
    /// The user interrupted the run, which has put its results in order. Exit code 130, as shells expect.
    Interrupted,
    /// Whoever read our output (`head`, say) has seen enough. No failure at all.
    OutputClosed,
}

/// Every error of the libraries is one sentence that names what, where and what to do, so it is passed on as it is.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Failure {
    /// The exit code of a run that was interrupted: 128 and the number of the signal.
    pub(crate) const INTERRUPTED: u8 = 130;

    /// A wrong value on the command line.
    #[allow(clippy::needless_pass_by_value)] // as `map_err` wants it
    pub(crate) fn usage(error: impl ToString) -> Self {
        Self::Usage(error.to_string())
    }

    /// Says what happened, if there is anything to say, and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Usage(message) => (message, 2),
            Self::Failed(message) => (message, 1),
            Self::Interrupted => return ExitCode::from(Self::INTERRUPTED),
            Self::OutputClosed => return ExitCode::SUCCESS,
        };
        crate::console::line(&format!("error: {}", sentence(&message)));
        ExitCode::from(code)
    }
}

/// The message in one line. Those of the system or of decoders may have several, and Candle adds a backtrace where `RUST_BACKTRACE`
/// asks for one, which is for panics.
fn sentence(message: &str) -> String {
    let is_call = |line: &&str| {
        let number = line.trim_start().split_once(": ").map(|(number, _)| number);
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let lines = message.lines().take_while(|line| !is_call(line));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::sentence;

    #[test]
    fn an_error_is_one_line_without_a_backtrace() {
        let message =
            "linear: no memory\n   0: candle_core::error::Error::bt\n             at src/error.rs:1:2\n   1: main";
        assert_eq!(sentence(message), "linear: no memory");
        assert_eq!(sentence("cut short\n  at byte 7:\tsee 3: there"), "cut short at byte 7: see 3: there");
    }
}
