//! Configurations: their JSON, their rules, the sizes that follow from them.

#![allow(clippy::unwrap_used)] // Of helpers too, not of tests only.

use periplus_cache::Retention;
use periplus_checkpoint::config::{Config, StreamSettings};
use periplus_checkpoint::tensor_shapes;

/// As the reference implementation writes it.
const TINY: &str = r#"{"embed_dim": 128, "num_heads": 2, "depth": 4, "vit_depth": 2, "vit_heads": 2,
    "patch_size": 14, "pos_grid": 5, "num_registers": 4, "mlp_ratio": 4, "taps": [0, 1, 2, 3], "camera_depth": 2,
    "camera_heads": 2, "dpt_features": 32, "dpt_hidden": 16, "dpt_channels": [32, 48, 64, 64], "point_head": false,
    "scale_frames": 3, "window": 4, "camera_iterations": 4, "keep_special": "all", "include_scale_frames": true}"#;

fn tiny() -> Config {
    Config::from_json(TINY).unwrap()
}

#[test]
fn absent_keys_are_the_published_ones() {
    assert_eq!(Config::from_json("{}").unwrap(), Config::full());
    let config = Config::from_json(r#"{"window": 16, "keep_special": "camera"}"#).unwrap();
    let stream = StreamSettings { window: 16, keep_special: Retention::Camera, ..StreamSettings::default() };
    assert_eq!(config, Config { stream, ..Config::full() });
    assert!(config.same_network(&Config::full()));
    assert!(!config.same_network(&tiny()));
}

#[test]
fn json_is_that_of_the_reference() {
    let spaces_gone: String = TINY.split_whitespace().collect();
    assert_eq!(tiny().to_json(), spaces_gone);
    assert_eq!(Config::from_json(&tiny().to_json()).unwrap(), tiny());
}

/// FNV-1a of all names and shapes in order of name, one `name [shape]` a line, as computed with the reference.
fn fingerprint(config: &Config) -> (usize, u64, u64) {
    let shapes = tensor_shapes(config);
    let lines = shapes.iter().flat_map(|(name, shape)| format!("{name} {shape:?}\n").into_bytes());
    let hash =
        lines.fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    (shapes.len(), config.parameters(), hash)
}

#[test]
fn tensors_are_those_of_the_reference() {
    assert_eq!(fingerprint(&Config::full()), (1342, 1_157_943_540, 0x54a4_cd95_dd72_4ff3));
    assert_eq!(fingerprint(&tiny()), (286, 4_201_332, 0xe93b_1801_59e2_f51d));
    let stage_1 = Config { point_head: true, ..Config::full() };
    assert_eq!(fingerprint(&stage_1), (1404, 1_190_598_168, 0xd69d_99d7_3830_c2e0));
}

#[test]
fn memory_follows_from_the_sizes() {
    let full = Config::full();
    // 24 layers, keys and values, 1024 numbers of 2 bytes.
    assert_eq!(full.token_bytes(2), 24 * 2 * 1024 * 2);
    // 37 x 27 patches and 6 special tokens.
    assert_eq!(full.page_bytes(378, 518, 2), 1005 * full.token_bytes(2));
    assert_eq!(full.page_bytes(usize::MAX, usize::MAX, 4), u64::MAX);
    // 8 scale frames, 64 in the window, 1 under way; the scale frames are some of these where they leave as others do.
    assert_eq!(full.most_frame_pages(), 73);
    let leaving = |scale_frames| StreamSettings { scale_frames, include_scale_frames: false, ..full.stream.clone() };
    assert_eq!(Config { stream: leaving(8), ..full.clone() }.most_frame_pages(), 65);
    assert_eq!(Config { stream: leaving(80), ..full.clone() }.most_frame_pages(), 80);
    // All in float32 but for the mask token, which is not loaded.
    assert_eq!(full.weight_bytes(4), (full.parameters() - 1024) * 4);
    // In the trunk, 24 blocks of the patch embedding and 48 of the aggregator have 12 C x C products each (4 of
    // attention, 8 of the MLP), and patches of 3 colours are projected to C.
    let products = 72 * 12 * 1024 * 1024 + 1024 * 3 * 14 * 14;
    assert_eq!(full.weight_bytes(2), full.weight_bytes(4) - products * 2);
    assert_eq!(full.special_bytes_per_frame(2), 6 * full.token_bytes(2));
    let camera_only = StreamSettings { keep_special: Retention::Camera, ..StreamSettings::default() };
    assert_eq!(Config { stream: camera_only, ..full.clone() }.special_bytes_per_frame(2), full.token_bytes(2));
    let nothing = StreamSettings { keep_special: Retention::None, ..StreamSettings::default() };
    assert_eq!(Config { stream: nothing, ..full.clone() }.special_bytes_per_frame(2), 0);
    // 4 passes, 4 blocks, keys and values, 2048 numbers of 4 bytes.
    assert_eq!(full.camera_bytes_per_frame(4), 4 * 4 * 2 * 2048 * 4);
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    for (change, message) in [
        (r#"{"depth": 0}"#, "the configuration's `depth` is 0, which must lie between 1 and 1024"),
        (r#"{"window": 0}"#, "the configuration's `window` is 0, which must lie between 1 and 1048576"),
        (r#"{"scale_frames": 0}"#, "the configuration's `scale_frames` is 0, which must lie between 1 and 1048576"),
        (
            r#"{"vit_depth": 4000000000}"#,
            "the configuration's `vit_depth` is 4000000000, which must lie between 1 and 1024",
        ),
        (
            r#"{"num_heads": 8}"#,
            "the configuration's `embed_dim` 1024 over `num_heads` 8 must be 64, the width of a head that the rotary \
             embedding is made for",
        ),
        (
            r#"{"num_heads": 1000000, "embed_dim": 64000000}"#,
            "the configuration's `embed_dim` is 64000000, which must lie between 1 and 1048576",
        ),
        (r#"{"vit_heads": 3}"#, "the configuration's `vit_heads` is 3, which must divide `embed_dim`"),
        (r#"{"camera_heads": 3}"#, "the configuration's `camera_heads` is 3, which must divide twice `embed_dim`"),
        (r#"{"dpt_features": 12}"#, "the configuration's `dpt_features` is 12, which must be a multiple of 8"),
        (r#"{"dpt_channels": [8, 8, 6, 8]}"#, "the configuration's `dpt_channels` is 6, which must be a multiple of 4"),
        (r#"{"mlp_ratio": 0}"#, "the configuration's `mlp_ratio` is 0, which must lie between 1 and 1048576"),
        (
            r#"{"taps": [4, 11, 11, 23]}"#,
            "the configuration's `taps` [4, 11, 11, 23] must increase and lie below `depth` 24",
        ),
        (
            r#"{"taps": [4, 11, 17, 24]}"#,
            "the configuration's `taps` [4, 11, 17, 24] must increase and lie below `depth` 24",
        ),
        (
            r#"{"mlp_ratio": 1000000, "pos_grid": 1000000}"#,
            "the configuration describes a network of more than 68719476736 parameters",
        ),
    ] {
        assert_eq!(refusal(change), message, "{change}");
    }
}

fn refusal(text: &str) -> String {
    Config::from_json(text).unwrap_err().to_string()
}

#[test]
fn a_wrong_value_is_named_with_its_key_in_the_words_of_json() {
    let digits = "a whole number, in digits";
    let four = "an array of 4 whole numbers, in digits";
    for (key, value, expected) in [
        ("depth", "-1", digits),
        ("depth", "1.5", digits),
        ("depth", "\"24\"", digits),
        ("window", "null", digits),
        ("window", "[]", digits),
        ("taps", "4", four),
        ("taps", "[4,11,17]", four),
        ("taps", "[4,11,17,-1]", four),
        ("dpt_channels", "{\"a\":1}", four),
        ("point_head", "0", "true or false"),
        ("keep_special", "\"some\"", r#""all", "camera" or "none""#),
        ("keep_special", "true", r#""all", "camera" or "none""#),
    ] {
        let expected = format!("the configuration's `{key}` is {value}, which must be {expected}");
        assert_eq!(refusal(&format!("{{\"{key}\": {value}}}")), expected);
    }
    let long = refusal(&format!("{{\"depth\": \"{}\"}}", "ä".repeat(1000)));
    assert_eq!(long, format!("the configuration's `depth` is \"{}..., which must be {digits}", "ä".repeat(39)));
}

#[test]
fn an_unknown_key_is_named_with_the_one_that_is_meant() {
    for (key, meant) in [
        ("windw", "window"),
        ("Window", "window"),
        ("embed-dim", "embed_dim"),
        ("num_head", "num_heads"),
        ("camera_iteration", "camera_iterations"),
        ("dpt_feature", "dpt_features"),
    ] {
        let expected = format!("the configuration's `{key}` is unknown; `{meant}` is probably meant");
        assert_eq!(refusal(&format!("{{\"{key}\": 1}}")), expected);
    }
    for key in ["colour", "", "x"] {
        assert_eq!(refusal(&format!("{{\"{key}\": 1}}")), format!("the configuration's `{key}` is unknown"));
    }
    assert_eq!(
        refusal(&format!("{{\"{}\": 1}}", "k".repeat(1 << 20))),
        format!("the configuration's `{}...` is unknown", "k".repeat(40))
    );
}

#[test]
fn what_is_no_configuration_at_all_is_refused() {
    assert_eq!(refusal(r#"{"depth": 24, "window": 3, "depth": 24}"#), "the configuration's `depth` is there twice");
    assert_eq!(refusal("[]"), r#"the configuration is an array, which must be an object as {"depth": 24}"#);
    assert_eq!(refusal("null"), r#"the configuration is null, which must be an object as {"depth": 24}"#);
    for text in ["", "{", "depth: 4", "{} {}", r#"{"depth": 4,}"#, r#"{"depth": 99999999999999999999999e999}"#] {
        let error = refusal(text);
        assert!(error.starts_with("the configuration is not valid JSON: "), "{text}: {error}");
    }
}
