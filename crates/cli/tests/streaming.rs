//! What a stream leaves behind when all is well, and when it is stopped on the way.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Scratch, names, run, stream};
use serde_json::Value;

/// The objects that a run printed.
fn objects(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn field<'a>(objects: &'a [Value], name: &str) -> Vec<&'a Value> {
    objects.iter().map(|object| &object[name]).collect()
}

/// Of the lines of the trajectory in `out`.
fn timestamps(out: &Path) -> Vec<String> {
    let trajectory = fs::read_to_string(out.join("trajectory.txt")).unwrap();
    let lines = trajectory.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(' ').next().unwrap().to_string()).collect()
}

#[test]
fn json_is_one_object_a_frame_and_nothing_else() {
    let scratch = Scratch::new();
    let ended = run(stream(&scratch.pictures("clip", 12), &scratch.tiny_weights()).arg("--json"));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let objects = objects(&ended.stdout);
    assert_eq!(field(&objects, "index"), (0..12).collect::<Vec<_>>());
    // Natural order: frame10 comes after frame9.
    assert_eq!(objects[10]["name"], "frame10.png");
    for object in &objects {
        let [min, median, max] = ["min", "median", "max"].map(|which| object["depth"][which].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{object}");
        assert!(object["camera_to_world"].is_array() && object["keyframe"] == true, "{object}");
    }
}

#[test]
fn every_format_is_written() {
    let scratch = Scratch::new();
    let out = scratch.path("a/b/out");
    let mut command = stream(&scratch.pictures("clip", 5), &scratch.tiny_weights());
    let ended = run(command.arg("--out").arg(&out).args(["--save", "npz,tum,depth,ply,jsonl"]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(names(&out.join("npz")), (0..5).map(|i| format!("00000{i}.npz")).collect::<Vec<_>>());
    assert!(ended.stdout.contains("5 frames"), "{}", ended.stdout);
    for kind in ["npz", "depth", ".ply", ".jsonl", ".txt"] {
        assert!(names(&out).iter().any(|name| name.ends_with(kind)), "{kind} is not in {:?}", names(&out));
        assert!(ended.stdout.contains(kind), "{kind} is not in {}", ended.stdout);
    }
}

#[test]
fn the_trajectory_alone_is_the_same_as_with_everything_else() {
    let scratch = Scratch::new();
    let (clip, weights) = (scratch.pictures("clip", 8), scratch.tiny_weights());
    let [alone, among] = [("alone", "tum"), ("among", "npz,tum,depth,ply,jsonl,overview")].map(|(out, formats)| {
        let out = scratch.path(out);
        let ended = run(stream(&clip, &weights).arg("--out").arg(&out).args(["--save", formats]));
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        fs::read_to_string(out.join("trajectory.txt")).unwrap()
    });
    assert_eq!(alone.lines().count(), 9, "{alone}");
    assert_eq!(alone, among);
    assert_eq!(names(&scratch.path("alone")), ["trajectory.txt"]);
    // Each of the others needs more than poses, and gets it.
    for formats in ["tum,jsonl", "tum,depth", "tum,ply", "tum,npz"] {
        let ended = run(stream(&clip, &weights).arg("--out").arg(scratch.path("more")).args(["--save", formats]));
        assert_eq!(ended.code, 0, "{formats}: {}", ended.stderr);
    }
    let ended =
        run(stream(&clip, &weights).arg("--json").arg("--out").arg(scratch.path("more")).args(["--save", "tum"]));
    assert_eq!((ended.code, objects(&ended.stdout).len()), (0, 8), "{}", ended.stderr);
}

#[test]
fn quiet_says_nothing_when_all_is_well() {
    let scratch = Scratch::new();
    let mut command = stream(&scratch.pictures("clip", 4), &scratch.tiny_weights());
    let ended = run(command.arg("--quiet").arg("--out").arg(scratch.path("out")));
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (0, "", ""));
    assert_eq!(names(&scratch.path("out")), ["npz", "points.ply", "trajectory.txt"]);
}

#[test]
fn an_interval_keeps_every_so_manieth_frame_after_the_scale_frames() {
    let scratch = Scratch::new();
    let mut command = stream(&scratch.pictures("clip", 9), &scratch.tiny_weights());
    let ended = run(command.args(["--json", "--scale-frames", "2", "--keyframe-interval", "3"]));
    let kept = [true, true, true, false, false, true, false, false, true];
    assert_eq!(field(&objects(&ended.stdout), "keyframe"), kept, "{}", ended.stderr);
}

#[test]
fn pictures_are_chosen_and_fitted() {
    let scratch = Scratch::new();
    let mut command = stream(&scratch.pictures("clip", 10), &scratch.tiny_weights());
    command.args(["--json", "--skip", "1", "--stride", "3", "--first", "2", "--image-size", "42", "--resize", "pad"]);
    let ended = run(command.arg("--out").arg(scratch.path("out")).args(["--save", "tum"]));
    let objects = objects(&ended.stdout);
    assert_eq!(field(&objects, "name"), ["frame1.png", "frame4.png"], "{}", ended.stderr);
    // The trajectory goes with a ground truth of all pictures.
    assert_eq!(timestamps(&scratch.path("out")), ["1", "4"]);
    // The padded picture is a square of the image size, so its principal point is at half of that.
    let intrinsics = objects[0]["intrinsics"].to_string();
    assert!(intrinsics.contains("21.0"), "{intrinsics}");
}

#[test]
fn bad_frames_are_skipped_when_asked_to_be() {
    let scratch = Scratch::new();
    let folder = scratch.pictures("clip", 8);
    scratch.write("clip/frame2.png", "no picture");
    scratch.write("clip/frame5.png", "no picture either");
    let mut command = stream(&folder, &scratch.tiny_weights());
    command.args(["--json", "--quiet", "--on-bad-frame", "skip"]);
    let ended = run(command.arg("--out").arg(scratch.path("out")).args(["--save", "tum"]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let objects = objects(&ended.stdout);
    assert_eq!(objects.len(), 6);
    assert_eq!(objects[2]["name"], "frame3.png");
    assert_eq!(timestamps(&scratch.path("out")), ["0", "1", "3", "4", "6", "7"]);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("2 of 8") && ended.stderr.contains("frame2.png"), "{}", ended.stderr);
}

#[test]
fn what_was_written_before_a_bad_frame_stays_valid() {
    let scratch = Scratch::new();
    let (out, folder) = (scratch.path("out"), scratch.pictures("clip", 8));
    scratch.write("clip/frame6.png", "no picture");
    let mut command = stream(&folder, &scratch.tiny_weights());
    let ended = run(command.arg("--out").arg(&out).args(["--save", "npz,tum,ply,jsonl"]));
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.contains("6 frames"), "{}", ended.stdout);
    assert!(ended.stderr.lines().last().unwrap().contains("frame6.png"), "{}", ended.stderr);
    assert_eq!(names(&out.join("npz")).len(), 6);
    assert_finished(&out, 6);
}

#[test]
fn good_frames_before_a_bad_one_are_answered_even_if_they_are_few() {
    let scratch = Scratch::new();
    let (out, folder) = (scratch.path("out"), scratch.pictures("clip", 8));
    scratch.write("clip/frame2.png", "no picture");
    // Of 3 scale frames, two are there.
    let mut command = stream(&folder, &scratch.tiny_weights());
    let ended = run(command.arg("--out").arg(&out).args(["--save", "npz,tum,ply,jsonl"]));
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.starts_with("2 frames"), "{}", ended.stdout);
    assert!(ended.stderr.lines().last().unwrap().contains("frame2.png"), "{}", ended.stderr);
    assert_eq!(names(&out.join("npz")).len(), 2);
    assert_finished(&out, 2);
}

#[test]
fn a_run_without_an_answer_reports_no_frames() {
    let scratch = Scratch::new();
    let folder = scratch.pictures("clip", 2);
    scratch.write("clip/frame0.png", "no picture");
    let ended = run(stream(&folder, &scratch.tiny_weights()).arg("--out").arg(scratch.path("out")));
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.lines().count()), (1, "", 1), "{}", ended.stderr);
}

/// Asserts that the files of a whole clip are there and hold `frames` frames, and that no half-written file is.
fn assert_finished(out: &Path, frames: usize) {
    let contents = |extension: &str| {
        let found = names(out).into_iter().find(|name| name.ends_with(extension));
        fs::read(out.join(found.unwrap_or_else(|| panic!("no {extension} in {:?}", names(out))))).unwrap()
    };
    let lines = |extension: &str| {
        let text = String::from_utf8(contents(extension)).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).count()
    };
    assert_eq!(lines(".txt"), frames);
    assert_eq!(lines(".jsonl"), frames);
    assert!(contents(".ply").starts_with(b"ply\n"));
    let all = names(out).into_iter().chain(names(&out.join("npz")));
    for name in all {
        assert!(!name.contains(".part"), "{name} is left over");
    }
}

/// Waits until a run that is under way has written a file.
#[cfg(unix)]
fn wait_for(file: &Path, child: &mut Child) {
    let started = Instant::now();
    while !file.exists() {
        let alive = started.elapsed() < Duration::from_secs(90) && child.try_wait().unwrap().is_none();
        assert!(alive, "no {}", file.display());
        thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_run_in_order() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut command = stream(&scratch.pictures("clip", 250), &scratch.tiny_weights());
    command.arg("--out").arg(&out).args(["--save", "npz,tum,ply,jsonl"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The first files are there: the run is in the middle of the clip.
    wait_for(&out.join("npz/000004.npz"), &mut child);
    common::signal("-INT", &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut said = String::new();
    child.stdout.unwrap().read_to_string(&mut said).unwrap();
    let frames = names(&out.join("npz")).len();
    assert!((5..250).contains(&frames), "{frames} frames were answered");
    assert!(said.contains(&format!("{frames} frames")), "{said}");
    assert_finished(&out, frames);
}

#[cfg(unix)]
#[test]
fn a_killed_run_leaves_its_mark_and_a_second_run_is_refused() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let frames = scratch.pictures("clip", 250);
    let mut command = stream(&frames, &scratch.tiny_weights());
    command.args(["--quiet", "--save", "npz,tum", "--out"]).arg(&out);
    let mut child = command.spawn().unwrap();
    wait_for(&out.join("npz/000004.npz"), &mut child);
    let refused = run(&mut command);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("concurrent runs need separate output folders"), "{}", refused.stderr);
    child.kill().unwrap();
    child.wait().unwrap();
    let mark = out.join("UNFINISHED.txt");
    assert!(mark.exists());
    assert_eq!(run(command.args(["--first", "10"])).code, 0, "the lock died with its process");
    assert!(!mark.exists());
    assert_eq!(names(&out), ["npz", "trajectory.txt"]);
}

/// A shell's `>&-`.
#[cfg(target_os = "linux")]
#[test]
fn json_lines_to_a_closed_standard_output_are_not_counted() {
    let scratch = Scratch::new();
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$@" >&-"#, "sh", env!("CARGO_BIN_EXE_periplus"), "stream"]);
    command.arg(scratch.pictures("clip", 9)).arg("--weights").arg(scratch.tiny_weights()).arg("--json");
    let ended = run(&mut command);
    assert!(ended.stderr.contains("warning: standard output is closed or discarded"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("standard output: "), "{}", ended.stderr);
}

#[cfg(unix)]
#[test]
fn ctrl_c_before_the_first_frame_leaves_no_unfinished_files() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut command = stream(&scratch.pictures("clip", 100), Path::new("demo"));
    command.args(["--image-size", "70", "--quiet", "--save", "tum,jsonl", "--out"]).arg(&out);
    let mut child = command.spawn().unwrap();
    // An unfinished file is there, and the weights are yet to be loaded.
    let started = Instant::now();
    let unfinished = || names(&out).into_iter().filter(|name| name.contains(".part")).collect::<Vec<_>>();
    while !out.exists() || unfinished().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(90) && child.try_wait().unwrap().is_none());
    }
    common::signal("-INT", &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!out.exists(), "no empty folder either");
}

/// As nohup, and a script that starts the program in its background, would have it.
#[cfg(target_os = "linux")]
#[test]
fn signals_that_are_ignored_from_the_start_stay_so() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" HUP INT; exec "$@""#, "sh", env!("CARGO_BIN_EXE_periplus"), "stream"]);
    command.arg(scratch.pictures("clip", 250)).arg("--weights").arg(scratch.tiny_weights());
    command.args(["--quiet", "--save", "npz,tum,ply,jsonl", "--out"]).arg(&out);
    let mut child = command.spawn().unwrap();
    wait_for(&out.join("npz/000004.npz"), &mut child);
    for signal in ["-HUP", "-INT", "-HUP", "-INT"] {
        common::signal(signal, &child);
    }
    // Many more than were in hand.
    wait_for(&out.join("npz/000060.npz"), &mut child);
    common::signal("-TERM", &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_finished(&out, names(&out.join("npz")).len());
}

#[test]
fn files_are_written_on_when_nobody_reads_the_objects_any_more() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut command = stream(&scratch.pictures("clip", 60), &scratch.tiny_weights());
    command.args(["--json", "--save", "npz,tum,ply,jsonl", "--out"]).arg(&out);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with('{'));
    let ended = common::Ended::from(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("60 frames"), "{}", ended.stderr);
    assert_finished(&out, 60);
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_run_quietly() {
    let scratch = Scratch::new();
    let mut command = stream(&scratch.pictures("clip", 100), &scratch.tiny_weights());
    let mut child = command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with('{'));
    let ended = common::Ended::from(child.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_as_such() {
    let scratch = Scratch::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = stream(&scratch.pictures("clip", 4), &scratch.tiny_weights());
    let ended = run_into(command.args(["--json", "--quiet"]), full);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("disk is full"), "{}", ended.stderr);
}

#[cfg(target_os = "linux")]
fn run_into(command: &mut Command, stdout: fs::File) -> common::Ended {
    command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap().into()
}

#[test]
fn tensors_that_the_network_does_not_have_are_mentioned_once() {
    let scratch = Scratch::new();
    let weights = scratch.tiny_weights();
    let contents = fs::read(&weights).unwrap();
    let (length, rest) = contents.split_first_chunk().unwrap();
    let (header, numbers) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let empty = serde_json::json!({"dtype": "F32", "shape": [0], "data_offsets": [numbers.len(), numbers.len()]});
    header["optimizer.step"] = empty.clone();
    header["optimizer.rate"] = empty;
    let header = header.to_string();
    let contents = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), numbers].concat();
    fs::write(&weights, contents).unwrap();
    let ended = run(stream(&scratch.pictures("clip", 4), &weights).args(["--json", "--quiet"]));
    assert_eq!((ended.code, ended.stdout.lines().count()), (0, 4), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("optimizer.rate and 1 more"), "{}", ended.stderr);
}

#[test]
fn a_run_that_keeps_nothing_says_so() {
    let scratch = Scratch::new();
    let ended = run(stream(&scratch.pictures("clip", 4), &scratch.tiny_weights()).arg("--quiet"));
    assert_eq!((ended.code, ended.stderr.lines().count()), (0, 1), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("warning: nothing will be kept"), "{}", ended.stderr);
}
