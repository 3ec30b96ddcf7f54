//! A scene of points, cameras and the trajectory as binary glTF 2.0.

use std::path::Path;

use nalgebra::{Isometry3, Point3, Vector3};
use periplus_geometry::{FrameOutput, Intrinsics, median};
use serde_json::{Value, json};

use crate::merged::{Bounds, MergedPoints};
use crate::sink::{depth_map, finite};
use crate::{ExportError, Point, PointOptions, Revision, Sink, Summary};

/// Bytes for the JSON chunk, which is padded with spaces: it is written last, and comes first in the file.
const JSON_BYTES: usize = 4096;
/// Bytes before the binary chunk's data: header of the file, header of the JSON chunk, JSON, header of the chunk.
const START: usize = 12 + 8 + JSON_BYTES + 8;
/// Bytes of a point: position as 3 float32, colour as 4 uint16.
const POINT_BYTES: usize = 20;
/// Points for which the file stays below 4 GiB, the largest that the format can describe.
const MOST_POINTS: usize = 200_000_000;

/// Size of a frustum: its base is at this share of the median depth of the first frame.
const FRUSTUM_DEPTH: f64 = 0.1;
/// Pairs of vertices: from the camera to the corners, and around them.
const FRUSTUM_LINES: [u32; 16] = [0, 1, 0, 2, 0, 3, 0, 4, 1, 2, 2, 3, 3, 4, 4, 1];

// Names and values of the format.
const FLOAT: u32 = 5126;
const UNSIGNED_SHORT: u32 = 5123;
const UNSIGNED_INT: u32 = 5125;
const ARRAY_BUFFER: u32 = 34962;
const ELEMENT_ARRAY_BUFFER: u32 = 34963;
const POINTS: u32 = 0;
const LINES: u32 = 1;

/// `scene.glb`: points with colours, a frustum for each camera, and the trajectory, for Blender, three.js and other
/// programs that read glTF 2.0.
///
/// - Vertices are in world coordinates. The root node turns them to glTF's axes (x right, y up, z backward), half a turn
///   about x.
/// - Points are those of a [`PointSelection`](crate::PointSelection). `COLOR_0` is linear, as glTF demands, in 16 bits.
/// - The base of a frustum is the picture that the network sees, at a tenth of the median depth of the first frame. Frames
///   whose pose or intrinsics are not finite have none.
/// - Revised poses move frusta and trajectory, not points.
///
/// Points are written at once and not kept in memory. A frame's camera takes some 150 bytes until the end.
pub struct Glb {
    points: MergedPoints,
    cameras: Vec<View>,
    /// Depth of the base of a frustum, in the unit of the stream, once it is known.
    depth: Option<f64>,
    frames: usize,
}

struct View {
    /// Index of the frame in the stream.
    index: usize,
    camera_to_world: Isometry3<f64>,
    intrinsics: Intrinsics,
    /// Width and height of the network's picture.
    size: [u32; 2],
}

impl Glb {
    /// Begins `scene.glb` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created or the file cannot be written.
    pub fn create(folder: &Path, options: PointOptions) -> Result<Self, ExportError> {
        let options = PointOptions { max_points: options.max_points.min(MOST_POINTS), ..options };
        let points = MergedPoints::begin(folder, "scene.glb", &[0; START], encode, options)?;
        Ok(Self { points, cameras: Vec::new(), depth: None, frames: 0 })
    }
}

impl Sink for Glb {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, self.points.file.path())?;
        let points = self.points.selection.select(frame, map);
        self.points.write(&points)?;
        self.frames += 1;
        if self.depth.is_none() {
            let mut depths: Vec<f64> = finite(&map.depth, &frame.viewport.shown()).collect();
            self.depth = median(&mut depths).map(|depth| FRUSTUM_DEPTH * depth).filter(|&depth| depth > 0.0);
        }
        self.cameras.push(View {
            index: frame.index,
            camera_to_world: frame.camera_to_world,
            intrinsics: frame.intrinsics,
            size: frame.viewport.network,
        });
        Ok(())
    }

    fn revise(&mut self, revisions: &[Revision]) -> Result<(), ExportError> {
        for revision in revisions {
            // In order of the index, since frames are written in that order.
            let Ok(at) = self.cameras.binary_search_by_key(&revision.index, |camera| camera.index) else { continue };
            self.cameras[at].camera_to_world = revision.camera_to_world;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        let MergedPoints { file, selection, count, bounds, .. } = &mut self.points;
        let summary = Summary::of_file(file.path(), self.frames, Some(selection.note()));
        if self.frames == 0 {
            return Ok(summary);
        }
        let depth = self.depth.unwrap_or(1.0);
        let frusta: Vec<_> = self.cameras.iter().filter_map(|camera| camera.frustum(depth)).collect();
        let mut scene = Scene::new();
        if *count > 0 {
            let view = scene.view(*count as usize * POINT_BYTES, Some(POINT_BYTES), ARRAY_BUFFER);
            let attributes = json!({
                "POSITION": scene.positions(view, *count as usize, *bounds),
                "COLOR_0": scene.accessor(json!({
                    "bufferView": view, "byteOffset": 12, "componentType": UNSIGNED_SHORT, "normalized": true,
                    "count": *count, "type": "VEC4",
                })),
            });
            scene.node("points", POINTS, &attributes, None, [1.0; 4]);
        }
        if !frusta.is_empty() {
            let vertices = scene.vertices(frusta.as_flattened());
            let indices: Vec<u32> =
                (0..frusta.len() as u32).flat_map(|frustum| FRUSTUM_LINES.map(|vertex| 5 * frustum + vertex)).collect();
            let indices = scene.indices(&indices);
            scene.node("cameras", LINES, &json!({ "POSITION": vertices }), Some(indices), [1.0, 0.35, 0.05, 1.0]);
        }
        if frusta.len() > 1 {
            let path: Vec<_> = frusta.iter().map(|frustum| frustum[0]).collect();
            let vertices = scene.vertices(&path);
            // Not as a line strip, which some readers leave out (trimesh 5.2).
            let indices: Vec<u32> = (1..frusta.len() as u32).flat_map(|at| [at - 1, at]).collect();
            let indices = scene.indices(&indices);
            scene.node("trajectory", LINES, &json!({ "POSITION": vertices }), Some(indices), [0.1, 0.6, 1.0, 1.0]);
        }
        file.append(&scene.data)?;
        let start = scene.start().ok_or_else(|| {
            ExportError::writing(file.path(), std::io::Error::other("a file of this format is no larger than 4 GiB"))
        })?;
        file.overwrite_start(&start)?;
        self.points.file.commit()?;
        Ok(summary)
    }
}

impl View {
    /// Vertices: the camera, then the corners of its picture at `depth`. `None` if one is not finite.
    fn frustum(&self, depth: f64) -> Option<[[f32; 3]; 5]> {
        // The network puts its principal point at half the width, measured from the edge.
        let [width, height] = self.size.map(f64::from);
        let corner = |u, v| self.intrinsics.unproject(u, v, depth);
        let vertices =
            [Vector3::zeros(), corner(0.0, 0.0), corner(width, 0.0), corner(width, height), corner(0.0, height)];
        let vertices = vertices.map(|vertex| {
            let world = self.camera_to_world * Point3::from(vertex);
            [world.x as f32, world.y as f32, world.z as f32]
        });
        vertices.as_flattened().iter().all(|x| x.is_finite()).then_some(vertices)
    }
}

fn encode(point: &Point, record: &mut Vec<u8>) {
    record.extend(point.position.iter().flat_map(|x| x.to_le_bytes()));
    record.extend(point.colour.iter().flat_map(|&value| linear(value).to_le_bytes()));
    record.extend(u16::MAX.to_le_bytes());
}

/// An 8-bit sRGB value as 16-bit linear value (IEC 61966-2-1).
fn linear(value: u8) -> u16 {
    let value = f64::from(value) / 255.0;
    let linear = if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
    (linear * f64::from(u16::MAX)).round() as u16
}

/// The JSON of a file, and the binary data behind the points.
struct Scene {
    views: Vec<Value>,
    accessors: Vec<Value>,
    meshes: Vec<Value>,
    materials: Vec<Value>,
    nodes: Vec<Value>,
    data: Vec<u8>,
    /// Bytes in all views.
    length: usize,
}

impl Scene {
    fn new() -> Self {
        let (views, accessors, meshes, materials, nodes) = Default::default();
        Self { views, accessors, meshes, materials, nodes, data: Vec::new(), length: 0 }
    }

    /// The next `length` bytes as a view. All lengths are multiples of 4, as the alignment of their values demands.
    fn view(&mut self, length: usize, stride: Option<usize>, target: u32) -> usize {
        let mut view = json!({ "buffer": 0, "byteOffset": self.length, "byteLength": length, "target": target });
        if let Some(stride) = stride {
            view["byteStride"] = stride.into();
        }
        self.length += length;
        push(&mut self.views, view)
    }

    fn accessor(&mut self, accessor: Value) -> usize {
        push(&mut self.accessors, accessor)
    }

    fn positions(&mut self, view: usize, count: usize, Bounds { min, max }: Bounds) -> usize {
        self.accessor(json!({
            "bufferView": view, "componentType": FLOAT, "count": count, "type": "VEC3", "min": min, "max": max,
        }))
    }

    /// An accessor to `positions`, which become part of the data.
    fn vertices(&mut self, positions: &[[f32; 3]]) -> usize {
        let mut bounds = Bounds::default();
        for &position in positions {
            bounds.add(position);
        }
        let view = self.view(12 * positions.len(), None, ARRAY_BUFFER);
        self.data.extend(positions.as_flattened().iter().flat_map(|x| x.to_le_bytes()));
        self.positions(view, positions.len(), bounds)
    }

    /// An accessor to `indices` of vertices, which become part of the data.
    fn indices(&mut self, indices: &[u32]) -> usize {
        let view = self.view(4 * indices.len(), None, ELEMENT_ARRAY_BUFFER);
        self.data.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
        self.accessor(json!({
            "bufferView": view, "componentType": UNSIGNED_INT, "count": indices.len(), "type": "SCALAR",
        }))
    }

    fn node(&mut self, name: &str, mode: u32, attributes: &Value, indices: Option<usize>, colour: [f64; 4]) {
        let material = push(
            &mut self.materials,
            json!({
                "name": name,
                "pbrMetallicRoughness": { "baseColorFactor": colour, "metallicFactor": 0.0 },
                "extensions": { "KHR_materials_unlit": {} },
            }),
        );
        let mut primitive = json!({ "attributes": attributes, "mode": mode, "material": material });
        if let Some(indices) = indices {
            primitive["indices"] = indices.into();
        }
        let mesh = push(&mut self.meshes, json!({ "name": name, "primitives": [primitive] }));
        self.nodes.push(json!({ "name": name, "mesh": mesh }));
    }

    /// The first [`START`] bytes of the file. `None` if the file is too large for the format.
    fn start(self) -> Option<Vec<u8>> {
        let Self { views, accessors, meshes, materials, mut nodes, length, .. } = self;
        let children: Vec<usize> = (0..nodes.len()).collect();
        // The quaternion x y z w of half a turn about x.
        let mut root = json!({ "name": "world", "rotation": [1.0, 0.0, 0.0, 0.0] });
        if !children.is_empty() {
            root["children"] = json!(children);
        }
        let root = push(&mut nodes, root);
        let mut json = json!({
            "asset": { "version": "2.0", "generator": "Periplus" },
            "scene": 0,
            "scenes": [{ "nodes": [root] }],
            "nodes": nodes,
        });
        // The format has no empty lists.
        if !children.is_empty() {
            json["extensionsUsed"] = json!(["KHR_materials_unlit"]);
            json["meshes"] = meshes.into();
            json["materials"] = materials.into();
            json["accessors"] = accessors.into();
            json["bufferViews"] = views.into();
            json["buffers"] = json!([{ "byteLength": length }]);
        }
        let mut json = json.to_string().into_bytes();
        json.resize(JSON_BYTES.max(json.len()), b' ');
        let total = u32::try_from(START + length).ok().filter(|_| json.len() == JSON_BYTES)?;
        let mut start = Vec::with_capacity(START);
        start.extend(b"glTF");
        start.extend([2, total, JSON_BYTES as u32].map(u32::to_le_bytes).as_flattened());
        start.extend(b"JSON");
        start.extend(json);
        start.extend((length as u32).to_le_bytes());
        start.extend(b"BIN\0");
        Some(start)
    }
}

/// Adds a value and returns its index.
fn push(list: &mut Vec<Value>, value: Value) -> usize {
    list.push(value);
    list.len() - 1
}
