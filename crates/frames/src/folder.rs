//! A folder of pictures as a clip.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::{fmt, io, vec};

use globset::Glob;
use periplus_geometry::Timestamp;

use crate::order::suited_order;
use crate::{FolderError, FrameError, Order, Picture, PictureContent, Source, TimestampList, timestamp_of_name};

/// The extensions, in any case, of the files that are taken for frames.
pub(crate) const EXTENSIONS: [&str; 9] = ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "tif", "tiff"];

/// The extensions of pictures and videos that are not read. Files with other extensions (text, poses, depth as arrays) are no frames
/// that somebody would miss.
const OTHER_PICTURES: [&str; 20] = [
    "heic", "heif", "avif", "gif", "ppm", "pgm", "pnm", "jp2", "j2k", "jxl", "exr", "hdr", "dng", "cr2", "cr3", "nef",
    "arw", "raw", "tga", "psd",
];

/// Which files of a folder are the pictures of a clip, their order, and their times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FolderOptions {
    /// Only names that fit this pattern, such as `*.color.png`.
    pub glob: Option<Glob>,
    /// `None` for the order that suits the names: by time if they all end in numbers with a fraction, else natural.
    pub order: Option<Order>,
    /// Pictures per second, from which timestamps follow; `None` for the times in the names, if they are times.
    pub frames_per_second: Option<f64>,
    /// The times of the pictures, in place of those that follow from the names.
    pub timestamps: Option<TimestampList>,
}

/// What is unusual about a folder. None of it stops the clip.
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
            Self::TwoKinds { endings: [one, other] } => write!(
                f,
                "the names are of two kinds, {one} and {other}, and all are taken as frames: choose one kind by a pattern such as *{one}"
            ),
        }
    }
}

/// The pictures of a folder, in the order of their names.
///
/// Files with other extensions than those of pictures, hidden files (`.name`) and sub-folders are ignored. The folder is listed once;
/// files are read later, one by one.
#[derive(Debug)]
pub struct FolderSource {
    pictures: vec::IntoIter<(PathBuf, Option<Timestamp>)>,
    total: usize,
    warnings: Vec<FolderWarning>,
}

impl FolderSource {
    /// Lists the folder.
    ///
    /// # Errors
    /// If it is not a readable folder, holds no pictures, or the list of timestamps does not fit them.
    pub fn open(folder: impl AsRef<Path>, options: &FolderOptions) -> Result<Self, FolderError> {
        let folder = folder.as_ref();
        let (names, warnings) = list(folder, options)?;
        let texts: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        let times: Vec<_> = match (&options.timestamps, options.frames_per_second) {
            (Some(list), _) => list.times_of(texts.iter().map(AsRef::as_ref))?.into_iter().map(Some).collect(),
            (None, Some(rate)) => {
                (0..names.len()).map(|number| Timestamp::from_seconds(number as f64 / rate)).collect()
            }
            (None, None) => texts.iter().map(|name| timestamp_of_name(name)).collect(),
        };
        let pictures: Vec<_> = names.iter().map(|name| folder.join(name)).zip(times).collect();
        Ok(Self { total: pictures.len(), pictures: pictures.into_iter(), warnings })
    }

    /// What is unusual about the folder.
    pub fn warnings(&self) -> &[FolderWarning] {
        &self.warnings
    }
}

impl Source for FolderSource {
    fn next(&mut self) -> Option<Result<Picture, FrameError>> {
        let (path, timestamp) = self.pictures.next()?;
        let name = path.file_name().map(|name| name.to_string_lossy().into());
        Some(Ok(Picture { name, timestamp, content: PictureContent::File(path) }))
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.total)
    }
}

/// The names of the pictures in order, and what is unusual about them.
fn list(folder: &Path, options: &FolderOptions) -> Result<(Vec<OsString>, Vec<FolderWarning>), FolderError> {
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
    Ok((names, warnings))
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
