//! The bundled demo: a small checkpoint of our own, a clip of a kind that it knows, and the truth about that clip.
//!
//! All of it lies in the program itself (17 MB), so that `periplus stream` works wherever the program is: a path
//! would be right only on the machine, and in the folder, where it was built.

use std::path::Path;
use std::slice;

use periplus::Weights;
use periplus::checkpoint::CheckpointError;
use periplus::frames::{self, FrameError, PictureContent, Source};
use periplus::geometry::Timestamp;
use periplus::geometry::nalgebra::Point3;

/// What the demo weights are good for, for those who give them something else.
pub(crate) const LIMITS: &str = "warning: the demo weights know synthetic rooms only and mean nothing on other pictures; \
                                 give a published checkpoint with --weights FILE";

static WEIGHTS: &[u8] = include_bytes!("../../../weights/demo/demo.safetensors");

/// The truth about the clip, as a TUM trajectory: timestamp, position and quaternion of each frame.
pub(crate) static TRAJECTORY: &str = include_str!("../../../weights/demo/clip/groundtruth.txt");

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
pub(crate) struct DemoSource {
    rest: std::iter::Zip<std::vec::IntoIter<Timestamp>, slice::Iter<'static, Picture>>,
}

impl DemoSource {
    pub(crate) fn new() -> Self {
        let times: Vec<_> = truth().map(|(timestamp, _)| timestamp).collect();
        Self { rest: times.into_iter().zip(CLIP) }
    }
}

impl Source for DemoSource {
    fn next(&mut self) -> Option<Result<frames::Picture, FrameError>> {
        let (timestamp, picture) = self.rest.next()?;
        Some(Ok(frames::Picture {
            name: Some(picture.name.into()),
            timestamp: Some(timestamp),
            content: PictureContent::Encoded(picture.png.into()),
        }))
    }

    fn len_hint(&self) -> Option<usize> {
        Some(CLIP.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use periplus::frames::{Clip, ClipOptions, Preprocess, Resize};

    #[test]
    fn every_frame_has_its_truth() {
        assert_eq!(truth().count(), CLIP.len());
        let preprocess = Preprocess::new(224, 14, Resize::Crop).unwrap();
        let clip = Clip::start(DemoSource::new(), preprocess, &ClipOptions::default()).unwrap();
        assert_eq!(clip.len_hint(), Some(48));
        let frames = clip.collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(frames.len(), 48);
        assert!(frames.iter().all(|frame| frame.viewport.network == [224, 168]));
        assert_eq!(frames[30].timestamp.unwrap().to_string(), "1");
        assert_eq!(frames[30].name.as_deref(), Some("000030.png"));
    }
}
