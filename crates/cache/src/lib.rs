//! The paged key-value cache of a video: which frames' keys and values are kept, where, and what a frame sees of them.
//!
//! # Two pools
//!
//! Each layer has two pools of pages, Candle tensors `[pages, 2, page_size, heads, head_dim]` (keys at 0, values at 1). One
//! [`PageTable`] tells all layers which pages a query sees. A page has as many rows as a frame has tokens, special tokens and
//! patches together.
//!
//! * A **frame page** holds one whole frame: its special tokens in the first rows, its patches after them. It is recycled when
//!   the frame leaves the window.
//! * **Special pages** hold the rows that are retained of frames that left the window. They are packed and append-only. When a
//!   frame leaves, its retained rows are copied to their end.
//!
//! The published code stores special tokens apart from the patches from the start. Its special pages then hold rows of frames
//! that are still in the window, and with [`Retention::Camera`] or [`Retention::None`] a frame that leaves would leave holes,
//! or every kernel would need a mask. Here a handful of rows is copied per frame, and all retentions work alike: every visible
//! page is full except the last, and an attention kernel needs only the row count of that last page.
//!
//! # What a frame sees
//!
//! * The frames of the **scale pass**, which starts a video, see each other in full, whatever the window.
//! * A **keyframe** sees the scale frames (if they are pinned), the last `window` other frames including itself, and the
//!   retained rows of every frame that left the window, including the frame that leaves because of it.
//! * A **candidate** sees all that is cached, and itself. Whether it stays is decided after it has run.
//!
//! [`KvCache::begin`] opens a pass. The pass is written layer by layer and then committed; a pass that is dropped is rolled
//! back. Beginning only plans: pages of frames that leave are recycled at the commit, so a rollback has nothing to undo.
//!
//! There is no maximum number of frames: the pools grow, doubling, until memory is full.

mod bookkeeping;
mod error;
mod growing;
mod kv_cache;
mod pool;

pub use bookkeeping::Pages as CacheRecord;
pub use bookkeeping::{CacheConfig, PassKind, Retention};
pub use error::{Error, Result};
pub use growing::GrowingRows;
pub use kv_cache::{CacheStats, KvCache, OpenPass};
pub use periplus_kernels::pages::{PageTable, Pools};
