//! What can go wrong when results are written.

use std::io;
use std::path::{Path, PathBuf};

/// Why a result could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The disk (or the user's quota on it) is full.
    #[error("the disk is full: {} could not be written; make room or choose another output folder", path.display())]
    DiskFull {
        /// What was being written.
        path: PathBuf,
    },
    /// Whoever read what we write has closed their end of the pipe; there is nobody to write for.
    #[error("nobody reads {} any more", path.display())]
    Closed {
        /// What was being written.
        path: PathBuf,
    },
    /// A folder for the results cannot be made.
    #[error("the folder {} cannot be made: {source}; choose another output folder", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A folder of numbered files holds something, and no earlier run of ours has left its marker there: writing would
    /// mix results with the user's own files, or replace those.
    #[error("{} holds files that are not from an earlier run: choose another --out", path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
    },
    /// The format has depth in it, and the frame comes from a session that was asked for poses only.
    #[error("{} needs depth, and frame {index} has none: ask the session for more than poses", path.display())]
    NoDepth {
        /// What was being written.
        path: PathBuf,
        /// Number of the frame in the stream.
        index: usize,
    },
    /// A file (or stream) cannot be written for another reason: no permission, say.
    #[error("{} cannot be written: {source}", path.display())]
    Write {
        /// What was being written.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl ExportError {
    /// What the failure of writing `path` means.
    pub(crate) fn writing(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            // A write that takes no bytes has nowhere to put them.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::WriteZero => {
                Self::DiskFull { path }
            }
            io::ErrorKind::BrokenPipe => Self::Closed { path },
            _ => Self::Write { path, source },
        }
    }
}
