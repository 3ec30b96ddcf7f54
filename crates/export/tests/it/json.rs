use std::fs;

use periplus_export::{ExportError, JsonFile, JsonLines, Sink};
use periplus_geometry::FrameOutput;
use serde_json::Value;

use crate::{export, frame, padded, unsure, with_depth};

fn lines(frames: impl IntoIterator<Item = FrameOutput>) -> String {
    let mut text = Vec::new();
    let summary = export(Ok(JsonLines::new(&mut text, "standard output")), frames);
    let text = String::from_utf8(text).unwrap();
    assert_eq!(summary.frames, text.lines().count());
    text
}

#[test]
fn a_line_is_this_object() {
    let expected = concat!(
        r#"{"index":3,"number":13,"name":"frame3.png","timestamp":0.75,"keyframe":true,"#,
        r#""camera_to_world":[[R,0.0,1.0,0.5],[0.0,1.0,0.0,-1.0],[-1.0,0.0,R,2.0]],"#,
        r#""quaternion":[0.0,Q,0.0,Q],"translation":[0.5,-1.0,2.0],"#,
        r#""intrinsics":{"network":{"fx":2.0,"fy":4.0,"cx":1.5,"cy":1.0,"width":3,"height":2},"#,
        r#""original":{"fx":4.0,"fy":8.0,"cx":3.0,"cy":4.0,"width":6,"height":8}},"#,
        r#""depth":{"min":1.0,"median":3.5,"max":6.5},"mean_confidence":2.3333333,"milliseconds":12.5}"#,
        "\n"
    );
    // A right angle is not exact in floating point; everything else is.
    let line = lines([frame(3)]);
    let object: Value = serde_json::from_str(&line).unwrap();
    let (r, q) = (&object["camera_to_world"][0][0], &object["quaternion"][1]);
    assert!(r.as_f64().unwrap().abs() < 1e-15 && (q.as_f64().unwrap() - 0.5_f64.sqrt()).abs() < 1e-15);
    let exact = line
        .replace(&r.to_string(), "R")
        .replace(&q.to_string(), "Q")
        .replace(&object["quaternion"][3].to_string(), "Q");
    assert_eq!(exact.replace("-0.0", "0.0").replace("0.9999999999999998", "1.0"), expected);
}

#[test]
fn what_is_not_known_or_not_finite_is_null() {
    let mut unknown = unsure(with_depth(0, [f32::NAN, f32::INFINITY, 2.0, 4.0, f32::NEG_INFINITY, f32::NAN]));
    (unknown.name, unknown.timestamp, unknown.keyframe) = (None, None, false);
    unknown.camera_to_world.translation.y = f64::NAN;
    unknown.intrinsics.fx = f64::INFINITY;
    let object: Value = serde_json::from_str(&lines([unknown])).unwrap();
    for key in ["name", "timestamp", "mean_confidence"] {
        assert_eq!(object[key], Value::Null, "{key}");
    }
    assert_eq!(object["keyframe"], false);
    assert_eq!(object["translation"], serde_json::json!([0.5, null, 2.0]));
    assert_eq!(object["intrinsics"]["original"]["fx"], Value::Null);
    assert_eq!(object["depth"], serde_json::json!({ "min": 2.0, "median": 3.0, "max": 4.0 }));
    for nothing in [with_depth(0, [f32::NAN; 6]), FrameOutput { depth_map: None, ..frame(0) }] {
        let nothing: Value = serde_json::from_str(&lines([nothing])).unwrap();
        assert_eq!(nothing["depth"], serde_json::json!({ "min": null, "median": null, "max": null }));
        assert_eq!(nothing["translation"], serde_json::json!([0.5, -1.0, 2.0]));
    }
}

#[test]
fn bars_beside_a_padded_picture_count_for_nothing() {
    let object: Value = serde_json::from_str(&lines([padded(frame(0))])).unwrap();
    // Without the third and the sixth pixel.
    assert_eq!(object["depth"], serde_json::json!({ "min": 1.0, "median": 3.0, "max": 5.0 }));
    assert_eq!(object["mean_confidence"], 1.8125);
}

#[test]
fn the_file_has_the_same_lines() {
    let folder = tempfile::tempdir().unwrap();
    let summary = export(JsonFile::create(folder.path()), (0..3).map(frame));
    assert_eq!(fs::read_to_string(folder.path().join("frames.jsonl")).unwrap(), lines((0..3).map(frame)));
    assert_eq!(summary.to_string(), format!("{}: 3 frames", folder.path().join("frames.jsonl").display()));
}

#[test]
fn a_reader_that_has_gone_is_told_apart() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let error = JsonLines::new(writer, "standard output").write(&frame(0)).unwrap_err();
    assert!(matches!(error, ExportError::Closed { .. }), "{error:?}");
}
