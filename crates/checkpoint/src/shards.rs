//! Checkpoints in several safetensors files, joined by an index in JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::file::{Contents, MappedFile};
use crate::{CheckpointError, safetensors};

/// The longest index that is read: some hundred times that of this network.
const LONGEST_INDEX: usize = 32 << 20;

/// `{"metadata": .., "weight_map": {"tensor name": "file name"}}`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Whether bytes are an index.
pub(crate) fn is_index(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'{')
        && bytes.len() <= LONGEST_INDEX
        && serde_json::from_slice::<Index>(bytes).is_ok()
}

/// The index file in a folder, if there is exactly one.
pub(crate) fn index_in(folder: &Path) -> Option<PathBuf> {
    let entries = folder.read_dir().ok()?.flatten().map(|entry| entry.path());
    let mut found = entries.filter(|path| path.to_string_lossy().ends_with(".safetensors.index.json"));
    found.next().filter(|_| found.next().is_none())
}

/// Whether a file has the name of a shard, such as `model-00001-of-00004.safetensors`.
pub(crate) fn is_shard(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let digits = |text: &str| text.len() >= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    stem.rsplit_once("-of-")
        .is_some_and(|(before, count)| digits(count) && before.rsplit(['-', '_']).next().is_some_and(digits))
}

/// Finds the tensors of all shards.
pub(crate) fn read(index: &MappedFile, key: Option<&str>) -> Result<Contents, CheckpointError> {
    let corrupt = |reason: String| CheckpointError::Corrupt { path: index.path().into(), reason };
    let Index { weight_map } =
        serde_json::from_slice(index.bytes()).map_err(|error| corrupt(format!("its index is not valid: {error}")))?;
    let names: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
    let folder = index.path().parent().unwrap_or(Path::new(""));
    let mut shards = Vec::new();
    for name in names {
        // Only files beside the index: a name from a file must not lead elsewhere.
        if Path::new(name).file_name().is_none_or(|file| file != name) {
            return Err(corrupt(format!("its index names {name:?}, which is not a file in the same folder")));
        }
        shards.push(MappedFile::open(&folder.join(name))?);
    }
    safetensors::read_all(index.path(), shards, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_told_by_their_names() {
        for name in ["model-00001-of-00004.safetensors", "a/lingbot_01-of-02.safetensors"] {
            assert!(is_shard(Path::new(name)), "{name}");
        }
        for name in ["model.safetensors", "one-of-two.safetensors", "best-of-12.safetensors", ".safetensors"] {
            assert!(!is_shard(Path::new(name)), "{name}");
        }
    }
}
