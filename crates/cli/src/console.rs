//! Lines for the person at the terminal, and results for whoever reads standard output.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Writes a line to standard error. If nobody can read it, there is nobody to tell.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless(text));
}

/// Writes lines to standard output.
///
/// # Errors
/// [`Failure::OutputClosed`] if the reader has gone, or what else the system says.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", harmless(text)).and_then(|()| output.flush()).map_err(unwritten)
}

/// What it means that standard output could not be written.
#[allow(clippy::needless_pass_by_value)] // as `map_err` wants it
pub(crate) fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Failed(format!("standard output cannot be written: {error}")),
    }
}

/// The text without what terminals take for commands, which names of files and tensors may hold.
fn harmless(text: &str) -> Cow<'_, str> {
    let is_command = |character: char| character.is_control() && character != '\n';
    if !text.contains(is_command) {
        return text.into();
    }
    let escaped = |character: char| {
        if is_command(character) { character.escape_default().to_string() } else { character.to_string() }
    };
    text.chars().map(escaped).collect()
}

/// So many of something, one or several.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
