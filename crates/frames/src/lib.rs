//! Sources of pictures, and their way to the frames that the network sees.
//!
//! A [`Source`] yields the pictures of a folder, a video or a camera. A [`Clip`] takes any source, selects pictures, and decodes and
//! resizes them ahead of need; it yields [`Frame`]s. Its two steps are public: [`decode`] (the contents of a file to upright RGB) and
//! [`Preprocess`] (any RGB picture to the size that the network takes).

mod clip;
mod decode;
mod error;
mod folder;
mod frame;
mod order;
mod preprocess;
mod read_ahead;
mod resample;
mod source;
mod timestamp_list;
mod timestamps;

pub use clip::{Clip, ClipOptions, OnBadFrame};
pub use decode::{MAX_PICTURE_BYTES, PictureWarning, SampleBits, decode, decode_with_warnings, used_sample_bits};
pub use error::{ClipError, FolderError, FrameCause, FrameError, ImageSizeError, PictureError};
pub use folder::{FolderOptions, FolderSource, FolderWarning};
pub use frame::Frame;
pub use globset;
pub use order::{Order, natural_order};
pub use preprocess::{Preprocess, Resize};
pub use read_ahead::READ_AHEAD_THREAD;
pub use source::{Picture, PictureContent, Source};
pub use timestamp_list::{TimestampError, TimestampList};
pub use timestamps::timestamp_of_name;
