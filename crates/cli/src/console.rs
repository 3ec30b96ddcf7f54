//! Lines for the person at the terminal, and results for whoever reads standard output.

use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Writes a line to standard error. If nobody can read it, there is nobody to tell.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes lines to standard output.
///
/// # Errors
/// [`Failure::OutputClosed`] if the reader has gone, or what else the system says.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Failed(format!("standard output cannot be written: {error}")),
    })
}

/// So many of something, one or several.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
