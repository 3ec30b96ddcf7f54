//! A folder as a source.
#![allow(clippy::unwrap_used)] // helpers of tests, not only the tests

use std::fs;
use std::path::Path;

use periplus_frames::{
    FolderError, FolderOptions, FolderSource, FolderWarning, Order, Picture, PictureContent, Source, TimestampList,
    globset,
};
use tempfile::TempDir;

/// A folder with empty files of these names: a source does not read them.
fn folder(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        fs::write(folder.path().join(name), "").unwrap();
    }
    folder
}

fn pictures(mut source: FolderSource) -> Vec<Picture> {
    std::iter::from_fn(|| source.next()).map(Result::unwrap).collect()
}

fn names(source: FolderSource) -> Vec<String> {
    pictures(source).into_iter().map(|picture| picture.name.unwrap().to_string()).collect()
}

fn times(source: FolderSource) -> Vec<Option<String>> {
    pictures(source).into_iter().map(|picture| picture.timestamp.map(|time| time.to_string())).collect()
}

#[test]
fn pictures_in_natural_order_and_nothing_else() {
    let folder = folder(&["frame10.png", "frame2.PNG", "frame1.bmp", "frame3.Tiff", "frame4.webp", ".frame0.png"]);
    fs::write(folder.path().join("notes.txt"), "no picture").unwrap();
    fs::write(folder.path().join("frame5"), "no extension").unwrap();
    fs::create_dir(folder.path().join("frame6.png")).unwrap();
    let source = FolderSource::open(folder.path(), &FolderOptions::default()).unwrap();
    assert_eq!(source.len_hint(), Some(5));
    assert_eq!(names(source), ["frame1.bmp", "frame2.PNG", "frame3.Tiff", "frame4.webp", "frame10.png"]);
}

#[test]
fn folders_that_are_no_clip() {
    let folder = folder(&["a.png"]);
    let options = FolderOptions::default();
    let error = |path: &Path| FolderSource::open(path, &options).unwrap_err();
    assert!(matches!(error(&folder.path().join("missing")), FolderError::NotFound(_)));
    assert!(matches!(error(&folder.path().join("a.png")), FolderError::NotAFolder(_)));
    let empty = tempfile::tempdir().unwrap();
    fs::write(empty.path().join("notes.txt"), "no picture").unwrap();
    let message = error(empty.path()).to_string();
    assert!(message.starts_with("there are no pictures in the folder /") && message.contains("jpg, jpeg"), "{message}");
}

#[test]
fn pictures_are_files_with_their_paths() {
    let folder = folder(&["a.png"]);
    let found = pictures(FolderSource::open(folder.path(), &FolderOptions::default()).unwrap());
    let [Picture { content: PictureContent::File(path), timestamp: None, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(path, &folder.path().join("a.png"));
}

fn open(folder: &TempDir) -> FolderSource {
    FolderSource::open(folder.path(), &FolderOptions::default()).unwrap()
}

/// Seconds as Python prints them, with trailing zeros dropped.
#[test]
fn names_with_fractions_are_ordered_by_time() {
    let decimals = folder(&["17.1.png", "17.25.png", "17.0583.png", "18.0.png"]);
    assert_eq!(names(open(&decimals)), ["17.0583.png", "17.1.png", "17.25.png", "18.0.png"]);
    assert_eq!(times(open(&decimals))[1].as_deref(), Some("17.1"));

    let unambiguous = folder(&["17.000100.png", "17.250000.png"]);
    assert!(open(&unambiguous).warnings().is_empty(), "both readings give the same order");

    let ambiguous = folder(&["17.1.png", "17.25.png", "17.3.png"]);
    assert_eq!(names(open(&ambiguous)), ["17.1.png", "17.25.png", "17.3.png"]);
    assert!(matches!(open(&ambiguous).warnings(), [FolderWarning::TwoReadings { .. }]));
    let options = FolderOptions { order: Some(Order::Natural), ..FolderOptions::default() };
    let natural = FolderSource::open(ambiguous.path(), &options).unwrap();
    assert!(natural.warnings().is_empty());
    assert_eq!(names(natural), ["17.1.png", "17.3.png", "17.25.png"]);
}

#[test]
fn times_come_from_names_a_rate_or_a_list() {
    // EuRoC, with every digit.
    let euroc = folder(&["1403636579763555584.png", "1403636579813555456.png"]);
    let expected = ["1403636579.763555584", "1403636579.813555456"].map(|time| Some(time.to_owned()));
    assert_eq!(times(open(&euroc)), expected);
    let options = FolderOptions { frames_per_second: Some(10.0), ..FolderOptions::default() };
    assert_eq!(times(FolderSource::open(euroc.path(), &options).unwrap())[1].as_deref(), Some("0.1"));

    let folder = folder(&["a.png", "b.png", "c.png"]);
    let listed = |text: &str| {
        let timestamps = Some(TimestampList::parse(text).unwrap());
        let source = FolderSource::open(folder.path(), &FolderOptions { timestamps, ..FolderOptions::default() })?;
        Ok::<_, FolderError>(times(source).into_iter().map(Option::unwrap).collect::<Vec<_>>())
    };
    assert_eq!(listed("1.5 x/c.png\n2.5 x/b.png\n3.5 x/a.png\n").unwrap(), ["3.5", "2.5", "1.5"]);
    assert_eq!(listed("10\n20\n30\n").unwrap(), ["10", "20", "30"]);
    assert!(matches!(listed("10\n20\n"), Err(FolderError::Timestamps(_))));
}

#[test]
fn pictures_of_two_kinds_are_reported_and_chosen_by_a_pattern() {
    let folder = folder(&["f-0.color.png", "f-0.depth.png", "f-1.color.png", "f-1.depth.png"]);
    let warnings = open(&folder).warnings().to_vec();
    assert!(matches!(&warnings[..], [FolderWarning::TwoKinds { endings }] if endings == &[".color.png", ".depth.png"]));
    let options = FolderOptions { glob: Some(globset::Glob::new("*.color.png").unwrap()), ..FolderOptions::default() };
    let colour = FolderSource::open(folder.path(), &options).unwrap();
    assert!(colour.warnings().is_empty());
    assert_eq!(names(colour), ["f-0.color.png", "f-1.color.png"]);
}

#[test]
fn pictures_that_cannot_be_read_are_reported() {
    let some = folder(&["1.jfif", "2.JPE", "3.heic", "4.gif", "5.gif", "poses.txt"]);
    assert_eq!(names(open(&some)), ["1.jfif", "2.JPE"]);
    let warning = open(&some).warnings()[0].to_string();
    assert!(warning.contains("2 .gif, 1 .heic"), "{warning}");
    let none = folder(&["1.HEIC", "2.HEIC"]);
    let error = FolderSource::open(none.path(), &FolderOptions::default()).unwrap_err().to_string();
    assert!(error.contains("only 2 .heic, to be converted"), "{error}");
}
