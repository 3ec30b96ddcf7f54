//! Checkpoints in several files, joined by an index in JSON.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::file::{Contents, MappedFile};
use crate::kind::Kind;
use crate::{CheckpointError, safetensors};

/// The longest index that is read: some hundred times that of this network.
const LONGEST_INDEX: usize = 32 << 20;

/// `{"metadata": .., "weight_map": {"tensor name": "file name"}}`.
#[derive(Deserialize)]
struct Index {
    weight_map: Files,
}

/// The files that an index names.
struct Files(BTreeSet<String>);

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Files;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Files, A::Error> {
                let mut files = BTreeSet::new();
                while let Some((IgnoredAny, file)) = map.next_entry()? {
                    files.insert(file);
                }
                Ok(Files(files))
            }
        }
        deserializer.deserialize_map(Values)
    }
}

/// Whether bytes are an index.
pub(crate) fn is_index(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'{')
        && bytes.len() <= LONGEST_INDEX
        && serde_json::from_slice::<Index>(bytes).is_ok()
}

/// The index file in a folder, if there is exactly one of safetensors files, or else of PyTorch files.
pub(crate) fn index_in(folder: &Path) -> Option<PathBuf> {
    let only = |end: &str| {
        let entries = folder.read_dir().ok()?.flatten().map(|entry| entry.path());
        let mut found = entries.filter(|path| path.to_string_lossy().ends_with(end));
        found.next().filter(|_| found.next().is_none())
    };
    only(".safetensors.index.json").or_else(|| only(".bin.index.json"))
}

/// Whether a file has the name of a shard, such as `model-00001-of-00004.safetensors`.
pub(crate) fn is_shard(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let digits = |text: &str| text.len() >= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    stem.rsplit_once("-of-")
        .is_some_and(|(before, count)| digits(count) && before.rsplit(['-', '_']).next().is_some_and(digits))
}

/// How to make one file of several PyTorch files.
pub(crate) const JOIN: &str = "join them in Python, torch.save({name: tensor for file in FILES for name, tensor in \
    torch.load(file, map_location=\"cpu\").items()}, \"joined.pt\"), and run `periplus convert` on that";

/// Finds the tensors of all shards.
pub(crate) fn read(index: &MappedFile, key: Option<&str>) -> Result<Contents, CheckpointError> {
    let corrupt = |reason: String| CheckpointError::Corrupt { path: index.path().into(), reason };
    let Index { weight_map: Files(names) } =
        serde_json::from_slice(index.bytes()).map_err(|error| corrupt(format!("its index is not valid: {error}")))?;
    let folder = index.path().parent().unwrap_or(Path::new(""));
    let mut shards = Vec::new();
    for name in names {
        // Only files beside the index: a name from a file must not lead elsewhere.
        if Path::new(&name).file_name().is_none_or(|file| *file != *name) {
            return Err(corrupt(format!("its index names {name:?}, which is not a file in the same folder")));
        }
        let shard = MappedFile::open(&folder.join(name))?;
        match Kind::of(&shard)? {
            Kind::Safetensors => shards.push(shard),
            Kind::PyTorch => {
                return Err(CheckpointError::OtherKind {
                    path: index.path().into(),
                    kind: "the index of a checkpoint in several PyTorch files".into(),
                    advice: JOIN.into(),
                });
            }
            Kind::ShardIndex => {
                return Err(corrupt(format!("its index names another index, {}", shard.path().display())));
            }
        }
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
