//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::ExportError;

/// What the names of unfinished files end in.
const UNFINISHED: &str = ".part";

/// The name that an unfinished file is to take, and the number of the process that writes it; `None` for other files.
pub(crate) fn unfinished(name: &str) -> Option<(&str, &str)> {
    name.strip_suffix(UNFINISHED)?.rsplit_once('.')
}

/// A file that is written under another name in the same folder, its own followed by the number of this process and
/// `.part` so that two runs do not write to one file, and that takes its own name when it is complete. Dropped before
/// that, it is removed, and an earlier file of its name stays as it was.
///
/// It is not forced to the disk before it takes its name: that is whole for whoever reads it and after a crash of the
/// program, though maybe not after one of the system.
pub(crate) struct PendingFile {
    file: File,
    path: PathBuf,
    unfinished: PathBuf,
    /// Bytes of whole records.
    length: u64,
}

impl PendingFile {
    pub(crate) fn create(path: PathBuf) -> Result<Self, ExportError> {
        // Taking the name of a folder fails, but only after the whole run; taking that of a device would succeed.
        // A link would be replaced, not what it leads to.
        if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let source = io::Error::new(io::ErrorKind::AlreadyExists, "there is something that is not a regular file");
            return Err(ExportError::Write { path, source });
        }
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(format!(".{}{UNFINISHED}", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        // What a crashed process of the same number left is written over.
        let file = File::create(&unfinished).map_err(|error| ExportError::writing(&path, error))?;
        Ok(Self { file, path, unfinished, length: 0 })
    }

    /// As [`PendingFile::create`], for a file of `folder` that all frames of a run share: the folder is made if need be, and cleared
    /// of what runs that crashed left of this file.
    pub(crate) fn begin(folder: &Path, name: &str) -> Result<Self, ExportError> {
        make_folder(folder)?;
        remove_leftovers(folder, name);
        let file = Self::create(folder.join(name))?;
        // Tells other runs that this one is alive. Where files cannot be locked, they leave it alone, too.
        let _ = file.file.try_lock();
        Ok(file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a record at the end, whole or not at all: after an error the file holds what it held before.
    pub(crate) fn append(&mut self, record: &[u8]) -> Result<(), ExportError> {
        match self.file.write_all(record) {
            Ok(()) => {
                self.length += record.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Cutting a file short needs no room on a full disk. Should even that fail, the first error says more.
                let _ = self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::Start(self.length)));
                Err(ExportError::writing(&self.path, error))
            }
        }
    }

    /// Writes over the beginning of what is there, in place.
    pub(crate) fn overwrite_start(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        let mut overwrite = || {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(bytes)?;
            self.file.seek(SeekFrom::Start(self.length))
        };
        overwrite().map(drop).map_err(|error| ExportError::writing(&self.path, error))
    }

    /// Gives the file its name, in place of an earlier one.
    pub(crate) fn commit(self) -> Result<(), ExportError> {
        fs::rename(&self.unfinished, &self.path).map_err(|error| ExportError::writing(&self.path, error))
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        // After a commit there is nothing of this name. Otherwise a leftover does no harm: its name tells what it is.
        let _ = fs::remove_file(&self.unfinished);
    }
}

/// Removes the unfinished files for `name` in `folder` that no process holds any more. What cannot be removed does no harm.
fn remove_leftovers(folder: &Path, name: &str) {
    let is_unfinished = |path: &Path| {
        let found = path.file_name().and_then(|file| unfinished(file.to_str()?));
        found.is_some_and(|(of, process)| {
            of == name && !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in paths.filter(|path| is_unfinished(path) && path.symlink_metadata().is_ok_and(|found| found.is_file())) {
        if File::options().write(true).open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Writes a file in one go.
pub(crate) fn write_file(path: PathBuf, contents: &[u8]) -> Result<(), ExportError> {
    let mut file = PendingFile::create(path)?;
    file.append(contents)?;
    file.commit()
}

/// Makes a folder for results, and those above it.
pub(crate) fn make_folder(path: &Path) -> Result<(), ExportError> {
    fs::create_dir_all(path).map_err(|source| ExportError::Folder { path: path.to_path_buf(), source })
}
