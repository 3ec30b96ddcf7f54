//! `periplus stream` with no other word, against what the network in PyTorch comes to on the same clip.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

mod common;

use std::fs;

use common::{Scratch, names, periplus, run, stream};

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
fn the_demo_comes_as_close_to_the_truth_as_it_does_in_pytorch_and_leaves_its_results() {
    let scratch = Scratch::new();
    let folder = scratch.path("empty");
    fs::create_dir(&folder).unwrap();
    let ended = run(periplus().arg("stream").current_dir(&folder));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("48 frames"), "{}", ended.stdout);
    let sentence = ended.stdout.lines().find(|line| line.contains("trajectory error")).unwrap();
    let found = [number_after(sentence, "trajectory error"), number_after(sentence, "(AbsRel)")];
    for (found, expected) in found.iter().zip(PYTORCH) {
        assert!((found / expected - 1.0).abs() < 0.01, "{found} is not within 1 % of {expected}");
    }

    let results = ["groundtruth.txt", "overview.png", "points.ply", "trajectory.txt"];
    assert_eq!(names(&folder), ["periplus-demo"]);
    assert_eq!(names(&folder.join("periplus-demo")), results);
    let (_, next_steps) = ended.stdout.split_once("The results are in the folder periplus-demo:\n").unwrap();
    for result in results {
        let path = format!("periplus-demo/{result}");
        assert!(next_steps.contains(&path), "{path} is not in {next_steps}");
    }
    // The two trajectories belong together: the same times, line by line.
    let [truth, found] = ["groundtruth.txt", "trajectory.txt"].map(|name| {
        let text = fs::read_to_string(folder.join("periplus-demo").join(name)).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split(' ').next().unwrap().parse::<f64>().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(truth, found);
    assert_eq!(truth.len(), 48);
}

#[test]
fn the_demo_runs_where_nothing_can_be_written() {
    let scratch = Scratch::new();
    // A file where the folder of results would be: as good as a folder without write permission, which root would have.
    scratch.write("periplus-demo", "something else");
    let ended =
        run(periplus().arg("stream").args(["--first", "4", "--image-size", "56"]).current_dir(scratch.path("")));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("this run writes no files"), "{}", ended.stderr);
    assert!(!ended.stdout.contains("The results are in"), "{}", ended.stdout);
    assert_eq!(fs::read_to_string(scratch.path("periplus-demo")).unwrap(), "something else");
}

#[test]
fn other_pictures_are_met_with_a_word_on_what_the_demo_knows() {
    let scratch = Scratch::new();
    let ended = run(stream(&scratch.pictures("clip", 2), "demo".as_ref()).args(["--image-size", "56"]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.starts_with("warning: the demo weights know synthetic rooms only"), "{}", ended.stderr);
    assert!(!ended.stdout.contains("ground truth"), "{}", ended.stdout);
}
