//! Writing safetensors files tensor by tensor.

use crate::{CheckpointError, FloatType};
use ::safetensors::tensor::TensorInfo;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A safetensors file that is being written. It gets its name when it is complete. Dropped before that, it leaves nothing behind.
pub(crate) struct Writer {
    path: PathBuf,
    file: NamedTempFile,
    float: FloatType,
}

impl Writer {
    /// Starts a file of tensors of these names and shapes, which are to follow in the same order.
    pub(crate) fn create(
        path: &Path,
        config: &str,
        shapes: &BTreeMap<String, Vec<usize>>,
        float: FloatType,
    ) -> Result<Self, CheckpointError> {
        let failed = |source| CheckpointError::Write { path: path.into(), source };
        let header = header(config, shapes, float).map_err(|error| failed(io::Error::other(error)))?;
        // Taking the name of a folder fails, but only after all is written; taking that of a device would succeed.
        // A link would be replaced, not what it leads to.
        if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let message = "there is something that is not a regular file";
            return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, message)));
        }
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            let message = format!("there is no folder {}: make it first", folder.display());
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, message)));
        }
        // Opened as any other new file, so that not its owner alone may read it.
        let open = |path: &Path| File::options().write(true).create_new(true).open(path);
        let file = tempfile::Builder::new().prefix(".").suffix(".partial").make_in(folder, open).map_err(failed)?;
        file.as_file().write_all(&header).map_err(failed)?;
        Ok(Self { path: path.into(), file, float })
    }

    /// Appends the next tensor.
    pub(crate) fn write(&mut self, name: &str, values: &[f32]) -> Result<(), CheckpointError> {
        let bytes = self.float.encode(values).map_err(|count| CheckpointError::Overflow {
            name: name.into(),
            count,
            to: self.float,
        })?;
        // Not through the temporary file, whose errors name a path that the user does not know.
        self.file
            .as_file()
            .write_all(&bytes)
            .map_err(|source| CheckpointError::Write { path: self.path.clone(), source })
    }

    /// Gives the complete file its name.
    pub(crate) fn finish(self) -> Result<(), CheckpointError> {
        let Self { path, file, .. } = self;
        // On the disk before under its name, so that not even a power failure leaves half a file there.
        let done = file.as_file().sync_all().and_then(|()| file.persist(&path).map_err(|error| error.error));
        done.map(drop).map_err(|source| CheckpointError::Write { path, source })
    }
}

fn header(config: &str, shapes: &BTreeMap<String, Vec<usize>>, float: FloatType) -> serde_json::Result<Vec<u8>> {
    let mut offset = 0;
    // A map sorted by name, so that the same tensors give the same bytes.
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".into(), serde_json::json!({ "config": config, "format": "pt" }));
    for (name, shape) in shapes {
        let start = offset;
        offset += shape.iter().product::<usize>() * float.size();
        let info = TensorInfo { dtype: float.safetensors(), shape: shape.clone(), data_offsets: (start, offset) };
        entries.insert(name.clone(), serde_json::to_value(info)?);
    }
    let mut json = serde_json::to_vec(&entries)?;
    // Spaces up to a multiple of eight, so that values are aligned.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}
