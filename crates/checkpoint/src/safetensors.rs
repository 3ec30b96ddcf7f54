//! Reading safetensors files: eight bytes of length, a header of that length in JSON, the tensors without gaps.

use std::fmt;
use std::path::Path;

use ::safetensors::Dtype;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::CheckpointError;
use crate::file::{Contents, MappedFile, StoredTensor};
use crate::float::FloatType;
use crate::names::choose;
use crate::pickle::MOST_DIMENSIONS;
use crate::room::Room;

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
    let mut room = Room::of(files.iter().map(|file| file.bytes().len()).sum());
    let (mut tensors, mut config) = (Vec::new(), None);
    for (number, file) in files.iter().enumerate() {
        let own = read_header(file, number as u32, &mut tensors, &mut room)?;
        config = config.or(own);
    }
    let names = |_| tensors.iter().map(|(name, _)| &**name);
    let choice = choose(path, 1, |_| String::new(), names, key)?;
    let (tensors, key) = (choice.sorted(tensors), choice.key);
    Ok(Contents { files, tensors, key, config, checksums: Vec::new(), passed_over: Vec::new() })
}

/// Appends the tensors of file `number`, and gives the configuration in its metadata.
fn read_header(
    file: &MappedFile,
    number: u32,
    tensors: &mut Vec<(String, StoredTensor)>,
    room: &mut Room,
) -> Result<Option<String>, CheckpointError> {
    let bytes = file.bytes();
    let corrupt = |reason: String| CheckpointError::Corrupt { path: file.path().into(), reason };
    let invalid = |reason: String| corrupt(format!("its header is not valid: {reason}"));
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
    let first = tensors.len();
    let mut json = serde_json::Deserializer::from_slice(&header);
    let config = Header { number, tensors, room }.deserialize(&mut json);
    let config = config.and_then(|config| json.end().map(|()| config)).map_err(|error| invalid(error.to_string()))?;

    let own = &mut tensors[first..];
    own.sort_unstable_by_key(|(_, tensor)| (tensor.bytes.start, tensor.bytes.end));
    let mut end = 0;
    for (name, tensor) in own.iter_mut() {
        // The data of the tensors fill the file without gaps.
        if tensor.bytes.start != end {
            return Err(invalid(format!("invalid offset for tensor `{name}`")));
        }
        end = tensor.bytes.end;
        let (Some(from), Some(to)) = (start.checked_add(tensor.bytes.start), start.checked_add(end)) else {
            return Err(corrupt("its header claims more bytes than there can be".into()));
        };
        tensor.bytes = from..to;
    }
    // What was checked already cannot overflow.
    let end = start + end;
    if end > bytes.len() {
        return Err(truncated(end as u64));
    }
    if end < bytes.len() {
        return Err(corrupt(format!("{} bytes follow its last tensor", bytes.len() - end)));
    }
    Ok(config)
}

/// Reads a header into a list of tensors, whose offsets are those of the header, and gives the configuration. The crate `safetensors`
/// would take some fifty times the bytes of a hostile header.
struct Header<'a> {
    number: u32,
    tensors: &'a mut Vec<(String, StoredTensor)>,
    room: &'a mut Room,
}

/// What the header says about a tensor.
#[derive(Deserialize)]
struct Info {
    dtype: Dtype,
    shape: Shape,
    data_offsets: (usize, usize),
}

/// The entry `__metadata__` of the header.
#[derive(Deserialize)]
struct FileMetadata {
    config: Option<String>,
}

impl<'de> DeserializeSeed<'de> for Header<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Header<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut header: A) -> Result<Self::Value, A::Error> {
        let mut config = None;
        while let Some(name) = header.next_key::<String>()? {
            if name == "__metadata__" {
                let metadata: Option<FileMetadata> = header.next_value()?;
                config = config.or(metadata.and_then(|metadata| metadata.config));
                continue;
            }
            let Info { dtype, shape: Shape(shape), data_offsets: (start, end) } = header.next_value()?;
            let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &size| bits.checked_mul(size));
            let bits = bits.ok_or_else(|| A::Error::custom(format!("overflow in the shape of tensor `{name}`")))?;
            if !bits.is_multiple_of(8) || end.checked_sub(start) != Some(bits / 8) {
                return Err(A::Error::custom(format!("invalid shape, dtype or offset for tensor `{name}`")));
            }
            let float = match dtype {
                Dtype::F32 => Ok(FloatType::F32),
                Dtype::BF16 => Ok(FloatType::Bf16),
                Dtype::F16 => Ok(FloatType::F16),
                other => Err(other.to_string().into()),
            };
            let tensor = StoredTensor { float, shape, file: self.number, bytes: start..end, strides: None };
            self.room.take(tensor.memory(&name)).map_err(A::Error::custom)?;
            self.room.push(self.tensors, (name, tensor)).map_err(A::Error::custom)?;
        }
        Ok(config)
    }
}

/// A shape of no more dimensions than tensors have.
struct Shape(Box<[usize]>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sizes;
        impl<'de> Visitor<'de> for Sizes {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Shape, A::Error> {
                let mut sizes = Vec::new();
                while let Some(size) = array.next_element()? {
                    if sizes.len() == MOST_DIMENSIONS {
                        return Err(A::Error::custom("a tensor has too many dimensions"));
                    }
                    sizes.push(size);
                }
                Ok(Shape(sizes.into()))
            }
        }
        deserializer.deserialize_seq(Sizes)
    }
}
