//! What a stream remembers: keys and values of the frames that later frames may see.
//!
//! # Two pools
//!
//! Each layer has two pools of pages, Candle tensors `[pages, 2, page_size, heads, head_dim]` (keys at 0, values
//! at 1), and one [`PageTable`] tells all layers which pages a query sees. A page has as many rows as a frame has
//! tokens, special and patches together.
//!
//! * A **frame page** holds one whole frame: its special tokens in the first rows, its patches after them. It is
//!   recycled when the frame leaves the window.
//! * **Special pages** hold what is retained of the frames that left, packed and append-only. When a frame leaves,
//!   the rows to retain are copied to their end.
//!
//! Special tokens could instead be kept apart from the patches from the start. Then the special pages would hold
//! rows of frames that are still in the window, and with [`Retention::Camera`] or [`Retention::None`] a frame that
//! leaves would have to punch holes into them, or every kernel would need a mask. Copying a handful of rows per
//! frame makes all three retentions the same: every visible page is full but the last, and a row count of that
//! last page is all that an attention kernel needs.
//!
//! # What a frame sees
//!
//! * The frames of the **scale pass**, which starts a clip, see each other in full, whatever the window.
//! * A **keyframe** sees the scale frames (if they are pinned), the last `window` other frames including itself, and
//!   the retained rows of every frame that left the window, the one leaving because of it among them.
//! * A **candidate**, of which it is decided later whether it stays, sees all that is cached and itself.
//!
//! A pass is begun, written layer by layer, and then committed or rolled back. Beginning only plans it: the pages of
//! frames that leave are not recycled before the commit, so a rollback restores the state exactly.
//!
//! There is no maximum number of frames: pools grow, doubling, as long as memory lasts.

mod bookkeeping;
mod error;
mod growing;
mod kv_cache;
mod pool;

pub use bookkeeping::{CacheConfig, Pass, Retention};
pub use error::{Error, Result};
pub use growing::GrowingRows;
pub use kv_cache::{CacheStats, KvCache};
pub use periplus_kernels::pages::{PageTable, Pools};
