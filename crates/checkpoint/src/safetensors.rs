//! Reading safetensors files: eight bytes of length, a header of that length in JSON, the tensors without gaps.

use crate::CheckpointError;
use crate::file::{Contents, MappedFile, StoredTensor};
use crate::float::FloatType;
use crate::names::{Group, choose};
use ::safetensors::Dtype;
use ::safetensors::tensor::Metadata;
use std::path::Path;

/// Bytes of the length of the header.
const LENGTH: usize = 8;

/// The longest header that the format allows.
pub(crate) const LONGEST_HEADER: u64 = 100_000_000;

/// Finds the tensors of a safetensors file.
pub(crate) fn read(file: MappedFile, key: Option<&str>) -> Result<Contents, CheckpointError> {
    let path = file.path().to_path_buf();
    read_all(&path, vec![file], key)
}

/// Finds the tensors of one file or of all shards of a checkpoint, which errors call `path`.
pub(crate) fn read_all(path: &Path, files: Vec<MappedFile>, key: Option<&str>) -> Result<Contents, CheckpointError> {
    let (mut tensors, mut config) = (Vec::new(), None);
    for (number, file) in files.iter().enumerate() {
        let (found, own) = read_header(file, number)?;
        tensors.extend(found);
        config = config.or(own);
    }
    let group = Group { key: String::new(), tensors };
    let tensors = choose(path, vec![group], key)?.into_iter().collect();
    Ok(Contents { files, tensors, config, checksums: Vec::new(), passed_over: Vec::new() })
}

/// The tensors of file `number` by name, and the configuration in its metadata.
#[allow(clippy::type_complexity)]
fn read_header(
    file: &MappedFile,
    number: usize,
) -> Result<(Vec<(String, StoredTensor)>, Option<String>), CheckpointError> {
    let bytes = file.bytes();
    let corrupt = |reason: String| CheckpointError::Corrupt { path: file.path().into(), reason };
    let truncated = |expected: u64| CheckpointError::Truncated {
        path: file.path().into(),
        missing: expected.saturating_sub(bytes.len() as u64),
    };
    let Some(length) = bytes.first_chunk::<LENGTH>() else { return Err(truncated(LENGTH as u64)) };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(corrupt(format!("its header claims {length} bytes, more than the format allows")));
    }
    let start = LENGTH + length as usize;
    let Some(header) = bytes.get(LENGTH..start) else { return Err(truncated(start as u64)) };
    // A copy: the file may change between the check and the use.
    let header = header.to_vec();
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|error| corrupt(format!("its header is not valid: {error}")))?;

    let Some(end) = start.checked_add(header.data_len()) else {
        return Err(corrupt("its header claims more bytes than there can be".into()));
    };
    if end > bytes.len() {
        return Err(truncated(end as u64));
    }
    if end < bytes.len() {
        return Err(corrupt(format!("{} bytes follow its last tensor", bytes.len() - end)));
    }
    let tensors = header.tensors().into_iter().map(|(name, info)| {
        let float = match info.dtype {
            Dtype::F32 => Ok(FloatType::F32),
            Dtype::BF16 => Ok(FloatType::Bf16),
            Dtype::F16 => Ok(FloatType::F16),
            other => Err(other.to_string()),
        };
        let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
        (name, StoredTensor { float, shape: info.shape.clone(), file: number, bytes, strides: None })
    });
    let tensors = tensors.collect();
    let config = header.metadata().as_ref().and_then(|metadata| metadata.get("config").cloned());
    Ok((tensors, config))
}
