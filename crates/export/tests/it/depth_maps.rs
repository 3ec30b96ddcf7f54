use std::fs;

use periplus_export::DepthMaps;

use crate::{export, frame, listing, padded, with_depth};

#[test]
fn a_depth_is_the_value_over_the_recorded_scale() {
    let folder = tempfile::tempdir().unwrap();
    let depth = [0.001, 0.5554, 1.0, 12.345_67, 65.535, 6.5];
    let summary = export(DepthMaps::create(folder.path()), [frame(0), with_depth(1, depth)]);
    let maps = folder.path().join("depth");
    assert_eq!(listing(&maps), ["000000.png", "000001.png", "scale.json"]);
    let recorded: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(maps.join("scale.json")).unwrap()).unwrap();
    let scale = recorded["scale"].as_f64().unwrap();
    let image::DynamicImage::ImageLuma16(map) = image::open(maps.join("000001.png")).unwrap() else {
        panic!("not a 16-bit picture");
    };
    assert_eq!(map.dimensions(), (3, 2));
    for (value, depth) in map.into_raw().into_iter().zip(depth) {
        let read = f64::from(value) / scale;
        assert!((read - f64::from(depth)).abs() <= 0.5001 / scale, "{read} instead of {depth}");
    }
    assert_eq!(summary.to_string(), format!("{}: 2 frames, depth = value / 1000", maps.display()));
}

#[test]
fn no_depth_is_zero_and_what_is_out_of_range_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let summary = export(
        DepthMaps::create(folder.path()),
        [
            with_depth(0, [f32::NAN, f32::INFINITY, -1.0, 0.0, 65.536, 2.0]),
            with_depth(1, [1e30, 1e-4, 1.0, 1.0, 1.0, 1.0]),
            // A bar is no depth, whatever the network says of it, and in no range.
            padded(with_depth(2, [1.0, 2.0, 3.0, 4.0, 5.0, 1e30])),
        ],
    );
    let read = |name| image::open(folder.path().join("depth").join(name)).unwrap().into_luma16().into_raw();
    assert_eq!(read("000000.png"), [0, 0, 0, 0, 0, 2000]);
    assert_eq!(read("000001.png"), [0, 0, 1000, 1000, 1000, 1000]);
    assert_eq!(read("000002.png"), [1000, 2000, 0, 4000, 5000, 0]);
    assert_eq!(summary.note.as_deref(), Some("depth = value / 1000, 5 pixels out of range are 0"));
}
