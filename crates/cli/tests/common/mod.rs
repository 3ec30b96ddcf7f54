//! Running the built program on small inputs.
// Each test program uses its part of this, and a failure here fails a test.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use image::{Rgb, RgbImage};
use tempfile::TempDir;

/// A network that runs a frame in milliseconds: 3 scale frames, window 4, trained on 70 x 70 pixels.
pub(crate) const TINY: &str = r#"{"embed_dim": 64, "num_heads": 1, "depth": 4, "vit_depth": 2, "vit_heads": 1, "pos_grid": 5,
    "taps": [0, 1, 2, 3], "camera_depth": 1, "camera_heads": 1, "dpt_features": 16, "dpt_hidden": 8,
    "dpt_channels": [16, 16, 16, 16], "scale_frames": 3, "window": 4}"#;

/// A folder to work in, removed with the test.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }

    /// A folder of `count` pictures of 70 x 56 pixels.
    pub(crate) fn pictures(&self, name: &str, count: u8) -> PathBuf {
        let folder = self.path(name);
        fs::create_dir_all(&folder).unwrap();
        for i in 0..count {
            let picture = RgbImage::from_fn(70, 56, |x, y| Rgb([(x * 3) as u8 ^ i, (y * 4) as u8, (x * y) as u8]));
            picture.save(folder.join(format!("frame{i}.png"))).unwrap();
        }
        folder
    }

    /// A checkpoint of [`TINY`].
    pub(crate) fn tiny_weights(&self) -> PathBuf {
        let config = self.write("tiny.json", TINY);
        let weights = self.path("tiny.safetensors");
        let output = run(periplus().arg("synth").arg(&weights).arg("--config").arg(config));
        assert_eq!(output.code, 0, "{}", output.stderr);
        weights
    }
}

/// The built program.
pub(crate) fn periplus() -> Command {
    let program = env!("CARGO_BIN_EXE_periplus");
    let mut command;
    if cfg!(target_os = "linux") {
        // Signals that are ignored where the tests start, as in the background of a script, would stay so in the program.
        command = Command::new("env");
        command.args(["--default-signal=INT,TERM,HUP", program]);
    } else {
        command = Command::new(program);
    }
    command.stdin(Stdio::null());
    command
}

/// `periplus stream FRAMES --weights WEIGHTS`.
pub(crate) fn stream(frames: &Path, weights: &Path) -> Command {
    let mut command = periplus();
    command.arg("stream").arg(frames).arg("--weights").arg(weights);
    command
}

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("ended by itself"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

pub(crate) fn run(command: &mut Command) -> Ended {
    command.output().unwrap().into()
}

/// The names in a folder, sorted, but for the marker of a run.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".periplus");
    names.sort();
    names
}

/// Sends a signal to a program that is running.
#[cfg(unix)]
pub(crate) fn signal(name: &str, child: &std::process::Child) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}
