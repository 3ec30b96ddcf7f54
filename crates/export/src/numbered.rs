//! Folders with one numbered file per frame.

use std::fs;
use std::path::{Path, PathBuf};

use crate::ExportError;
use crate::error::place;
use crate::folder::CreatedFolder;
use crate::pending::{PendingFile, place_copy, unfinished, write_file};

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
    /// Extensions that the files of any run may have.
    extensions: &'static [&'static str],
    /// Files written.
    pub(crate) count: usize,
}

impl NumberedFiles {
    /// Creates the folder if needed, and checks that files may and can be written there.
    pub(crate) fn create(
        folder: &Path,
        prefix: &'static str,
        extensions: &'static [&'static str],
    ) -> Result<Self, ExportError> {
        let folder = CreatedFolder::create(folder)?;
        let files = Self { folder, prefix, extensions, count: 0 };
        files.is_marked()?;
        for extension in extensions {
            PendingFile::create(files.folder().join(files.name(0, extension)))?;
        }
        Ok(files)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder.path
    }

    fn name(&self, index: usize, extension: &str) -> String {
        format!("{}{index:06}.{extension}", self.prefix)
    }

    /// Writes the file of a frame, with the first of the extensions. Returns its name.
    pub(crate) fn write(&mut self, index: usize, contents: &[u8]) -> Result<String, ExportError> {
        let extension = self.extensions.first().copied().unwrap_or_default();
        self.place(index, extension, |path| write_file(path, contents))
    }

    /// Makes the file of a frame a hard link to the file `source`, or a copy of it where there can be no link. Returns its
    /// name.
    pub(crate) fn link(&mut self, index: usize, extension: &str, source: &Path) -> Result<String, ExportError> {
        self.place(index, extension, |path| place_copy(source, path))
    }

    /// The first file removes the numbered files of an earlier run, because the folder must not mix two runs.
    fn place(
        &mut self,
        index: usize,
        extension: &str,
        write: impl FnOnce(PathBuf) -> Result<(), ExportError>,
    ) -> Result<String, ExportError> {
        if self.count == 0 {
            // Checked again: files may have been added since the folder was opened.
            if self.is_marked()? {
                self.clear()?;
            } else {
                write_file(self.folder().join(MARKER), MARKER_TEXT)?;
            }
        }
        let name = self.name(index, extension);
        write(self.folder().join(&name))?;
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
        let number = name.rsplit_once('.').filter(|(_, extension)| self.extensions.contains(extension));
        let number = number.and_then(|(stem, _)| stem.strip_prefix(self.prefix));
        number.is_some_and(|number| number.len() >= 6 && number.bytes().all(|byte| byte.is_ascii_digit()))
    }
}
