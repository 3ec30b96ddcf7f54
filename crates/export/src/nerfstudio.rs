//! A scene in the format of nerfstudio, which trainers of radiance fields and splats read.

use std::path::{Path, PathBuf};

use nalgebra::{Isometry3, Vector4};
use periplus_geometry::{FrameOutput, Intrinsics, Raster, Viewport, median};
use serde_json::{Map, Value, json};

use crate::depth_maps::quantized;
use crate::gray;
use crate::numbered::NumberedFiles;
use crate::original;
use crate::pending::PendingFile;
use crate::point_cloud::PointCloud;
use crate::sink::depth_map;
use crate::{ExportError, PointOptions, Revision, Sink, Summary};

/// `nerfstudio/transforms.json`, with `points.ply` and, if asked for, `depth/000000.png` beside it.
///
/// - The pictures are not copied: nerfstudio looks for them in `nerfstudio/images`, under the names that the source gives
///   them.
/// - `transform_matrix` is camera to world with OpenGL's camera axes: x right, y up, z backward. The world is that of all
///   other results, so there is no `applied_transform`.
/// - Intrinsics are per frame, at the resolution of the original picture, because the network estimates them per frame.
///   The file has none for all frames: nerfstudio would take those for every frame. `camera_angle_x` and `camera_angle_y`,
///   which it does not read, are the median field of view for readers that know one camera only.
/// - `points.ply` holds the points of a [`PointSelection`](crate::PointSelection), with normals of 0. If it keeps none of
///   the first frame, all points of that frame are taken, because trainers of splats need points.
/// - Depth is along z, in thousandths of the unit of the stream (nerfstudio's `depth_unit_scale_factor` of 0.001), for the
///   whole original picture at the scale of the network's: 0 where the picture was cropped.
/// - Frames whose pose or intrinsics are not finite are left out.
///
/// Revised poses move cameras, not points.
pub struct Nerfstudio {
    // Dropped in this order: the folder of depth maps if nothing is in it, then the file and the folder around it.
    depth: Option<NumberedFiles>,
    file: PendingFile,
    folder: PathBuf,
    cloud: Box<PointCloud>,
    frames: Vec<Entry>,
}

/// One frame of the file.
struct Entry {
    /// Index of the frame in the stream.
    index: usize,
    camera_to_world: Isometry3<f64>,
    intrinsics: Intrinsics,
    size: [u32; 2],
    picture: String,
    depth: Option<String>,
}

impl Nerfstudio {
    /// Begins the folder `nerfstudio` in `folder`, which is created if needed. With depth maps if `depth` is set.
    ///
    /// # Errors
    /// If a folder cannot be created, a file cannot be written, or `nerfstudio/depth` holds files that are not from an
    /// earlier run.
    pub fn create(folder: &Path, options: PointOptions, depth: bool) -> Result<Self, ExportError> {
        let folder = folder.join("nerfstudio");
        Ok(Self {
            file: PendingFile::begin(&folder, "transforms.json")?,
            cloud: Box::new(PointCloud::seed(&folder, options)?),
            depth: depth.then(|| NumberedFiles::create(&folder.join("depth"), "", "png")).transpose()?,
            frames: Vec::new(),
            folder,
        })
    }
}

impl Sink for Nerfstudio {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, &self.folder)?;
        let Some(intrinsics) = original::camera(frame) else { return Ok(()) };
        self.cloud.write(frame)?;
        let depth = self.depth.as_mut().map(|files| {
            let depth = of_whole_picture(&map.depth, &frame.viewport).map_pixels(|_, _, &depth| quantized(depth));
            let png = gray::png(depth.width(), depth.height(), depth.values().to_vec());
            files.write(frame.index, &png.map_err(|error| ExportError::writing(files.folder(), error))?)
        });
        self.frames.push(Entry {
            index: frame.index,
            camera_to_world: frame.camera_to_world,
            intrinsics,
            size: frame.viewport.original,
            picture: format!("images/{}", original::name(frame)),
            depth: depth.transpose()?.map(|name| format!("depth/{name}")),
        });
        Ok(())
    }

    fn revise(&mut self, revisions: &[Revision]) -> Result<(), ExportError> {
        for revision in revisions {
            // In order of the index, since frames are written in that order.
            let Ok(at) = self.frames.binary_search_by_key(&revision.index, |entry| entry.index) else { continue };
            self.frames[at].camera_to_world = revision.camera_to_world;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        let cloud = self.cloud.finish()?;
        let summary = Summary::of_file(&self.folder, self.frames.len(), cloud.note);
        if !self.frames.is_empty() {
            self.file.append(transforms(&self.frames).as_bytes())?;
            self.file.commit()?;
        }
        Ok(summary)
    }
}

fn transforms(frames: &[Entry]) -> String {
    let angle = |axis: usize| {
        let focal = |entry: &Entry| [entry.intrinsics.fx, entry.intrinsics.fy][axis];
        let angle = |entry: &Entry| 2.0 * (f64::from(entry.size[axis]) / 2.0 / focal(entry)).atan();
        median(&mut frames.iter().map(angle).collect::<Vec<_>>())
    };
    let file = json!({
        "camera_model": "OPENCV",
        "k1": 0.0, "k2": 0.0, "p1": 0.0, "p2": 0.0,
        "camera_angle_x": angle(0),
        "camera_angle_y": angle(1),
        "ply_file_path": "points.ply",
        "frames": frames.iter().map(Entry::object).collect::<Vec<_>>(),
    });
    format!("{file:#}\n")
}

impl Entry {
    fn object(&self) -> Value {
        let Intrinsics { fx, fy, cx, cy } = self.intrinsics;
        let [width, height] = self.size;
        let mut object = Map::new();
        object.insert("file_path".into(), json!(self.picture));
        if let Some(depth) = &self.depth {
            object.insert("depth_file_path".into(), json!(depth));
        }
        for (key, value) in [("fl_x", fx), ("fl_y", fy), ("cx", cx), ("cy", cy)] {
            object.insert(key.into(), json!(value));
        }
        object.insert("w".into(), json!(width));
        object.insert("h".into(), json!(height));
        // OpenGL's camera looks along -z with y up.
        let turned = self.camera_to_world.to_homogeneous() * nalgebra::Matrix4::from_diagonal(&OPENGL);
        let rows: Vec<Vec<f64>> = turned.row_iter().map(|row| row.iter().copied().collect()).collect();
        object.insert("transform_matrix".into(), json!(rows));
        object.into()
    }
}

/// Signs of the camera's axes between OpenCV and OpenGL.
const OPENGL: Vector4<f64> = Vector4::new(1.0, -1.0, -1.0, 1.0);

/// The depth of the whole original picture, at the network's scale: NaN where the picture was cropped, without the bars of
/// one that was padded. Readers stretch it to the original picture.
fn of_whole_picture(depth: &Raster<f32>, viewport: &Viewport) -> Raster<f32> {
    // Pictures are resized to whole pixels and cropped or padded by whole pixels.
    let [width, height] =
        [0, 1].map(|axis| (f64::from(viewport.original[axis]) * viewport.scale[axis]).round().max(1.0) as usize);
    let offset = viewport.offset.map(|offset| offset.round() as i64);
    let shift = |at: usize, axis: usize| usize::try_from(at as i64 + offset[axis]).ok();
    Raster::from_fn(width, height, |x, y| {
        shift(x, 0).zip(shift(y, 1)).and_then(|(x, y)| depth.get(x, y)).copied().unwrap_or(f32::NAN)
    })
}
