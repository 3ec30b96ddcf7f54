//! Reading PyTorch's files: a zip archive of a pickle that describes the tensors and an entry per storage.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;

use zip::CompressionMethod;
use zip::read::{ArchiveOffset, Config};
use zip::result::ZipError;
use zip::unstable::read::ZipIterable;

use crate::file::{Checksum, Contents, MappedFile, StoredTensor};
use crate::names::choose;
use crate::pickle::{Dictionary, Found, Pickle, PickleError};
use crate::room::{NoRoom, Room};
use crate::{CheckpointError, FloatType};

/// Finds the tensors of a PyTorch file.
pub(crate) fn read(file: MappedFile, key: Option<&str>) -> Result<Contents, CheckpointError> {
    let mut room = Room::of(file.bytes().len());
    let archive = Archive::open(&file, &mut room)?;
    // A copy: the file may change between the check and the use.
    let bytes = file.bytes()[archive.entry("data.pkl")?].to_vec();
    let damaged = |error: PickleError| archive.corrupt(error.to_string());
    let pickle = Pickle::read(&bytes, &mut room).map_err(damaged)?;
    if let Ok(order) = archive.entry("byteorder")
        && &file.bytes()[order] != b"little"
    {
        return Err(archive.corrupt("its values are not in little-endian order".into()));
    }
    let dictionaries = pickle.dictionaries(&mut room).map_err(damaged)?;
    let names = |group: usize| pickle.tensors(&dictionaries[group]).map(|(name, _)| name);
    let choice = choose(file.path(), dictionaries.len(), |group| Dictionary::key(&dictionaries, group), names, key)?;
    let mut tensors = Vec::new();
    for (name, id) in dictionaries.get(choice.group).into_iter().flat_map(|group| pickle.tensors(group)) {
        let tensor = archive.locate(name, pickle.tensor(id).map_err(damaged)?)?;
        let taken = room.take(tensor.memory(name)).and_then(|()| room.push(&mut tensors, (name.to_owned(), tensor)));
        taken.map_err(|error| archive.corrupt(error.to_string()))?;
    }
    let (tensors, key, passed_over) = (choice.sorted(tensors), choice.key, pickle.passed_over());
    let checksums = archive.checksums();
    Ok(Contents { tensors, key, config: None, checksums, passed_over, files: vec![file] })
}

/// The entries of the archive, which has one folder for all.
struct Archive<'a> {
    file: &'a MappedFile,
    folder: String,
    entries: BTreeMap<String, Entry>,
}

/// Where an entry lies in the file.
struct Entry {
    bytes: Range<usize>,
    /// PyTorch never compresses.
    compressed: bool,
    crc32: u32,
}

impl<'a> Archive<'a> {
    fn open(file: &'a MappedFile, room: &mut Room) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::Corrupt { path: file.path().into(), reason };
        let entries = read_entries(file.bytes(), room).map_err(|error| damaged(error.to_string()))?;
        let folder = entries.keys().find_map(|name| name.strip_suffix("data.pkl")).map(str::to_owned);
        let (folder, other) = match folder {
            Some(folder) if entries.contains_key(&format!("{folder}constants.pkl")) => (None, Other::TorchScript),
            Some(folder) if entries[&format!("{folder}data.pkl")].compressed => (None, Other::Compressed),
            Some(folder) => (Some(folder), Other::Zip),
            None => (None, Other::Zip),
        };
        let Some(folder) = folder else { return Err(other.error(file.path(), &entries)) };
        Ok(Self { file, folder, entries })
    }

    fn corrupt(&self, reason: String) -> CheckpointError {
        CheckpointError::Corrupt { path: self.file.path().into(), reason }
    }

    fn entry(&self, name: &str) -> Result<Range<usize>, CheckpointError> {
        match self.entries.get(&format!("{}{name}", self.folder)) {
            Some(entry) if entry.compressed => Err(Other::Compressed.error(self.file.path(), &self.entries)),
            Some(entry) => Ok(entry.bytes.clone()),
            None => Err(self.corrupt(format!("its entry {name} is missing"))),
        }
    }

    /// What the data of the entries can be checked by.
    fn checksums(self) -> Vec<Checksum> {
        let stored = self.entries.into_iter().filter(|(_, entry)| !entry.compressed);
        stored.map(|(name, entry)| Checksum { entry: name, bytes: entry.bytes, crc32: entry.crc32 }).collect()
    }

    /// Where the data of a tensor is, all of it within the entry of its storage.
    fn locate(&self, name: &str, found: Found) -> Result<StoredTensor, CheckpointError> {
        // Reported if the network needs the tensor.
        let unusable = |what: &str, shape: &[usize]| {
            Ok(StoredTensor { float: Err(what.into()), shape: shape.into(), file: 0, bytes: 0..0, strides: None })
        };
        let tensor = match found {
            Found::Tensor(tensor) => tensor,
            Found::Other(function) => return unusable(&function, &[]),
        };
        let (float, width) = match tensor.class {
            "FloatStorage" | "float32" => (Ok(FloatType::F32), 4),
            "BFloat16Storage" | "bfloat16" => (Ok(FloatType::Bf16), 2),
            "HalfStorage" | "float16" => (Ok(FloatType::F16), 2),
            other => return unusable(other, &tensor.shape),
        };
        let stored = if tensor.typed { tensor.count / width } else { tensor.count };
        let entry = self.entry(&format!("data/{}", tensor.key))?;
        let outside = || self.corrupt(format!("tensor {name} reaches beyond its storage"));
        if stored.checked_mul(width).is_none_or(|bytes| bytes > entry.len()) {
            return Err(outside());
        }
        let count = tensor.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size)).ok_or_else(outside)?;
        if count == 0 {
            return Ok(StoredTensor { float, shape: tensor.shape, file: 0, bytes: 0..0, strides: None });
        }
        // One more than the distance from the first element to the last.
        let reach = tensor
            .shape
            .iter()
            .zip(&*tensor.strides)
            .try_fold(1usize, |reach, (&size, &stride)| reach.checked_add((size - 1).checked_mul(stride)?));
        let end = reach
            .and_then(|reach| reach.checked_add(tensor.offset))
            .filter(|&end| end <= stored)
            .ok_or_else(outside)?;
        let bytes = entry.start + tensor.offset * width..entry.start + end * width;
        let strides = (!in_order(&tensor.shape, &tensor.strides)).then_some(tensor.strides);
        Ok(StoredTensor { float, shape: tensor.shape, file: 0, bytes, strides })
    }
}

/// Why the directory of an archive cannot be read.
#[derive(Debug, thiserror::Error)]
enum DirectoryError {
    #[error("its zip directory cannot be read ({0}), probably because the file is cut off")]
    Zip(#[from] ZipError),
    #[error("its entry {0} is not where its zip directory says")]
    Outside(String),
    #[error("its entry {0} overlaps another")]
    Overlap(String),
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// The entries of a zip archive.
fn read_entries(bytes: &[u8], room: &mut Room) -> Result<BTreeMap<String, Entry>, DirectoryError> {
    // PyTorch's archives start with the file. Where the start is left to be detected, an entry of the directory that is as
    // long as PyTorch's end records (76 bytes) is taken for them.
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    // Entry by entry: `ZipArchive` holds some ten times the bytes of the directory.
    let mut zip = ZipIterable::try_new(Cursor::new(bytes), config)?;
    let mut entries = BTreeMap::new();
    for entry in zip.files()? {
        let entry = entry?;
        let name = entry.name()?.into_owned();
        let Some(range) = data_of(bytes, entry.header_start(), entry.compressed_size()) else {
            return Err(DirectoryError::Outside(name));
        };
        let compressed = entry.compression() != CompressionMethod::Stored;
        let entry = Entry { bytes: range, compressed, crc32: entry.crc32() };
        room.take(2 * size_of::<(String, Entry)>() + name.len())?;
        entries.insert(name, entry);
    }
    // So that checking all of them takes no longer than reading the file.
    let mut by_start = Vec::new();
    for (name, Entry { bytes, .. }) in entries.iter().filter(|(_, entry)| !entry.bytes.is_empty()) {
        room.push(&mut by_start, (bytes.start, bytes.end, name))?;
    }
    by_start.sort_unstable();
    match by_start.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        Some(pair) => Err(DirectoryError::Overlap(pair[1].2.clone())),
        None => Ok(entries),
    }
}

/// Where the data of an entry is, whose own header starts at `header`. `None` where there is no header, or not so many bytes.
fn data_of(bytes: &[u8], header: u64, size: u64) -> Option<Range<usize>> {
    // The header: a signature, fixed fields, at the end of them the lengths of the name and of the extra field that follow.
    const FIXED: usize = 30;
    const LENGTHS: usize = 26;
    let start = usize::try_from(header).ok()?;
    let header = bytes.get(start..)?.get(..FIXED).filter(|header| header.starts_with(b"PK\x03\x04"))?;
    let &[a, b, c, d] = header[LENGTHS..].first_chunk()?;
    let variable = usize::from(u16::from_le_bytes([a, b])) + usize::from(u16::from_le_bytes([c, d]));
    let start = start + FIXED + variable;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    (end <= bytes.len()).then_some(start..end)
}

/// A zip archive that is not a PyTorch checkpoint as it is.
enum Other {
    TorchScript,
    /// Packed again by a program that compresses.
    Compressed,
    Zip,
}

impl Other {
    fn error(&self, path: &Path, entries: &BTreeMap<String, Entry>) -> CheckpointError {
        const CHECKPOINTS: [&str; 5] = [".pt", ".pth", ".ckpt", ".bin", ".safetensors"];
        let inner = entries.keys().find(|name| CHECKPOINTS.iter().any(|extension| name.ends_with(extension)));
        let (kind, advice) = match (self, inner) {
            (Self::TorchScript, _) => (
                "a TorchScript program".into(),
                "save its weights with torch.save(torch.jit.load(PATH).state_dict(), NEW_PATH)",
            ),
            (Self::Compressed, _) => (
                "a PyTorch file whose entries are compressed, as zip programs pack them".into(),
                "write it again with torch.save(torch.load(PATH, map_location=\"cpu\"), NEW_PATH), or unpack it and pack \
                 it without compression (zip -0 -r)",
            ),
            (Self::Zip, Some(inner)) => (format!("a zip archive that holds {inner}"), "unpack it first"),
            (Self::Zip, None) => {
                ("a zip archive without a pickle of PyTorch".into(), "give a checkpoint saved with torch.save")
            }
        };
        CheckpointError::OtherKind { path: path.into(), kind, advice: advice.into() }
    }
}

/// Whether the elements are stored in the order of the shape. The stride of a single row means nothing.
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
        read(MappedFile::open(path)?, None)
    }

    /// Opens bytes as a file.
    fn open_bytes(bytes: &[u8]) -> Result<Contents, CheckpointError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        open(file.path())
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
                assert_eq!(*tensor.shape, shape, "{form}: {name}");
                assert_eq!(tensor.decode(float, contents.files[0].bytes()).unwrap(), numbers, "{form}: {name}");
            }
        }
    }

    #[test]
    fn code_is_named_and_not_run() {
        let contents = open(&data("harmful.pt")).unwrap();
        assert_eq!(contents.passed_over, ["posix.system"]);
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

    /// The pickle of `{"aggregator.x": tensor}`, eight values stored, viewed from an offset with a stride.
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
        // One value repeated, as `expand` does.
        let repeated = open(8, 3, 200, 0).unwrap();
        assert_eq!(
            repeated.tensors["aggregator.x"].decode(FloatType::F32, repeated.files[0].bytes()).unwrap(),
            [0.0; 200]
        );
        // More values than the entry holds.
        for wrong in [open(9, 0, 9, 1), open(8, 0, 9, 1), open(8, 8, 1, 1), open(8, 8, 200, 0)] {
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
            (vec![("lingbot-map.pt", &b""[..])], "is a zip archive that holds lingbot-map.pt: unpack it first"),
            (
                vec![("x/data.pkl", &pickle), ("x/constants.pkl", b"")],
                "is a TorchScript program: save its weights with torch.save(torch.jit.load(PATH).state_dict(), NEW_PATH)",
            ),
            (vec![("x/data.pkl", &pickle)], "is damaged: its entry data/0 is missing"),
            (
                vec![("x/data.pkl", &pickle), ("x/data/0", &[0; 32]), ("x/byteorder", b"big")],
                "is damaged: its values are not in little-endian order",
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

    #[test]
    fn entries_are_where_the_directory_says() {
        let numbers: Vec<u8> = (0..32).collect();
        let whole = archive(&[("x/data.pkl", &one_tensor(8, 0, 8, 1)), ("x/data/0", &numbers)]);
        let find = |part: &[u8]| whole.windows(part.len()).rposition(|window| window == part).unwrap();
        let message = "is damaged: its entry x/data/0 is not where its zip directory says";
        // The signature of the entry's own header; its offset, its size and its start in the directory.
        let (header, directory) = (find(b"PK\x03\x04"), find(b"PK\x01\x02"));
        for at in [header, header + 27, header + 29, directory + 21, directory + 22, directory + 45] {
            let mut changed = whole.clone();
            changed[at] ^= 0x40;
            let error = open_bytes(&changed).err().unwrap().to_string();
            assert!(error.ends_with(message), "{at}: {error}");
        }
        // Two entries of the same data.
        let mut twice = whole.clone();
        let first = (0_u32).to_le_bytes();
        twice[directory + 42..][..4].copy_from_slice(&first);
        let error = open_bytes(&twice).err().unwrap().to_string();
        assert!(error.contains(" overlaps another"), "{error}");
    }

    /// Names of every length: at one of them an entry of the zip directory is as long as PyTorch's end records.
    #[test]
    fn names_of_any_length_are_read() {
        use std::io::Write;
        for length in 1..80 {
            let name = "n".repeat(length);
            let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
            let options = zip::write::SimpleFileOptions::default().large_file(true);
            for (entry, bytes) in [("data.pkl", &one_tensor(8, 0, 8, 1)[..]), ("data/0", &[0; 32])] {
                zip.start_file(format!("{name}/{entry}"), options).unwrap();
                zip.write_all(bytes).unwrap();
            }
            let bytes = zip.finish().unwrap().into_inner();
            // The end records as PyTorch writes them: 56 and 20 bytes of zip64, then 22.
            let end = bytes.len() - 22;
            let (directory, size) = (&bytes[end + 16..end + 20], &bytes[end + 12..end + 16]);
            let wide = |bytes: &[u8]| [bytes, &[0; 4]].concat();
            let record = [
                &b"PK\x06\x06"[..],
                &44_u64.to_le_bytes(),
                &[30, 3, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &2_u64.to_le_bytes(),
                &2_u64.to_le_bytes(),
                &wide(size),
                &wide(directory),
                b"PK\x06\x07",
                &[0; 4],
                &(end as u64).to_le_bytes(),
                &1_u32.to_le_bytes(),
            ];
            let archive = [&bytes[..end], &record.concat(), &bytes[end..]].concat();
            let contents = open_bytes(&archive).unwrap_or_else(|error| panic!("{length}: {error}"));
            assert_eq!(*contents.tensors["aggregator.x"].shape, [8], "{length}");
        }
    }

    #[test]
    fn a_flipped_bit_is_found_by_the_checksums() {
        let sums = |bytes: &[u8]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), bytes).unwrap();
            open(file.path()).map(|contents| contents.check_sums())
        };
        let numbers: Vec<u8> = (0..32).collect();
        let pickle = one_tensor(8, 0, 8, 1);
        let whole = archive(&[("x/data.pkl", &pickle), ("x/data/0", &numbers)]);
        assert!(matches!(sums(&whole).unwrap(), Ok(true)));
        let start = whole.windows(32).position(|window| window == numbers).unwrap();
        for bit in 0..256 {
            let mut flipped = whole.clone();
            flipped[start + bit / 8] ^= 1 << (bit % 8);
            let error = sums(&flipped).unwrap().unwrap_err().to_string();
            assert!(error.contains("the data of x/data/0 differs from its checksum"), "{error}");
        }
        // An archive whose writer computed none: zeros in both headers of each entry.
        let mut without = whole.clone();
        let headers: Vec<_> = (0..whole.len() - 4)
            .filter_map(|at| match &whole[at..at + 4] {
                b"PK\x03\x04" => Some(at + 14),
                b"PK\x01\x02" => Some(at + 16),
                _ => None,
            })
            .collect();
        assert_eq!(headers.len(), 4);
        for at in headers {
            without[at..at + 4].fill(0);
        }
        assert!(matches!(sums(&without).unwrap(), Ok(false)));
    }

    proptest! {
        #[test]
        fn no_changed_byte_panics(at in 0..3000usize, byte: u8) {
            let mut bytes = fs::read(data("model.pt")).unwrap();
            bytes[at] = byte;
            if let Ok(contents) = open_bytes(&bytes) {
                for tensor in contents.tensors.values() {
                    if let &Ok(float) = &tensor.float {
                        tensor.decode(float, contents.files[0].bytes());
                    }
                }
            }
        }
    }
}
