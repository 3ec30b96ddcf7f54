//! Lines for the person at the terminal, and results for the reader of standard output.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Writes one line to standard error. Control characters, which names of files and tensors may hold, are escaped. If nobody can
/// read it, there is nobody to tell.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{}", escaped(text, char::is_control));
}

/// Writes lines to standard output. Control characters other than the ends of lines are escaped.
///
/// # Errors
/// [`Failure::OutputClosed`] if the reader has gone, or what else the system says.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let text = escaped(text, |character| character.is_control() && character != '\n');
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(unwritten)
}

/// What it means that standard output could not be written.
#[allow(clippy::needless_pass_by_value)] // as `map_err` wants it
pub(crate) fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Failed(format!("standard output cannot be written: {error}")),
    }
}

/// The text with escapes in place of the characters that terminals take for commands.
fn escaped(text: &str, is_command: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_command) {
        return text.into();
    }
    let escape = |character: char| {
        if is_command(character) { character.escape_default().to_string() } else { character.to_string() }
    };
    text.chars().map(escape).collect()
}

/// A count and its noun, in the singular or plural.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
