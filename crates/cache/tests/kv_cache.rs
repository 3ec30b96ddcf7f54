//! Any sequence of operations on a cache of real tensors against the rule of what a frame sees, written down as
//! plainly as possible.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use candle_core::{DType, Device, IndexOp, Tensor};
use periplus_cache::{CacheConfig, CacheStats, Error, KvCache, PageTable, Pass, Retention};
use periplus_kernels::pages::append;
use proptest::prelude::*;

/// Appends rows as they are.
fn append_rows(pool: &Tensor, page: usize, qkv: &Tensor, _: usize) -> candle_core::Result<()> {
    append(pool, page, 0, qkv)
}

const LAYERS: usize = 2;
const HEADS: usize = 2;
/// As published, but for a smaller window.
const CONFIG: CacheConfig =
    CacheConfig { window: 4, retention: Retention::All, pin_scale_frames: true, special_tokens: 6 };
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// A row of a frame: the frame's number, counted over all frames ever written, and the row within it.
type Row = (usize, usize);

/// The rule: a list of the frames cached, and all they ever had.
struct Naive {
    config: CacheConfig,
    page_size: usize,
    scale_frames: usize,
    frames: Vec<usize>,
    open: Option<Open>,
    next_frame: usize,
}

struct Open {
    pass: Pass,
    frames: Vec<usize>,
    written: [bool; LAYERS],
}

impl Naive {
    fn retained(&self) -> usize {
        match self.config.retention {
            Retention::All => self.config.special_tokens,
            Retention::Camera => 1,
            Retention::None => 0,
        }
    }

    /// Of the frames cached: those seen in full and those that left the window, oldest first.
    fn split(&self, frames: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let pinned = if self.config.pin_scale_frames { self.scale_frames.min(frames.len()) } else { 0 };
        let others = &frames[pinned..];
        let (left, recent) = others.split_at(others.len().saturating_sub(self.config.window));
        ([&frames[..pinned], recent].concat(), left.to_vec())
    }

    /// What the open frames see, in the order of the page table.
    fn visible(&self) -> Vec<Row> {
        let open = self.open.as_ref().unwrap();
        let all = [self.frames.as_slice(), &open.frames].concat();
        let (whole, left) = match open.pass {
            Pass::Scale(_) => (all, vec![]),
            Pass::Keyframe => self.split(&all),
            Pass::Candidate => {
                let (mut whole, left) = self.split(&self.frames);
                whole.extend(&open.frames);
                (whole, left)
            }
        };
        let rows = |frames: Vec<usize>, count: usize| {
            frames.into_iter().flat_map(move |frame| (0..count).map(move |row| (frame, row)))
        };
        rows(whole, self.page_size).chain(rows(left, self.retained())).collect()
    }

    fn begin(&mut self, pass: Pass, page_size: usize) -> bool {
        let count = match pass {
            Pass::Scale(count) => {
                if self.frames.is_empty() && page_size >= self.config.special_tokens {
                    count
                } else {
                    0
                }
            }
            Pass::Keyframe | Pass::Candidate => usize::from(!self.frames.is_empty() && page_size == self.page_size),
        };
        if self.open.is_some() || count == 0 {
            return false;
        }
        if pass == Pass::Scale(count) {
            self.page_size = page_size;
            self.scale_frames = count;
        }
        let frames = (self.next_frame..self.next_frame + count).collect();
        self.next_frame += count;
        self.open = Some(Open { pass, frames, written: [false; LAYERS] });
        true
    }

    fn write(&mut self, layer: usize) -> bool {
        let written = self.open.as_mut().and_then(|open| open.written.get_mut(layer));
        written.is_some_and(|written| !std::mem::replace(written, true))
    }

    fn commit(&mut self) -> bool {
        let complete = self.open.take_if(|open| open.written == [true; LAYERS]);
        complete.map(|open| self.frames.extend(open.frames)).is_some()
    }

    fn reset(&mut self) {
        self.frames.clear();
        self.open = None;
    }
}

/// Keys and values that say what they are, in numbers that bfloat16 holds exactly: each row is, for every head,
/// a key (frame % 128, frame / 128) and a value (row, 10 layer + head).
fn qkv(frames: &[usize], page_size: usize, layer: usize) -> Tensor {
    let mut values = Vec::new();
    for &frame in frames {
        for row in 0..page_size {
            values.extend([-1.0; 2 * HEADS]);
            values.extend([[frame % 128, frame / 128]; HEADS].as_flattened().iter().map(|&v| v as f32));
            values.extend((0..HEADS).flat_map(|head| [row as f32, (10 * layer + head) as f32]));
        }
    }
    Tensor::from_vec(values, (frames.len() * page_size, 3, HEADS, 2), &Device::Cpu).unwrap()
}

/// The rows that a page table names, in its order.
fn decode(cache: &KvCache, table: &PageTable, layer: usize) -> Vec<Row> {
    let pools = cache.pools(layer).unwrap();
    let frames = table.frames().iter().map(|page| (pools.frames, page));
    let special = table.special().iter().map(|page| (pools.special, page));
    let last = table.frames().len() + table.special().len() - 1;
    let mut rows = Vec::new();
    for (number, (pool, &page)) in frames.chain(special).enumerate() {
        let count = if number == last { table.last_rows() } else { pool.dim(2).unwrap() };
        let [keys, values] = [0, 1].map(|half| {
            let half = pool.i((page as usize, half, ..count)).unwrap().to_dtype(DType::F32).unwrap();
            half.to_vec3::<f32>().unwrap()
        });
        for (key, value) in keys.iter().zip(&values) {
            assert!(key.iter().all(|head| head == &key[0]));
            for (head, tag) in value.iter().enumerate() {
                assert_eq!(tag, &[value[0][0], (10 * layer + head) as f32]);
            }
            rows.push((key[0][0] as usize + 128 * key[0][1] as usize, value[0][0] as usize));
        }
    }
    rows
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    /// A whole pass: begin, write, and keep or drop.
    Frame {
        keyframe: bool,
        keep: bool,
        last_layer_first: bool,
    },
    Begin(Pass),
    BeginOfSize(Pass, usize),
    Write(usize),
    /// A row too few, too many heads, or a dtype that no kernel takes.
    WriteWrong(usize, usize),
    Commit,
    Rollback,
    Reset {
        page_size: usize,
    },
}

fn any_operation() -> impl Strategy<Value = Operation> {
    use Operation::{Begin, BeginOfSize, Commit, Frame, Reset, Rollback, Write, WriteWrong};
    let pass = || prop_oneof![(0..5_usize).prop_map(Pass::Scale), Just(Pass::Keyframe), Just(Pass::Candidate)];
    let size = prop_oneof![0..12_usize, Just(usize::MAX), Just(usize::MAX >> 8)];
    prop_oneof![
        12 => any::<[bool; 3]>().prop_map(|[keyframe, keep, last_layer_first]| {
            Frame { keyframe, keep, last_layer_first }
        }),
        4 => pass().prop_map(Begin),
        1 => (pass(), size).prop_map(|(pass, size)| BeginOfSize(pass, size)),
        4 => (0..=LAYERS).prop_map(Write),
        1 => (0..LAYERS, 0..3_usize).prop_map(|(layer, how)| WriteWrong(layer, how)),
        2 => Just(Commit),
        1 => Just(Rollback),
        1 => (1..12_usize).prop_map(|page_size| Reset { page_size }),
    ]
}

fn any_config() -> impl Strategy<Value = CacheConfig> {
    let retention = prop::sample::select(vec![Retention::All, Retention::Camera, Retention::None]);
    (1..5_usize, retention, any::<bool>(), 1..=6_usize).prop_map(
        |(window, retention, pin_scale_frames, special_tokens)| CacheConfig {
            window,
            retention,
            pin_scale_frames,
            special_tokens,
        },
    )
}

/// The cache and the rule side by side.
struct Pair {
    cache: KvCache,
    naive: Naive,
    scale_frames: usize,
    /// Of the next clip.
    page_size: usize,
    dtype: DType,
}

impl Pair {
    fn new(config: CacheConfig, scale_frames: usize, page_size: usize, dtype: DType) -> Self {
        let cache = KvCache::new(config, LAYERS, HEADS, 2, dtype, &Device::Cpu).unwrap();
        let frames = vec![];
        let naive = Naive { config, page_size: 0, scale_frames: 0, frames, open: None, next_frame: 1 };
        Self { cache, naive, scale_frames, page_size: page_size.max(config.special_tokens), dtype }
    }

    /// All that can be seen of the cache.
    fn observe(&self) -> (CacheStats, usize, Option<PageTable>, Vec<Vec<Row>>) {
        let table = self.cache.table().ok().cloned();
        let visible = self.naive.open.as_ref().map_or(vec![], |open| {
            let written = (0..LAYERS).filter(|&layer| open.written[layer]);
            written.map(|layer| decode(&self.cache, table.as_ref().unwrap(), layer)).collect()
        });
        (self.cache.stats(), self.cache.frames(), table, visible)
    }

    /// Runs an operation that the rule has allowed (and followed) or not; one that fails must change nothing.
    fn attempt(&mut self, allowed: bool, operation: impl FnOnce(&mut KvCache) -> Result<(), Error>) {
        if allowed {
            operation(&mut self.cache).unwrap();
        } else {
            let before = self.observe();
            operation(&mut self.cache).unwrap_err();
            assert_eq!(self.observe(), before);
        }
    }

    fn begin(&mut self, pass: Pass, page_size: usize) {
        // Of the sizes tried, no memory holds those above.
        let allowed = page_size <= 100 && self.naive.begin(pass, page_size);
        self.attempt(allowed, |cache| cache.begin(pass, page_size));
    }

    fn write(&mut self, layer: usize) {
        let open = self.naive.open.as_ref();
        let qkv = qkv(open.map_or(&[], |open| &open.frames), self.naive.page_size, layer);
        let allowed = self.naive.write(layer);
        self.attempt(allowed, |cache| cache.write(layer, &qkv, append_rows));
    }

    fn write_wrong(&mut self, layer: usize, how: usize) {
        let open = self.naive.open.as_ref();
        let qkv = qkv(open.map_or(&[1], |open| &open.frames), self.naive.page_size.max(1), layer);
        let wrong = match how {
            0 => qkv.narrow(0, 1, qkv.dim(0).unwrap() - 1),
            1 => Tensor::cat(&[&qkv, &qkv], 2),
            _ => qkv.to_dtype(DType::U8),
        };
        self.attempt(false, |cache| cache.write(layer, &wrong.unwrap(), append_rows));
    }

    fn commit(&mut self) {
        let allowed = self.naive.commit();
        self.attempt(allowed, KvCache::commit);
    }

    fn rollback(&mut self) {
        let allowed = self.naive.open.take().is_some();
        self.attempt(allowed, KvCache::rollback);
    }

    fn frame(&mut self, keyframe: bool, keep: bool, last_layer_first: bool) {
        if self.naive.open.is_some() {
            self.rollback();
        }
        let pass = match (self.naive.frames.is_empty(), keyframe) {
            (true, _) => Pass::Scale(self.scale_frames),
            (false, true) => Pass::Keyframe,
            (false, false) => Pass::Candidate,
        };
        let page_size = if self.naive.frames.is_empty() { self.page_size } else { self.naive.page_size };
        self.begin(pass, page_size);
        for layer in 0..LAYERS {
            self.write(if last_layer_first { LAYERS - 1 - layer } else { layer });
            self.check();
        }
        if keep { self.commit() } else { self.rollback() }
    }

    fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Frame { keyframe, keep, last_layer_first } => self.frame(keyframe, keep, last_layer_first),
            Operation::Begin(pass) => self.begin(pass, self.page_size),
            Operation::BeginOfSize(pass, page_size) => self.begin(pass, page_size),
            Operation::Write(layer) => self.write(layer),
            Operation::WriteWrong(layer, how) => self.write_wrong(layer, how),
            Operation::Commit => self.commit(),
            Operation::Rollback => self.rollback(),
            Operation::Reset { page_size } => {
                let before = self.cache.stats().bytes;
                self.cache.reset();
                self.naive.reset();
                assert_eq!(self.cache.stats().bytes, before);
                self.page_size = page_size.max(self.naive.config.special_tokens);
            }
        }
    }

    fn check(&self) {
        let (stats, frames, table, visible) = self.observe();
        assert_eq!(frames, self.naive.frames.len());
        assert_eq!(table.is_some(), self.naive.open.is_some());
        for rows in visible {
            assert_eq!(rows, self.naive.visible());
        }

        let (whole, left) = self.naive.split(&self.naive.frames);
        let page_size = self.naive.page_size.max(1);
        let special_rows = left.len() * self.naive.retained();
        let pages = stats.frame_pages_in_use + stats.frame_pages_free;
        let special_pages = stats.special_pages_in_use + stats.special_pages_free;
        assert_eq!(stats.frames, frames);
        assert_eq!(stats.frame_pages_in_use, whole.len());
        assert_eq!(stats.special_rows, special_rows);
        assert_eq!(stats.special_pages_in_use, special_rows.div_ceil(page_size));
        if frames > 0 {
            let row = 2 * HEADS * 2 * self.dtype.size_in_bytes();
            assert_eq!(stats.bytes, LAYERS * (pages + special_pages) * page_size * row);
        }
    }
}

proptest! {
    #[test]
    fn a_frame_sees_what_the_rule_says(
        config in any_config(),
        scale_frames in 1..6_usize,
        page_size in 1..10_usize,
        dtype in prop::sample::select(DTYPES.to_vec()),
        operations in prop::collection::vec(any_operation(), 1..80),
    ) {
        let mut pair = Pair::new(config, scale_frames, page_size, dtype);
        for operation in operations {
            pair.run(operation);
            pair.check();
        }
    }
}

#[test]
fn memory_follows_the_frames_and_stays_after_a_reset() {
    for dtype in DTYPES {
        let mut pair = Pair::new(CONFIG, 3, 9, dtype);
        assert_eq!(pair.cache.stats().bytes, 0);
        for _ in 0..200 {
            pair.frame(true, true, false);
            pair.check();
        }
        // Three pinned, four in the window, one for a frame that comes while another leaves.
        let full = pair.cache.stats();
        assert_eq!(full.frame_pages_in_use + full.frame_pages_free, 3 + 4 + 1);
        assert_eq!(full.special_rows, 6 * (199 - 4));

        pair.run(Operation::Reset { page_size: 9 });
        pair.frame(true, true, false);
        assert_eq!(pair.cache.stats().bytes, full.bytes);

        pair.run(Operation::Reset { page_size: 10 });
        pair.frame(true, true, false);
        let page = LAYERS * 2 * 10 * HEADS * 2 * dtype.size_in_bytes();
        assert_eq!(pair.cache.stats().bytes, 3 * page);
    }
}

#[test]
fn sizes_beyond_memory_are_an_error() {
    let mut pair = Pair::new(CONFIG, 1, 9, DType::F32);
    for page_size in [usize::MAX, usize::MAX >> 6, 1 << 50] {
        let error = pair.cache.begin(Pass::Scale(1), page_size).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    }
    assert_eq!(pair.cache.stats().bytes, 0);
    pair.frame(true, true, false);
    pair.check();
}

#[test]
fn a_cache_that_can_hold_nothing_is_refused() {
    let new = |config, layers, heads, head_dim, dtype| {
        KvCache::new(config, layers, heads, head_dim, dtype, &Device::Cpu).unwrap_err().to_string()
    };
    let no_window = CacheConfig { window: 0, ..CONFIG };
    assert_eq!(new(no_window, 1, 1, 1, DType::F32), "the window of the cache must be at least 1, not 0");
    assert_eq!(new(CONFIG, 0, 1, 1, DType::F32), "the number of layers of the cache must be at least 1, not 0");
    assert_eq!(new(CONFIG, 1, 0, 1, DType::F32), "the number of heads of the cache must be at least 1, not 0");
    assert_eq!(new(CONFIG, 1, 1, 0, DType::F32), "the head width of the cache must be at least 1, not 0");
    assert_eq!(new(CONFIG, 1, 1, 1, DType::U8), "the cache cannot store U8; use f32, bf16 or f16");
}

#[test]
fn a_wrong_call_says_which() {
    let mut cache = Pair::new(CONFIG, 1, 9, DType::F32).cache;
    let rows = qkv(&[1], 9, 0);
    assert!(matches!(cache.write(0, &rows, append_rows), Err(Error::NotOpen)));
    assert!(matches!(cache.commit(), Err(Error::NotOpen)));
    assert!(matches!(cache.rollback(), Err(Error::NotOpen)));
    assert!(matches!(cache.table(), Err(Error::NotOpen)));
    assert!(matches!(cache.pools(0), Err(Error::Empty)));

    cache.begin(Pass::Scale(1), 9).unwrap();
    assert!(matches!(cache.begin(Pass::Scale(1), 9), Err(Error::AlreadyOpen)));
    assert!(matches!(cache.write(2, &rows, append_rows), Err(Error::NoSuchLayer { layer: 2, layers: 2 })));
    assert!(matches!(cache.pools(2), Err(Error::NoSuchLayer { layer: 2, layers: 2 })));
    cache.write(0, &rows, append_rows).unwrap();
    assert!(matches!(cache.write(0, &rows, append_rows), Err(Error::WrittenTwice { layer: 0 })));
    assert!(matches!(cache.commit(), Err(Error::NotWritten { layer: 1 })));
    assert!(matches!(cache.write(1, &qkv(&[1], 8, 1), append_rows), Err(Error::Shape { .. })));
    cache.write(1, &rows, append_rows).unwrap();
    cache.commit().unwrap();
    assert_eq!(cache.frames(), 1);
}

#[cfg(target_os = "linux")]
mod little_memory {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Rows of a page of 32 MiB.
    const ROWS: usize = 4096;
    const PAGE: usize = 32 << 20;

    /// Fills the cache until there is no memory. Run by the test below, under a limit.
    #[test]
    #[ignore = "runs out of memory only under the limit that another test sets"]
    fn fill() {
        let limit: usize = std::env::var("PERIPLUS_TEST_LIMIT").unwrap().parse().unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let taken = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.strip_suffix("kB")).unwrap();
        let taken: usize = taken.trim().parse().unwrap();
        // Room for two pages of frames, a frame's queries, keys and values, and 20 pages of special tokens: 8 of them and 16 more are
        // too many, 8 and 9 can be held side by side.
        let room = 2 * PAGE + 2 * (3 * PAGE / 2) + 20 * PAGE;
        let ballast = Vec::<u8>::with_capacity(limit - taken * 1024 - room);

        let config =
            CacheConfig { window: 1, retention: Retention::All, pin_scale_frames: false, special_tokens: ROWS };
        let mut cache = KvCache::new(config, 1, 16, 64, DType::F32, &Device::Cpu).unwrap();
        let mut push = |frame: usize| {
            cache.begin(if frame == 0 { Pass::Scale(1) } else { Pass::Keyframe }, ROWS)?;
            let qkv = Tensor::full(frame as f32, (ROWS, 3, 16, 64), &Device::Cpu)?;
            cache.write(0, &qkv, append_rows)?;
            cache.commit()?;
            Ok(cache.stats().special_pages_in_use)
        };
        let mut held = 0;
        let error = (0..40).find_map(|frame| push(frame).map(|pages| held = pages).err()).unwrap();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert!((9..16).contains(&held), "{held} pages, {error}");
        let special = cache.pools(0).unwrap().special;
        for page in 0..held {
            let key = special.i((page, 0, ROWS - 1, 15, 63)).unwrap().to_scalar::<f32>().unwrap();
            assert_eq!(key.to_bits(), (page as f32).to_bits());
        }
        drop(ballast);
    }

    #[test]
    fn what_is_needed_is_held_where_twice_as_much_does_not_fit() {
        let limit = 4 << 20; // KiB
        let this = std::env::current_exe().unwrap();
        let ended = Command::new("sh")
            .args(["-c", &format!("ulimit -v {limit}; exec \"$0\" --ignored --exact little_memory::fill")])
            .arg(this)
            .env("PERIPLUS_TEST_LIMIT", (limit * 1024_usize).to_string())
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"));
    }
}
