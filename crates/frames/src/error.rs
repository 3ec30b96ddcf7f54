//! What can go wrong on the way from a file to a frame.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::path::PathBuf;

use periplus_units::Bytes;

/// An image size that the network cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageSizeError {
    /// Not made of whole patches, or zero.
    #[error("image size {image_size} is {}", wrong_size(*image_size, *patch))]
    NotWholePatches {
        /// What was asked for, in pixels.
        image_size: u32,
        /// Pixels along the side of a patch.
        patch: u32,
    },
    /// A square of this size would not fit the limit of a picture.
    #[error("image size {image_size} is too large: use at most {limit}")]
    TooLarge {
        /// What was asked for, in pixels.
        image_size: u32,
        /// The largest that is allowed, in pixels: whole patches, 0 if not even one is allowed.
        limit: u32,
    },
    /// Patches without pixels.
    #[error("the patch size is 0: use the network's own (14 for the published ones)")]
    NoPatch,
}

/// The multiples of `patch` (not 0) about `size`, but for 0.
fn wrong_size(size: u32, patch: u32) -> String {
    match size / patch * patch {
        0 => format!("smaller than a patch of {patch} pixels: use at least {patch}"),
        below => format!("not a multiple of the patch size {patch}: use {below} or {}", below.saturating_add(patch)),
    }
}

/// A picture that cannot become a frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// Contents of no format that is known here.
    #[error("the contents are no picture that can be read here (JPEG, PNG, WebP, BMP or TIFF)")]
    UnknownFormat,
    /// A file of another kind, whatever its name says.
    #[error("the file is {kind}: {advice}")]
    OtherKind {
        /// What it is.
        kind: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A known format in a variety that is not read.
    #[error("this picture, {0}, is not supported: convert it to 8-bit PNG or JPEG")]
    Unsupported(String),
    /// The decoder gave up.
    #[error("the picture cannot be decoded, the file is damaged or cut short: {0}")]
    Damaged(String),
    /// A JPEG without its end, which decoders would fill with one colour.
    #[error("the picture is cut short: the JPEG ends before all of its data")]
    CutShort,
    /// A TIFF that lacks some of its data.
    #[error("the picture is damaged or cut short: the TIFF lacks some of its data")]
    CutShortTiff,
    /// More pixels than are decoded.
    #[error(
        "the picture is {width} x {height} pixels, {} when decoded, over the limit of {}: scale it down first",
        Bytes(*bytes),
        Bytes(crate::MAX_PICTURE_BYTES)
    )]
    TooLarge {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// Bytes it would take.
        bytes: u64,
    },
    /// A file that is too large to be one frame.
    #[error("the file is larger than the limit of {} for a picture", Bytes(crate::MAX_PICTURE_BYTES))]
    FileTooLarge,
    /// No pixels.
    #[error("the picture is {width} x {height} pixels: there is nothing in it")]
    NoPixels {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// One side is less than half a patch at network resolution, so that nothing would be left of it.
    #[error(
        "the picture ({width} x {height} pixels) is too slender: with its long side resized to {image_size} pixels, its short one \
         is less than half a patch of {patch} pixels"
    )]
    TooSlender {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// Side of the picture that the network sees.
        image_size: u32,
        /// Pixels along the side of a patch.
        patch: u32,
    },
}

/// Why a frame is bad.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameCause {
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A named pipe, a socket or a device by the name of a picture.
    #[error("it is a pipe, a socket or a device, and only regular files are read")]
    NotRegular,
    /// The file is read, but the picture is unusable.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// Another size than the first frame's; upright (EXIF orientation applied), in pixels.
    #[error(
        "the picture is {} x {} pixels, the first frame was {} x {}: all frames of a clip must be of one size",
        found[0], found[1], expected[0], expected[1]
    )]
    OtherSize {
        /// Width and height of this frame.
        found: [u32; 2],
        /// Width and height of the first frame.
        expected: [u32; 2],
    },
    /// An error of the source, such as a camera or a video decoder.
    #[error("{0}")]
    Source(#[source] Box<dyn Error + Send + Sync>),
    /// The decoder panicked; its message.
    #[error("the decoder failed unexpectedly ({0}): please report this file")]
    Panicked(String),
}

/// A bad frame: which, and why.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {cause}")]
pub struct FrameError {
    /// The path of its file, or what else tells which frame it is.
    pub name: String,
    /// Why it is bad.
    #[source]
    pub cause: FrameCause,
}

/// Pictures of other kinds that a folder holds.
fn found(others: &BTreeMap<String, usize>) -> String {
    let kinds: Vec<_> = others.iter().map(|(kind, count)| format!("{count} .{kind}")).collect();
    if kinds.is_empty() {
        String::new()
    } else {
        format!(", only {}, to be converted to JPEG or PNG first", kinds.join(", "))
    }
}

/// A folder that is no clip.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// Nothing at that path.
    #[error("there is no folder {}: check the path", .0.display())]
    NotFound(PathBuf),
    /// Something else at that path.
    #[error("{} is not a folder: give the folder that holds the pictures", .0.display())]
    NotAFolder(PathBuf),
    /// The system would not list it.
    #[error("the folder {} cannot be read, check its permissions: {source}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No file in it has the extension of a picture that is read.
    #[error(
        "there are no pictures in the folder {} that can be read{}: files ending in {} are read, sub-folders are not",
        path.display(),
        found(others),
        crate::folder::EXTENSIONS.join(", ")
    )]
    NoPictures {
        /// The folder.
        path: PathBuf,
        /// Extensions of pictures of other kinds, and how many files have each.
        others: BTreeMap<String, usize>,
    },
    /// The list of timestamps does not fit the pictures.
    #[error(transparent)]
    Timestamps(#[from] crate::TimestampError),
}

/// A source from which no clip can be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClipError {
    /// All pictures are to be left out.
    #[error("the clip has {pictures} pictures and the first {skip} were to be left out: skip fewer")]
    AllSkipped {
        /// Pictures of the source.
        pictures: usize,
        /// Pictures to leave out at the start.
        skip: usize,
    },
    /// The system gave no thread to read ahead in.
    #[error("no thread could be started to read pictures: {0}")]
    Threads(#[source] io::Error),
}
