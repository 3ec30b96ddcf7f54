//! Page allocation: which page holds which frame. No tensors here.
//!
//! [`Pages`] is the committed state. An open pass has a [`Plan`]: the change that its commit will make. Planning only reads
//! the state, so a rollback, or a failure in between, has nothing to undo.

use std::collections::VecDeque;

use periplus_kernels::pages::{PageTable, Rows};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Which tokens of a frame stay visible after it leaves the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Retention {
    /// All special tokens.
    #[default]
    All,
    /// The first special token, which is the camera's.
    Camera,
    /// Nothing.
    None,
}

/// Which frames a cache keeps, and how much of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheConfig {
    /// Frames that a keyframe sees in full, at least 1. It counts itself, but not pinned scale frames.
    pub window: usize,
    /// Which tokens of a frame stay visible after it leaves the window.
    pub retention: Retention,
    /// Whether scale frames stay visible in full for the whole clip. Otherwise they pass through the window as any
    /// other frame.
    pub pin_scale_frames: bool,
    /// Special tokens of a frame, which are its first rows.
    pub special_tokens: usize,
}

impl CacheConfig {
    /// The most frame pages that a clip with `scale_frames` scale frames ever uses at once.
    pub fn most_frame_pages(&self, scale_frames: usize) -> usize {
        // A frame that leaves keeps its page until the frame that pushed it out is committed.
        let moving = self.window.saturating_add(1);
        if self.pin_scale_frames { moving.saturating_add(scale_frames) } else { moving.max(scale_frames) }
    }

    /// Rows of a frame that stay visible after it leaves the window.
    pub fn retained_rows(&self) -> usize {
        match self.retention {
            Retention::All => self.special_tokens,
            Retention::Camera => self.special_tokens.min(1),
            Retention::None => 0,
        }
    }
}

/// Which frames go through the network together, and whether they stay in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassKind {
    /// This many scale frames, which start a clip and see each other in full.
    Scale(usize),
    /// A frame that stays. The window moves before its attention.
    Keyframe,
    /// A frame that may stay, which is decided after its attention. The window moves if it is committed.
    Candidate,
}

impl PassKind {
    /// Frames of the pass.
    pub fn frames(self) -> usize {
        match self {
            Self::Scale(count) => count,
            Self::Keyframe | Self::Candidate => 1,
        }
    }
}

/// Rows to copy from a frame page to a special page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retained {
    /// First row in the pool of frame pages.
    pub(crate) source: Rows,
    /// First row in the pool of special pages.
    pub(crate) target: Rows,
    /// Number of rows.
    pub(crate) count: usize,
}

/// An open pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) kind: PassKind,
    pub(crate) page_size: usize,
    /// The page of each frame of the pass.
    pub(crate) pages: Vec<u32>,
    /// What the frames of the pass see.
    pub(crate) table: PageTable,
    /// Rows to retain of the frames that leave.
    pub(crate) retained: Vec<Retained>,
    /// How many frames leave: the oldest of the window, which ends with the frames of this pass.
    leaving: usize,
    /// Special rows after the commit.
    special_rows: usize,
    /// Frame pages ever used in this clip, after the commit.
    ever_used: usize,
}

impl Plan {
    /// Pages that the pool of frame pages must have.
    pub(crate) fn frame_pages(&self) -> usize {
        self.ever_used
    }

    /// Pages that the pool of special pages must have, including those for frames that leave at the commit.
    pub(crate) fn special_pages(&self) -> usize {
        self.special_rows.div_ceil(self.page_size)
    }

    /// Whether the retained rows are part of what this pass sees, so that they must be copied before its attention.
    pub(crate) fn retains_first(&self) -> bool {
        self.kind == PassKind::Keyframe
    }
}

/// The committed state of a video without its tensors. It can be serialised; together with the tensors it is a snapshot of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    config: CacheConfig,
    /// Rows of a page; 0 before the first clip.
    page_size: usize,
    /// Frames of the scale pass.
    scale_frames: usize,
    /// Frames cached in this clip, including those that left the window.
    frames: usize,
    /// Pages of the scale frames, if they are pinned.
    pinned: Vec<u32>,
    /// Pages of the other frames, oldest first.
    window: VecDeque<u32>,
    /// Recycled pages.
    free: Vec<u32>,
    /// Each page in `0..ever_used` is in one of the three lists above. Later pages were not used in this clip yet.
    ever_used: usize,
    /// Rows in the special pages.
    special_rows: usize,
}

impl Pages {
    pub(crate) fn new(config: CacheConfig) -> Result<Self> {
        if config.window == 0 {
            return Err(Error::Zero { what: "window" });
        }
        Ok(Self {
            config,
            page_size: 0,
            scale_frames: 0,
            frames: 0,
            pinned: Vec::new(),
            window: VecDeque::new(),
            free: Vec::new(),
            ever_used: 0,
            special_rows: 0,
        })
    }

    /// Frames cached since the video began.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Frames of the scale pass; 0 before it.
    pub(crate) fn scale_frames(&self) -> usize {
        self.scale_frames
    }

    /// Rows of a page; 0 before the first pass.
    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Frame pages used so far.
    pub(crate) fn frame_pages(&self) -> usize {
        self.ever_used
    }

    /// Checks a state that was loaded against that of the cache, `own`.
    pub(crate) fn check_restored(&self, own: &Self) -> Result<()> {
        if self.config != own.config {
            return Err(Error::Snapshot("it was made with other settings"));
        }
        let mut pages: Vec<u32> = self.pinned.iter().chain(&self.window).chain(&self.free).copied().collect();
        pages.sort_unstable();
        let each_page_once = pages.len() == self.ever_used && pages.into_iter().eq(0..self.ever_used as u32);
        let cached = self.pinned.len() + self.window.len();
        let left = self.frames.checked_sub(cached);
        let pinned = if self.config.pin_scale_frames { self.scale_frames } else { 0 };
        let consistent = each_page_once
            && self.pinned.len() == pinned
            && self.scale_frames <= self.frames
            && (self.scale_frames > 0) == (self.frames > 0)
            && (self.frames == 0 || self.page_size >= self.config.special_tokens.max(1))
            && left.and_then(|left| left.checked_mul(self.config.retained_rows())) == Some(self.special_rows);
        if consistent { Ok(()) } else { Err(Error::Snapshot("its page numbers contradict each other")) }
    }

    pub(crate) fn special_rows(&self) -> usize {
        self.special_rows
    }

    pub(crate) fn frame_pages_in_use(&self) -> usize {
        self.pinned.len() + self.window.len()
    }

    pub(crate) fn special_pages_in_use(&self) -> usize {
        if self.special_rows == 0 { 0 } else { self.special_rows.div_ceil(self.page_size) }
    }

    /// The most frame pages that this clip, or the one that `pass` starts, can ever use at once.
    pub(crate) fn most_frame_pages(&self, kind: PassKind) -> usize {
        self.config.most_frame_pages(if let PassKind::Scale(count) = kind { count } else { self.scale_frames })
    }

    /// Plans a pass of frames of `page_size` tokens. The state does not change.
    pub(crate) fn plan(&self, kind: PassKind, page_size: usize) -> Result<Plan> {
        let count = self.check(kind, page_size)?;

        let recycled = count.min(self.free.len());
        let ever_used = self.ever_used.saturating_add(count - recycled);
        // Page numbers are u32, as the kernels read them.
        let end = u32::try_from(ever_used).map_err(|_| Error::TooLong)?;
        let fresh = self.ever_used as u32..end;
        let mut pages = Vec::new();
        let refused = |_| Error::OutOfMemory { bytes: count.saturating_mul(size_of::<u32>()) };
        pages.try_reserve_exact(count).map_err(refused)?;
        pages.extend(self.free.iter().rev().take(recycled).copied().chain(fresh));

        let joins_window = if self.pins(kind) { &[] } else { pages.as_slice() };
        let leaving = (self.window.len() + joins_window.len()).saturating_sub(self.config.window);
        let mut retained = Vec::new();
        let mut special_rows = self.special_rows;
        for &page in self.window.iter().chain(joins_window).take(leaving) {
            self.retain(page, page_size, &mut special_rows, &mut retained).ok_or(Error::TooLong)?;
        }

        let (left, seen_special_rows) = match kind {
            PassKind::Keyframe => (leaving, special_rows),
            PassKind::Scale(_) | PassKind::Candidate => (0, self.special_rows),
        };
        let frames = self.pinned.iter().chain(self.window.iter().skip(left)).chain(&pages).copied().collect();
        let special = 0..seen_special_rows.div_ceil(page_size) as u32;
        // Frame pages are always full.
        let last_rows = if special.is_empty() { page_size } else { (seen_special_rows - 1) % page_size + 1 };
        let table = PageTable::new(frames, special.collect(), last_rows);
        Ok(Plan { kind, page_size, pages, table, retained, leaving, special_rows, ever_used })
    }

    /// Applies a plan that was made from this state.
    pub(crate) fn commit(&mut self, plan: Plan) {
        if let PassKind::Scale(count) = plan.kind {
            self.scale_frames = count;
        }
        self.page_size = plan.page_size;
        self.frames += plan.pages.len();
        self.free.truncate(self.free.len().saturating_sub(plan.pages.len()));
        self.ever_used = plan.ever_used;
        if self.pins(plan.kind) {
            self.pinned = plan.pages;
        } else {
            self.window.extend(plan.pages);
        }
        self.free.extend(self.window.drain(..plan.leaving));
        self.special_rows = plan.special_rows;
    }

    /// Clears the state for a new clip.
    pub(crate) fn reset(&mut self) {
        self.frames = 0;
        self.scale_frames = 0;
        self.pinned.clear();
        self.window.clear();
        self.free.clear();
        self.ever_used = 0;
        self.special_rows = 0;
    }

    /// The number of frames in the pass, if such a pass may begin now.
    fn check(&self, kind: PassKind, page_size: usize) -> Result<usize> {
        let special_tokens = self.config.special_tokens;
        match kind {
            PassKind::Scale(_) if self.frames > 0 => Err(Error::ScalePassNotFirst { frames: self.frames }),
            PassKind::Scale(0) => Err(Error::Zero { what: "number of scale frames" }),
            PassKind::Scale(_) if page_size == 0 => Err(Error::Zero { what: "page size" }),
            PassKind::Scale(_) if page_size < special_tokens => {
                Err(Error::NoRoomForSpecialTokens { page_size, special_tokens })
            }
            PassKind::Scale(count) => Ok(count),
            PassKind::Keyframe | PassKind::Candidate if self.frames == 0 => Err(Error::ScalePassMissing),
            PassKind::Keyframe | PassKind::Candidate if page_size != self.page_size => {
                Err(Error::PageSize { expected: self.page_size, got: page_size })
            }
            PassKind::Keyframe | PassKind::Candidate => Ok(1),
        }
    }

    fn pins(&self, kind: PassKind) -> bool {
        self.config.pin_scale_frames && matches!(kind, PassKind::Scale(_))
    }

    /// Appends the copies that retain the rows of `page`: two copies where the rows cross into a second special page.
    /// `None` when the numbers of special pages would overflow.
    fn retain(&self, page: u32, page_size: usize, end: &mut usize, copies: &mut Vec<Retained>) -> Option<()> {
        let mut row = 0;
        while row < self.config.retained_rows() {
            let target = Rows { page: u32::try_from(*end / page_size).ok()?, row: (*end % page_size) as u32 };
            let count = (self.config.retained_rows() - row).min(page_size - *end % page_size);
            copies.push(Retained { source: Rows { page, row: row as u32 }, target, count });
            row += count;
            *end = end.checked_add(count)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
