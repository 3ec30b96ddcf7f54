//! Where frames come from and how they become what the network sees.
//!
//! A [`Source`] yields [`Frame`]s in order; [`FolderSource`] is one over a folder of pictures. What lies between a
//! picture file and a frame is two steps, open to other sources too: [`decode`] (file contents to upright RGB) and
//! [`Preprocess`] (any RGB picture to the size that the network takes).

mod decode;
mod error;
mod folder;
mod order;
mod preprocess;
mod read_ahead;
mod resample;
mod source;
mod timestamp_list;
mod timestamps;

pub use decode::{MAX_PICTURE_BYTES, PictureWarning, SampleBits, decode, decode_with_warnings, used_sample_bits};
pub use error::{FolderError, FrameCause, FrameError, ImageSizeError, PictureError};
pub use folder::{FolderOptions, FolderSource, FolderWarning, OnBadFrame};
pub use globset;
pub use order::{Order, natural_order};
pub use preprocess::{Preprocess, Resize};
pub use read_ahead::READ_AHEAD_THREAD;
pub use source::{Frame, Source};
pub use timestamp_list::{TimestampError, TimestampList};
pub use timestamps::timestamp_of_name;
