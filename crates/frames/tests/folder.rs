//! A folder as a source.
#![allow(clippy::unwrap_used)] // helpers of tests, not only the tests

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use periplus_frames::{
    FolderError, FolderOptions, FolderSource, FolderWarning, Frame, FrameCause, OnBadFrame, Order, PictureError,
    Preprocess, Resize, SampleBits, Source, TimestampList, globset,
};
use tempfile::TempDir;

/// A plain picture whose red says which it is.
fn write(folder: &Path, name: &str, red: u8, width: u32) {
    let picture = RgbImage::from_pixel(width, 30, Rgb([red, 0, 0]));
    let format = ImageFormat::from_path(name).unwrap();
    picture.save_with_format(folder.join(name), format).unwrap();
}

fn folder(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (red, name) in names.iter().enumerate() {
        write(folder.path(), name, red as u8, 40);
    }
    folder
}

fn open(folder: &Path, options: &FolderOptions) -> Result<FolderSource, FolderError> {
    FolderSource::open(folder, options, Preprocess::new(28, 14, Resize::Crop).unwrap())
}

fn names(source: FolderSource) -> Vec<String> {
    source.map(|frame| frame.unwrap().name.unwrap().to_string()).collect()
}

fn skip_bad() -> FolderOptions {
    FolderOptions { on_bad_frame: OnBadFrame::Skip, ..FolderOptions::default() }
}

#[test]
fn pictures_in_natural_order_and_nothing_else() {
    let folder = folder(&["frame10.png", "frame2.PNG", "frame1.bmp", "frame3.Tiff", "frame4.webp", ".frame0.png"]);
    fs::write(folder.path().join("notes.txt"), "no picture").unwrap();
    fs::write(folder.path().join("frame5"), "no extension").unwrap();
    fs::create_dir(folder.path().join("frame6.png")).unwrap();
    let source = open(folder.path(), &FolderOptions::default()).unwrap();
    assert_eq!((source.len(), source.len_hint()), (5, Some(5)));
    assert_eq!(names(source), ["frame1.bmp", "frame2.PNG", "frame3.Tiff", "frame4.webp", "frame10.png"]);
}

#[test]
fn skip_then_stride_then_first() {
    let files: Vec<String> = (0..10).map(|number| format!("{number}.png")).collect();
    let folder = folder(&files.iter().map(String::as_str).collect::<Vec<_>>());
    let take = |skip, stride, first| {
        let stride = NonZeroUsize::new(stride).unwrap();
        let options = FolderOptions { skip, stride, first: NonZeroUsize::new(first), ..FolderOptions::default() };
        let source = open(folder.path(), &options).unwrap();
        let length = source.len();
        let frames: Vec<_> = source.map(Result::unwrap).collect();
        assert_eq!(frames.len(), length);
        // Numbers count what is left out.
        assert!(frames.iter().all(|frame| *frame.name.as_deref().unwrap() == *format!("{}.png", frame.number)));
        frames.into_iter().map(|frame| frame.name.unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(take(1, 3, 2), ["1.png", "4.png"]);
    assert_eq!(take(2, 4, 0), ["2.png", "6.png"]);
    assert_eq!(take(9, usize::MAX, usize::MAX), ["9.png"]);
    assert_eq!(take(0, 1, 3), ["0.png", "1.png", "2.png"]);
}

#[test]
fn many_frames_come_in_order_with_their_own_pixels() {
    let files: Vec<String> = (0..200).map(|number| format!("{number}.png")).collect();
    let folder = folder(&files.iter().map(String::as_str).collect::<Vec<_>>());
    let source = open(folder.path(), &FolderOptions::default()).unwrap();
    let reds: Vec<u8> = source.map(|frame| frame.unwrap().pixels.values()[0][0]).collect();
    assert_eq!(reds, (0..200).collect::<Vec<u8>>());
}

#[test]
fn folders_that_are_no_clip() {
    let folder = folder(&["a.png"]);
    let options = FolderOptions::default();
    let error = |path: &Path, options: &FolderOptions| open(path, options).err().unwrap();
    assert!(matches!(error(&folder.path().join("missing"), &options), FolderError::NotFound(_)));
    assert!(matches!(error(&folder.path().join("a.png"), &options), FolderError::NotAFolder(_)));
    let all_skipped = error(folder.path(), &FolderOptions { skip: 1, ..options.clone() });
    assert!(matches!(all_skipped, FolderError::AllSkipped { pictures: 1, skip: 1, .. }));
    let empty = tempfile::tempdir().unwrap();
    fs::write(empty.path().join("notes.txt"), "no picture").unwrap();
    let message = error(empty.path(), &options).to_string();
    assert!(message.starts_with("there are no pictures in the folder /") && message.contains("jpg, jpeg"), "{message}");
}

#[test]
fn a_bad_frame_stops_the_clip_and_is_named() {
    let folder = folder(&["0.png", "1.png", "3.png"]);
    fs::write(folder.path().join("2.png"), b"\x01\x02\x03").unwrap();
    let mut source = open(folder.path(), &FolderOptions::default()).unwrap();
    assert!(source.next().unwrap().is_ok() && source.next().unwrap().is_ok());
    let error = source.next().unwrap().unwrap_err();
    assert!(matches!(error.cause, FrameCause::Picture(PictureError::UnknownFormat)));
    let path = folder.path().join("2.png");
    assert_eq!(error.to_string(), format!("{}: {}", path.display(), PictureError::UnknownFormat));
    assert!(source.next().is_none() && source.next().is_none());
}

#[test]
fn bad_frames_are_left_out_and_counted() {
    let folder = folder(&["1.png", "3.png", "6.png"]);
    fs::write(folder.path().join("0.png"), "").unwrap();
    let whole = fs::read(folder.path().join("1.png")).unwrap();
    fs::write(folder.path().join("2.png"), &whole[..whole.len() - 20]).unwrap();
    write(folder.path(), "5.png", 0, 41);
    let mut source = open(folder.path(), &skip_bad()).unwrap();
    let found: Vec<_> = source.by_ref().map(|frame| frame.unwrap().name.unwrap().to_string()).collect();
    assert_eq!(found, ["1.png", "3.png", "6.png"]);
    let causes: Vec<_> = source.skipped().iter().map(|error| &error.cause).collect();
    assert!(
        matches!(
            causes[..],
            [
                FrameCause::Picture(PictureError::Empty),
                FrameCause::Picture(PictureError::Damaged(_)),
                FrameCause::OtherSize { found: [41, 30], expected: [40, 30] }
            ]
        ),
        "{causes:?}"
    );
    assert_eq!(source.skipped_count(), 3);
    assert_eq!(source.len(), 6);
}

#[test]
fn a_clip_of_bad_frames_only() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..100 {
        fs::write(folder.path().join(format!("{number}.jpg")), "text").unwrap();
    }
    let mut source = open(folder.path(), &skip_bad()).unwrap();
    assert!(source.next().is_none());
    // All are counted, and the first few are kept.
    assert_eq!(source.skipped_count(), 100);
    assert_eq!(source.skipped().len(), 8);
    assert!(source.skipped()[7].to_string().contains("7.jpg"));
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_broken_ones_named() {
    use std::os::unix::fs::symlink;
    let folder = folder(&["0.png"]);
    symlink(folder.path().join("0.png"), folder.path().join("1.png")).unwrap();
    symlink(folder.path().join("nowhere"), folder.path().join("2.png")).unwrap();
    let mut source = open(folder.path(), &skip_bad()).unwrap();
    assert_eq!(source.by_ref().count(), 2);
    assert!(matches!(&source.skipped()[0].cause, FrameCause::Read(_)));
    assert!(source.skipped()[0].to_string().contains("2.png: the file cannot be read: No such file"));
}

#[test]
fn dropping_a_source_early_is_no_wait() {
    let files: Vec<String> = (0..200).map(|number| format!("{number}.png")).collect();
    let folder = folder(&files.iter().map(String::as_str).collect::<Vec<_>>());
    for taken in [0, 1, 7] {
        let mut source = open(folder.path(), &FolderOptions::default()).unwrap();
        assert_eq!(source.by_ref().take(taken).count(), taken);
        drop(source);
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_by_the_name_of_a_picture_is_a_bad_frame() {
    let folder = folder(&["frame0.png", "frame2.png"]);
    let pipe = folder.path().join("frame1.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = open(folder.path(), &FolderOptions::default()).unwrap().nth(1).unwrap().unwrap_err();
    let why = "it is a pipe, a socket or a device, and only regular files are read";
    assert_eq!(error.to_string(), format!("{}: {why}", pipe.display()));
    assert_eq!(names(open(folder.path(), &skip_bad()).unwrap()), ["frame0.png", "frame2.png"]);
}

#[test]
fn names_choose_order_times_and_kinds() {
    let folder = tempfile::tempdir().unwrap();
    let png = fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/images/gray.png")).unwrap();
    let make = |names: &[&str]| {
        fs::remove_dir_all(folder.path()).unwrap();
        fs::create_dir(folder.path()).unwrap();
        for name in names {
            fs::write(folder.path().join(name), &png).unwrap();
        }
    };
    let preprocess = Preprocess::new(28, 14, Resize::Crop).unwrap();
    let open = |options: FolderOptions| FolderSource::open(folder.path(), &options, preprocess).unwrap();
    let read = |options: FolderOptions| -> Vec<(String, Option<String>)> {
        let frames = open(options).map(Result::unwrap);
        let read = |frame: Frame| (frame.name.unwrap().to_string(), frame.timestamp.map(|time| time.to_string()));
        frames.map(read).collect()
    };
    let names = |options| read(options).into_iter().map(|(name, _)| name).collect::<Vec<_>>();

    // Seconds as Python prints them, with trailing zeros dropped.
    make(&["17.1.png", "17.25.png", "17.0583.png", "18.0.png"]);
    let by_time = ["17.0583.png", "17.1.png", "17.25.png", "18.0.png"];
    assert_eq!(names(FolderOptions::default()), by_time);
    assert_eq!(read(FolderOptions::default())[1].1.as_deref(), Some("17.1"));
    make(&["17.000100.png", "17.250000.png"]);
    assert!(open(FolderOptions::default()).warnings().is_empty(), "both readings give the same order");
    let natural = FolderOptions { order: Some(Order::Natural), ..Default::default() };
    make(&["17.1.png", "17.25.png", "17.3.png"]);
    assert_eq!(names(FolderOptions::default()), ["17.1.png", "17.25.png", "17.3.png"]);
    assert!(matches!(open(FolderOptions::default()).warnings(), [FolderWarning::TwoReadings { .. }]));
    assert_eq!(names(natural.clone()), ["17.1.png", "17.3.png", "17.25.png"]);
    assert!(open(natural).warnings().is_empty());

    // Times of EuRoC, with every digit.
    make(&["1403636579763555584.png", "1403636579813555456.png"]);
    let times: Vec<_> = read(FolderOptions::default()).into_iter().map(|(_, time)| time.unwrap()).collect();
    assert_eq!(times, ["1403636579.763555584", "1403636579.813555456"]);
    let at_ten = FolderOptions { frames_per_second: Some(10.0), ..Default::default() };
    assert_eq!(read(at_ten)[1].1.as_deref(), Some("0.1"));

    // Colour and depth in one folder.
    make(&["f-0.color.png", "f-0.depth.png", "f-1.color.png", "f-1.depth.png"]);
    let warnings = open(FolderOptions::default()).warnings().to_vec();
    assert!(matches!(&warnings[..], [FolderWarning::TwoKinds { endings }] if endings == &[".color.png", ".depth.png"]));
    let colour = FolderOptions { glob: Some(globset::Glob::new("*.color.png").unwrap()), ..Default::default() };
    assert_eq!(names(colour.clone()), ["f-0.color.png", "f-1.color.png"]);
    assert!(open(colour).warnings().is_empty());

    // Other names of JPEG, and other pictures.
    make(&["1.jfif", "2.JPE", "3.heic", "4.gif", "5.gif", "poses.txt"]);
    assert_eq!(names(FolderOptions::default()), ["1.jfif", "2.JPE"]);
    let warning = open(FolderOptions::default()).warnings()[0].to_string();
    assert!(warning.contains("2 .gif, 1 .heic"), "{warning}");
    make(&["1.HEIC", "2.HEIC"]);
    let error = FolderSource::open(folder.path(), &FolderOptions::default(), preprocess).err().unwrap().to_string();
    assert!(error.contains("only 2 .heic, to be converted"), "{error}");
}

#[test]
fn times_from_a_list() {
    let folder = folder(&["a.png", "b.png", "c.png"]);
    let times = |text: &str, skip| {
        let timestamps = Some(TimestampList::parse(text).unwrap());
        let source = open(folder.path(), &FolderOptions { timestamps, skip, ..FolderOptions::default() })?;
        Ok::<_, FolderError>(source.map(|frame| frame.unwrap().timestamp.unwrap().to_string()).collect::<Vec<_>>())
    };
    assert_eq!(times("1.5 x/c.png\n2.5 x/b.png\n3.5 x/a.png\n", 0).unwrap(), ["3.5", "2.5", "1.5"]);
    assert_eq!(times("10\n20\n30\n", 1).unwrap(), ["20", "30"]);
    assert!(matches!(times("10\n20\n", 0), Err(FolderError::Timestamps(_))));
}

/// The first picture decides for all, so that a darker one stays darker.
#[test]
fn the_bits_of_the_first_picture_scale_all_frames() {
    let folder = tempfile::tempdir().unwrap();
    for (name, value) in [("0.png", 4000_u16), ("1.png", 1000), ("2.png", 8000)] {
        let picture = image::ImageBuffer::from_pixel(28, 28, image::Luma([value]));
        picture.save(folder.path().join(name)).unwrap();
    }
    let levels = |sample_bits| {
        let options = FolderOptions { sample_bits, ..FolderOptions::default() };
        let mut source = open(folder.path(), &options).unwrap();
        let warned = source.warnings().len();
        let levels: Vec<u8> = source.by_ref().map(|frame| frame.unwrap().pixels.values()[0][0]).collect();
        (levels, warned, source.picture_warnings().len())
    };
    // 12 bits: the last picture needs more.
    assert_eq!(levels(None), (vec![250, 62, 255], 1, 1));
    assert_eq!(levels(SampleBits::new(13)), (vec![125, 31, 250], 0, 0));
    assert_eq!(levels(SampleBits::new(16)), (vec![15, 3, 31], 0, 1));
}
