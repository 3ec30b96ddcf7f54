//! Mutated files of every format through the reader of pictures: no panic, no hang, and bounded memory.
//!
//! `cargo test --release -p periplus-frames --test fuzz -- RUNS [SEED]`; without RUNS, a few for every test run.
#![allow(clippy::unwrap_used, unsafe_code)] // a test; an allocator that counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use periplus_frames::{MAX_PICTURE_BYTES, SampleBits, TimestampList, decode_with_warnings, used_sample_bits};

/// Counts the bytes that are allocated.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The run that goes on, from 1.
static RUN: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    // Zeroed memory of the system is not touched before it is used.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bound on memory: of a decoder's copies, each of at most the largest picture.
const MOST_MEMORY: usize = 4 * MAX_PICTURE_BYTES as usize;

/// The bound on time for one file.
const MOST_TIME: Duration = Duration::from_secs(20);

const RUNS_OF_A_TEST: u64 = 2000;

/// xorshift64* (Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(6) {
        // Headers are short and matter most.
        let end = if random.below(2) == 0 { bytes.len().min(300) } else { bytes.len() };
        let at = random.below(end);
        match random.below(7) {
            0 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 if at + 4 <= bytes.len() => {
                let value = [0, 1, 0xFF, 0xFFFF, u32::MAX, 0x7FFF_FFFF, 0x1_0000][random.below(7)];
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            3 if at + 2 <= bytes.len() => bytes[at..at + 2].copy_from_slice(&(random.next() as u16).to_be_bytes()),
            4 => bytes.truncate(random.below(bytes.len() + 1)),
            5 if !bytes.is_empty() => {
                let length = random.below(32).min(bytes.len() - at);
                let copy = bytes[at..at + length].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            6 if !bytes.is_empty() => drop(bytes.drain(at..(at + random.below(32)).min(bytes.len()))),
            _ => {}
        }
    }
    bytes
}

fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<u64>().ok());
    let (runs, seed) = (numbers.next().unwrap_or(RUNS_OF_A_TEST), numbers.next().unwrap_or(1));
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut seeds = vec![b"# t\n1305031102.175304 rgb/a.png\n1403636579763555584,b.png\n".to_vec()];
    for folder in [data.join("kinds"), data.join("images"), data] {
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let is_seed = |path: &Path| path.is_file() && !path.to_string_lossy().contains("expected");
        let files = paths.iter().filter(|path| is_seed(path)).map(|path| std::fs::read(path).unwrap());
        // Small files, so that many runs are quick.
        seeds.extend(files.filter(|contents| contents.len() < 100_000));
    }
    // A run that never ends is seen from here.
    std::thread::spawn(|| {
        let (mut run, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = RUN.load(Relaxed);
            if now != run {
                (run, since) = (now, Instant::now());
            } else if since.elapsed() > MOST_TIME {
                eprintln!("run {run} takes more than {MOST_TIME:?}");
                std::process::exit(1);
            }
        }
    });
    let (mut read, mut failed, start) = (0_u64, 0_u64, Instant::now());
    for run in 0..runs {
        RUN.store(run as usize + 1, Relaxed);
        // Every run has a seed of its own, so that one alone can be repeated.
        let mut random = Random((seed << 40 | run).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.next();
        let chosen = random.below(seeds.len());
        let contents = mutate(&seeds[chosen], &mut random);
        MOST.store(NOW.load(Relaxed), Relaxed);
        let before = NOW.load(Relaxed);
        let bits = SampleBits::new(8 + random.below(9) as u8).unwrap();
        let result = std::panic::catch_unwind(|| {
            let _ = std::str::from_utf8(&contents).map(TimestampList::parse);
            let _ = used_sample_bits(&contents);
            decode_with_warnings(&contents, bits).is_ok()
        });
        let memory = MOST.load(Relaxed) - before;
        let wrong = match result {
            Err(_) => Some("panics".to_owned()),
            Ok(_) if memory > MOST_MEMORY => Some(format!("takes {memory} bytes")),
            Ok(is_read) => {
                read += u64::from(is_read);
                None
            }
        };
        if let Some(wrong) = wrong {
            failed += 1;
            let path = std::env::temp_dir().join(format!("periplus-fuzz-{seed}-{run}"));
            std::fs::write(&path, &contents).unwrap();
            eprintln!("run {run} of seed {seed} {wrong}: {}", path.display());
        }
    }
    println!("{runs} runs in {:.0?}: {read} pictures read, {failed} failures", start.elapsed());
    std::process::exit(i32::from(failed > 0));
}
