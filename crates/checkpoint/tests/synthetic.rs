//! Synthetic numbers against literal values of the reference implementation, bit by bit.

#![allow(clippy::unwrap_used)] // Of helpers too, not of tests only.

use periplus_checkpoint::config::Config;
use periplus_checkpoint::{Weights, synthetic};

/// The last three numbers of a tensor.
fn tail(tensor: &candle_core::Tensor) -> [u32; 3] {
    let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    *values.iter().map(|value| value.to_bits()).collect::<Vec<_>>().last_chunk().unwrap()
}

#[test]
fn hash_uniform_is_the_reference() {
    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    let expected = [-0.859_576_915_491_531_8, 0.562_292_170_883_139_4, -0.825_959_064_735_999_3, 0.433_632_673_324_043];
    assert_eq!(bits(synthetic::hash_uniform("0/aggregator.camera_token", 4, 0)), expected.map(f64::to_bits));
    let far = [0.185_746_157_393_714_47, 0.102_156_004_428_395_56];
    assert_eq!(bits(synthetic::hash_uniform("frames/3", 2, 1_000_000_000_000)), far.map(f64::to_bits));
}

#[test]
fn tensors_of_every_kind_are_the_reference() {
    let cases: [(&str, &[usize], u64, [u32; 3]); 10] = [
        ("aggregator.camera_token", &[1, 2, 1, 8], 0, [0x3efa_bb75, 0x3f55_ae12, 0xbe8d_4942]),
        ("depth_head.norm.weight", &[5], 3, [0x3f6b_808e, 0x3f82_fd26, 0x3f8c_698c]),
        ("camera_head.pose_branch.fc2.bias", &[9], 1, [0x3eae_1c49, 0x3de7_d601, 0x3e15_8c40]),
        ("camera_head.pose_branch.fc2.weight", &[9, 64], 1, [0xbc25_a6bd, 0x3d54_e252, 0xbd0e_a7f6]),
        ("aggregator.frame_blocks.0.attn.qkv.weight", &[6, 7], 2, [0xbf24_c40d, 0xbe31_85b3, 0x3e77_7426]),
        ("aggregator.frame_blocks.0.ls1.gamma", &[4], 2, [0x3ecd_f0c8, 0x3eb9_5e26, 0x3ecb_65ea]),
        ("depth_head.resize_layers.0.weight", &[3, 3, 4, 4], 5, [0x3ed1_21a8, 0xbf1a_6518, 0xbef2_5149]),
        ("depth_head.resize_layers.3.weight", &[3, 3, 3, 3], 5, [0x3e67_8202, 0x3e20_4d31, 0x3d5c_b170]),
        ("depth_head.scratch.output_conv2.2.weight", &[2, 8, 1, 1], 5, [0x3e2d_85b2, 0xbcbd_e228, 0xbde7_499e]),
        ("depth_head.projects.1.bias", &[3], 5, [0xbd5d_a5c0, 0xbe00_a2fa, 0x3d79_0064]),
    ];
    for (name, shape, seed, expected) in cases {
        let tensor = synthetic::tensor(name, shape, seed).unwrap();
        assert_eq!(tensor.dims(), shape);
        assert_eq!(tail(&tensor), expected, "{name}");
    }
}

#[test]
fn a_whole_network_is_the_reference() {
    let config = r#"{"embed_dim": 128, "num_heads": 2, "depth": 4, "vit_depth": 2, "vit_heads": 2, "pos_grid": 5,
        "taps": [0, 1, 2, 3], "camera_depth": 2, "camera_heads": 2, "dpt_features": 32, "dpt_hidden": 16,
        "dpt_channels": [32, 48, 64, 64]}"#;
    let config = Config::from_json(config).unwrap();
    let weights = Weights::synthetic(config.clone(), 5).unwrap();
    let (mut xor, mut sum, mut count) = (0, 0, 0);
    for (name, shape) in periplus_checkpoint::tensor_shapes(&config) {
        let tensor = weights.get(&name).unwrap();
        assert_eq!(tensor.dims(), shape);
        for value in tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap() {
            xor ^= value.to_bits();
            sum += u64::from(value.to_bits());
            count += 1;
        }
    }
    assert_eq!((xor, sum, count), (0x0999_b299, 0x1f_4b67_792b_0de7, 4_201_332));
    assert_eq!(weights.bytes(), 4 * 4_201_332);
    let error = weights.get("aggregator.colour_token").unwrap_err().to_string();
    assert_eq!(error, "the network has no tensor aggregator.colour_token");
}

#[test]
fn frames_are_the_reference() {
    let frames = synthetic::frames(2, 3, 5, 7).unwrap();
    assert_eq!(frames.dims(), [2, 3, 3, 5]);
    assert_eq!(tail(&frames), [0x3e14_9495, 0x3f1f_9fa0, 0x3de8_e8e9]);
}

#[test]
fn what_does_not_fit_in_memory_is_an_error() {
    assert!(synthetic::frames(usize::MAX, 2, 2, 0).is_err());
    assert!(synthetic::tensor("aggregator.camera_token", &[1 << 50], 0).is_err());
}
