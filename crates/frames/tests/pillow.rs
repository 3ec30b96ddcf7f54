//! Pictures become what Pillow makes of them.
#![allow(clippy::unwrap_used)] // helpers of tests, not only the tests

use std::path::Path;

use periplus_frames::{Preprocess, Resize, decode};
use periplus_geometry::{Raster, Viewport};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    input: String,
    expected: String,
    mode: String,
    image_size: u32,
    /// Mean absolute difference allowed, in levels.
    tolerance: f64,
}

fn data(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn mean_difference(a: &Raster<[u8; 3]>, b: &Raster<[u8; 3]>) -> f64 {
    let (a, b) = (a.values().as_flattened(), b.values().as_flattened());
    let difference: u64 = a.iter().zip(b).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    difference as f64 / a.len() as f64
}

#[test]
fn pictures_as_the_network_was_trained_on() {
    let cases: Vec<Case> = serde_json::from_slice(&data("images/cases.json")).unwrap();
    assert_eq!(cases.len(), 19);
    for case in cases {
        let resize = if case.mode == "pad" { Resize::Pad } else { Resize::Crop };
        let preprocess = Preprocess::new(case.image_size, 14, resize).unwrap();
        let (found, viewport) = preprocess.apply(&decode(&data(&format!("images/{}", case.input))).unwrap()).unwrap();
        let expected = decode(&data(&format!("images/{}", case.expected))).unwrap();
        assert_eq!((found.width(), found.height()), (expected.width(), expected.height()), "{}", case.input);
        assert_eq!(viewport.network, [found.width() as u32, found.height() as u32], "{}", case.input);
        let mean = mean_difference(&found, &expected);
        assert!(mean <= case.tolerance, "{}: mean difference {mean}", case.input);
    }
}

/// Every kind of picture at its own size. The JPEG decoders differ a little; for 16-bit gray the expected picture is
/// the high byte, where Pillow would clip.
#[test]
fn kinds_of_pictures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kinds");
    let mut kinds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".expected.png") {
            continue;
        }
        let found = decode(&data(&format!("kinds/{name}"))).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = decode(&data(&format!("kinds/{name}.expected.png"))).unwrap();
        assert_eq!((found.width(), found.height()), (expected.width(), expected.height()), "{name}");
        let tolerance = if Path::new(&name).extension().unwrap() == "jpg" { 1.0 } else { 0.0 };
        let mean = mean_difference(&found, &expected);
        assert!(mean <= tolerance, "{name}: mean difference {mean}");
        kinds += 1;
    }
    assert_eq!(kinds, 30);
}

fn plain(width: usize, height: usize) -> Raster<[u8; 3]> {
    Raster::new(width, height, vec![[10, 120, 250]; width * height]).unwrap()
}

#[test]
fn the_viewport_tells_where_the_original_lies() {
    let fit = |resize, width, height| Preprocess::new(518, 14, resize).unwrap().apply(&plain(width, height)).unwrap().1;
    // 420 * 518 / 300 / 14 = 51.8 patches: 728 rows, of which (728 - 518) / 2 go at the top.
    assert_eq!(
        fit(Resize::Crop, 300, 420),
        Viewport {
            original: [300, 420],
            network: [518, 518],
            scale: [518.0 / 300.0, 728.0 / 420.0],
            offset: [0.0, -105.0]
        }
    );
    // 300 * 518 / 420 / 14 = 26.4 patches: 364 columns.
    assert_eq!(
        fit(Resize::Pad, 300, 420),
        Viewport {
            original: [300, 420],
            network: [518, 518],
            scale: [364.0 / 300.0, 518.0 / 420.0],
            offset: [77.0, 0.0]
        }
    );
    // 343 * 518 / 518 / 14 = 24.5 patches: half to even.
    assert_eq!(fit(Resize::Crop, 518, 343).network, [518, 336]);
}

#[test]
fn a_plain_picture_stays_plain() {
    for (width, height) in [(1, 1), (3, 1), (1, 50), (37, 90), (1000, 30)] {
        let preprocess = Preprocess::new(28, 1, Resize::Crop).unwrap();
        let (found, _) = preprocess.apply(&plain(width, height)).unwrap();
        assert!(found.values().iter().all(|&pixel| pixel == [10, 120, 250]), "{width} x {height}");
    }
}

#[test]
fn work_is_bounded_by_what_is_kept() {
    // 518 x 155 million when resized: only the 518 rows of the middle are made.
    let preprocess = Preprocess::new(518, 14, Resize::Crop).unwrap();
    assert_eq!(preprocess.apply(&plain(1, 300_000)).unwrap().1.network, [518, 518]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_picture_and_any_size_fit_or_say_why(
        width in 0_usize..60, height in 0_usize..60, patches in 1_u32..8, patch in 1_u32..16, pad: bool
    ) {
        let resize = if pad { Resize::Pad } else { Resize::Crop };
        let size = patches * patch;
        match Preprocess::new(size, patch, resize).unwrap().apply(&plain(width, height)) {
            Ok((pixels, viewport)) => {
                let [w, h] = viewport.network;
                proptest::prop_assert_eq!([pixels.width() as u32, pixels.height() as u32], [w, h]);
                proptest::prop_assert!(w == size && h <= size && h % patch == 0);
                proptest::prop_assert!(!pad || h == size);
            }
            // Half a patch over the longer side is the least proportion that leaves something.
            Err(_) => proptest::prop_assert!(
                width.min(height) as f64 * f64::from(2 * patches) <= width.max(height) as f64
            ),
        }
    }
}
