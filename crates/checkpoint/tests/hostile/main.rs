//! Checkpoints and configurations that are made to do harm: no panic, no hang, and no more memory than ten times the file.

#![allow(clippy::unwrap_used)] // Of helpers too, not of tests only.

mod files;
mod fuzz;
mod memory;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use periplus_checkpoint::config::Config;
use periplus_checkpoint::{Weights, tensor_shapes};
use tempfile::TempDir;

use files::{archive, expanded, import, pytorch, safetensors, text};
use memory::most_held;

/// Bytes of memory for each byte of a file.
const TIMES: usize = 10;

/// Bytes of memory that even the smallest file may take: names of files, messages, the fixed parts of readers.
const FIXED: usize = 64 << 10;

/// Opens a file and reads one of its tensors, within the bounds on memory and time. The error, if there is one.
fn open(path: &Path, bytes: usize) -> Option<String> {
    let started = Instant::now();
    let (most, result) = most_held(|| {
        let weights = Weights::open_any(path, None, None)?;
        // Damage is an error of either kind.
        let _ = weights.check_sums();
        assert_eq!(weights.unexpected().filter(|name| weights.contains(name)).count(), 0);
        weights.get("aggregator.camera_token").map(drop)
    });
    assert!(most <= TIMES * bytes + FIXED, "{most} bytes for a file of {bytes}: {result:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?} for a file of {bytes} bytes", started.elapsed());
    result.err().map(|error| error.to_string())
}

/// As [`open`], with a file of these bytes. The file is called FILE in the error.
fn open_bytes(bytes: &[u8]) -> Option<String> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("some");
    fs::write(&path, bytes).unwrap();
    open(&path, bytes.len()).map(|error| error.replace(&path.display().to_string(), "FILE"))
}

const NO_ROOM: &str = "FILE is damaged: its pickle describes more than a file of its size can hold";

/// Every way to make many or large values of few bytes.
#[test]
fn dense_pickles() {
    let prefix =
        [&b"\x80\x02"[..], &import("torch._utils", "_rebuild_tensor_v2"), b"q\x01", &text("aggregator.x"), b"q\x02"]
            .concat();
    let long = [&b"X"[..], &60_000_u32.to_le_bytes(), &vec![b'n'; 60_000], b"q\x04"].concat();
    let storage =
        [&b"("[..], &text("storage"), &import("torch", "FloatStorage"), &text("0"), &text("cpu"), b"K\x08tQq\x05"]
            .concat();
    let sizes = [&b"("[..], &b"K\x01".repeat(64), b"tq\x06"].concat();
    let prefix = [prefix, long, storage, sizes].concat();
    let keys = |i: u32| [&b"X\x04\0\0\0"[..], format!("{i:04x}").as_bytes()].concat();
    let repeated = |part: &[u8]| part.repeat(200_000 / part.len());
    let numbered = |part: &[u8]| (0..20_000).flat_map(|i| [&keys(i), part].concat()).collect::<Vec<_>>();
    for (name, body) in [
        ("marks", repeated(b"(")),
        ("nones", repeated(b"N")),
        ("dictionaries", repeated(b"}")),
        ("tuples", repeated(b")\x85")),
        ("integers", repeated(b"K\x01")),
        ("texts", repeated(b"\x8c\x00")),
        ("memos", [&b"N"[..], &repeated(b"\x94")].concat()),
        ("imports", repeated(b"ca\nb\n")),
        ("calls", repeated(b"h\x01(h\x05K\x00h\x06h\x06tR0")),
        (
            "imports of one name",
            [&b"X\xff\0\0\0"[..], &[b'm'; 255], b"q\x07", &repeated(b"h\x07h\x07\x93)R0")].concat(),
        ),
        ("entries of one key", [&b"}("[..], &repeated(b"h\x04N"), b"u"].concat()),
        ("one tensor, many names", [&b"}(h\x01(h\x05K\x00h\x06h\x06tRq\x070"[..], &numbered(b"h\x07"), b"u"].concat()),
        ("dictionaries of dictionaries", [&b"}("[..], &numbered(b"}(h\x02Nu"), b"u"].concat()),
        (
            "many sets of weights",
            [&b"}(h\x01(h\x05K\x00h\x06h\x06tRq\x070"[..], &numbered(b"}(h\x02h\x07u"), b"u"].concat(),
        ),
    ] {
        let error = open_bytes(&pytorch(&[&prefix[..], &body, b"."].concat()));
        println!("{name}: {error:?}");
        assert!(error.is_some(), "{name}");
    }
    let error = open_bytes(&pytorch(&[&b"\x80\x02"[..], &repeated(b"}"), b"."].concat()));
    assert_eq!(error.unwrap(), NO_ROOM);
}

/// Values that are stored once and repeated by strides of 0.
#[test]
fn expanded_tensors() {
    let config = Config::from_json(files::CONFIG).unwrap();
    assert_eq!(open_bytes(&pytorch(&expanded(&config, "model", usize::MAX))), None);
    // The largest network that a configuration may describe, in a file of 30 kB.
    let large =
        files::CONFIG.replace("\"embed_dim\": 64, \"num_heads\": 1", "\"embed_dim\": 16384, \"num_heads\": 256");
    let error = open_bytes(&pytorch(&expanded(&Config::from_json(&large).unwrap(), "model", usize::MAX))).unwrap();
    assert!(error.starts_with("FILE is damaged: its tensor aggregator."), "{error}");
    assert!(error.contains("repeats the same values over and over"), "{error}");
    // Tensors that the network does not have may be as large as they like.
    let part = [text("aggregator.x"), files::tensor(16, &[1 << 30, 1 << 30], &[0, 0])].concat();
    let error = open_bytes(&pytorch(&[&b"\x80\x02}("[..], &part, b"u."].concat())).unwrap();
    assert!(error.starts_with("FILE lacks tensors of its network (1): aggregator.camera_token"), "{error}");
}

#[test]
fn dense_headers() {
    let tensors = |entry: &dyn Fn(usize) -> String| (0..4000).map(entry).collect::<Vec<_>>().join(",");
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    for (name, header) in [
        ("many tensors", tensors(&|i| format!(r#""{i:x}":{empty}"#))),
        ("many tensors of the network", tensors(&|i| format!(r#""aggregator.{i:x}":{empty}"#))),
        ("many sets of weights", tensors(&|i| format!(r#""{i:x}.aggregator.camera_token":{empty}"#))),
        ("one name", tensors(&|_| format!(r#""a":{empty}"#))),
        (
            "dimensions",
            format!(r#""a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,0]}}"#, vec!["0"; 100_000].join(",")),
        ),
        (
            "unknown keys",
            format!(r#""a":{{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":[{}]}}"#, vec!["0"; 100_000].join(",")),
        ),
        ("metadata", format!(r#""__metadata__":{{{}}}"#, tensors(&|i| format!(r#""{i:x}":"""#)))),
        ("nesting", format!(r#""a":{}"#, "[".repeat(100_000))),
    ] {
        let error = open_bytes(&safetensors(&format!("{{{header}}}"), 0));
        assert!(error.is_some(), "{name}");
    }
}

#[test]
fn dense_configurations() {
    let network = r#""aggregator.x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let many = |entry: &dyn Fn(usize) -> String| (0..10_000).map(entry).collect::<Vec<_>>().join(",");
    for (name, config) in [
        ("numbers", format!(r#"{{"x":[{}]}}"#, many(&|_| "0".into()))),
        ("objects", format!(r#"{{"x":[{}]}}"#, many(&|_| r#"{"":0}"#.into()))),
        ("a known key", format!(r#"{{"taps":[{}]}}"#, many(&|_| r#"{"":0}"#.into()))),
        ("keys", format!("{{{}}}", many(&|i| format!(r#""{i:x}":0"#)))),
        ("one key", format!("{{{}}}", many(&|_| r#""depth":4"#.into()))),
        ("blocks", r#"{"depth":1024,"vit_depth":1024,"camera_depth":1024}"#.into()),
    ] {
        let (most, _) = most_held(|| Config::from_json(&config).map(drop));
        assert!(most <= TIMES * config.len() + FIXED, "{name}: {most} bytes for {}", config.len());
        let file = safetensors(&format!(r#"{{"__metadata__":{{"config":{config:?}}},{network}}}"#), 0);
        assert!(open_bytes(&file).is_some(), "{name}");
    }
}

#[test]
fn dense_indices() {
    let many = |entry: &dyn Fn(usize) -> String| (0..20_000).map(entry).collect::<Vec<_>>().join(",");
    for (name, map) in [
        ("names of tensors", many(&|i| format!(r#""{i:x}":"""#))),
        ("names of files", many(&|i| format!(r#""":"{i:x}""#))),
        ("one file", many(&|_| r#""":"a""#.into())),
    ] {
        let error = open_bytes(format!(r#"{{"weight_map":{{{map}}}}}"#).as_bytes());
        assert!(error.is_some(), "{name}");
    }
}

#[test]
fn dense_directories() {
    let names: Vec<_> = (0..5000).map(|i| format!("{i:x}")).collect();
    let entries: Vec<_> = names.iter().map(|name| (&name[..], &b""[..])).collect();
    let error = open_bytes(&archive(&entries)).unwrap();
    assert!(error.contains("a zip archive without a pickle of PyTorch"), "{error}");
    // Entries that all have the header of the first, so that each takes its part of the directory alone.
    let whole = archive(&[("x/data.pkl", b"\x80\x02N."), ("x/1", &[7; 1000])]);
    let directory = whole.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let end = whole.len() - 22;
    let first = &whole[directory..][..46 + "x/data.pkl".len()];
    let second = &whole[directory + first.len()..end];
    let mut file = whole[..directory].to_vec();
    file.extend(first);
    for i in 0..5000_u32 {
        let mut entry = second.to_vec();
        entry[28..30].copy_from_slice(&8_u16.to_le_bytes());
        entry.truncate(46);
        entry.extend(format!("{i:08x}").as_bytes());
        file.extend(entry);
    }
    let size = (file.len() - directory) as u32;
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend([5001_u16.to_le_bytes(), 5001_u16.to_le_bytes()].concat());
    file.extend([size.to_le_bytes(), (directory as u32).to_le_bytes()].concat());
    file.extend([0, 0]);
    let error = open_bytes(&file).unwrap();
    assert!(error.ends_with("overlaps another"), "{error}");
    // The record that ends an archive, everywhere.
    let records = [&vec![0; 1 << 20][..], &b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".repeat(3000)].concat();
    assert!(open_bytes(&[b"PK\x03\x04", &records[..]].concat()).is_some());
}

/// A file that promises more memory than the system has is refused by a sentence.
#[cfg(unix)]
#[test]
fn sparse_files() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("some");
    let config = Config::from_json(files::CONFIG).unwrap();
    let token = tensor_shapes(&config)["aggregator.camera_token"].clone();
    assert_eq!(token, [1, 2, 1, 64]);
    let header = format!(
        r#"{{"aggregator.camera_token":{{"dtype":"F16","shape":[1,2,1,{0}],"data_offsets":[0,{1}]}}}}"#,
        1_u64 << 43,
        1_u64 << 45
    );
    fs::write(&path, safetensors(&header, 0)).unwrap();
    let length = (8 + header.len()) as u64 + (1 << 45);
    // Where the file system has no such files, there is nothing to test.
    if fs::File::options().write(true).open(&path).unwrap().set_len(length).is_ok() {
        assert!(Weights::open_any(&path, None, None).is_err());
    }
}
