//! Any sequence of operations on a cache of real tensors against the rule of what a frame sees, written down as
//! plainly as possible.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use candle_core::{DType, Device, IndexOp, Tensor};
use periplus_cache::{CacheConfig, Error, KvCache, OpenPass, PassKind, Retention};
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

/// The rule, written plainly: the list of the frames cached.
struct Naive {
    config: CacheConfig,
    page_size: usize,
    scale_frames: usize,
    frames: Vec<usize>,
    next_frame: usize,
}

/// An open pass by the rule.
struct Open {
    kind: PassKind,
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
    fn visible(&self, open: &Open) -> Vec<Row> {
        let all = [self.frames.as_slice(), &open.frames].concat();
        let (whole, left) = match open.kind {
            PassKind::Scale(_) => (all, vec![]),
            PassKind::Keyframe => self.split(&all),
            PassKind::Candidate => {
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

    /// The frames of a pass, if it may begin.
    fn begin(&mut self, kind: PassKind, page_size: usize) -> Option<Open> {
        let count = match kind {
            PassKind::Scale(count) if self.frames.is_empty() && page_size >= self.config.special_tokens => count,
            PassKind::Scale(_) => 0,
            PassKind::Keyframe | PassKind::Candidate => {
                usize::from(!self.frames.is_empty() && page_size == self.page_size)
            }
        };
        if count == 0 {
            return None;
        }
        if let PassKind::Scale(count) = kind {
            self.page_size = page_size;
            self.scale_frames = count;
        }
        let frames = (self.next_frame..self.next_frame + count).collect();
        self.next_frame += count;
        Some(Open { kind, frames, written: [false; LAYERS] })
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

/// The rows that a pass sees in a layer, in the order of its page table.
fn decode(pass: &OpenPass, layer: usize) -> Vec<Row> {
    let (pools, table) = (pass.pools(layer).unwrap(), pass.table());
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

#[derive(Debug, Clone)]
enum Operation {
    /// A pass that writes every layer, in this order or the reverse.
    Frame { keyframe: bool, keep: bool, last_layer_first: bool },
    /// Any pass, of frames of the right size or of another.
    Pass { kind: PassKind, page_size: Option<usize>, writes: Vec<Write>, keep: bool },
    /// The next video.
    Reset { page_size: usize },
    /// Saves the state and restores it into a new cache, which goes on.
    Restore,
}

#[derive(Debug, Clone, Copy)]
enum Write {
    Layer(usize),
    /// A row too few, too many heads, or a dtype that no kernel takes.
    Wrong(usize, usize),
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let kind = prop_oneof![(0..5_usize).prop_map(PassKind::Scale), Just(PassKind::Keyframe), Just(PassKind::Candidate)];
    let size = prop_oneof![0..12_usize, Just(usize::MAX), Just(usize::MAX >> 8)];
    let write = prop_oneof![
        4 => (0..=LAYERS).prop_map(Write::Layer),
        1 => (0..LAYERS, 0..3_usize).prop_map(|(layer, how)| Write::Wrong(layer, how)),
    ];
    let writes = prop::collection::vec(write, 0..6);
    prop_oneof![
        12 => any::<[bool; 3]>().prop_map(|[keyframe, keep, last_layer_first]| {
            Operation::Frame { keyframe, keep, last_layer_first }
        }),
        4 => (kind, prop::option::weighted(0.2, size), writes, any::<bool>()).prop_map(|(kind, page_size, writes, keep)| {
            Operation::Pass { kind, page_size, writes, keep }
        }),
        1 => (1..12_usize).prop_map(|page_size| Operation::Reset { page_size }),
        1 => Just(Operation::Restore),
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
        let naive = Naive { config, page_size: 0, scale_frames: 0, frames: vec![], next_frame: 1 };
        Self { cache, naive, scale_frames, page_size: page_size.max(config.special_tokens), dtype }
    }

    /// The size of the frames that may come next.
    fn next_page_size(&self) -> usize {
        if self.naive.frames.is_empty() { self.page_size } else { self.naive.page_size }
    }

    fn pass(&mut self, kind: PassKind, page_size: usize, writes: &[Write], keep: bool) {
        // Of the sizes tried, no memory holds those above.
        let open = if page_size <= 100 { self.naive.begin(kind, page_size) } else { None };
        let before = (self.cache.stats(), self.cache.record());
        let Some(mut open) = open else {
            self.cache.begin(kind, page_size).unwrap_err();
            assert_eq!((self.cache.stats(), self.cache.record()), before);
            return;
        };
        let mut pass = self.cache.begin(kind, page_size).unwrap();
        for &write in writes {
            match write {
                Write::Layer(layer) => {
                    let new = open.written.get_mut(layer).is_some_and(|written| !std::mem::replace(written, true));
                    let rows = qkv(&open.frames, page_size, layer);
                    assert_eq!(pass.write(layer, &rows, append_rows).is_ok(), new, "{layer}");
                }
                Write::Wrong(layer, how) => {
                    let rows = qkv(&open.frames, page_size, layer);
                    let wrong = match how {
                        0 => rows.narrow(0, 1, rows.dim(0).unwrap() - 1),
                        1 => Tensor::cat(&[&rows, &rows], 2),
                        _ => rows.to_dtype(DType::U8),
                    };
                    pass.write(layer, &wrong.unwrap(), append_rows).unwrap_err();
                }
            }
            for layer in (0..LAYERS).filter(|&layer| open.written[layer]) {
                assert_eq!(decode(&pass, layer), self.naive.visible(&open));
            }
        }
        let kept = keep && pass.commit().is_ok();
        assert_eq!(kept, keep && open.written == [true; LAYERS]);
        if kept {
            self.naive.frames.extend(open.frames);
        } else {
            assert_eq!(self.cache.record(), before.1, "a rollback leaves no trace");
        }
    }

    fn frame(&mut self, keyframe: bool, keep: bool, last_layer_first: bool) {
        let kind = match (self.naive.frames.is_empty(), keyframe) {
            (true, _) => PassKind::Scale(self.scale_frames),
            (false, true) => PassKind::Keyframe,
            (false, false) => PassKind::Candidate,
        };
        let mut layers: Vec<_> = (0..LAYERS).map(Write::Layer).collect();
        if last_layer_first {
            layers.reverse();
        }
        self.pass(kind, self.next_page_size(), &layers, keep);
    }

    fn run(&mut self, operation: &Operation) {
        match operation {
            Operation::Frame { keyframe, keep, last_layer_first } => self.frame(*keyframe, *keep, *last_layer_first),
            Operation::Pass { kind, page_size, writes, keep } => {
                self.pass(*kind, page_size.unwrap_or(self.next_page_size()), writes, *keep);
            }
            Operation::Reset { page_size } => {
                let before = self.cache.stats().bytes;
                self.cache.reset();
                self.naive.frames.clear();
                assert_eq!(self.cache.stats().bytes, before);
                self.page_size = *page_size.max(&self.naive.config.special_tokens);
            }
            Operation::Restore => {
                let json = serde_json::to_string(&self.cache.record()).unwrap();
                let tensors = self.cache.tensors().unwrap().into_iter().collect();
                let mut cache = KvCache::new(self.naive.config, LAYERS, HEADS, 2, self.dtype, &Device::Cpu).unwrap();
                cache.restore(serde_json::from_str(&json).unwrap(), &tensors).unwrap();
                self.cache = cache;
            }
        }
    }

    fn check(&self) {
        let (stats, frames) = (self.cache.stats(), self.cache.frames());
        assert_eq!(frames, self.naive.frames.len());

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
            pair.run(&operation);
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

        pair.run(&Operation::Reset { page_size: 9 });
        pair.frame(true, true, false);
        assert_eq!(pair.cache.stats().bytes, full.bytes);

        pair.run(&Operation::Reset { page_size: 10 });
        pair.frame(true, true, false);
        let page = LAYERS * 2 * 10 * HEADS * 2 * dtype.size_in_bytes();
        assert_eq!(pair.cache.stats().bytes, 3 * page);
    }
}

#[test]
fn sizes_beyond_memory_are_an_error() {
    let mut pair = Pair::new(CONFIG, 1, 9, DType::F32);
    for page_size in [usize::MAX, usize::MAX >> 6, 1 << 50] {
        let error = pair.cache.begin(PassKind::Scale(1), page_size).unwrap_err();
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
    assert!(matches!(cache.pools(0), Err(Error::Empty)));

    let mut pass = cache.begin(PassKind::Scale(1), 9).unwrap();
    assert!(matches!(pass.write(2, &rows, append_rows), Err(Error::NoSuchLayer { layer: 2, layers: 2 })));
    assert!(matches!(pass.pools(2), Err(Error::NoSuchLayer { layer: 2, layers: 2 })));
    pass.write(0, &rows, append_rows).unwrap();
    assert!(matches!(pass.write(0, &rows, append_rows), Err(Error::WrittenTwice { layer: 0 })));
    assert!(matches!(pass.write(1, &qkv(&[1], 8, 1), append_rows), Err(Error::Shape { .. })));
    assert!(matches!(pass.commit(), Err(Error::NotWritten { layer: 1 })));
    assert_eq!(cache.frames(), 0);
}

#[test]
fn a_snapshot_that_does_not_fit_is_refused() {
    let mut pair = Pair::new(CONFIG, 2, 9, DType::F32);
    for _ in 0..10 {
        pair.frame(true, true, false);
    }
    let (record, tensors) = (pair.cache.record(), pair.cache.tensors().unwrap().into_iter().collect());
    let new = |config| KvCache::new(config, LAYERS, HEADS, 2, DType::F32, &Device::Cpu).unwrap();
    let refused = |config, record, tensors: &_| {
        let mut cache = new(config);
        let error = cache.restore(record, tensors).unwrap_err();
        assert_eq!((cache.frames(), cache.stats().bytes), (0, 0), "unchanged");
        error.to_string()
    };
    new(CONFIG).restore(record.clone(), &tensors).unwrap();
    assert!(refused(CacheConfig { window: 5, ..CONFIG }, record.clone(), &tensors).contains("other settings"));

    let mut fewer: std::collections::HashMap<_, _> = tensors.clone();
    fewer.remove("special_pages.1").unwrap();
    assert!(refused(CONFIG, record.clone(), &fewer).contains("a pool is missing"));
    let mut smaller = tensors.clone();
    smaller.insert("frame_pages.0".into(), tensors["frame_pages.0"].narrow(3, 0, 1).unwrap());
    assert!(refused(CONFIG, record.clone(), &smaller).contains("another shape"));

    let json = serde_json::to_value(&record).unwrap();
    for (key, value) in [("ever_used", 3), ("frames", 9), ("scale_frames", 1), ("special_rows", 0), ("page_size", 7)] {
        let mut wrong = json.clone();
        wrong[key] = value.into();
        let message = refused(CONFIG, serde_json::from_value(wrong).unwrap(), &tensors);
        assert!(message.contains("contradict") || message.contains("shape"), "{key}: {message}");
    }
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
            let mut pass = cache.begin(if frame == 0 { PassKind::Scale(1) } else { PassKind::Keyframe }, ROWS)?;
            let qkv = Tensor::full(frame as f32, (ROWS, 3, 16, 64), &Device::Cpu)?;
            pass.write(0, &qkv, append_rows)?;
            pass.commit()?;
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
