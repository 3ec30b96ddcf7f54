//! Keyframe selection: which frames stay in the cache.

use periplus_geometry::{DepthMap, PoseEncoding, displacement};
use periplus_model::Outputs;

/// The most views that the network saw together in training. Longer clips get 160 to 320 keyframes.
const TRAINED_VIEWS: usize = 320;

/// The best interval between keyframes for a clip of `frames`: ceil(frames / 320).
pub fn keyframe_interval(frames: usize) -> usize {
    frames.div_ceil(TRAINED_VIEWS).max(1)
}

/// Which frames after the scale frames stay in the cache, so that later frames see them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keyframes {
    /// The first frame and every N-th frame after it; N must be at least 1. [`keyframe_interval`] suggests an interval.
    Every(usize),
    /// The first frame, then each frame with more image motion than `pixels` since the last keyframe (see
    /// [`displacement`]), or that is `max_gap` frames after it. Needs [`Outputs::Depth`].
    ByMotion {
        /// Mean displacement in pixels of the network's picture.
        pixels: f64,
        /// Largest distance between keyframes, in frames; at least 1.
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

/// What keyframe selection needs to know about the frames so far.
#[derive(Debug, Clone)]
pub(crate) struct KeyframeHistory {
    /// Number of frames after the scale frames.
    streamed: usize,
    /// Number of frames after the last keyframe.
    since_kept: usize,
    kept_pose: PoseEncoding,
}

impl KeyframeHistory {
    /// The history after the scale frames. `last` is the pose of the last one.
    pub(crate) fn after_scale_frames(last: PoseEncoding) -> Self {
        Self { streamed: 0, since_kept: 0, kept_pose: last }
    }

    /// Whether the next frame is known to be a keyframe before it runs. The window then moves before its attention.
    pub(crate) fn foreseen(&self, rule: Keyframes) -> bool {
        matches!(rule, Keyframes::Every(interval) if self.streamed.is_multiple_of(interval))
    }

    /// Whether the frame that has just run is a keyframe. [`Keyframes::check`] makes sure that there is a depth map if
    /// the rule needs one.
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

    /// Records a frame.
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
    fn a_jump_away_from_everything_visible_makes_a_keyframe() {
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
