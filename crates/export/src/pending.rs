//! Atomic files: a file appears under its name when it is complete.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::ExportError;
use crate::error::place;
use crate::folder::CreatedFolder;

/// Suffix of unfinished files.
const UNFINISHED: &str = ".part";

/// The final name of an unfinished file and the id of the process that writes it; `None` for other files.
pub(crate) fn unfinished(name: &str) -> Option<(&str, &str)> {
    name.strip_suffix(UNFINISHED)?.rsplit_once('.')
}

/// A file that is written under a temporary name, `NAME.PROCESS.part` with the id of this process, and renamed when it
/// is complete. If it is dropped before that, the temporary file is removed and an earlier file of the name stays.
///
/// The file is not synced to the disk before it is renamed. Readers never see half of it, also after a crash of the
/// program, but perhaps after a crash of the system.
pub(crate) struct PendingFile {
    file: File,
    path: PathBuf,
    unfinished: PathBuf,
    /// Bytes of complete records.
    length: u64,
    /// Removed if the file is not finished and the folder was created for it.
    folder_guard: Option<CreatedFolder>,
}

impl PendingFile {
    pub(crate) fn create(path: PathBuf) -> Result<Self, ExportError> {
        check_replaceable(&path)?;
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(format!(".{}{UNFINISHED}", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        // Overwrites the file of a crashed process that had the same id.
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&unfinished);
        let file = file.map_err(|error| ExportError::writing(&path, error))?;
        Ok(Self { file, path, unfinished, length: 0, folder_guard: None })
    }

    /// Like [`PendingFile::create`], for a file in `folder` that holds all frames of a run. Creates the folder if needed, and
    /// removes temporary files of this name that crashed runs left.
    pub(crate) fn begin(folder: &Path, name: &str) -> Result<Self, ExportError> {
        let created = CreatedFolder::create(folder)?;
        remove_leftovers(folder, name);
        let mut file = Self::create(folder.join(name))?;
        file.folder_guard = Some(created);
        // Tells other runs that this one is alive. On a file system without locks they leave the file alone.
        let _ = file.file.try_lock();
        Ok(file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a record. After an error the file holds the complete records before it.
    pub(crate) fn append(&mut self, record: &[u8]) -> Result<(), ExportError> {
        match self.file.write_all(record) {
            Ok(()) => {
                self.length += record.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Truncation needs no space on a full disk. If it fails, the first error says more.
                let _ = self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::Start(self.length)));
                Err(ExportError::writing(&self.path, error))
            }
        }
    }

    /// Replaces the whole contents.
    pub(crate) fn replace(&mut self, contents: &[u8]) -> Result<(), ExportError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(|error| ExportError::writing(&self.path, error))?;
        self.length = 0;
        self.append(contents)
    }

    /// Goes through the records of `size` bytes after the first `start` bytes and keeps those that `keep` accepts. Needs
    /// no space on the disk, and little memory.
    pub(crate) fn retain(
        &mut self,
        start: u64,
        size: usize,
        mut keep: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ExportError> {
        /// Records that are read at once.
        const RECORDS: u64 = 1 << 16;
        let (mut read, mut written) = (start, start);
        let mut retain = || {
            while read < self.length {
                let length = (self.length - read).min(RECORDS * size as u64);
                let mut buffer = vec![0; length as usize];
                self.file.seek(SeekFrom::Start(read))?;
                self.file.read_exact(&mut buffer)?;
                read += length;
                let kept: Vec<&[u8]> = buffer.chunks_exact(size).filter(|record| keep(record)).collect();
                let kept = kept.concat();
                self.file.seek(SeekFrom::Start(written))?;
                self.file.write_all(&kept)?;
                written += kept.len() as u64;
            }
            self.file.set_len(written)?;
            self.file.seek(SeekFrom::Start(written))
        };
        let retained = retain();
        self.length = written;
        retained.map(drop).map_err(|error| ExportError::writing(&self.path, error))
    }

    /// Overwrites the first bytes in place.
    pub(crate) fn overwrite_start(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        let mut overwrite = || {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(bytes)?;
            self.file.seek(SeekFrom::Start(self.length))
        };
        overwrite().map(drop).map_err(|error| ExportError::writing(&self.path, error))
    }

    /// Renames the file to its name. Replaces an earlier file.
    pub(crate) fn commit(self) -> Result<(), ExportError> {
        fs::rename(&self.unfinished, &self.path).map_err(|error| ExportError::writing(&self.path, error))
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        // After a commit there is no such file.
        let _ = fs::remove_file(&self.unfinished);
    }
}

/// Removes temporary files of `name` in `folder` that no process has locked. Failures are harmless.
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

/// Writes a complete file.
pub(crate) fn write_file(path: PathBuf, contents: &[u8]) -> Result<(), ExportError> {
    let mut file = PendingFile::create(path)?;
    file.append(contents)?;
    file.commit()
}

/// Checks that `path` is free or a regular file.
pub(crate) fn check_replaceable(path: &Path) -> Result<(), ExportError> {
    // Renaming onto a folder would fail only after the whole run, and onto a device would succeed. A link would be
    // replaced, not its target.
    if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
        let source = io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is not a regular file");
        return Err(ExportError::Write { place: place(path), source });
    }
    Ok(())
}
