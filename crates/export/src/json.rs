//! JSON lines: one JSON object per frame.

use std::io::{self, Write};
use std::path::Path;

use periplus_geometry::{FrameOutput, Intrinsics, Timestamp, median};
use serde::Serialize;

use crate::pending::PendingFile;
use crate::pose::{matrix_rows, quaternion};
use crate::sink::finite;
use crate::{ExportError, Sink, Summary};

/// JSON lines to a writer: standard output, a pipe or a socket. Each line is flushed.
///
/// An object has the keys `index` (in the stream; files of a frame are named by it), `number` (in the clip), `name`,
/// `timestamp` (seconds), `keyframe`, `camera_to_world` (three rows of four), `quaternion` (x y z w, w >= 0),
/// `translation`, `intrinsics` (`network` and `original`, each `fx fy cx cy width height` in pixels), `depth` (`min median
/// max`, in the unit of the stream), `mean_confidence` and `milliseconds`. Statistics are over finite values, without the
/// bars of a padded picture. Values that are unknown or not finite are `null`.
pub struct JsonLines<W> {
    writer: W,
    name: String,
    frames: usize,
}

impl<W: Write + Send> JsonLines<W> {
    /// Lines to `writer`. Errors and the summary call it `name`.
    pub fn new(writer: W, name: impl Into<String>) -> Self {
        Self { writer, name: name.into(), frames: 0 }
    }
}

impl<W: Write + Send> Sink for JsonLines<W> {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let line = line(frame).map_err(|error| ExportError::writing_to(self.name.clone(), error))?;
        let written = self.writer.write_all(&line).and_then(|()| self.writer.flush());
        written.map_err(|error| ExportError::writing_to(self.name.clone(), error))?;
        self.frames += 1;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        Ok(Summary { place: self.name, frames: self.frames, note: None })
    }
}

/// `frames.jsonl`: the lines of [`JsonLines`] in a file.
pub struct JsonFile {
    file: PendingFile,
    frames: usize,
}

impl JsonFile {
    /// Begins `frames.jsonl` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created or the file cannot be written.
    pub fn create(folder: &Path) -> Result<Self, ExportError> {
        Ok(Self { file: PendingFile::begin(folder, "frames.jsonl")?, frames: 0 })
    }
}

impl Sink for JsonFile {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let line = line(frame).map_err(|error| ExportError::writing(self.file.path(), error))?;
        self.file.append(&line)?;
        self.frames += 1;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Summary, ExportError> {
        let summary = Summary::of_file(self.file.path(), self.frames, None);
        if self.frames > 0 {
            self.file.commit()?;
        }
        Ok(summary)
    }
}

/// The keys of an object, in the order in which they are written. `serde_json` writes values that are not finite as null.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    number: usize,
    name: Option<&'a str>,
    timestamp: Option<f64>,
    keyframe: bool,
    camera_to_world: [[f64; 4]; 3],
    quaternion: [f64; 4],
    translation: [f64; 3],
    intrinsics: Cameras,
    depth: Depth,
    mean_confidence: Option<f32>,
    milliseconds: f64,
}

#[derive(Serialize)]
struct Cameras {
    network: Camera,
    original: Camera,
}

#[derive(Serialize)]
struct Camera {
    fx: f64,
    fy: f64,
    cx: f64,
    cy: f64,
    width: u32,
    height: u32,
}

#[derive(Serialize)]
struct Depth {
    min: Option<f32>,
    median: Option<f32>,
    max: Option<f32>,
}

fn line(frame: &FrameOutput) -> io::Result<Vec<u8>> {
    let shown = frame.viewport.shown();
    let [depth, confidence] = match &frame.depth_map {
        Some(map) => [&map.depth, &map.confidence].map(|values| finite(values, &shown).collect()),
        None => [Vec::new(), Vec::new()],
    };
    let pose = &frame.camera_to_world;
    let object = Line {
        index: frame.index,
        number: frame.number,
        name: frame.name.as_deref(),
        timestamp: frame.timestamp.map(Timestamp::seconds),
        keyframe: frame.keyframe,
        camera_to_world: matrix_rows(pose),
        quaternion: quaternion(pose),
        translation: pose.translation.vector.into(),
        intrinsics: Cameras {
            network: Camera::new(&frame.intrinsics, frame.viewport.network),
            original: Camera::new(&frame.intrinsics.in_original(&frame.viewport), frame.viewport.original),
        },
        depth: Depth::new(depth),
        mean_confidence: mean(&confidence),
        milliseconds: frame.elapsed.as_micros() as f64 / 1000.0,
    };
    let mut line = serde_json::to_vec(&object)?;
    line.push(b'\n');
    Ok(line)
}

impl Camera {
    fn new(intrinsics: &Intrinsics, [width, height]: [u32; 2]) -> Self {
        let &Intrinsics { fx, fy, cx, cy } = intrinsics;
        Self { fx, fy, cx, cy, width, height }
    }
}

impl Depth {
    fn new(mut values: Vec<f64>) -> Self {
        Self {
            min: values.iter().map(|&depth| depth as f32).reduce(f32::min),
            max: values.iter().map(|&depth| depth as f32).reduce(f32::max),
            median: median(&mut values).map(|depth| depth as f32),
        }
    }
}

fn mean(values: &[f64]) -> Option<f32> {
    (!values.is_empty()).then(|| (values.iter().sum::<f64>() / values.len() as f64) as f32)
}
