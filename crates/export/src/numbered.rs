//! Folders with one numbered file per frame.

use std::fs;
use std::path::Path;

use crate::ExportError;
use crate::error::place;
use crate::folder::CreatedFolder;
use crate::pending::{PendingFile, unfinished, write_file};

/// File that tells a folder of results from a folder of the user's own pictures. Written before the first frame.
const MARKER: &str = ".periplus";

/// Explains the file to people who find it.
const MARKER_TEXT: &[u8] = b"Written by periplus: its next run into this folder replaces the numbered files here.\n";

/// A folder of files `000000.EXT`, `000001.EXT` and so on, named by the index of the frame. The folder was empty or
/// carries the marker of an earlier run. If no frame is written and the folder was created for this run, it is removed.
pub(crate) struct NumberedFiles {
    folder: CreatedFolder,
    /// Comes before the number.
    prefix: &'static str,
    extension: &'static str,
    /// Files written.
    pub(crate) count: usize,
}

impl NumberedFiles {
    /// Creates the folder if needed, and checks that files may and can be written there.
    pub(crate) fn create(folder: &Path, prefix: &'static str, extension: &'static str) -> Result<Self, ExportError> {
        let folder = CreatedFolder::create(folder)?;
        let files = Self { folder, prefix, extension, count: 0 };
        files.is_marked()?;
        PendingFile::create(files.folder().join(files.name(0)))?;
        Ok(files)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder.path
    }

    fn name(&self, index: usize) -> String {
        format!("{}{index:06}.{}", self.prefix, self.extension)
    }

    /// Writes the file of a frame, and returns its name. The first one removes the numbered files of an earlier run,
    /// because the folder must not mix two runs.
    pub(crate) fn write(&mut self, index: usize, contents: &[u8]) -> Result<String, ExportError> {
        if self.count == 0 {
            // Checked again: files may have been added since the folder was opened.
            if self.is_marked()? {
                self.clear()?;
            } else {
                write_file(self.folder().join(MARKER), MARKER_TEXT)?;
            }
        }
        let name = self.name(index);
        write_file(self.folder().join(&name), contents)?;
        self.count += 1;
        Ok(name)
    }

    /// Whether the folder holds an earlier run (true) or nothing (false).
    fn is_marked(&self) -> Result<bool, ExportError> {
        let failed = |error| ExportError::writing(self.folder(), error);
        if self.folder().join(MARKER).try_exists().map_err(failed)? {
            return Ok(true);
        }
        match fs::read_dir(self.folder()).map_err(failed)?.next() {
            None => Ok(false),
            Some(_) => Err(ExportError::NotOurs { place: place(self.folder()) }),
        }
    }

    fn clear(&self) -> Result<(), ExportError> {
        let failed = |error| ExportError::writing(self.folder(), error);
        for entry in fs::read_dir(self.folder()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_str().is_some_and(|name| self.is_ours(name)) {
                fs::remove_file(entry.path()).map_err(|error| ExportError::writing(&entry.path(), error))?;
            }
        }
        Ok(())
    }

    fn is_ours(&self, name: &str) -> bool {
        let name = unfinished(name).map_or(name, |(name, _)| name);
        let number = name.strip_suffix(self.extension).and_then(|name| name.strip_suffix('.'));
        let number = number.and_then(|stem| stem.strip_prefix(self.prefix));
        number.is_some_and(|number| number.len() >= 6 && number.bytes().all(|byte| byte.is_ascii_digit()))
    }
}
