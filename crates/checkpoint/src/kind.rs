//! Detects the kind of a file by its first bytes, so that a wrong file gets a useful message.

use crate::CheckpointError;
use crate::file::MappedFile;
use crate::safetensors::LONGEST_HEADER;
use crate::shards;

/// A kind of file that holds weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Safetensors,
    /// A zip archive, as PyTorch writes since its version 1.6.
    PyTorch,
    /// The index of a checkpoint in several safetensors files, as `save_pretrained` writes it.
    ShardIndex,
}

impl Kind {
    /// The kind of the file, or an error that says what it is instead.
    pub(crate) fn of(file: &MappedFile) -> Result<Self, CheckpointError> {
        let bytes = file.bytes();
        // First, since the length of a header may look like the first bytes of anything.
        if let Some(length) = bytes.first_chunk().map(|&length| u64::from_le_bytes(length))
            && (bytes.get(8) == Some(&b'{') || bytes.len() == 8 && length <= LONGEST_HEADER)
        {
            return Ok(Self::Safetensors);
        }
        if bytes.starts_with(b"PK\x03\x04") {
            return Ok(Self::PyTorch);
        }
        if shards::is_index(bytes) {
            return Ok(Self::ShardIndex);
        }
        let (kind, advice) = other_kind(bytes);
        Err(CheckpointError::OtherKind { path: file.path().into(), kind, advice: advice.into() })
    }
}

/// The longest text that is quoted, such as an error message of a server that was saved as the file.
const LONGEST_QUOTE: usize = 200;

/// What a file without weights is, and what to do about it.
fn other_kind(bytes: &[u8]) -> (String, &'static str) {
    const DOWNLOAD: &str = "the download went wrong; check its address";
    const UNPACK: &str = "unpack it first";
    let text = bytes.trim_ascii();
    let starts: [(&[u8], &str, &str); 9] = [
        (b"version https://git-lfs", "a Git LFS pointer", "fetch the file it stands for with `git lfs pull`"),
        (b"GGUF", "a GGUF file", "give the safetensors or PyTorch file that it was made from"),
        (b"\x1f\x8b", "compressed with gzip", UNPACK),
        (b"\x28\xb5\x2f\xfd", "compressed with Zstandard", UNPACK),
        (b"\xfd7zXZ\0", "compressed with xz", UNPACK),
        (b"BZh", "compressed with bzip2", UNPACK),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "give the PyTorch or safetensors file"),
        (b"\x93NUMPY", "a NumPy file", "give the PyTorch or safetensors file"),
    ];
    if let [0x80, 2..=5, ..] = bytes {
        return (
            "a PyTorch file of the form used before version 1.6".into(),
            "save it again with a newer PyTorch, torch.save(torch.load(PATH, map_location=\"cpu\"), NEW_PATH), and \
             run `periplus convert` on that",
        );
    }
    if let Some((_, kind, advice)) = starts.into_iter().find(|(start, ..)| bytes.starts_with(start)) {
        return (kind.into(), advice);
    }
    if bytes.get(257..262) == Some(b"ustar") {
        return ("a tar archive".into(), UNPACK);
    }
    if text.starts_with(b"<") {
        return ("a web page".into(), DOWNLOAD);
    }
    let quoted = Some(text).filter(|text| (1..=LONGEST_QUOTE).contains(&text.len()));
    let quoted = quoted.and_then(|text| std::str::from_utf8(text).ok());
    if let Some(quoted) = quoted.filter(|text| !text.contains(|c: char| c.is_control() && c != '\n')) {
        return (format!("a text that says \"{}\"", quoted.replace('\n', " ")), DOWNLOAD);
    }
    ("neither a safetensors nor a PyTorch file".into(), "give a .safetensors file, or convert a .pt file")
}
