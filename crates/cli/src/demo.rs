//! The bundled demo: a small checkpoint of our own, a clip of a kind that it knows, and the truth about that clip.
//!
//! All of it lies in the program itself (17 MB), so that `periplus stream` works wherever the program is: a path
//! would be right only on the machine, and in the folder, where it was built.

use std::path::Path;
use std::sync::Arc;

use periplus::checkpoint::CheckpointError;
use periplus::frames::{FolderOptions, FrameCause, FrameError, Preprocess, Source, decode};
use periplus::geometry::Timestamp;
use periplus::geometry::nalgebra::Point3;
use periplus::{Frame, Weights};

use crate::failure::Failure;

/// What the demo weights are good for, for those who give them something else.
pub(crate) const LIMITS: &str = "warning: the demo weights know synthetic rooms only and mean nothing on other pictures; \
                                 give a published checkpoint with --weights FILE";

static WEIGHTS: &[u8] = include_bytes!("../../../weights/demo/demo.safetensors");

/// The truth about the clip, as a TUM trajectory: timestamp, position and quaternion of each frame.
static TRAJECTORY: &str = include_str!("../../../weights/demo/clip/groundtruth.txt");

/// A frame of the clip.
pub(crate) struct Picture {
    pub(crate) name: &'static str,
    /// The file's contents.
    png: &'static [u8],
    /// True depth along z, 16-bit PNG in millimetres.
    pub(crate) depth: &'static [u8],
}

macro_rules! clip {
    ($($number:literal)*) => {
        &[$(Picture {
            name: concat!($number, ".png"),
            png: include_bytes!(concat!("../../../weights/demo/clip/frames/", $number, ".png")),
            depth: include_bytes!(concat!("../../../weights/demo/clip/depth/", $number, ".png")),
        }),*]
    };
}

#[rustfmt::skip]
pub(crate) static CLIP: &[Picture] = clip!(
    "000000" "000001" "000002" "000003" "000004" "000005" "000006" "000007" "000008" "000009" "000010" "000011"
    "000012" "000013" "000014" "000015" "000016" "000017" "000018" "000019" "000020" "000021" "000022" "000023"
    "000024" "000025" "000026" "000027" "000028" "000029" "000030" "000031" "000032" "000033" "000034" "000035"
    "000036" "000037" "000038" "000039" "000040" "000041" "000042" "000043" "000044" "000045" "000046" "000047"
);

/// Where the camera truly was, in metres, and when: one line of [`TRAJECTORY`] per frame.
pub(crate) fn truth() -> impl Iterator<Item = (Timestamp, Point3<f64>)> {
    TRAJECTORY.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (time, rest) = line.split_once(' ')?;
        let mut numbers = rest.split_whitespace().map_while(|word| word.parse().ok());
        Some((Timestamp::parse(time)?, Point3::new(numbers.next()?, numbers.next()?, numbers.next()?)))
    })
}

/// The bundled checkpoint.
pub(crate) fn weights(config: Option<&Path>) -> Result<Weights, CheckpointError> {
    Weights::bundled("the bundled checkpoint", WEIGHTS, config)
}

/// The bundled clip as a source.
pub(crate) struct DemoClip {
    rest: std::vec::IntoIter<(usize, Timestamp, &'static Picture)>,
    total: usize,
    preprocess: Preprocess,
}

impl DemoClip {
    /// The frames that `options` choose, as from a folder.
    pub(crate) fn open(options: &FolderOptions, preprocess: Preprocess) -> Result<Self, Failure> {
        let first = options.first.map_or(usize::MAX, std::num::NonZeroUsize::get);
        let all = truth().zip(CLIP).enumerate().map(|(number, ((timestamp, _), picture))| (number, timestamp, picture));
        let chosen: Vec<_> = all.skip(options.skip).step_by(options.stride.get()).take(first).collect();
        if chosen.is_empty() {
            return Err(Failure::Failed(format!("the bundled clip has {} frames: skip fewer", CLIP.len())));
        }
        Ok(Self { total: chosen.len(), rest: chosen.into_iter(), preprocess })
    }
}

impl Iterator for DemoClip {
    type Item = Result<Frame, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (number, timestamp, picture) = self.rest.next()?;
        let fitted = decode(picture.png).and_then(|pixels| self.preprocess.apply(&pixels));
        Some(match fitted {
            Ok((pixels, viewport)) => Ok(Frame {
                number,
                name: Some(picture.name.into()),
                timestamp: Some(timestamp),
                viewport,
                pixels: Arc::new(pixels),
            }),
            Err(cause) => Err(FrameError { name: picture.name.into(), cause: FrameCause::Picture(cause) }),
        })
    }
}

impl Source for DemoClip {
    fn len_hint(&self) -> Option<usize> {
        Some(self.total)
    }

    fn skipped(&self) -> &[FrameError] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use periplus::frames::Resize;

    #[test]
    fn every_frame_has_its_truth() {
        assert_eq!(truth().count(), CLIP.len());
        let preprocess = Preprocess::new(224, 14, Resize::Crop).unwrap();
        let clip = DemoClip::open(&FolderOptions::default(), preprocess).unwrap();
        assert_eq!(clip.len_hint(), Some(48));
        let frames = clip.collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(frames.len(), 48);
        assert!(frames.iter().all(|frame| frame.viewport.network == [224, 168]));
        assert_eq!(frames[30].timestamp.unwrap().to_string(), "1");
    }

    #[test]
    fn a_part_of_the_clip_is_chosen_as_from_a_folder() {
        let preprocess = Preprocess::new(14, 14, Resize::Crop).unwrap();
        let options =
            FolderOptions { skip: 2, stride: 5.try_into().unwrap(), first: 3.try_into().ok(), ..Default::default() };
        let frames: Vec<_> = DemoClip::open(&options, preprocess).unwrap().map(Result::unwrap).collect();
        let chosen: Vec<_> = frames.iter().map(|frame| (frame.number, frame.name.as_deref().unwrap())).collect();
        assert_eq!(chosen, [(2, "000002.png"), (7, "000007.png"), (12, "000012.png")]);
        let none = FolderOptions { skip: 48, ..Default::default() };
        assert!(DemoClip::open(&none, preprocess).is_err());
    }
}
