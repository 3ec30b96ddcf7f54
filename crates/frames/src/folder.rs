//! A folder of pictures as a clip.

use std::fs::{self, DirEntry, File};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{any::Any, thread};

use crate::read_ahead::ReadAhead;
use crate::{
    FolderError, Frame, FrameCause, FrameError, MAX_PICTURE_BYTES, PictureError, Preprocess, Source, decode,
    natural_order,
};

/// The extensions, in any case, of the files that are taken for frames.
pub(crate) const EXTENSIONS: [&str; 7] = ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff"];

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

/// Which pictures of a folder are frames: of all in natural order, `skip` are left out, then every `stride`-th is
/// taken, then the `first` of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderOptions {
    /// Pictures to leave out at the start.
    pub skip: usize,
    /// Take every so-manieth picture.
    pub stride: NonZeroUsize,
    /// Take at most so many.
    pub first: Option<NonZeroUsize>,
    /// What to do about bad ones.
    pub on_bad_frame: OnBadFrame,
}

impl Default for FolderOptions {
    fn default() -> Self {
        Self { skip: 0, stride: NonZeroUsize::MIN, first: None, on_bad_frame: OnBadFrame::Stop }
    }
}

/// The pictures of a folder in [`natural_order`] of their names, read ahead in threads.
///
/// Files with another extension than those of pictures, hidden files (`.name`) and sub-folders are ignored. Memory does
/// not depend on the length of the clip, but for the list of names. Dropping it ends the threads.
pub struct FolderSource {
    paths: Arc<[PathBuf]>,
    /// `None` after an error that ends the clip.
    pictures: Option<ReadAhead<Result<Frame, FrameCause>>>,
    /// Pictures taken out of `pictures`.
    taken: usize,
    /// Width and height of the first frame, upright.
    size: Option<[u32; 2]>,
    on_bad_frame: OnBadFrame,
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
        let paths: Arc<[PathBuf]> = frame_paths(folder.as_ref(), options)?.into();
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_THREADS);
        let load = {
            let paths = Arc::clone(&paths);
            let (skip, stride) = (options.skip, options.stride.get());
            move |place: usize| load(&paths[place], skip + place * stride, &preprocess)
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
            skipped: Vec::new(),
            skipped_count: 0,
        })
    }

    /// Frames of the whole clip, bad ones included.
    #[allow(clippy::len_without_is_empty)] // never empty, that is an error of `open`
    pub fn len(&self) -> usize {
        self.paths.len()
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
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

fn load(path: &Path, number: usize, preprocess: &Preprocess) -> Result<Frame, FrameCause> {
    // Opening a named pipe would wait for somebody to write to it.
    if !fs::metadata(path)?.is_file() {
        return Err(FrameCause::NotRegular);
    }
    let mut contents = Vec::new();
    File::open(path)?.take(MAX_PICTURE_BYTES + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MAX_PICTURE_BYTES {
        return Err(PictureError::FileTooLarge.into());
    }
    let (pixels, viewport) = preprocess.apply(&decode(&contents)?)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into());
    Ok(Frame { number, name, timestamp: None, viewport, pixels: Arc::new(pixels) })
}

fn frame_paths(folder: &Path, options: &FolderOptions) -> Result<Vec<PathBuf>, FolderError> {
    let unreadable = |source| FolderError::Unreadable { path: folder.into(), source };
    let entries = fs::read_dir(folder).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => FolderError::NotFound(folder.into()),
        io::ErrorKind::NotADirectory => FolderError::NotAFolder(folder.into()),
        _ => unreadable(source),
    })?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        if is_picture(&entry) {
            names.push(entry.file_name());
        }
    }
    if names.is_empty() {
        return Err(FolderError::NoPictures(folder.into()));
    }
    names.sort_by(|a, b| natural_order(a.as_encoded_bytes(), b.as_encoded_bytes()));
    let first = options.first.map_or(usize::MAX, NonZeroUsize::get);
    let taken = names.iter().skip(options.skip).step_by(options.stride.get()).take(first);
    let paths: Vec<_> = taken.map(|name| folder.join(name)).collect();
    if paths.is_empty() {
        return Err(FolderError::AllSkipped { path: folder.into(), pictures: names.len(), skip: options.skip });
    }
    Ok(paths)
}

fn is_picture(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let extension = Path::new(&name).extension().and_then(|extension| extension.to_str());
    let known = extension.is_some_and(|found| EXTENSIONS.iter().any(|known| known.eq_ignore_ascii_case(found)));
    let hidden = name.as_encoded_bytes().starts_with(b".");
    // Links are followed. One that leads nowhere counts as a picture, and so does a pipe, so that reading it names it.
    known && !hidden && !entry.path().is_dir()
}
