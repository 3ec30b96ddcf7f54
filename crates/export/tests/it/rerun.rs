//! What becomes of files that are there already, and of runs that do not end.

use std::fs;
use std::path::Path;

use periplus_export::{DepthMaps, ExportError, JsonFile, NpzFiles, PointCloud, PointOptions, Sink, Trajectory};

use crate::{export, frame, listing};

fn sinks(folder: &Path) -> Vec<Box<dyn Sink>> {
    vec![
        Box::new(JsonFile::create(folder).unwrap()),
        Box::new(Trajectory::create(folder).unwrap()),
        Box::new(PointCloud::create(folder, PointOptions::default()).unwrap()),
        Box::new(NpzFiles::create(folder).unwrap()),
        Box::new(DepthMaps::create(folder).unwrap()),
    ]
}

#[test]
fn files_of_all_frames_appear_when_they_are_finished() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["frames.jsonl", "points.ply", "trajectory.txt"];
    let mut open = sinks(folder.path());
    for sink in &mut open {
        sink.write(&frame(0)).unwrap();
    }
    assert!(names.iter().all(|name| !folder.path().join(name).exists()));
    assert_eq!(listing(folder.path().join("npz")), ["000000.npz"], "that of a single frame at once");
    for sink in open {
        sink.finish().unwrap();
    }
    assert_eq!(listing(folder.path()), ["depth", "frames.jsonl", "npz", "points.ply", "trajectory.txt"]);
}

#[test]
fn a_run_without_a_frame_leaves_the_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    for mut sink in sinks(folder.path()) {
        sink.write(&frame(0)).unwrap();
        sink.finish().unwrap();
    }
    let contents = || {
        let names = ["frames.jsonl", "points.ply", "trajectory.txt", "npz/000000.npz", "depth/000000.png"];
        names.map(|name| fs::read(folder.path().join(name)).unwrap())
    };
    let before = contents();
    for sink in sinks(folder.path()) {
        assert!(sink.finish().unwrap().to_string().ends_with(": nothing written"));
    }
    assert_eq!(contents(), before);
    assert_eq!(listing(folder.path()), ["depth", "frames.jsonl", "npz", "points.ply", "trajectory.txt"]);
}

#[test]
fn a_sink_that_is_dropped_leaves_no_unfinished_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut open = sinks(folder.path());
    for sink in &mut open {
        sink.write(&frame(0)).unwrap();
    }
    drop(open);
    assert_eq!(listing(folder.path()), ["depth", "npz"], "the files of single frames stay");
}

#[test]
fn a_shorter_run_leaves_no_frames_of_a_longer_one() {
    let folder = tempfile::tempdir().unwrap();
    export(NpzFiles::create(folder.path()), (0..4).map(frame));
    let files = folder.path().join("npz");
    for name in ["notes.txt", "000009.npz.17.part", "1234567.npz", "12.npz", "mine.npz"] {
        fs::write(files.join(name), "").unwrap();
    }
    let shorter = NpzFiles::create(folder.path());
    assert_eq!(listing(&files).len(), 9, "nothing goes before there is something new");
    export(shorter, (0..2).map(frame));
    assert_eq!(listing(&files), ["000000.npz", "000001.npz", "12.npz", "mine.npz", "notes.txt"]);
}

#[test]
fn numbered_files_of_the_user_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = folder.path().join("depth");
    fs::create_dir(&pictures).unwrap();
    for name in ["000000.png", "000001.png", "scale.json"] {
        fs::write(pictures.join(name), "mine").unwrap();
    }
    let error = DepthMaps::create(folder.path()).err().unwrap();
    assert!(matches!(&error, ExportError::NotOurs { place } if Path::new(place) == pictures), "{error:?}");
    assert!(
        error.to_string().ends_with("depth holds files that are not from an earlier run: choose another output folder")
    );
    assert_eq!(listing(&pictures), ["000000.png", "000001.png", "scale.json"]);
    assert!(listing(&pictures).iter().all(|name| fs::read_to_string(pictures.join(name)).unwrap() == "mine"));
    assert!(!pictures.join(".periplus").exists());
}

#[test]
fn files_of_the_user_that_come_after_the_opening_are_left_alone_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = DepthMaps::create(folder.path()).unwrap();
    let picture = folder.path().join("depth/000000.png");
    fs::write(&picture, "mine").unwrap();
    assert!(matches!(sink.write(&frame(0)), Err(ExportError::NotOurs { .. })));
    assert_eq!(fs::read_to_string(picture).unwrap(), "mine");
    assert_eq!(listing(folder.path().join("depth")), ["000000.png"]);
}

#[test]
fn a_folder_is_marked_with_its_first_frame() {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("npz/.periplus");
    let mut sink = NpzFiles::create(folder.path()).unwrap();
    assert!(!marker.exists());
    sink.write(&frame(0)).unwrap();
    assert!(marker.exists());
}

#[test]
fn two_runs_do_not_write_to_one_unfinished_file() {
    let folder = tempfile::tempdir().unwrap();
    // No process has the number 0.
    let others = folder.path().join("trajectory.txt.0.part");
    fs::write(&others, "of another run").unwrap();
    let alive = fs::File::open(&others).unwrap();
    alive.lock().unwrap();
    let sink = Trajectory::create(folder.path());
    let own = format!("trajectory.txt.{}.part", std::process::id());
    assert_eq!(listing(folder.path()), ["trajectory.txt.0.part", &own]);
    export(sink, (0..2).map(frame));
    assert_eq!(listing(folder.path()), ["trajectory.txt", "trajectory.txt.0.part"]);
    assert_eq!(fs::read_to_string(&others).unwrap(), "of another run");
}
