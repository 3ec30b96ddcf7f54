//! Fuzzing: valid files, changed at random. Every run follows from its number, so that one that fails can be repeated.
//!
//! `PERIPLUS_FUZZ_RUNS` is the number of runs of each test, `PERIPLUS_FUZZ_FIRST` the number of the first.

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use periplus_checkpoint::config::Config;
use tempfile::TempDir;

use crate::files::{self, archive, expanded, pytorch, whole_safetensors};
use crate::memory::most_held;
use crate::{FIXED, TIMES, open};

/// Runs of each test where nobody asks for more.
const RUNS: u64 = 2000;

/// Numbers that follow from a seed: splitmix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % end.max(1) as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// A range within `length`, mostly a short one.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length);
        let most = if self.below(4) == 0 { length - start } else { (length - start).min(16) };
        start..start + self.below(most + 1)
    }

    /// Changes a part of `bytes` a few times: bits, bytes, parts that are removed, doubled, moved or replaced by `words`.
    fn mutate(&mut self, bytes: &mut Vec<u8>, part: std::ops::Range<usize>, words: &[&[u8]]) {
        let mut inner = bytes[part.clone()].to_vec();
        for _ in 0..=self.below(5) {
            let range = self.range(inner.len());
            match self.below(8) {
                _ if inner.is_empty() => inner.extend(self.of(words)),
                0 => inner[range.start] ^= 1 << self.below(8),
                1 => inner[range.start] = self.below(256) as u8,
                2 => drop(inner.drain(range)),
                3 => {
                    let copy = inner[range].to_vec();
                    let at = self.below(inner.len());
                    inner.splice(at..at, copy.repeat(1 + self.below(3)));
                }
                4 => {
                    let number = self.of(&[&0_u64, &1, &0x7f, &0xff, &0xffff, &0x7fff_ffff, &0xffff_ffff, &u64::MAX]);
                    let width = [1, 2, 4, 8][self.below(4)].min(inner.len() - range.start);
                    inner[range.start..][..width].copy_from_slice(&number.to_le_bytes()[..width]);
                }
                5 => inner.truncate(range.start),
                6 => drop(inner.splice(range.start..range.start, self.of(words).iter().copied())),
                _ => drop(inner.splice(range, self.of(words).iter().copied())),
            }
        }
        bytes.splice(part, inner);
    }
}

/// Runs a test as often as it is asked for, with random numbers that follow from the number of the run.
fn runs(test: impl Fn(&mut Random)) {
    let setting = |name: &str, default| env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, count) = (setting("PERIPLUS_FUZZ_FIRST", 0), setting("PERIPLUS_FUZZ_RUNS", RUNS));
    for run in first..first + count {
        let result = catch_unwind(AssertUnwindSafe(|| test(&mut Random(run << 32))));
        if let Err(panic) = result {
            println!("in run {run}; repeat it with PERIPLUS_FUZZ_FIRST={run} PERIPLUS_FUZZ_RUNS=1");
            resume_unwind(panic);
        }
    }
}

/// Changes a part of files and opens them.
fn open_changed(seeds: &[(Vec<u8>, std::ops::Range<usize>)], words: &[&[u8]]) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("some");
    for (whole, _) in seeds {
        // Whole, all are read to their ends, whether they hold the entire network or a part of it.
        fs::write(&path, whole).unwrap();
        let error = open(&path, whole.len());
        assert!(error.as_ref().is_none_or(|error| error.contains("lacks tensors of its network")), "{error:?}");
    }
    runs(|random| {
        // The first seeds are large, and the first one slow.
        let (whole, part) = &seeds[if random.below(32) == 0 { 0 } else { random.below(seeds.len() - 1) + 1 }];
        let mut bytes = whole.clone();
        random.mutate(&mut bytes, part.clone(), words);
        fs::write(&path, &bytes).unwrap();
        open(&path, bytes.len());
    });
}

const JSON: [&[u8]; 24] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"0",
    b"-1",
    b"1e999",
    b"18446744073709551615",
    b"null",
    b"true",
    b"\"a\"",
    b"\"depth\"",
    b"\"shape\"",
    b"\"F32\"",
    b"\"I64\"",
    b"\"__metadata__\"",
    b"\"config\"",
    b"\\u0000",
    b"\xff",
    b"[[[[[[[[",
];

#[test]
fn safetensors() {
    let seed = |prefix, tensors| {
        let whole = whole_safetensors(prefix, tensors);
        let header = u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
        (whole, 0..8 + header)
    };
    open_changed(&[seed("", usize::MAX), seed("", 3), seed("model.", 1), seed("module._orig_mod.", 6)], &JSON);
}

#[test]
fn zip_directory() {
    let config = Config::from_json(files::CONFIG).unwrap();
    let pickle = expanded(&config, "model", 3);
    let names: Vec<_> = (0..40).map(|i| format!("archive/data/{i}")).collect();
    let entries = names.iter().map(|name| (&name[..], &[0_u8; 64][..]));
    let entries: Vec<_> = [("archive/data.pkl", &pickle[..])].into_iter().chain(entries).collect();
    let seed = |whole: Vec<u8>| {
        let directory = whole.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        let part = directory..whole.len();
        (whole, part)
    };
    let whole = pytorch(&pickle);
    let headers = (whole.clone(), 0..whole.len());
    let words: [&[u8]; 8] = [
        b"PK\x01\x02",
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"PK\x06\x06",
        b"PK\x06\x07",
        b"\0\0\0\0",
        b"\x01\0\x10\0",
        b"data.pkl",
    ];
    open_changed(&[seed(archive(&entries)), seed(whole), headers], &words);
}

#[test]
fn pickles() {
    let config = Config::from_json(files::CONFIG).unwrap();
    let seed = |tensors| {
        let pickle = expanded(&config, "model", tensors);
        let whole = pytorch(&pickle);
        let start = whole.windows(pickle.len()).position(|window| window == pickle).unwrap();
        (whole, pickle, start)
    };
    let words: [&[u8]; 44] = [
        b"(",
        b")",
        b"}",
        b"]",
        b"N",
        b"K\x02",
        b"\x8c\x01a",
        b"\x8c\x17aggregator.camera_token",
        b"q\x00",
        b"q\x01",
        b"h\x00",
        b"h\x01",
        b"\x85",
        b"\x86",
        b"\x87",
        b"t",
        b"l",
        b"d",
        b"s",
        b"u",
        b"a",
        b"e",
        b"b",
        b"0",
        b"2",
        b"Q",
        b"R",
        b"\x81",
        b"\x92",
        b"\x93",
        b"\x94",
        b"\x95",
        b".",
        b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"J\xff\xff\xff\xff",
        b"G",
        b"X",
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ctorch._utils\n_rebuild_tensor_v3\n",
        b"ctorch._utils\n_rebuild_parameter\n",
        b"ctorch._tensor\n_rebuild_from_type_v2\n",
        b"ctorch\nFloatStorage\n",
        b"ccollections\nOrderedDict\n",
        b"cos\nsystem\n",
    ];
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("some");
    let seeds = [seed(usize::MAX), seed(1), seed(3), seed(10)];
    runs(|random| {
        // The archive is made anew, so that the pickle may have any length.
        let (_, pickle, _) = &seeds[if random.below(32) == 0 { 0 } else { 1 + random.below(3) }];
        let mut pickle = pickle.clone();
        let all = 0..pickle.len();
        random.mutate(&mut pickle, all, &words);
        let bytes = pytorch(&pickle);
        fs::write(&path, &bytes).unwrap();
        open(&path, bytes.len());
    });
}

#[test]
fn configurations() {
    runs(|random| {
        let mut bytes = files::CONFIG.as_bytes().to_vec();
        let all = 0..bytes.len();
        random.mutate(&mut bytes, all, &JSON);
        let text = String::from_utf8_lossy(&bytes);
        let (most, result) = most_held(|| Config::from_json(&text));
        assert!(most <= TIMES * text.len() + FIXED, "{most} bytes for {text}: {result:?}");
        if let Ok(config) = result {
            assert_eq!(Config::from_json(&config.to_json()).unwrap(), config);
        }
    });
}

#[test]
fn indices() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("index.json");
    fs::write(folder.path().join("a.safetensors"), whole_safetensors("", 2)).unwrap();
    fs::write(folder.path().join("b.safetensors"), whole_safetensors("", 3)).unwrap();
    let seed = br#"{"metadata": {"total_size": 1}, "weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}"#;
    runs(|random| {
        let mut bytes = seed.to_vec();
        random.mutate(&mut bytes, 0..seed.len(), &JSON);
        fs::write(&path, &bytes).unwrap();
        // The shards count, too.
        open(&path, bytes.len() + (64 << 10));
    });
}
