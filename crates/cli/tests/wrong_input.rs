//! Whatever is wrong with the input: one clear line, the right exit code, no panic.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Scratch, periplus, run, stream};
use image::RgbImage;

/// The one line that `command` says when it ends with `code`; other lines, if any, are of the run before it went wrong.
fn complaint(command: &mut Command, code: i32) -> String {
    let ended = run(command.arg("--quiet"));
    assert_eq!(ended.code, code, "{}", ended.stderr);
    assert_eq!(ended.stdout, "");
    let mut lines: Vec<_> = ended.stderr.lines().collect();
    // So that a run that goes well so far has no results to write.
    lines.retain(|line| !line.starts_with("warning: nothing will be kept"));
    assert!(lines.len() == 1 && lines[0].starts_with("error: "), "{}", ended.stderr);
    assert!(!lines[0].contains("panicked") && !lines[0].contains("Caused by"), "{}", ended.stderr);
    lines[0].to_owned()
}

fn assert_names(complaint: &str, words: &[&str]) {
    for word in words {
        assert!(complaint.contains(word), "{word:?} is not in {complaint:?}");
    }
}

#[test]
fn no_such_folder() {
    let scratch = Scratch::new();
    let said = complaint(&mut stream(&scratch.path("nowhere"), &scratch.tiny_weights()), 1);
    assert_names(&said, &["nowhere", "no folder"]);
}

#[test]
fn a_folder_without_pictures() {
    let scratch = Scratch::new();
    let folder = scratch.path("empty");
    fs::create_dir(&folder).unwrap();
    let weights = scratch.tiny_weights();
    assert_names(&complaint(&mut stream(&folder, &weights), 1), &["empty", "no pictures", "png"]);
    scratch.write("empty/notes.txt", "not a picture");
    assert_names(&complaint(&mut stream(&folder, &weights), 1), &["no pictures"]);
}

#[test]
fn a_file_in_place_of_a_folder() {
    let scratch = Scratch::new();
    let file = scratch.write("clip.txt", "");
    assert_names(&complaint(&mut stream(&file, &scratch.tiny_weights()), 1), &["clip.txt", "not a folder"]);
}

#[test]
fn one_picture_is_a_clip() {
    let scratch = Scratch::new();
    let ended = run(stream(&scratch.pictures("one", 1), &scratch.tiny_weights()).arg("--json"));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 1);
}

#[test]
fn fewer_frames_than_scale_frames() {
    let scratch = Scratch::new();
    let mut command = stream(&scratch.pictures("two", 2), &scratch.tiny_weights());
    let ended = run(command.args(["--json", "--quiet", "--scale-frames", "9"]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 2);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert_names(&ended.stderr, &["warning: ", "2 frames", "9 scale frames"]);
}

#[test]
fn a_truncated_picture() {
    let scratch = Scratch::new();
    let folder = scratch.pictures("clip", 5);
    let whole = fs::read(folder.join("frame3.png")).unwrap();
    fs::write(folder.join("frame3.png"), &whole[..whole.len() / 2]).unwrap();
    let said = complaint(&mut stream(&folder, &scratch.tiny_weights()), 1);
    assert_names(&said, &["frame3.png", "cut short"]);
}

#[test]
fn a_text_file_named_png() {
    let scratch = Scratch::new();
    let folder = scratch.pictures("clip", 5);
    scratch.write("clip/frame4.png", "Dear diary,\ntoday I took a picture.\n");
    let said = complaint(&mut stream(&folder, &scratch.tiny_weights()), 1);
    assert_names(&said, &["frame4.png", "a text"]);
}

#[test]
fn a_picture_of_20000_x_20000_pixels() {
    let scratch = Scratch::new();
    let folder = scratch.pictures("clip", 1);
    // The size is what the header says; it is refused before any pixel is read.
    let mut png = fs::read(folder.join("frame0.png")).unwrap();
    let header = 16..24;
    png[header].copy_from_slice(&[0, 0, 0x4e, 0x20, 0, 0, 0x4e, 0x20]);
    let checksum = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&checksum.to_be_bytes());
    fs::write(folder.join("frame0.png"), png).unwrap();
    let said = complaint(&mut stream(&folder, &scratch.tiny_weights()), 1);
    assert_names(&said, &["frame0.png", "20000 x 20000", "scale it down"]);
}

/// The checksum of PNG chunks.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[test]
fn a_picture_of_another_size_than_the_first() {
    let scratch = Scratch::new();
    let folder = scratch.pictures("clip", 3);
    RgbImage::new(80, 56).save(folder.join("frame2.png")).unwrap();
    let said = complaint(&mut stream(&folder, &scratch.tiny_weights()), 1);
    assert_names(&said, &["frame2.png", "80 x 56", "70 x 56"]);
}

#[test]
fn nothing_but_bad_pictures() {
    let scratch = Scratch::new();
    let folder = scratch.path("clip");
    scratch.write("clip/a.png", "one");
    scratch.write("clip/b.png", "two");
    let said = complaint(stream(&folder, &scratch.tiny_weights()).args(["--on-bad-frame", "skip"]), 1);
    assert_names(&said, &["no frame", "a.png"]);
}

#[test]
fn no_such_checkpoint() {
    let scratch = Scratch::new();
    let said = complaint(&mut stream(&scratch.pictures("clip", 1), &scratch.path("lost.safetensors")), 1);
    assert_names(&said, &["lost.safetensors"]);
}

#[test]
fn a_checkpoint_cut_in_the_middle() {
    let scratch = Scratch::new();
    let weights = scratch.tiny_weights();
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    assert_names(&complaint(&mut stream(&scratch.pictures("clip", 1), &weights), 1), &["tiny.safetensors", "cut off"]);
}

#[test]
fn an_absurd_safetensors_header() {
    let scratch = Scratch::new();
    let frames = scratch.pictures("clip", 1);
    for (name, header) in [("length", u64::MAX.to_le_bytes().to_vec()), ("json", b"\x04\0\0\0\0\0\0\0{{{{".to_vec())] {
        let weights = scratch.write(&format!("{name}.safetensors"), header);
        assert_names(&complaint(&mut stream(&frames, &weights), 1), &[&format!("{name}.safetensors")]);
    }
    let shape = r#"{"aggregator.x":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,4]}}"#;
    let mut contents = (shape.len() as u64).to_le_bytes().to_vec();
    contents.extend(shape.as_bytes());
    contents.extend([0; 4]);
    let weights = scratch.write("shape.safetensors", contents);
    assert_names(&complaint(&mut stream(&frames, &weights), 1), &["shape.safetensors"]);
}

#[test]
fn a_checkpoint_of_another_model() {
    let scratch = Scratch::new();
    let header = r#"{"model.layers.0.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut contents = (header.len() as u64).to_le_bytes().to_vec();
    contents.extend(header.as_bytes());
    contents.extend([0; 4]);
    let weights = scratch.write("other.safetensors", contents);
    let said = complaint(&mut stream(&scratch.pictures("clip", 1), &weights), 1);
    assert_names(&said, &["other.safetensors", "another model", "model.layers.0.weight"]);
}

#[cfg(unix)]
#[test]
fn pipes_in_the_place_of_files() {
    let scratch = Scratch::new();
    let (frames, weights) = (scratch.pictures("clip", 2), scratch.tiny_weights());
    let pipe = scratch.path("pipe");
    fs::remove_file(frames.join("frame1.png")).unwrap();
    for path in [&pipe, &frames.join("frame1.png")] {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    let why = "only regular files are read";
    assert_names(&complaint(&mut stream(&frames, &pipe), 1), &["cannot read ", "pipe", why]);
    assert_names(&complaint(stream(&frames, &weights).arg("--config").arg(&pipe), 1), &["cannot read ", "pipe", why]);
    assert_names(&complaint(&mut stream(&frames, &weights), 1), &["frame1.png", why]);
    let ended = run(periplus().arg("convert").arg(&pipe).arg(scratch.path("new.safetensors")));
    assert_eq!(ended.code, 1);
    assert_names(&ended.stderr, &["cannot read ", "pipe", why]);
}

#[test]
fn a_misspelt_key_in_a_configuration() {
    let scratch = Scratch::new();
    let (frames, weights) = (scratch.pictures("clip", 1), scratch.tiny_weights());
    let config = scratch.write("mine.json", common::TINY.replace("window", "windw"));
    let said = complaint(stream(&frames, &weights).arg("--config").arg(&config), 1);
    assert_names(&said, &["mine.json", "`windw` is unknown", "`window` is probably meant"]);
}

#[test]
fn values_that_cannot_be() {
    let scratch = Scratch::new();
    let (frames, weights) = (scratch.pictures("clip", 1), scratch.tiny_weights());
    for (flag, value, words) in [
        ("--image-size", "75", &["75", "multiple", "70", "84"][..]),
        ("--image-size", "0", &["image size 0 is smaller than a patch of 14 pixels: use at least 14"]),
        ("--image-size", "13400", &["too large", "at most 13370"]),
        ("--image-size", "4200000000", &["4200000000", "too large", "at most 13370"]),
        ("--image-size", "4300000000", &["--image-size", "too large"]),
        ("--image-size", "wide", &["--image-size", "whole number from 1 on"]),
        ("--skip", "-1", &["--skip", "whole number from 0 on"]),
        ("--skip", "99999999999999999999", &["--skip", "too large"]),
        ("--first", "0", &["--first", "whole number from 1 on"]),
        ("--first", "99999999999999999999", &["--first", "too large"]),
        ("--ply-voxel", "NaN", &["--ply-voxel", "give a number from 0 on"]),
        ("--ply-voxel", "inf", &["--ply-voxel", "give a number from 0 on"]),
        ("--ply-voxel", "-0.1", &["--ply-voxel", "give a number from 0 on"]),
        ("--ply-confidence", "nan", &["--ply-confidence", "give a number from 0 on"]),
        ("--ply-confidence", "1e39", &["--ply-confidence", "give a number from 0 on"]),
        ("--ply-confidence", "-2", &["--ply-confidence", "give a number from 0 on"]),
        ("--window", "0", &["--window", "from 1 on"]),
        ("--scale-frames", "0", &["--scale-frames"]),
        ("--scale-frames", "-1", &["--scale-frames"]),
        ("--window", "99999999999999999999", &["--window"]),
        ("--window", "18446744073709551615", &["--window cannot be", "from 1 to 1048576"]),
        ("--scale-frames", "18446744073709551615", &["--scale-frames cannot be"]),
        ("--camera-iterations", "1000000", &["--camera-iterations cannot be", "from 1 to 1024"]),
        ("--camera-iterations", "0", &["--camera-iterations"]),
        ("--keyframe-interval", "0", &["--keyframe-interval", "auto"]),
        ("--stride", "0", &["--stride", "from 1 on"]),
        ("--threads", "0", &["--threads", "from 1 to 256"]),
        ("--threads", "257", &["--threads", "from 1 to 256"]),
        ("--threads", "20000", &["--threads", "from 1 to 256"]),
        ("--device", "gpu", &["--device", "cuda:N"]),
        ("--save", "obj", &["--save", "obj", "npz"]),
        ("--dtype", "f8", &["--dtype", "bf16"]),
    ] {
        let flag_and_value = format!("{flag}={value}");
        assert_names(&complaint(stream(&frames, &weights).arg(flag_and_value), 2), words);
    }
}

#[test]
fn a_card_that_is_not_there() {
    let scratch = Scratch::new();
    let said = complaint(stream(&scratch.pictures("clip", 1), Path::new("demo")).args(["--device", "cuda:99"]), 1);
    // Whatever is missing: the kernels, the driver or the card.
    let reasons = ["--features cuda", "driver", "card 99"];
    assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
}

#[test]
fn an_unwritable_output_folder() {
    let scratch = Scratch::new();
    let (frames, weights) = (scratch.pictures("clip", 1), scratch.tiny_weights());
    // No one, not even root, can make a folder below a file.
    let out = scratch.write("file", "").join("out");
    let said = complaint(stream(&frames, &weights).arg("--out").arg(&out), 1);
    assert_names(&said, &[out.to_str().unwrap()]);
}

#[test]
fn a_negative_number_is_a_value_and_not_a_flag() {
    let flags =
        ["--skip", "--first", "--stride", "--window", "--threads", "--image-size", "--ply-voxel", "--ply-confidence"];
    for flag in flags {
        assert_names(&complaint(periplus().args(["stream", flag, "-3"]), 2), &[flag, "'-3'", "number"]);
    }
}

#[test]
fn numbered_files_of_the_user_in_the_output_folder() {
    let scratch = Scratch::new();
    let (frames, weights) = (scratch.pictures("clip", 4), scratch.tiny_weights());
    for (format, name) in [("depth", "000000.png"), ("npz", "000007.npz")] {
        let mine = scratch.write(&format!("data/{format}/{name}"), "mine");
        let mut command = stream(&frames, &weights);
        let said = complaint(command.args(["--save", format, "--out"]).arg(scratch.path("data")), 1);
        assert_names(&said, &[format, "holds files that are not from an earlier run: choose another output folder"]);
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        assert_eq!(common::names(mine.parent().unwrap()), [name]);
    }
}

#[test]
fn saving_without_a_place() {
    let said = complaint(periplus().args(["stream", "--save", "npz"]), 2);
    assert_names(&said, &["--out"]);
}

#[test]
fn results_in_the_place_of_the_frames() {
    let scratch = Scratch::new();
    let (frames, weights, out) = (scratch.pictures("clip", 4), scratch.tiny_weights(), scratch.path("out"));
    let first = run(stream(&frames, &weights).args(["--save", "depth", "--out"]).arg(&out));
    assert_eq!(first.code, 0, "{}", first.stderr);
    let depth = out.join("depth");
    let pictures = || fs::read_dir(&depth).unwrap().count();
    let before = pictures();
    let said = complaint(stream(&depth, &weights).args(["--save", "depth", "--out"]).arg(&out), 2);
    assert_names(&said, &["depth", "holds the frames", "--out"]);
    assert_eq!(pictures(), before);
}

#[cfg(unix)] // elsewhere there are no such names
#[test]
fn names_that_terminals_would_obey() {
    let scratch = Scratch::new();
    let folder = scratch.pictures("clip", 1);
    scratch.write("clip/frame0.png", "no picture");
    let name = "clip/a\u{1b}[2J\u{9b}1m.png";
    scratch.write(name, "no picture either");
    let said = complaint(&mut stream(&folder, &scratch.tiny_weights()), 1);
    assert!(!said.trim_end().contains(char::is_control), "{said:?}");
    assert_names(&said, &["a\\u{1b}[2J\\u{9b}1m.png"]);
}

/// Found when the program starts, not when the cache has grown so far.
#[cfg(target_os = "linux")]
#[test]
fn a_stream_that_memory_does_not_hold() {
    let scratch = Scratch::new();
    let limited = r#"ulimit -v 1500000; exec "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_periplus"), "stream"]);
    command.arg(scratch.pictures("clip", 120)).arg("--weights").arg(scratch.tiny_weights());
    // Pages of 8000 patches, 4 layers, keys and values of 64 float32 numbers: 16 MB each.
    command.args(["--image-size", "1400", "--window", "200", "--threads", "1", "--json"]);
    let said = complaint(&mut command, 1);
    assert_names(&said, &["1400 x 1120", "GiB", "--window", "bf16"]);
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written() {
    for flag in ["--help", "--version"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = periplus();
        let ended = common::Ended::from(
            command
                .arg(flag)
                .stdout(full)
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
                .wait_with_output()
                .unwrap(),
        );
        assert_eq!(ended.code, 1, "{}", ended.stderr);
        assert!(ended.stderr.contains("standard output cannot be written"), "{}", ended.stderr);
    }
}
