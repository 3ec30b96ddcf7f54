//! A clip: the frames that the network gets from a source.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use std::{mem, thread};

use crate::read_ahead::ReadAhead;
use crate::{
    ClipError, Frame, FrameCause, FrameError, Picture, PictureContent, PictureWarning, Preprocess, SampleBits, Source,
};

/// Threads that decode. Each may hold over 1 GiB when pictures are as large as they may be (the file, the picture, and
/// what the decoder needs besides), and four decode frames faster than any network takes them.
const MAX_THREADS: usize = 4;

/// Errors of skipped pictures that are kept: enough to see what is wrong with a clip.
const MAX_ERRORS: usize = 8;

/// What to do about a picture that cannot be read, or has another size than the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadFrame {
    /// Yield the error and end the clip.
    #[default]
    Stop,
    /// Skip the picture. [`Clip::skipped`] lists the first errors.
    Skip,
}

/// Which pictures of a source become frames: the first `skip` pictures are left out, then every `stride`-th is taken, then the `first` of
/// those.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClipOptions {
    /// Pictures to leave out at the start.
    pub skip: usize,
    /// Take every N-th picture.
    pub stride: NonZeroUsize,
    /// Take at most this number of pictures.
    pub first: Option<NonZeroUsize>,
    /// The bits that samples of 16-bit pictures use; `None` for as many as the first picture needs. All frames get one scale.
    pub sample_bits: Option<SampleBits>,
    /// What to do about bad pictures.
    pub on_bad_frame: OnBadFrame,
}

impl Default for ClipOptions {
    fn default() -> Self {
        Self { skip: 0, stride: NonZeroUsize::MIN, first: None, sample_bits: None, on_bad_frame: OnBadFrame::Stop }
    }
}

impl ClipOptions {
    /// The number of pictures that are taken from a source of `pictures`.
    fn selected(&self, pictures: usize) -> usize {
        let selected = pictures.saturating_sub(self.skip).div_ceil(self.stride.get());
        self.first.map_or(selected, |first| selected.min(first.get()))
    }
}

/// The frames of a source: selected, decoded and resized in threads ahead of the consumer, all of one size.
///
/// Memory does not depend on the length of the clip. After an `Err` the clip has ended. Dropping it ends its threads.
pub struct Clip {
    /// `None` after an error that ends the clip.
    frames: Option<ReadAhead<Job, Loaded>>,
    len_hint: Option<usize>,
    /// Width and height of the first frame's picture, upright.
    size: Option<[u32; 2]>,
    on_bad_frame: OnBadFrame,
    /// Of each kind, the first picture and how many there are.
    picture_warnings: Vec<(PictureWarning, String, usize)>,
    skipped: Vec<FrameError>,
    skipped_count: usize,
}

/// A selected picture, or the error that a source gave in its place.
struct Job {
    number: usize,
    picture: Result<Picture, FrameError>,
    bits: SampleBits,
    /// The bits follow from this picture.
    first_of_its_bits: bool,
}

/// What has become of a selected picture.
struct Loaded {
    /// What the picture is called in messages.
    name: String,
    frame: Result<Frame, FrameError>,
    warnings: Vec<PictureWarning>,
}

impl Clip {
    /// Starts to read `source` ahead.
    ///
    /// # Errors
    /// If `options` leave out all pictures of a source whose length is known, or no thread can be started.
    pub fn start(
        source: impl Source + 'static,
        preprocess: Preprocess,
        options: &ClipOptions,
    ) -> Result<Self, ClipError> {
        let pictures = source.len_hint();
        if let Some(pictures) = pictures.filter(|&pictures| pictures <= options.skip && options.skip > 0) {
            return Err(ClipError::AllSkipped { pictures, skip: options.skip });
        }
        let len_hint = pictures.map(|pictures| options.selected(pictures));
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_THREADS);
        let threads = len_hint.map_or(threads, |frames| threads.min(frames.max(1)));
        // Twice the threads: each may have one frame waiting while it makes the next.
        let frames = ReadAhead::start(threads, 2 * threads, jobs(source, options), move |job| load(job, &preprocess));
        Ok(Self {
            frames: Some(frames.map_err(ClipError::Threads)?),
            len_hint,
            size: None,
            on_bad_frame: options.on_bad_frame,
            picture_warnings: Vec::new(),
            skipped: Vec::new(),
            skipped_count: 0,
        })
    }

    /// The number of frames of the whole clip, if it is known. Bad frames count, too: it is what the frames yielded and
    /// [`Self::skipped_count`] reach together.
    pub fn len_hint(&self) -> Option<usize> {
        self.len_hint
    }

    /// Waits until the next frame is there or the clip has ended, so that [`Self::next`](Iterator::next) does not wait; at most for
    /// `timeout`. Returns whether it is so. A program that can be interrupted calls this while a camera has no frame.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.frames.as_ref().is_none_or(|frames| frames.wait(timeout))
    }

    /// The errors of the first skipped pictures. Later ones are only counted.
    pub fn skipped(&self) -> &[FrameError] {
        &self.skipped
    }

    /// The number of pictures skipped so far.
    pub fn skipped_count(&self) -> usize {
        self.skipped_count
    }

    /// What is unusual about the pictures so far: each kind of warning in the order of its first picture, the name of that picture, and
    /// how many pictures there are.
    pub fn picture_warnings(&self) -> &[(PictureWarning, String, usize)] {
        &self.picture_warnings
    }

    fn record(&mut self, name: &str, warnings: &[PictureWarning]) {
        for &warning in warnings {
            let kind = mem::discriminant(&warning);
            match self.picture_warnings.iter_mut().find(|(other, ..)| mem::discriminant(other) == kind) {
                Some((.., count)) => *count += 1,
                None => self.picture_warnings.push((warning, name.to_owned(), 1)),
            }
        }
    }

    /// The frame, if its picture has the size of the first. The first good frame sets the size.
    fn of_one_size(&mut self, frame: Frame, name: String) -> Result<Frame, FrameError> {
        let found = frame.viewport.original;
        let expected = *self.size.get_or_insert(found);
        if found == expected {
            Ok(frame)
        } else {
            Err(FrameError { name, cause: FrameCause::OtherSize { found, expected } })
        }
    }
}

impl Iterator for Clip {
    type Item = Result<Frame, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Loaded { name, frame, warnings } = self.frames.as_mut()?.next()?;
            self.record(&name, &warnings);
            let error = match frame.and_then(|frame| self.of_one_size(frame, name)) {
                Ok(frame) => return Some(Ok(frame)),
                Err(error) => error,
            };
            match self.on_bad_frame {
                OnBadFrame::Skip => {
                    self.skipped_count += 1;
                    if self.skipped.len() < MAX_ERRORS {
                        self.skipped.push(error);
                    }
                }
                OnBadFrame::Stop => {
                    self.frames = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The pictures of `source` that `options` select, one per call.
fn jobs(mut source: impl Source + 'static, options: &ClipOptions) -> impl FnMut() -> Option<Job> + Send + 'static {
    let &ClipOptions { skip, stride, first, mut sample_bits, .. } = options;
    let mut left = first.map_or(usize::MAX, NonZeroUsize::get);
    let mut numbers = 0..;
    let mut next = move || {
        let number = numbers.next()?;
        let panicked = |cause| Some(Err(FrameError { name: unnamed(number), cause }));
        Some((number, catch(|| Ok(source.next())).unwrap_or_else(panicked)?))
    };
    move || {
        left = left.checked_sub(1)?;
        loop {
            let (number, picture) = next()?;
            if number < skip || !(number - skip).is_multiple_of(stride.get()) {
                continue;
            }
            let found = match (sample_bits, &picture) {
                (None, Ok(picture)) => Some(catch(|| picture.content.used_sample_bits()).unwrap_or_default()),
                _ => None,
            };
            sample_bits = sample_bits.or(found);
            let first_of_its_bits = found.is_some_and(|bits| bits != SampleBits::ALL);
            return Some(Job { number, picture, bits: sample_bits.unwrap_or_default(), first_of_its_bits });
        }
    }
}

fn load(job: Job, preprocess: &Preprocess) -> Loaded {
    let Job { number, picture, bits, first_of_its_bits } = job;
    let Picture { name, timestamp, content } = match picture {
        Ok(picture) => picture,
        Err(error) => return Loaded { name: error.name.clone(), frame: Err(error), warnings: Vec::new() },
    };
    let place = match &content {
        PictureContent::File(path) => path.display().to_string(),
        _ => name.as_deref().map_or_else(|| unnamed(number), str::to_owned),
    };
    let mut warnings = Vec::new();
    let frame = catch(|| {
        let (picture, unusual) = content.decode(bits)?;
        warnings = unusual;
        let (pixels, viewport) = preprocess.apply(&picture)?;
        Ok(Frame { number, name, timestamp, viewport, pixels: Arc::new(pixels) })
    });
    if first_of_its_bits {
        warnings.push(PictureWarning::ScaledBits(bits));
    }
    Loaded { frame: frame.map_err(|cause| FrameError { name: place.clone(), cause }), name: place, warnings }
}

/// What a picture without a name is called.
fn unnamed(number: usize) -> String {
    format!("picture {number}")
}

/// Calls what may panic, such as a decoder. A panic becomes an error.
fn catch<T>(call: impl FnOnce() -> Result<T, FrameCause>) -> Result<T, FrameCause> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(FrameCause::Panicked(panic_message(&*panic))))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
