//! Every format, read back by something that shares no code with what wrote it.

#![allow(clippy::unwrap_used, reason = "outside of #[test] functions, but still tests")]

mod colmap;
mod depth_maps;
mod failures;
mod folder;
mod glb;
mod json;
mod kitti;
mod maps;
mod nerfstudio;
mod npz;
mod overview;
mod point_cloud;
mod rerun;
mod trajectory;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nalgebra::{Isometry3, Translation3, UnitQuaternion, Vector3};
use periplus_export::{ExportError, Sink, Summary};
use periplus_geometry::{DepthMap, FrameOutput, Intrinsics, PoseEncoding, Raster, Timestamp, Viewport, WorldPoints};

/// A frame of 3 x 2 pixels whose camera looks along the world's x axis; every number in it is exact.
fn frame(index: usize) -> FrameOutput {
    let depth = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.5];
    let confidence = vec![1.0, 1.25, 1.5, 2.0, 3.0, 5.25];
    let colours = (0..6).map(|i| [i, 10 + i, 20 + i]).collect();
    let raster = |values| Raster::new(3, 2, values).unwrap();
    // z forward becomes x: half a turn about the axis between them. The sign of the quaternion is the unusual one.
    let rotation = UnitQuaternion::from_axis_angle(&Vector3::y_axis(), std::f64::consts::FRAC_PI_2);
    let rotation = UnitQuaternion::new_unchecked(-rotation.into_inner());
    FrameOutput {
        index,
        number: 10 + index,
        name: Some(Arc::from(format!("frame{index}.png"))),
        timestamp: Timestamp::from_seconds(0.25 * index as f64),
        keyframe: true,
        pose_encoding: PoseEncoding([0.5, -1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 0.75, 1.5]),
        camera_to_world: Isometry3::from_parts(Translation3::new(0.5, -1.0, 2.0), rotation),
        intrinsics: Intrinsics { fx: 2.0, fy: 4.0, cx: 1.5, cy: 1.0 },
        viewport: Viewport { original: [6, 8], network: [3, 2], scale: [0.5, 0.5], offset: [0.0, -1.0] },
        depth_map: Some(DepthMap { depth: raster(depth), confidence: raster(confidence) }),
        world_points: None,
        pixels: Arc::new(Raster::new(3, 2, colours).unwrap()),
        elapsed: Duration::from_micros(12_500),
    }
}

/// The frame with other depths.
fn with_depth(index: usize, depth: [f32; 6]) -> FrameOutput {
    let mut frame = frame(index);
    frame.depth_map.as_mut().unwrap().depth = Raster::new(3, 2, depth.to_vec()).unwrap();
    frame
}

/// The frame as one whose last column is a bar beside the padded picture.
fn padded(frame: FrameOutput) -> FrameOutput {
    let viewport = Viewport { original: [4, 4], network: [3, 2], scale: [0.5, 0.5], offset: [0.0, 0.0] };
    FrameOutput { viewport, ..frame }
}

/// The frame without a confidence that is a number.
fn unsure(mut frame: FrameOutput) -> FrameOutput {
    let map = frame.depth_map.as_mut().unwrap();
    map.confidence = map.confidence.map_pixels(|_, _, _| f32::NAN);
    frame
}

/// The frame as a checkpoint with a point head answers it.
fn with_points(index: usize) -> FrameOutput {
    let points = (0..6).map(|i| [i as f32, 0.5, -1.0]).collect();
    let world_points = WorldPoints {
        points: Raster::new(3, 2, points).unwrap(),
        confidence: Raster::new(3, 2, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap(),
    };
    FrameOutput { world_points: Some(world_points), ..frame(index) }
}

/// Writes frames and finishes.
fn export(sink: Result<impl Sink, ExportError>, frames: impl IntoIterator<Item = FrameOutput>) -> Summary {
    let mut sink = sink.unwrap();
    for frame in frames {
        sink.write(&frame).unwrap();
    }
    Box::new(sink).finish().unwrap()
}

/// Names of all files in a folder, sorted, but for the marker of a run.
fn listing(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".periplus");
    names.sort();
    names
}
