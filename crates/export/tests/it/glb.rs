//! A glTF scene, read by its JSON.

use std::fs;
use std::path::Path;

use nalgebra::Isometry3;
use periplus_export::{Glb, MinConfidence, PointOptions, Revision, Sink};
use serde_json::Value;

use crate::{export, frame, unsure};

const EVERY_POINT: PointOptions =
    PointOptions { min_confidence: MinConfidence::Value(1.0), voxel_size: Some(0.0), max_points: 1000 };

struct Scene {
    json: Value,
    data: Vec<u8>,
}

impl Scene {
    fn read(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("scene.glb")).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(&bytes[..4], b"glTF");
        assert_eq!([word(4), word(8)], [2, bytes.len()]);
        let json = word(12);
        assert_eq!(&bytes[16..20], b"JSON");
        assert_eq!(json % 4, 0);
        let data = 20 + json;
        assert_eq!(&bytes[data + 4..data + 8], b"BIN\0");
        assert_eq!(word(data), bytes.len() - data - 8);
        Self { json: serde_json::from_slice(&bytes[20..data]).unwrap(), data: bytes[data + 8..].to_vec() }
    }

    fn mesh(&self, name: &str) -> Option<&Value> {
        let meshes = self.json["meshes"].as_array().unwrap();
        meshes.iter().find(|mesh| mesh["name"] == name).map(|mesh| &mesh["primitives"][0])
    }

    /// The values of an accessor, `size` bytes each.
    fn values<const N: usize>(&self, accessor: &Value, size: usize) -> Vec<[u8; N]> {
        let accessor = &self.json["accessors"][accessor.as_u64().unwrap() as usize];
        let view = &self.json["bufferViews"][accessor["bufferView"].as_u64().unwrap() as usize];
        let number = |value: &Value| value.as_u64().unwrap_or(0) as usize;
        assert_eq!(number(&view["byteOffset"]) % 4 + number(&accessor["byteOffset"]) % 4, 0);
        let stride = view["byteStride"].as_u64().map_or(size, |stride| stride as usize);
        assert_eq!((stride % 4, N), (0, size));
        let start = number(&view["byteOffset"]) + number(&accessor["byteOffset"]);
        let values = |at: usize| self.data[start + at * stride..][..N].try_into().unwrap();
        (0..number(&accessor["count"])).map(values).collect()
    }

    /// The positions of a mesh, whose smallest and largest values must be exact.
    fn positions(&self, mesh: &Value) -> Vec<[f32; 3]> {
        let accessor = &mesh["attributes"]["POSITION"];
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
        let positions: Vec<[f32; 3]> =
            self.values::<12>(accessor, 12).iter().map(|v| [float(&v[..4]), float(&v[4..8]), float(&v[8..])]).collect();
        let accessor = &self.json["accessors"][accessor.as_u64().unwrap() as usize];
        for axis in 0..3 {
            let values = positions.iter().map(|position| position[axis]);
            let [min, max] = ["min", "max"].map(|key| accessor[key][axis].as_f64().unwrap() as f32);
            assert_eq!(values.clone().reduce(f32::min).map(f32::to_bits), Some(min.to_bits()));
            assert_eq!(values.reduce(f32::max).map(f32::to_bits), Some(max.to_bits()));
        }
        positions
    }
}

#[test]
fn points_have_place_and_linear_colour() {
    let folder = tempfile::tempdir().unwrap();
    export(Glb::create(folder.path(), EVERY_POINT), [frame(0)]);
    let scene = Scene::read(folder.path());
    let mesh = scene.mesh("points").unwrap();
    assert_eq!(mesh["mode"], 0);
    let positions = scene.positions(mesh);
    let [x, y, z] = positions[5];
    assert!((x - 7.0).abs() < 1e-6 && (y + 1.0).abs() < 1e-6 && (z - 0.375).abs() < 1e-6, "{x} {y} {z}");
    let colours = scene.values::<8>(&mesh["attributes"]["COLOR_0"], 8);
    let colours: Vec<Vec<u16>> =
        colours.iter().map(|c| c.as_chunks::<2>().0.iter().map(|&value| u16::from_le_bytes(value)).collect()).collect();
    // sRGB 5, 15, 25 of 255 are 0.001518, 0.004777 and 0.009721 of linear light.
    assert_eq!(colours[5], [99, 313, 637, 65535]);
}

#[test]
fn the_root_turns_the_world_to_the_axes_of_gltf() {
    let folder = tempfile::tempdir().unwrap();
    export(Glb::create(folder.path(), EVERY_POINT), [frame(0), frame(1)]);
    let json = Scene::read(folder.path()).json;
    let root = &json["nodes"][json["scenes"][0]["nodes"][0].as_u64().unwrap() as usize];
    assert_eq!(root["rotation"], serde_json::json!([1.0, 0.0, 0.0, 0.0]));
    assert_eq!(root["children"].as_array().unwrap().len(), 3);
}

#[test]
fn a_camera_is_a_frustum_and_a_point_of_the_trajectory() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = Glb::create(folder.path(), EVERY_POINT).unwrap();
    let mut lost = frame(1);
    lost.camera_to_world.translation.x = f64::NAN;
    for frame in [frame(0), lost, frame(2)] {
        sink.write(&frame).unwrap();
    }
    sink.revise(&[Revision { index: 2, camera_to_world: Isometry3::translation(7.0, 0.0, 0.0), scale: 1.0 }]).unwrap();
    Box::new(sink).finish().unwrap();
    let scene = Scene::read(folder.path());
    let cameras = scene.mesh("cameras").unwrap();
    let vertices = scene.positions(cameras);
    assert_eq!((cameras["mode"].as_u64(), vertices.len()), (Some(1), 10));
    // Median depth 3.5, its tenth, fx = 2, fy = 4, a picture of 3 x 2: the base is 0.35 away.
    for (vertex, expected) in vertices[5..].iter().zip([[0.0; 3], [-1.5 / 2.0 * 0.35, -0.25 * 0.35, 0.35]]) {
        let expected = [7.0 + expected[0], expected[1], expected[2]];
        assert!(vertex.iter().zip(expected).all(|(ours, expected)| (ours - expected).abs() < 1e-6), "{vertex:?}");
    }
    let lines = scene.values::<4>(&cameras["indices"], 4);
    assert_eq!(lines.len(), 32);
    assert_eq!(lines.iter().map(|&index| u32::from_le_bytes(index)).max(), Some(9));
    let trajectory = scene.mesh("trajectory").unwrap();
    assert_eq!((trajectory["mode"].as_u64(), scene.positions(trajectory)), (Some(1), vec![vertices[0], vertices[5]]));
    assert_eq!(scene.values::<4>(&trajectory["indices"], 4), [[0, 0, 0, 0], [1, 0, 0, 0]]);
}

#[test]
fn what_is_not_there_has_no_mesh() {
    let folder = tempfile::tempdir().unwrap();
    export(Glb::create(folder.path(), EVERY_POINT), [unsure(frame(0))]);
    let scene = Scene::read(folder.path());
    assert!(scene.mesh("points").is_none() && scene.mesh("trajectory").is_none());
    scene.positions(scene.mesh("cameras").unwrap());
}

#[test]
fn thinned_points_keep_exact_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let few = PointOptions { max_points: 2, voxel_size: Some(0.1), ..EVERY_POINT };
    export(Glb::create(folder.path(), few), [frame(0), frame(1)]);
    let scene = Scene::read(folder.path());
    assert!((1..=2).contains(&scene.positions(scene.mesh("points").unwrap()).len()));
}
