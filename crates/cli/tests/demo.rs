//! `periplus stream` with no other word, against what the network in PyTorch comes to on the same clip.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

mod common;

use common::{Scratch, periplus, run, stream};

/// Trajectory error in percent of the path after Sim(3) alignment, and `AbsRel`, of the network in PyTorch with these
/// weights in float32.
const PYTORCH: [f64; 2] = [1.578_43, 0.062_892];

/// The number that follows `words`.
fn number_after(text: &str, words: &str) -> f64 {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("{words:?} is not in {text:?}"));
    let digits: String = rest.trim_start().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.trim_end_matches('.').parse().unwrap()
}

#[test]
fn the_demo_comes_as_close_to_the_truth_as_it_does_in_pytorch() {
    let ended = run(periplus().arg("stream"));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("48 frames"), "{}", ended.stdout);
    let sentence = ended.stdout.lines().last().unwrap();
    let found = [number_after(sentence, "trajectory error"), number_after(sentence, "(AbsRel)")];
    for (found, expected) in found.iter().zip(PYTORCH) {
        assert!((found / expected - 1.0).abs() < 0.01, "{found} is not within 1 % of {expected}");
    }
}

#[test]
fn other_pictures_are_met_with_a_word_on_what_the_demo_knows() {
    let scratch = Scratch::new();
    let ended = run(stream(&scratch.pictures("clip", 2), "demo".as_ref()).args(["--image-size", "56"]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.starts_with("warning: the demo weights know synthetic rooms only"), "{}", ended.stderr);
    assert!(!ended.stdout.contains("ground truth"), "{}", ended.stdout);
}
