//! The output folder of a run: mark, lock, and folders that stay empty.

use std::fs;
use std::path::Path;

use periplus_export::{ExportError, NpzFiles, OutputFolder, Trajectory};
use periplus_geometry::FrameOutput;

use crate::{frame, listing};

const MARK: &str = "UNFINISHED.txt";

fn open(path: &Path) -> OutputFolder {
    let mut folder = OutputFolder::open(path).unwrap();
    folder.add(NpzFiles::create(path).unwrap());
    folder.add(Trajectory::create(path).unwrap());
    folder
}

#[test]
fn a_folder_is_marked_until_the_run_ends() {
    let root = tempfile::tempdir().unwrap();
    let mut folder = open(root.path());
    folder.write(&frame(0)).unwrap();
    assert!(fs::read_to_string(root.path().join(MARK)).unwrap().contains("killed"));
    let (summaries, result) = folder.finish();
    result.unwrap();
    assert_eq!(summaries.iter().map(|summary| summary.frames).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(listing(root.path()), ["npz", "trajectory.txt"]);
}

#[test]
fn a_run_that_does_not_finish_leaves_the_mark_and_the_next_one_removes_it() {
    let root = tempfile::tempdir().unwrap();
    let mut killed = open(root.path());
    killed.write(&frame(0)).unwrap();
    drop(killed);
    assert_eq!(listing(root.path()), [MARK, "npz"]);
    drop(open(root.path()));
    assert_eq!(listing(root.path()), [MARK, "npz"], "a run without a frame changes nothing");
    let mut next = open(root.path());
    next.write(&frame(0)).unwrap();
    next.finish().1.unwrap();
    assert_eq!(listing(root.path()), ["npz", "trajectory.txt"]);
}

#[test]
fn a_result_that_cannot_be_completed_leaves_the_mark() {
    let root = tempfile::tempdir().unwrap();
    let mut folder = open(root.path());
    folder.write(&frame(0)).unwrap();
    fs::create_dir(root.path().join("trajectory.txt")).unwrap();
    let (summaries, result) = folder.finish();
    assert!(matches!(result, Err(ExportError::Write { .. })));
    assert_eq!(summaries.len(), 1);
    assert!(root.path().join(MARK).exists());
}

#[test]
fn a_frame_that_fails_leaves_complete_files_and_no_mark() {
    let root = tempfile::tempdir().unwrap();
    let mut folder = open(root.path());
    folder.write(&frame(0)).unwrap();
    folder.write(&FrameOutput { depth_map: None, ..frame(1) }).unwrap_err();
    folder.finish().1.unwrap();
    assert_eq!(listing(root.path()), ["npz", "trajectory.txt"]);
}

#[test]
fn a_second_run_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let first = open(root.path());
    let error = OutputFolder::open(root.path()).err().unwrap();
    assert!(matches!(error, ExportError::InUse { .. }), "{error:?}");
    assert!(error.to_string().ends_with(": concurrent runs need separate output folders"), "{error}");
    assert!(root.path().join(MARK).exists(), "the refused run leaves the mark of the first");
    drop(first);
    open(root.path()).finish().1.unwrap();
    assert!(listing(root.path()).is_empty());
}

#[test]
fn a_run_without_a_frame_leaves_no_folder() {
    let root = tempfile::tempdir().unwrap();
    let nested = root.path().join("runs/first");
    drop(open(&nested));
    open(&nested).finish().1.unwrap();
    assert!(listing(root.path()).is_empty());
    fs::create_dir_all(&nested).unwrap();
    drop(open(&nested));
    assert!(nested.is_dir(), "a folder that was there stays");
}

#[cfg(unix)]
#[test]
fn a_link_without_a_target_is_named() {
    let root = tempfile::tempdir().unwrap();
    let link = root.path().join("out");
    std::os::unix::fs::symlink("/nowhere/at all", &link).unwrap();
    for path in [link.clone(), link.join("inside")] {
        let error = OutputFolder::open(&path).err().unwrap();
        assert!(matches!(error, ExportError::Folder { .. }), "{error:?}");
        let reason = format!("{} is a link to /nowhere/at all, which does not exist", link.display());
        assert!(error.to_string().contains(&reason), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn control_characters_in_names_are_escaped() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("two\nlines");
    fs::write(&path, "").unwrap();
    let error = OutputFolder::open(&path).err().unwrap().to_string();
    assert!(error.contains("two\\nlines") && !error.contains('\n'), "{error}");
}
