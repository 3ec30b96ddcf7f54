//! Errors of sinks.

use std::io;
use std::path::Path;

/// Why a result could not be written.
///
/// `place` is where the result should have gone, as text: a path, or for example "standard output".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The disk (or the user's quota on it) is full.
    #[error("the disk is full: {place} could not be written; free some space or choose another output folder")]
    DiskFull {
        /// What was being written.
        place: String,
    },
    /// The reader of a pipe or socket has closed it.
    #[error("{place} was closed by its reader")]
    Closed {
        /// What was being written.
        place: String,
    },
    /// An output folder cannot be created.
    #[error("cannot create the folder {place}: {source}; choose another output folder")]
    Folder {
        /// The folder.
        place: String,
        /// The reason.
        source: io::Error,
    },
    /// Another run is writing into the output folder.
    #[error("another run is writing into {place}: concurrent runs need separate output folders")]
    InUse {
        /// The folder.
        place: String,
    },
    /// The folder for numbered files holds files but no marker of an earlier run. They are the user's own files, and
    /// writing could replace them.
    #[error("{place} holds files that are not from an earlier run: choose another output folder")]
    NotOurs {
        /// The folder.
        place: String,
    },
    /// The format needs depth, and the session was asked for poses only.
    #[error("{place} needs depth, and frame {index} has none: ask the session for more than poses")]
    NoDepth {
        /// What was being written.
        place: String,
        /// Index of the frame in the stream.
        index: usize,
    },
    /// A result cannot be written for another reason, such as a missing permission.
    #[error("{place} cannot be written: {source}")]
    Write {
        /// What was being written.
        place: String,
        /// The reason.
        source: io::Error,
    },
}

impl ExportError {
    /// The error for a failed write to `path`.
    pub(crate) fn writing(path: &Path, source: io::Error) -> Self {
        Self::writing_to(place(path), source)
    }

    /// The error for a failed write to `place`.
    pub(crate) fn writing_to(place: String, source: io::Error) -> Self {
        match source.kind() {
            // A write that accepts no bytes has no space for them.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::WriteZero => {
                Self::DiskFull { place }
            }
            io::ErrorKind::BrokenPipe => Self::Closed { place },
            _ => Self::Write { place, source },
        }
    }
}

/// A path as text for messages. Control characters in file names (a newline, for example) are escaped.
pub(crate) fn place(path: &Path) -> String {
    let mut text = String::new();
    for character in path.display().to_string().chars() {
        if character.is_control() {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    text
}
