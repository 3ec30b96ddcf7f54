//! Which frames stay in the cache.

use periplus_geometry::{PoseEncoding, Raster, displacement};

/// Views that the network was trained on at once; a clip of more is thinned to about as many keyframes.
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
    /// keyframe (see [`displacement`]), or with which `max_gap` frames have passed since.
    ByMotion {
        /// Mean displacement in pixels of the network's picture.
        pixels: f64,
        /// Frames after which one is kept in any case; at least 1.
        max_gap: usize,
    },
}

/// What the rule needs to know of the frames so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyframeHistory {
    /// Frames since the scale frames.
    streamed: usize,
    /// Frames since the last kept one.
    since_kept: usize,
    kept_pose: Option<PoseEncoding>,
}

impl KeyframeHistory {
    /// Starts after scale frames of which `last` is the latest.
    pub(crate) fn after_scale_frames(last: PoseEncoding) -> Self {
        Self { streamed: 0, since_kept: 0, kept_pose: Some(last) }
    }

    /// Whether the next frame stays, if that can be told before it has run.
    pub(crate) fn known(&self, rule: Keyframes) -> Option<bool> {
        match rule {
            Keyframes::Every(interval) => Some(self.streamed.is_multiple_of(interval.max(1))),
            Keyframes::ByMotion { .. } => None,
        }
    }

    /// Whether the frame that has just run stays.
    pub(crate) fn decide(&self, rule: Keyframes, pose: &PoseEncoding, depth: &Raster<f32>) -> bool {
        match rule {
            Keyframes::Every(interval) => self.streamed.is_multiple_of(interval.max(1)),
            Keyframes::ByMotion { pixels, max_gap } => {
                let moved = |kept| displacement(pose, depth, kept) > pixels;
                self.streamed == 0 || self.since_kept + 1 >= max_gap || self.kept_pose.as_ref().is_none_or(moved)
            }
        }
    }

    /// A frame has been answered.
    pub(crate) fn record(&mut self, kept: bool, pose: PoseEncoding) {
        self.streamed += 1;
        if kept {
            self.since_kept = 0;
            self.kept_pose = Some(pose);
        } else {
            self.since_kept += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_keeps_a_clip_near_the_trained_length() {
        assert_eq!([0, 1, 320, 321, 640, 641, 3000].map(keyframe_interval), [1, 1, 1, 2, 2, 3, 10]);
    }

    #[test]
    fn every_third_frame_from_the_first() {
        let mut history = KeyframeHistory::default();
        let kept: Vec<bool> = (0..7)
            .map(|_| {
                let kept = history.known(Keyframes::Every(3)).unwrap();
                history.record(kept, PoseEncoding([0.0; 9]));
                kept
            })
            .collect();
        assert_eq!(kept, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn a_camera_that_stands_still_is_kept_at_the_largest_gap() {
        let pose = PoseEncoding([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let depth = Raster::new(16, 16, vec![1.0; 256]).unwrap();
        let rule = Keyframes::ByMotion { pixels: 5.0, max_gap: 3 };
        let mut history = KeyframeHistory::after_scale_frames(pose);
        let kept: Vec<bool> = (0..7)
            .map(|_| {
                let kept = history.decide(rule, &pose, &depth);
                history.record(kept, pose);
                kept
            })
            .collect();
        assert_eq!(kept, [true, false, false, true, false, false, true]);
    }
}
