//! Mapped files, and the tensors in them, of any format.

use crate::{CheckpointError, FloatType};
use memmap2::Mmap;
use periplus_kernels::try_zeros;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Opens a file to read, if it is a regular one. A named pipe would make the program wait for a writer, and a device may never end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder, give a file"));
    }
    if !metadata.is_file() {
        let message = "it is a pipe, a socket or a device, and only regular files are read";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    File::open(path)
}

/// A file mapped into memory, and the name that errors use for it.
pub(crate) struct MappedFile {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    /// Read from disk when they are accessed.
    Mapped(Mmap),
    /// Part of the program.
    Bundled(&'static [u8]),
}

impl MappedFile {
    /// Maps a file, which must not be changed in place while it is in use: replacing it by renaming another over it
    /// does no harm.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let read = |source| CheckpointError::Read { path: path.into(), source };
        let file = open_regular(path).map_err(read)?;
        if file.metadata().map_err(read)?.len() == 0 {
            return Err(read(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty")));
        }
        // SAFETY: the map is read only, and nothing here writes to the file: checkpoints are replaced by renaming a
        // new file over the old one, and programs that have mapped the old file keep its bytes. That no other program
        // changes the file in place remains a condition, which nothing here can enforce. Where it is broken, little is
        // at stake: headers and pickles are copied before they are checked and parsed, any bytes are valid as tensor
        // data, and a file cut short makes the system end this process instead of letting it read further.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        Ok(Self { path: path.into(), bytes: Bytes::Mapped(map) })
    }

    pub(crate) fn bundled(name: &str, bytes: &'static [u8]) -> Self {
        Self { path: name.into(), bytes: Bytes::Bundled(bytes) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Bundled(bytes) => bytes,
        }
    }

    /// Gives the memory behind a range of bytes back to the system, since it will not be read again soon. Without
    /// this a file of some gigabytes would fill memory beside the tensors made of it.
    pub(crate) fn release(&self, range: &Range<usize>) {
        let Bytes::Mapped(map) = &self.bytes else { return };
        // SAFETY: the pages of a read-only map of a file are clean, so that dropping them loses nothing: touching
        // them again reads them from the file again.
        #[cfg(unix)]
        #[allow(unsafe_code)]
        let released =
            unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
        #[cfg(unix)]
        if let Err(error) = released {
            tracing::debug!(%error, "the pages of {} stay in memory", self.path.display());
        }
    }
}

/// What a checkpoint holds.
pub(crate) struct Contents {
    /// One file, or all shards.
    pub(crate) files: Vec<MappedFile>,
    /// The tensors by their names in the network.
    pub(crate) tensors: BTreeMap<String, StoredTensor>,
    /// The keys and the prefix that lead to these tensors, separated by dots. Empty for plain names in the outermost dictionary.
    pub(crate) key: String,
    /// The configuration in its metadata.
    pub(crate) config: Option<String>,
    /// Checksums that the format keeps, all of the first file.
    pub(crate) checksums: Vec<Checksum>,
    /// Imports of a pickle that were passed over.
    pub(crate) passed_over: Vec<String>,
}

impl Contents {
    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes().len() as u64).sum()
    }

    /// As [`Weights::check_sums`](crate::Weights::check_sums).
    pub(crate) fn check_sums(&self) -> Result<bool, CheckpointError> {
        let Some(file) = self.files.first() else { return Ok(false) };
        let compared = self.checksums.par_iter().filter(|sum| !sum.bytes.is_empty()).map(|sum| {
            let found = crc32fast::hash(&file.bytes()[sum.bytes.clone()]);
            file.release(&sum.bytes);
            (sum, found == sum.crc32)
        });
        let compared: Vec<_> = compared.collect();
        // An archive without any checksums has zeros for all of them.
        if compared.iter().all(|(sum, right)| !right && sum.crc32 == 0) {
            return Ok(false);
        }
        match compared.iter().find(|(_, right)| !right) {
            None => Ok(true),
            Some((sum, _)) => Err(CheckpointError::Corrupt {
                path: file.path().into(),
                reason: format!("the data of {} differs from its checksum; copy or download the file again", sum.entry),
            }),
        }
    }
}

/// The checksum that a zip archive has for one of its entries.
pub(crate) struct Checksum {
    pub(crate) entry: String,
    pub(crate) bytes: Range<usize>,
    /// 0 where the program that wrote the archive computed none.
    pub(crate) crc32: u32,
}

/// Where a tensor lies in its file.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    /// The dtype, or the name of one that weights cannot have.
    pub(crate) float: Result<FloatType, Box<str>>,
    pub(crate) shape: Box<[usize]>,
    /// Which of the files.
    pub(crate) file: u32,
    /// The range of bytes from its first element to its last.
    pub(crate) bytes: Range<usize>,
    /// Distance between neighbours along each dimension, in elements, unless they lie in the order of the shape.
    pub(crate) strides: Option<Box<[usize]>>,
}

impl StoredTensor {
    /// Bytes of memory that the description takes under a name.
    pub(crate) fn memory(&self, name: &str) -> usize {
        let sizes = self.shape.len() + self.strides.as_ref().map_or(0, |strides| strides.len());
        let float = self.float.as_ref().err().map_or(0, |name| name.len());
        size_of::<(String, Self)>() + name.len() + sizes * size_of::<usize>() + float
    }

    /// The values in the order of the shape. `None` where they do not fit in memory.
    pub(crate) fn decode(&self, float: FloatType, file: &[u8]) -> Option<Vec<f32>> {
        let stored = float.decode(&file[self.bytes.clone()])?;
        let Some(strides) = &self.strides else { return Some(stored) };
        let mut values = try_zeros(&self.shape)?;
        gather(&stored, &self.shape, strides, &mut values);
        Some(values)
    }
}

/// Copies the values of a strided tensor in the order of its shape.
fn gather(stored: &[f32], shape: &[usize], strides: &[usize], values: &mut [f32]) {
    match (shape, strides) {
        ([count, inner_shape @ ..], [stride, inner_strides @ ..]) if *count > 0 && !values.is_empty() => {
            let part = values.len() / count;
            for (i, values) in values.chunks_mut(part).enumerate() {
                gather(&stored[i * stride..], inner_shape, inner_strides, values);
            }
        }
        _ => values.iter_mut().zip(stored).for_each(|(value, stored)| *value = *stored),
    }
}
