//! The output folder of a run: lock, unfinished mark, and the sinks that write into it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use periplus_geometry::FrameOutput;

use crate::error::place;
use crate::pending::check_replaceable;
use crate::{ExportError, Revision, Sink, Summary};

/// File in an output folder that says that its results are incomplete. The run holds a lock on it.
const MARK: &str = "UNFINISHED.txt";

const MARK_TEXT: &[u8] = b"A run is writing into this folder, or was killed before its end.\n\
    Files here may come from different runs. This file is removed when a run ends.\n";

/// Writes the results of one run into one folder, through any number of sinks.
///
/// While the run is in progress the folder holds `UNFINISHED.txt`. The file stays if the process is killed or a result
/// could not be completed, because new files may then lie beside files of an earlier run. A run that fails before its
/// first frame changes nothing: it removes the mark and the folders that it created.
///
/// The mark is locked. A second run into the same folder gets [`ExportError::InUse`]. The system releases the lock when
/// the process ends, however it ends. On file systems without locks, concurrent runs are not detected.
pub struct OutputFolder {
    // Fields are dropped in this order: sinks remove their files first, then the mark goes, then the folder.
    sinks: Vec<Box<dyn Sink>>,
    mark: Mark,
    folder: CreatedFolder,
}

impl OutputFolder {
    /// Creates the folder if needed, and marks and locks it.
    ///
    /// # Errors
    /// [`ExportError::InUse`] if another run is writing there, [`ExportError::Folder`] if the folder cannot be created,
    /// [`ExportError::Write`] if it cannot be written to.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        let folder = CreatedFolder::create(path)?;
        let mark = Mark::set(path)?;
        Ok(Self { sinks: Vec::new(), mark, folder })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.folder.path
    }

    /// Adds a sink that writes into this folder.
    pub fn add(&mut self, sink: impl Sink + 'static) {
        self.sinks.push(Box::new(sink));
    }

    /// Writes one frame to all sinks.
    ///
    /// # Errors
    /// The first error of a sink. [`OutputFolder::finish`] must still be called.
    pub fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        self.mark.keep = true;
        self.sinks.iter_mut().try_for_each(|sink| sink.write(frame))
    }

    /// Passes revised poses to all sinks.
    ///
    /// # Errors
    /// The first error of a sink.
    pub fn revise(&mut self, revisions: &[Revision]) -> Result<(), ExportError> {
        self.sinks.iter_mut().try_for_each(|sink| sink.revise(revisions))
    }

    /// Completes all files, also after an error: each holds the frames so far. Removes the mark if every sink succeeds.
    /// Returns a summary of each sink that did, and the first error.
    pub fn finish(mut self) -> (Vec<Summary>, Result<(), ExportError>) {
        let (mut summaries, mut result) = (Vec::new(), Ok(()));
        for sink in std::mem::take(&mut self.sinks) {
            match sink.finish() {
                Ok(summary) => summaries.push(summary),
                Err(error) => result = result.and(Err(error)),
            }
        }
        if result.is_ok() && self.mark.keep {
            self.mark.keep = false;
            self.mark.was_there = false;
        }
        (summaries, result)
    }
}

/// The locked mark. Removed when dropped, unless results may be incomplete.
struct Mark {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
    /// An earlier run was killed and left its mark.
    was_there: bool,
    /// This run has begun to write results and has not completed them.
    keep: bool,
}

impl Mark {
    fn set(folder: &Path) -> Result<Self, ExportError> {
        let path = folder.join(MARK);
        check_replaceable(&path)?;
        let failed = |error| ExportError::writing(&path, error);
        loop {
            let was_there = path.try_exists().map_err(failed)?;
            let mut file = File::options().create(true).append(true).open(&path).map_err(failed)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(ExportError::InUse { place: place(folder) }),
                // Not every file system has locks.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // The other run may have ended, and removed the file, just before we locked it.
            if is_removed(&file) {
                continue;
            }
            if file.metadata().map_err(failed)?.len() == 0 {
                file.write_all(MARK_TEXT).map_err(failed)?;
            }
            return Ok(Self { path, _file: file, was_there, keep: false });
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if !self.was_there && !self.keep {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether the open file has been removed by another process.
#[cfg(unix)]
fn is_removed(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

/// Whether the open file has been removed by another process. Open files cannot be removed here.
#[cfg(not(unix))]
fn is_removed(_file: &File) -> bool {
    false
}

/// A folder that exists. When dropped, folders that were created for it and are still empty are removed.
pub(crate) struct CreatedFolder {
    pub(crate) path: PathBuf,
    /// Innermost first.
    created: Vec<PathBuf>,
}

impl CreatedFolder {
    pub(crate) fn create(path: &Path) -> Result<Self, ExportError> {
        let failed = |source| ExportError::Folder { place: place(path), source };
        let named = || path.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty());
        if let Some(link) = named().find(|path| path.is_symlink() && matches!(path.try_exists(), Ok(false))) {
            let target = link.read_link().map_err(failed)?;
            let reason = format!("{} is a link to {}, which does not exist", place(link), place(&target));
            return Err(failed(io::Error::other(reason)));
        }
        let missing = named().take_while(|path| path.symlink_metadata().is_err());
        let folder = Self { path: path.to_path_buf(), created: missing.map(Path::to_path_buf).collect() };
        fs::create_dir_all(path).map_err(failed)?;
        Ok(folder)
    }
}

impl Drop for CreatedFolder {
    fn drop(&mut self) {
        for folder in &self.created {
            // Fails if there is something in it.
            let _ = fs::remove_dir(folder);
        }
    }
}
