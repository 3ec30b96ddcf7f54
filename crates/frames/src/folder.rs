//! A folder of pictures as a clip.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{any::Any, fmt, mem, thread};

use globset::Glob;
use periplus_geometry::Timestamp;

use crate::order::suited_order;
use crate::read_ahead::ReadAhead;
use crate::{
    FolderError, Frame, FrameCause, FrameError, MAX_PICTURE_BYTES, Order, PictureError, PictureWarning, Preprocess,
    SampleBits, Source, TimestampList, decode_with_warnings, timestamp_of_name, used_sample_bits,
};

/// The extensions, in any case, of the files that are taken for frames.
pub(crate) const EXTENSIONS: [&str; 9] = ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "tif", "tiff"];

/// The extensions of pictures and videos that are not read. Files with other extensions (text, poses, depth as arrays) are no frames
/// that somebody would miss.
const OTHER_PICTURES: [&str; 20] = [
    "heic", "heif", "avif", "gif", "ppm", "pgm", "pnm", "jp2", "j2k", "jxl", "exr", "hdr", "dng", "cr2", "cr3", "nef",
    "arw", "raw", "tga", "psd",
];

/// A frame, and what is odd about its picture.
type Loaded = (Frame, Vec<PictureWarning>);

/// Threads that decode. Each may hold over 1 GiB when pictures are as large as they may be (the file, the picture, and
/// what the decoder needs besides), and four decode frames faster than any network takes them.
const MAX_THREADS: usize = 4;

/// Errors of frames left out that are kept: enough to see what is wrong with a folder.
const MAX_ERRORS: usize = 8;

/// What to do about a frame that cannot be decoded or is of another size than the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadFrame {
    /// Yield the error and end.
    #[default]
    Stop,
    /// Leave it out and count it in [`Source::skipped_count`]; [`Source::skipped`] tells the first few.
    Skip,
}

/// Which pictures of a folder are frames, and in which order: of all whose names fit, `skip` are left out, then every
/// `stride`-th is taken, then the `first` of those.
#[derive(Debug, Clone, PartialEq)]
pub struct FolderOptions {
    /// Only names that fit this pattern, such as `*.color.png`.
    pub glob: Option<Glob>,
    /// `None` for the order that suits the names: by time if they all end in numbers with a fraction, else natural.
    pub order: Option<Order>,
    /// Frames per second, from which timestamps follow; `None` for the times in the names, if they are times.
    pub frames_per_second: Option<f64>,
    /// The times of the pictures, in place of those that follow from the names.
    pub timestamps: Option<TimestampList>,
    /// Pictures to leave out at the start.
    pub skip: usize,
    /// Take every N-th picture.
    pub stride: NonZeroUsize,
    /// Take at most so many.
    pub first: Option<NonZeroUsize>,
    /// The bits that samples of 16-bit pictures use; `None` for as many as the first picture needs. All frames get one scale.
    pub sample_bits: Option<SampleBits>,
    /// What to do about bad ones.
    pub on_bad_frame: OnBadFrame,
}

impl Default for FolderOptions {
    fn default() -> Self {
        Self {
            glob: None,
            order: None,
            frames_per_second: None,
            timestamps: None,
            skip: 0,
            stride: NonZeroUsize::MIN,
            first: None,
            sample_bits: None,
            on_bad_frame: OnBadFrame::Stop,
        }
    }
}

/// What is odd about a folder. None of it stops the clip.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FolderWarning {
    /// Pictures of kinds that are not read.
    LeftOut {
        /// Extensions, and how many files have each.
        kinds: BTreeMap<String, usize>,
    },
    /// Names in which the digits behind a point may be a fraction or a count of nanoseconds without its leading zeros, and the two
    /// readings give different orders.
    TwoReadings {
        /// A name that is read in two ways.
        name: String,
    },
    /// Names of two kinds, as of pictures and depth maps in one folder.
    TwoKinds {
        /// How the names of either kind end.
        endings: [String; 2],
    },
    /// The first picture has samples of 16 bits that use only so many; all frames are read so.
    SampleBits(SampleBits),
}

impl fmt::Display for FolderWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftOut { kinds } => {
                let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count} .{kind}")).collect();
                write!(
                    f,
                    "pictures of kinds that are not read are left out ({}): convert them to JPEG or PNG",
                    kinds.join(", ")
                )
            }
            Self::TwoReadings { name } => write!(
                f,
                "the number in {name} is read as seconds with a fraction; read as seconds and nanoseconds, the order would be \
                 another: rename the pictures, or choose the natural order, if that is what it means"
            ),
            Self::SampleBits(bits) => write!(
                f,
                "the first picture has samples of 16 bits that use only {}: {} is taken for white in all frames; say how many bits \
                 they use, if that is wrong",
                bits.bits(),
                (1_u32 << bits.bits()) - 1
            ),
            Self::TwoKinds { endings: [one, other] } => write!(
                f,
                "the names are of two kinds, {one} and {other}, and all are taken as frames: choose one kind by a pattern such as *{one}"
            ),
        }
    }
}

/// The pictures of a folder in the order of their names, read ahead in threads.
///
/// Files with another extension than those of pictures, hidden files (`.name`) and sub-folders are ignored. Memory does
/// not depend on the length of the clip, but for the list of names. Dropping it ends the threads.
pub struct FolderSource {
    paths: Arc<[PathBuf]>,
    /// `None` after an error that ends the clip.
    pictures: Option<ReadAhead<Result<Loaded, FrameCause>>>,
    /// Pictures taken out of `pictures`.
    taken: usize,
    /// Width and height of the first frame, upright.
    size: Option<[u32; 2]>,
    on_bad_frame: OnBadFrame,
    warnings: Vec<FolderWarning>,
    /// Of each kind, the first picture and how many there are.
    picture_warnings: Vec<(PictureWarning, String, usize)>,
    skipped: Vec<FrameError>,
    skipped_count: usize,
}

impl FolderSource {
    /// Lists the folder and starts to read ahead.
    ///
    /// # Errors
    /// If it is no readable folder, or holds no pictures beyond those to skip.
    pub fn open(
        folder: impl AsRef<Path>,
        options: &FolderOptions,
        preprocess: Preprocess,
    ) -> Result<Self, FolderError> {
        let Listing { paths, times, warnings } = list(folder.as_ref(), options)?;
        let paths: Arc<[PathBuf]> = paths.into();
        let bits = options.sample_bits.unwrap_or_else(|| {
            paths
                .first()
                .and_then(|path| contents(path).ok())
                .and_then(|contents| used_sample_bits(&contents))
                .unwrap_or_default()
        });
        let mut warnings = warnings;
        if options.sample_bits.is_none() && bits != SampleBits::ALL {
            warnings.push(FolderWarning::SampleBits(bits));
        }
        let seconds = options.frames_per_second.map(|rate| move |number: usize| number as f64 / rate);
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_THREADS);
        let load = {
            let paths = Arc::clone(&paths);
            let (skip, stride) = (options.skip, options.stride.get());
            move |place: usize| {
                let (path, number) = (&paths[place], skip + place * stride);
                let timestamp = match &seconds {
                    _ if times.is_some() => times.as_ref().map(|times| times[number]),
                    Some(seconds) => Timestamp::from_seconds(seconds(number)),
                    None => path.file_name().and_then(|name| timestamp_of_name(&name.to_string_lossy())),
                };
                load(path, number, timestamp, &preprocess, bits)
            }
        };
        // Twice the threads: each may have one picture waiting while it makes the next.
        let pictures = ReadAhead::start(paths.len(), threads, 2 * threads, load).map_err(FolderError::Threads)?;
        let on_bad_frame = options.on_bad_frame;
        Ok(Self {
            paths,
            pictures: Some(pictures),
            taken: 0,
            size: None,
            on_bad_frame,
            warnings,
            picture_warnings: Vec::new(),
            skipped: Vec::new(),
            skipped_count: 0,
        })
    }

    /// Frames of the whole clip, bad ones included.
    #[allow(clippy::len_without_is_empty)] // never empty, that is an error of `open`
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// What is odd about the folder.
    pub fn warnings(&self) -> &[FolderWarning] {
        &self.warnings
    }

    /// Counts what is odd about a picture.
    fn note(&mut self, name: &str, warnings: &[PictureWarning]) {
        for &warning in warnings {
            let kind = mem::discriminant(&warning);
            match self.picture_warnings.iter_mut().find(|(other, ..)| mem::discriminant(other) == kind) {
                Some((.., count)) => *count += 1,
                None => self.picture_warnings.push((warning, name.to_owned(), 1)),
            }
        }
    }

    /// The frame, if it is of the size of the first; the first good frame sets it.
    fn of_one_size(&mut self, frame: Frame) -> Result<Frame, FrameCause> {
        let found = frame.viewport.original;
        let expected = *self.size.get_or_insert(found);
        if found == expected { Ok(frame) } else { Err(FrameCause::OtherSize { found, expected }) }
    }
}

impl Iterator for FolderSource {
    type Item = Result<Frame, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let loaded = self.pictures.as_mut()?.next()?;
            let path = &self.paths[self.taken];
            let name = path.display().to_string();
            self.taken += 1;
            let loaded = loaded.unwrap_or_else(|panic| Err(FrameCause::Panicked(panic_message(&*panic))));
            let loaded = loaded.map(|(frame, warnings)| {
                self.note(&name, &warnings);
                frame
            });
            let error = match loaded.and_then(|frame| self.of_one_size(frame)) {
                Ok(frame) => return Some(Ok(frame)),
                Err(cause) => FrameError { name, cause },
            };
            match self.on_bad_frame {
                OnBadFrame::Skip => {
                    self.skipped_count += 1;
                    if self.skipped.len() < MAX_ERRORS {
                        self.skipped.push(error);
                    }
                }
                OnBadFrame::Stop => {
                    self.pictures = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Source for FolderSource {
    fn len_hint(&self) -> Option<usize> {
        Some(self.len())
    }

    fn skipped(&self) -> &[FrameError] {
        &self.skipped
    }

    fn skipped_count(&self) -> usize {
        self.skipped_count
    }

    fn picture_warnings(&self) -> Vec<(PictureWarning, String, usize)> {
        self.picture_warnings.clone()
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

fn load(
    path: &Path,
    number: usize,
    timestamp: Option<Timestamp>,
    preprocess: &Preprocess,
    bits: SampleBits,
) -> Result<Loaded, FrameCause> {
    let (picture, warnings) = decode_with_warnings(&contents(path)?, bits)?;
    let (pixels, viewport) = preprocess.apply(&picture)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into());
    Ok((Frame { number, name, timestamp, viewport, pixels: Arc::new(pixels) }, warnings))
}

/// What is in the file of a picture.
fn contents(path: &Path) -> Result<Vec<u8>, FrameCause> {
    // Opening a named pipe would wait for somebody to write to it.
    if !fs::metadata(path)?.is_file() {
        return Err(FrameCause::NotRegular);
    }
    let mut contents = Vec::new();
    File::open(path)?.take(MAX_PICTURE_BYTES + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MAX_PICTURE_BYTES {
        return Err(PictureError::FileTooLarge.into());
    }
    Ok(contents)
}

/// The pictures of a folder.
struct Listing {
    /// Those that are frames.
    paths: Vec<PathBuf>,
    /// The times of all, if there is a list of them.
    times: Option<Vec<Timestamp>>,
    warnings: Vec<FolderWarning>,
}

fn list(folder: &Path, options: &FolderOptions) -> Result<Listing, FolderError> {
    let unreadable = |source| FolderError::Unreadable { path: folder.into(), source };
    let entries = fs::read_dir(folder).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => FolderError::NotFound(folder.into()),
        io::ErrorKind::NotADirectory => FolderError::NotAFolder(folder.into()),
        _ => unreadable(source),
    })?;
    let pattern = options.glob.as_ref().map(Glob::compile_matcher);
    let (mut names, mut left_out) = (Vec::new(), BTreeMap::new());
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        let fits = pattern.as_ref().is_none_or(|pattern| pattern.is_match(&name));
        let hidden = name.as_encoded_bytes().starts_with(b".");
        // Links are followed. One that leads nowhere counts as a picture, and so does a pipe, so that reading it names it.
        if !fits || hidden || folder.join(&name).is_dir() {
            continue;
        }
        let extension = Path::new(&name).extension().and_then(|extension| extension.to_str());
        match extension.map(str::to_ascii_lowercase) {
            Some(extension) if EXTENSIONS.contains(&&*extension) => names.push(name),
            Some(extension) if OTHER_PICTURES.contains(&&*extension) => *left_out.entry(extension).or_default() += 1,
            _ => {}
        }
    }
    if names.is_empty() {
        return Err(FolderError::NoPictures { path: folder.into(), others: left_out });
    }
    let mut warnings = Vec::new();
    if !left_out.is_empty() {
        warnings.push(FolderWarning::LeftOut { kinds: left_out });
    }
    let order = options.order.unwrap_or_else(|| suited_order(names.iter().map(stem)));
    names.sort_by(|a, b| order.compare(stem(a), stem(b)).then_with(|| a.cmp(b)));
    if options.order.is_none() && order == Order::Time {
        // Whole numbers of nanoseconds whose leading zeros are left out.
        let misplaced = names.windows(2).find(|pair| Order::Natural.compare(stem(&pair[0]), stem(&pair[1])).is_gt());
        warnings.extend(misplaced.map(|pair| FolderWarning::TwoReadings { name: pair[1].to_string_lossy().into() }));
    }
    warnings.extend(two_kinds(&names));
    let first = options.first.map_or(usize::MAX, NonZeroUsize::get);
    let taken = names.iter().skip(options.skip).step_by(options.stride.get()).take(first);
    let paths: Vec<_> = taken.map(|name| folder.join(name)).collect();
    if paths.is_empty() {
        return Err(FolderError::AllSkipped { path: folder.into(), pictures: names.len(), skip: options.skip });
    }
    let texts: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
    let times = options.timestamps.as_ref().map(|list| list.times_of(texts.iter().map(AsRef::as_ref)));
    Ok(Listing { paths, times: times.transpose()?, warnings })
}

/// A name without its extension.
fn stem(name: &OsString) -> &[u8] {
    Path::new(name).file_stem().unwrap_or(name).as_encoded_bytes()
}

/// Whether the names are of two kinds that are about as many each: how they go on after their last number.
fn two_kinds(names: &[OsString]) -> Option<FolderWarning> {
    let mut endings: BTreeMap<&[u8], usize> = BTreeMap::new();
    for name in names {
        let name = name.as_encoded_bytes();
        let digits = name.iter().rposition(u8::is_ascii_digit)?;
        *endings.entry(&name[digits + 1..]).or_default() += 1;
    }
    let text = |ending: &[u8]| String::from_utf8_lossy(ending).into_owned();
    match endings.into_iter().collect::<Vec<_>>()[..] {
        [(one, count), (other, others)] if count.abs_diff(others) <= 1 && count + others > 3 => {
            Some(FolderWarning::TwoKinds { endings: [text(one), text(other)] })
        }
        _ => None,
    }
}
