//! Reading PyTorch's files: a zip archive of a pickle that describes the tensors and an entry per storage.

use crate::file::{Contents, MappedFile, StoredTensor};
use crate::pickle::{Pickle, PickleError, PickledTensor};
use crate::{CheckpointError, FloatType};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::Range;
use zip::{CompressionMethod, ZipArchive};

/// Where training programs put the weights beside other things.
const NESTS: [&str; 3] = ["model", "state_dict", "model_state_dict"];

/// What data-parallel training puts in front of every name.
const DATA_PARALLEL: &str = "module.";

/// Finds the tensors of a PyTorch file.
pub(crate) fn read(file: MappedFile) -> Result<Contents, CheckpointError> {
    let archive = Archive::open(&file)?;
    // A copy, lest the file be changed between a check and the use of what was checked.
    let pickle = file.bytes()[archive.entry("data.pkl")?].to_vec();
    let pickle = Pickle::read(&pickle).map_err(|error| match error {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    fn open(path: &Path) -> Result<Contents, CheckpointError> {
        read(MappedFile::open(path)?)
    }

    /// Opens bytes as a file.
    fn open_bytes(bytes: &[u8]) -> Result<Contents, CheckpointError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        open(file.path())
    }

    /// The message of a refusal, with the file called FILE.
    fn refusal(path: &Path) -> String {
        open(path).err().unwrap().to_string().replace(&path.display().to_string(), "FILE")
    }

    /// What `tests/data/make.py` wrote, computed anew.
    fn expected(name: &str) -> (Vec<usize>, Vec<f32>) {
        let numbers = (0..24u8).map(|i| f32::from(i) / 8.0 - 1.0).collect::<Vec<_>>();
        let pick = |indices: &[usize]| indices.iter().map(|&i| numbers[i]).collect();
        match name {
            "plain" => (vec![2, 3, 4], numbers),
            "transposed" => {
                let indices: Vec<_> = (0..6).flat_map(|row| (0..4).map(move |column| column * 6 + row)).collect();
                (vec![6, 4], pick(&indices))
            }
            "part" => (vec![3, 4], numbers[5..17].to_vec()),
            "columns" => (vec![4, 3], pick(&[1, 2, 3, 7, 8, 9, 13, 14, 15, 19, 20, 21])),
            "single" => (vec![], pick(&[7])),
            "parameter" => (vec![3], pick(&[0, 1, 2])),
            _ => (vec![24], numbers),
        }
    }

    #[test]
    fn every_form_holds_the_same_tensors() {
        for form in ["bare", "protocol4", "data-parallel", "model", "state_dict", "model_state_dict"] {
            let contents = open(&data(&format!("{form}.pt"))).unwrap();
            assert_eq!(contents.tensors.len(), 9, "{form}");
            for (name, tensor) in &contents.tensors {
                let name = name.strip_prefix("aggregator.").unwrap();
                let float = match name {
                    "half" => FloatType::F16,
                    "bfloat16" => FloatType::Bf16,
                    "steps" => {
                        assert_eq!(tensor.float, Err("LongStorage".into()));
                        continue;
                    }
                    _ => FloatType::F32,
                };
                let (shape, numbers) = expected(name);
                assert_eq!(tensor.float, Ok(float), "{form}: {name}");
                assert_eq!(tensor.shape, shape, "{form}: {name}");
                assert_eq!(tensor.decode(float, contents.file.bytes()), numbers, "{form}: {name}");
            }
        }
    }

    #[test]
    fn code_is_refused_by_name_and_not_run() {
        assert_eq!(
            refusal(&data("harmful.pt")),
            "FILE wants to run or build `posix.system`, which weights do not need and which is refused; save the \
             weights alone with torch.save(model.state_dict(), PATH)"
        );
        assert!(!Path::new("HARM").exists());
    }

    #[test]
    fn a_cut_file_says_so() {
        let whole = fs::read(data("bare.pt")).unwrap();
        for end in (0..whole.len()).step_by(11) {
            if let Err(error) = open_bytes(&whole[..end.max(1)]) {
                assert!(error.to_string().ends_with("probably because the file is cut off"), "{end}: {error}");
            } else {
                panic!("the first {end} bytes were taken for a whole file");
            }
        }
    }

    /// An archive as PyTorch would write it.
    fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
        use std::io::Write;
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in entries {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    /// The pickle of `{"aggregator.x": tensor}`, eight numbers stored, seen from an offset with a stride.
    fn one_tensor(stored: u8, offset: u8, size: u8, stride: u8) -> Vec<u8> {
        let text = |text: &str| [&[0x8c, text.len() as u8], text.as_bytes()].concat();
        [
            b"\x80\x02}".to_vec(),
            text("aggregator.x"),
            b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
            text("storage"),
            b"ctorch\nFloatStorage\n".to_vec(),
            text("0"),
            text("cpu"),
            vec![b'K', stored, b't', b'Q', b'K', offset, b'K', size, 0x85, b'K', stride, 0x85, 0x89, b'N', b't', b'R'],
            b"s.".to_vec(),
        ]
        .concat()
    }

    #[test]
    fn tensors_stay_within_their_storage() {
        let open = |stored, offset, size, stride| {
            open_bytes(&archive(&[("x/data.pkl", &one_tensor(stored, offset, size, stride)), ("x/data/0", &[0; 32])]))
        };
        assert!(open(8, 0, 8, 1).is_ok());
        assert!(open(8, 1, 4, 2).is_ok());
        assert!(open(8, 2, 4, 2).is_err());
        assert!(open(8, 7, 1, 200).is_ok());
        assert_eq!(open(8, 3, 0, 1).unwrap().tensors["aggregator.x"].bytes, 0..0);
        // More numbers than the entry holds, and one number repeated.
        for wrong in [open(9, 0, 9, 1), open(8, 0, 9, 1), open(8, 8, 1, 1), open(8, 0, 200, 0)] {
            let message = wrong.err().unwrap().to_string();
            assert!(message.ends_with("is damaged: tensor aggregator.x reaches beyond its storage"), "{message}");
        }
    }

    #[test]
    fn archives_of_other_kinds_are_refused() {
        let pickle = one_tensor(8, 0, 8, 1);
        for (entries, message) in [
            (
                vec![("word/document.xml", &b""[..])],
                "is a zip archive without a pickle of PyTorch: give a checkpoint saved with torch.save",
            ),
            (vec![("x/data.pkl", &pickle)], "is damaged: its entry data/0 is missing"),
            (
                vec![("x/data.pkl", &pickle), ("x/data/0", &[0; 32]), ("x/byteorder", b"big")],
                "is damaged: its numbers are not in little-endian order",
            ),
            (vec![("x/data.pkl", b"\x80\x02}")], "is damaged: its pickle ends too early"),
            (
                vec![("x/data.pkl", b"\x80\x02I1\n.")],
                "is damaged: its pickle holds the instruction 0x49, which weights do not need",
            ),
        ] {
            let error = open_bytes(&archive(&entries)).err().unwrap().to_string();
            assert!(error.ends_with(message), "{error}");
        }
        // A pickle without tensors is for the caller to judge.
        assert!(open_bytes(&archive(&[("x/data.pkl", b"\x80\x02N.")])).unwrap().tensors.is_empty());
    }

    proptest! {
        #[test]
        fn no_changed_byte_panics(at in 0..3000usize, byte: u8) {
            let mut bytes = fs::read(data("model.pt")).unwrap();
            bytes[at] = byte;
            if let Ok(contents) = open_bytes(&bytes) {
                for tensor in contents.tensors.values() {
                    if let Ok(float) = tensor.float {
                        tensor.decode(float, contents.file.bytes());
                    }
                }
            }
        }
    }
}
