//! Which frames stay in the cache.

use periplus_geometry::{DepthMap, PoseEncoding, displacement};
use periplus_model::Outputs;

/// Views that the network was trained on at once; a clip of more is thinned to 160 to 320 keyframes.
const TRAINED_VIEWS: usize = 320;

/// The interval between keyframes that suits a clip of `frames`: 1 up to 320 frames, ceil(frames / 320) beyond.
pub fn keyframe_interval(frames: usize) -> usize {
    frames.div_ceil(TRAINED_VIEWS).max(1)
}

/// Which frames, after the scale frames, stay in the cache and are seen by later ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keyframes {
    /// The first and every so-many-th after it; at least 1. [`keyframe_interval`] suggests a number.
    Every(usize),
    /// The first; after it each frame in which the picture has moved by more than `pixels` on average since the last
    /// keyframe (see [`displacement`]), or with which `max_gap` frames have passed since. Needs [`Outputs::Depth`].
    ByMotion {
        /// Mean displacement in pixels of the network's picture.
        pixels: f64,
        /// Frames after which one is kept in any case; at least 1.
        max_gap: usize,
    },
}

impl Keyframes {
    /// # Errors
    /// Which setting is invalid.
    pub(crate) fn check(self, outputs: Outputs) -> Result<(), &'static str> {
        match self {
            Self::Every(0) => Err("the keyframe interval must be at least 1"),
            Self::ByMotion { max_gap: 0, .. } => Err("the largest gap between keyframes must be at least 1"),
            Self::ByMotion { pixels, .. } if pixels.is_nan() => Err("the motion between keyframes must be a number"),
            Self::ByMotion { .. } if outputs < Outputs::Depth => {
                Err("keyframes by motion need depth: the outputs must be more than poses")
            }
            _ => Ok(()),
        }
    }
}

/// What the rule needs to know of the frames so far.
#[derive(Debug, Clone)]
pub(crate) struct KeyframeHistory {
    /// Frames since the scale frames.
    streamed: usize,
    /// Frames since the last kept one.
    since_kept: usize,
    kept_pose: PoseEncoding,
}

impl KeyframeHistory {
    /// Starts after scale frames of which `last` is the latest.
    pub(crate) fn after_scale_frames(last: PoseEncoding) -> Self {
        Self { streamed: 0, since_kept: 0, kept_pose: last }
    }

    /// Whether the next frame is known to stay before it has run. The window then moves before it looks.
    pub(crate) fn foreseen(&self, rule: Keyframes) -> bool {
        matches!(rule, Keyframes::Every(interval) if self.streamed.is_multiple_of(interval))
    }

    /// Whether the frame that has just run stays. [`Keyframes::check`] sees to it that there is a depth map where the
    /// rule looks at it.
    pub(crate) fn decide(&self, rule: Keyframes, pose: &PoseEncoding, map: Option<&DepthMap>) -> bool {
        match rule {
            Keyframes::Every(_) => self.foreseen(rule),
            Keyframes::ByMotion { pixels, max_gap } => {
                self.streamed == 0
                    || self.since_kept + 1 >= max_gap
                    || map.is_some_and(|map| displacement(pose, &map.depth, &self.kept_pose) > pixels)
            }
        }
    }

    /// A frame has been answered.
    pub(crate) fn record(&mut self, kept: bool, pose: PoseEncoding) {
        self.streamed += 1;
        if kept {
            self.since_kept = 0;
            self.kept_pose = pose;
        } else {
            self.since_kept += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use periplus_geometry::Raster;

    use super::*;

    #[test]
    fn interval_keeps_a_clip_near_the_trained_length() {
        assert_eq!([0, 1, 320, 321, 640, 641, 3000].map(keyframe_interval), [1, 1, 1, 2, 2, 3, 10]);
    }

    #[test]
    fn every_third_frame_from_the_first() {
        let mut history = KeyframeHistory::after_scale_frames(PoseEncoding([0.0; 9]));
        let kept: Vec<bool> = (0..7)
            .map(|_| {
                let kept = history.foreseen(Keyframes::Every(3));
                history.record(kept, PoseEncoding([0.0; 9]));
                kept
            })
            .collect();
        assert_eq!(kept, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn a_camera_that_stands_still_is_kept_at_the_largest_gap() {
        let pose = PoseEncoding([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let ones = Raster::new(16, 16, vec![1.0; 256]).unwrap();
        let map = DepthMap { depth: ones.clone(), confidence: ones };
        let rule = Keyframes::ByMotion { pixels: 5.0, max_gap: 3 };
        let mut history = KeyframeHistory::after_scale_frames(pose);
        let kept: Vec<bool> = (0..7)
            .map(|_| {
                let kept = history.decide(rule, &pose, Some(&map));
                history.record(kept, pose);
                kept
            })
            .collect();
        assert_eq!(kept, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn a_jump_to_where_nothing_is_known_makes_a_keyframe() {
        let here = PoseEncoding([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let turned = PoseEncoding([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
        let ones = Raster::new(16, 16, vec![1.0; 256]).unwrap();
        let map = DepthMap { depth: ones.clone(), confidence: ones };
        let rule = Keyframes::ByMotion { pixels: 1e6, max_gap: 1000 };
        let mut history = KeyframeHistory::after_scale_frames(here);
        history.record(true, here);
        assert!(!history.decide(rule, &here, Some(&map)));
        assert!(history.decide(rule, &turned, Some(&map)));
    }
}
