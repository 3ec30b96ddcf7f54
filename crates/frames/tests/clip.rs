//! Clips over folders and over sources of other kinds.
#![allow(clippy::unwrap_used)] // helpers of tests, not only the tests

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use image::{ImageFormat, Rgb, RgbImage};
use periplus_frames::{
    Clip, ClipError, ClipOptions, FolderOptions, FolderSource, FrameCause, FrameError, OnBadFrame, Picture,
    PictureContent, PictureError, PictureWarning, Preprocess, Resize, SampleBits, Source,
};
use periplus_geometry::{Raster, Timestamp};
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

fn start(source: impl Source + 'static, options: &ClipOptions) -> Result<Clip, ClipError> {
    Clip::start(source, Preprocess::new(28, 14, Resize::Crop).unwrap(), options)
}

fn open(folder: &Path, options: &ClipOptions) -> Result<Clip, ClipError> {
    start(FolderSource::open(folder, &FolderOptions::default()).unwrap(), options)
}

fn names(clip: impl Iterator<Item = Result<periplus_frames::Frame, FrameError>>) -> Vec<String> {
    clip.map(|frame| frame.unwrap().name.unwrap().to_string()).collect()
}

fn skip_bad() -> ClipOptions {
    ClipOptions { on_bad_frame: OnBadFrame::Skip, ..ClipOptions::default() }
}

#[test]
fn skip_then_stride_then_first() {
    let files: Vec<String> = (0..10).map(|number| format!("{number}.png")).collect();
    let folder = folder(&files.iter().map(String::as_str).collect::<Vec<_>>());
    let take = |skip, stride, first| {
        let stride = NonZeroUsize::new(stride).unwrap();
        let options = ClipOptions { skip, stride, first: NonZeroUsize::new(first), ..ClipOptions::default() };
        let clip = open(folder.path(), &options).unwrap();
        let length = clip.len_hint().unwrap();
        let frames: Vec<_> = clip.map(Result::unwrap).collect();
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
    let clip = open(folder.path(), &ClipOptions::default()).unwrap();
    let reds: Vec<u8> = clip.map(|frame| frame.unwrap().pixels.values()[0][0]).collect();
    assert_eq!(reds, (0..200).collect::<Vec<u8>>());
}

#[test]
fn a_bad_frame_stops_the_clip_and_is_named() {
    let folder = folder(&["0.png", "1.png", "3.png"]);
    fs::write(folder.path().join("2.png"), b"\x01\x02\x03").unwrap();
    let mut clip = open(folder.path(), &ClipOptions::default()).unwrap();
    assert!(clip.next().unwrap().is_ok() && clip.next().unwrap().is_ok());
    let error = clip.next().unwrap().unwrap_err();
    assert!(matches!(error.cause, FrameCause::Picture(PictureError::UnknownFormat)));
    let path = folder.path().join("2.png");
    assert_eq!(error.to_string(), format!("{}: {}", path.display(), PictureError::UnknownFormat));
    assert!(clip.next().is_none() && clip.next().is_none());
}

#[test]
fn bad_frames_are_left_out_and_counted() {
    let folder = folder(&["1.png", "3.png", "6.png"]);
    fs::write(folder.path().join("0.png"), "").unwrap();
    let whole = fs::read(folder.path().join("1.png")).unwrap();
    fs::write(folder.path().join("2.png"), &whole[..whole.len() - 20]).unwrap();
    write(folder.path(), "5.png", 0, 41);
    let mut clip = open(folder.path(), &skip_bad()).unwrap();
    let found: Vec<_> = clip.by_ref().map(|frame| frame.unwrap().name.unwrap().to_string()).collect();
    assert_eq!(found, ["1.png", "3.png", "6.png"]);
    let causes: Vec<_> = clip.skipped().iter().map(|error| &error.cause).collect();
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
    assert_eq!(clip.skipped_count(), 3);
    assert_eq!(clip.len_hint().unwrap(), 6);
}

#[test]
fn a_clip_of_bad_frames_only() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..100 {
        fs::write(folder.path().join(format!("{number}.jpg")), "text").unwrap();
    }
    let mut clip = open(folder.path(), &skip_bad()).unwrap();
    assert!(clip.next().is_none());
    // All are counted, and the first few are kept.
    assert_eq!(clip.skipped_count(), 100);
    assert_eq!(clip.skipped().len(), 8);
    assert!(clip.skipped()[7].to_string().contains("7.jpg"));
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_broken_ones_named() {
    use std::os::unix::fs::symlink;
    let folder = folder(&["0.png"]);
    symlink(folder.path().join("0.png"), folder.path().join("1.png")).unwrap();
    symlink(folder.path().join("nowhere"), folder.path().join("2.png")).unwrap();
    let mut clip = open(folder.path(), &skip_bad()).unwrap();
    assert_eq!(clip.by_ref().count(), 2);
    assert!(matches!(&clip.skipped()[0].cause, FrameCause::Read(_)));
    assert!(clip.skipped()[0].to_string().contains("2.png: the file cannot be read: No such file"));
}

#[test]
fn dropping_a_clip_early_is_no_wait() {
    let files: Vec<String> = (0..200).map(|number| format!("{number}.png")).collect();
    let folder = folder(&files.iter().map(String::as_str).collect::<Vec<_>>());
    for taken in [0, 1, 7] {
        let mut clip = open(folder.path(), &ClipOptions::default()).unwrap();
        assert_eq!(clip.by_ref().take(taken).count(), taken);
        drop(clip);
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_by_the_name_of_a_picture_is_a_bad_frame() {
    let folder = folder(&["frame0.png", "frame2.png"]);
    let pipe = folder.path().join("frame1.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = open(folder.path(), &ClipOptions::default()).unwrap().nth(1).unwrap().unwrap_err();
    let why = "it is a pipe, a socket or a device, and only regular files are read";
    assert_eq!(error.to_string(), format!("{}: {why}", pipe.display()));
    assert_eq!(names(open(folder.path(), &skip_bad()).unwrap()), ["frame0.png", "frame2.png"]);
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
        let options = ClipOptions { sample_bits, ..ClipOptions::default() };
        let mut clip = open(folder.path(), &options).unwrap();
        let levels = reds(&mut clip);
        (levels, clip.picture_warnings().iter().map(|&(warning, ..)| warning).collect::<Vec<_>>())
    };
    let bits = |bits| SampleBits::new(bits).unwrap();
    // 12 bits: the last picture needs more.
    let warnings = vec![PictureWarning::ScaledBits(bits(12)), PictureWarning::Clipped];
    assert_eq!(levels(None), (vec![250, 62, 255], warnings));
    assert_eq!(levels(Some(bits(13))), (vec![125, 31, 250], vec![]));
    assert_eq!(levels(Some(bits(16))), (vec![15, 3, 31], vec![PictureWarning::UnusedBits(bits(12))]));
}

#[test]
fn leaving_out_all_pictures_is_an_error() {
    let folder = folder(&["a.png"]);
    let options = ClipOptions { skip: 1, ..ClipOptions::default() };
    assert!(matches!(open(folder.path(), &options), Err(ClipError::AllSkipped { pictures: 1, skip: 1 })));
}

/// A source as a video decoder or a camera is one: pixels in memory, and its own errors. It does not know its length.
struct Camera(mpsc::Receiver<Result<u8, &'static str>>);

impl Source for Camera {
    fn next(&mut self) -> Option<Result<Picture, FrameError>> {
        let picture = self.0.recv().ok()?.map(|red| Picture {
            name: None,
            timestamp: Timestamp::from_seconds(red.into()),
            content: PictureContent::Pixels(Raster::new(40, 30, vec![[red, 0, 0]; 1200]).unwrap()),
        });
        Some(picture.map_err(|error| FrameError { name: "the camera".into(), cause: FrameCause::Source(error.into()) }))
    }
}

/// A camera that gives these pictures and ends.
fn camera(pictures: &[Result<u8, &'static str>]) -> Camera {
    let (sender, receiver) = mpsc::channel();
    for &picture in pictures {
        sender.send(picture).unwrap();
    }
    Camera(receiver)
}

fn reds(clip: &mut Clip) -> Vec<u8> {
    clip.map(|frame| frame.unwrap().pixels.values()[0][0]).collect()
}

#[test]
fn a_source_of_unknown_length_is_selected_from_as_a_folder_is() {
    let all: Vec<_> = (0..100).map(Ok).collect();
    let options = ClipOptions {
        skip: 3,
        stride: NonZeroUsize::new(10).unwrap(),
        first: NonZeroUsize::new(4),
        ..ClipOptions::default()
    };
    let clip = start(camera(&all), &options).unwrap();
    assert_eq!(clip.len_hint(), None);
    let frames: Vec<_> = clip.map(Result::unwrap).collect();
    let found: Vec<_> = frames.iter().map(|frame| (frame.number, frame.timestamp.unwrap().to_string())).collect();
    assert_eq!(found, [(3, "3".into()), (13, "13".into()), (23, "23".into()), (33, "33".into())]);
    assert_eq!(reds(&mut start(camera(&all), &ClipOptions { skip: 100, ..ClipOptions::default() }).unwrap()), []);
}

#[test]
fn errors_of_a_source_stop_the_clip_or_are_skipped() {
    let pictures = [Ok(1), Err("a packet is damaged"), Ok(2), Err("no signal"), Ok(3)];
    let mut clip = start(camera(&pictures), &ClipOptions::default()).unwrap();
    assert!(clip.next().unwrap().is_ok());
    assert_eq!(clip.next().unwrap().unwrap_err().to_string(), "the camera: a packet is damaged");
    assert!(clip.next().is_none());

    let mut clip = start(camera(&pictures), &skip_bad()).unwrap();
    assert_eq!(reds(&mut clip), [1, 2, 3]);
    assert_eq!(clip.skipped_count(), 2);
    assert_eq!(clip.skipped()[1].to_string(), "the camera: no signal");
}

#[test]
fn a_panic_of_a_source_is_an_error() {
    struct Faulty(usize);
    impl Source for Faulty {
        fn next(&mut self) -> Option<Result<Picture, FrameError>> {
            self.0 += 1;
            assert!(self.0 != 2, "lost");
            (self.0 < 4).then(|| camera(&[Ok(self.0 as u8)]).next()).flatten()
        }
    }
    let mut clip = start(Faulty(0), &skip_bad()).unwrap();
    assert_eq!(reds(&mut clip), [1, 3]);
    assert!(matches!(&clip.skipped()[0].cause, FrameCause::Panicked(message) if message.contains("lost")));
}

#[test]
fn a_source_that_waits_delays_nobody() {
    let (sender, receiver) = mpsc::channel();
    let mut clip = start(Camera(receiver), &ClipOptions::default()).unwrap();
    assert!(!clip.wait(Duration::from_millis(10)));
    sender.send(Ok(5)).unwrap();
    assert!(clip.wait(Duration::from_secs(20)));
    assert_eq!(clip.next().unwrap().unwrap().pixels.values()[0][0], 5);
    let started = Instant::now();
    drop(clip);
    assert!(started.elapsed() < Duration::from_secs(10));
}
