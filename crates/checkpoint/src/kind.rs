//! Recognising a file by its first bytes, so that a wrong one gets a useful answer.

use crate::CheckpointError;
use crate::file::MappedFile;
use crate::safetensors::LONGEST_HEADER;

/// A kind of file that holds weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Safetensors,
    /// A zip archive, as PyTorch writes since its version 1.6.
    PyTorch,
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
        let text = bytes.trim_ascii_start();
        let (kind, advice) = if let [0x80, 2..=5, ..] = bytes {
            (
                "a PyTorch file of the form used before version 1.6",
                "save it again with a newer PyTorch, torch.save(torch.load(PATH, map_location=\"cpu\"), NEW_PATH), and \
                 run `periplus convert` on that",
            )
        } else if bytes.starts_with(b"version https://git-lfs") {
            ("a Git LFS pointer", "fetch the file it stands for with `git lfs pull`")
        } else if text.starts_with(b"<") {
            ("a web page", "the download went wrong; check its address")
        } else {
            ("neither a safetensors nor a PyTorch file", "give a .safetensors file, or convert a .pt file")
        };
        Err(CheckpointError::OtherKind { path: file.path().into(), kind, advice })
    }
}
