//! Reading PyTorch's files: a zip archive of a pickle that describes the tensors and an entry per storage.

use super::file::{Contents, MappedFile, StoredTensor};
use super::pickle::{Pickle, PickleError, PickledTensor};
use super::{CheckpointError, FloatType};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::Range;
use zip::{CompressionMethod, ZipArchive};

/// Where training programs put the weights beside other things.
const NESTS: [&str; 3] = ["model", "state_dict", "model_state_dict"];

/// What data-parallel training puts in front of every name.
const DATA_PARALLEL: &str = "module.";

/// Finds the tensors of a PyTorch file.
pub(super) fn read(file: MappedFile) -> Result<Contents, CheckpointError> {
    let archive = Archive::open(&file)?;
    let pickle = Pickle::read(&file.bytes()[archive.entry("data.pkl")?]).map_err(|error| match error {
        PickleError::Forbidden(global) => CheckpointError::Forbidden { path: file.path().into(), global },
        other => archive.corrupt(other.to_string()),
    })?;
    if let Ok(order) = archive.entry("byteorder")
        && &file.bytes()[order] != b"little"
    {
        return Err(archive.corrupt("its numbers are not in little-endian order".into()));
    }
    let candidates = pickle.candidates(&NESTS);
    let ours =
        |tensors: &&Vec<(&str, _)>| tensors.iter().any(|(name, _)| network_name(name).starts_with("aggregator."));
    let chosen = candidates.iter().find(ours).or(candidates.iter().find(|tensors| !tensors.is_empty()));
    let mut tensors = BTreeMap::new();
    for (name, tensor) in chosen.into_iter().flatten() {
        tensors.insert(network_name(name).to_owned(), archive.locate(name, tensor)?);
    }
    Ok(Contents { tensors, config: None, file })
}

fn network_name(name: &str) -> &str {
    name.strip_prefix(DATA_PARALLEL).unwrap_or(name)
}

/// The entries of the archive, which has one folder for all.
struct Archive<'a> {
    file: &'a MappedFile,
    folder: String,
    /// Where an entry lies in the file; `None` if it is compressed, which PyTorch never does.
    entries: BTreeMap<String, Option<Range<usize>>>,
}

impl<'a> Archive<'a> {
    fn open(file: &'a MappedFile) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::Corrupt { path: file.path().into(), reason };
        let unreadable = |error: zip::result::ZipError| {
            damaged(format!("its zip directory cannot be read ({error}), probably because the file is cut off"))
        };
        let mut zip = ZipArchive::new(Cursor::new(file.bytes())).map_err(unreadable)?;
        let mut entries = BTreeMap::new();
        for index in 0..zip.len() {
            let entry = zip.by_index_raw(index).map_err(unreadable)?;
            let name = entry.name().map_err(unreadable)?.into_owned();
            let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
            let size = usize::try_from(entry.size()).ok();
            let end = start.zip(size).and_then(|(start, size)| start.checked_add(size));
            let (Some(start), Some(end)) = (start, end.filter(|&end| end <= file.bytes().len())) else {
                return Err(damaged(format!("its entry {name} reaches beyond its end")));
            };
            entries.insert(name, (entry.compression() == CompressionMethod::Stored).then_some(start..end));
        }
        let Some(folder) = entries.keys().find_map(|name| name.strip_suffix("data.pkl")).map(str::to_owned) else {
            return Err(CheckpointError::OtherKind {
                path: file.path().into(),
                kind: "a zip archive without a pickle of PyTorch",
                advice: "give a checkpoint saved with torch.save",
            });
        };
        Ok(Self { file, folder, entries })
    }

    fn corrupt(&self, reason: String) -> CheckpointError {
        CheckpointError::Corrupt { path: self.file.path().into(), reason }
    }

    fn entry(&self, name: &str) -> Result<Range<usize>, CheckpointError> {
        match self.entries.get(&format!("{}{name}", self.folder)) {
            Some(Some(range)) => Ok(range.clone()),
            Some(None) => Err(self.corrupt(format!("its entry {name} is compressed, which PyTorch never does"))),
            None => Err(self.corrupt(format!("its entry {name} is missing"))),
        }
    }

    /// Where the numbers of a tensor are, all of them within the entry of its storage.
    fn locate(&self, name: &str, tensor: &PickledTensor) -> Result<StoredTensor, CheckpointError> {
        let (float, width) = match tensor.storage.class.as_str() {
            "FloatStorage" => (Ok(FloatType::F32), 4),
            "BFloat16Storage" => (Ok(FloatType::Bf16), 2),
            "HalfStorage" => (Ok(FloatType::F16), 2),
            // Reported if the network needs the tensor; what its bytes mean does not matter.
            other => {
                let shape = tensor.shape.clone();
                return Ok(StoredTensor { float: Err(other.into()), shape, bytes: 0..0, strides: None });
            }
        };
        let entry = self.entry(&format!("data/{}", tensor.storage.key))?;
        let outside = || self.corrupt(format!("tensor {name} reaches beyond its storage"));
        if tensor.storage.count.checked_mul(width).is_none_or(|bytes| bytes > entry.len()) {
            return Err(outside());
        }
        let count = tensor.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size)).ok_or_else(outside)?;
        if count == 0 {
            return Ok(StoredTensor { float, shape: tensor.shape.clone(), bytes: 0..0, strides: None });
        }
        // One more than the distance from the first number to the last.
        let reach = tensor
            .shape
            .iter()
            .zip(&tensor.strides)
            .try_fold(1usize, |reach, (&size, &stride)| reach.checked_add((size - 1).checked_mul(stride)?));
        let end = reach.and_then(|reach| reach.checked_add(tensor.offset)).filter(|&end| end <= tensor.storage.count);
        // Views that repeat numbers would let a few bytes stand for any amount of memory.
        let end = end.filter(|_| count <= tensor.storage.count).ok_or_else(outside)?;
        let bytes = entry.start + tensor.offset * width..entry.start + end * width;
        let strides = (!in_order(&tensor.shape, &tensor.strides)).then(|| tensor.strides.clone());
        Ok(StoredTensor { float, shape: tensor.shape.clone(), bytes, strides })
    }
}

/// Whether the numbers follow each other in the order of the shape. The stride of a single row means nothing.
fn in_order(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected *= size;
        fits
    })
}
