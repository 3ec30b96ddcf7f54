//! The tensors of a network, and the network of tensors.

use crate::CheckpointError;
use crate::config::{Config, HEAD_DIM, StreamSettings};
use crate::file::StoredTensor;
use std::collections::BTreeMap;
use std::path::Path;

/// Tells a function the names and shapes of tensors.
struct Shapes<F>(F);

impl<F: FnMut(String, Vec<usize>)> Shapes<F> {
    fn add(&mut self, name: String, shape: impl Into<Vec<usize>>) {
        (self.0)(name, shape.into());
    }

    fn norm(&mut self, prefix: &str, width: usize) {
        self.add(format!("{prefix}.weight"), [width]);
        self.add(format!("{prefix}.bias"), [width]);
    }

    fn linear(&mut self, prefix: &str, inputs: usize, outputs: usize) {
        self.add(format!("{prefix}.weight"), [outputs, inputs]);
        self.add(format!("{prefix}.bias"), [outputs]);
    }

    fn conv(&mut self, prefix: &str, inputs: usize, outputs: usize, kernel: usize) {
        self.add(format!("{prefix}.weight"), [outputs, inputs, kernel, kernel]);
        self.add(format!("{prefix}.bias"), [outputs]);
    }

    fn block(&mut self, prefix: &str, width: usize, mlp_ratio: usize) {
        self.norm(&format!("{prefix}.norm1"), width);
        self.linear(&format!("{prefix}.attn.qkv"), width, 3 * width);
        self.linear(&format!("{prefix}.attn.proj"), width, width);
        self.add(format!("{prefix}.ls1.gamma"), [width]);
        self.norm(&format!("{prefix}.norm2"), width);
        self.linear(&format!("{prefix}.mlp.fc1"), width, mlp_ratio * width);
        self.linear(&format!("{prefix}.mlp.fc2"), mlp_ratio * width, width);
        self.add(format!("{prefix}.ls2.gamma"), [width]);
    }

    fn aggregator(&mut self, config: &Config) {
        let (c, registers, patch) = (config.embed_dim, config.num_registers, config.patch_size);
        self.add("aggregator.camera_token".into(), [1, 2, 1, c]);
        self.add("aggregator.register_token".into(), [1, 2, registers, c]);
        self.add("aggregator.scale_token".into(), [1, 2, 1, c]);
        let vit = "aggregator.patch_embed";
        self.add(format!("{vit}.cls_token"), [1, 1, c]);
        self.add(format!("{vit}.pos_embed"), [1, config.pos_grid * config.pos_grid + 1, c]);
        self.add(format!("{vit}.register_tokens"), [1, registers, c]);
        self.add(format!("{vit}.mask_token"), [1, c]);
        self.conv(&format!("{vit}.patch_embed.proj"), 3, c, patch);
        for i in 0..config.vit_depth {
            self.block(&format!("{vit}.blocks.{i}"), c, config.mlp_ratio);
        }
        self.norm(&format!("{vit}.norm"), c);
        for i in 0..config.depth {
            for kind in ["frame_blocks", "global_blocks"] {
                let block = format!("aggregator.{kind}.{i}");
                self.block(&block, c, config.mlp_ratio);
                self.norm(&format!("{block}.attn.q_norm"), HEAD_DIM);
                self.norm(&format!("{block}.attn.k_norm"), HEAD_DIM);
            }
        }
    }

    fn camera_head(&mut self, config: &Config) {
        let wide = 2 * config.embed_dim;
        self.add("camera_head.empty_pose_tokens".into(), [1, 1, 9]);
        for i in 0..config.camera_depth {
            self.block(&format!("camera_head.trunk.{i}"), wide, config.mlp_ratio);
        }
        self.norm("camera_head.token_norm", wide);
        self.norm("camera_head.trunk_norm", wide);
        self.linear("camera_head.embed_pose", 9, wide);
        self.linear("camera_head.poseLN_modulation.1", wide, 3 * wide);
        self.linear("camera_head.pose_branch.fc1", wide, wide / 2);
        self.linear("camera_head.pose_branch.fc2", wide / 2, 9);
    }

    fn dense_head(&mut self, head: &str, outputs: usize, config: &Config) {
        let (wide, features, channels) = (2 * config.embed_dim, config.dpt_features, config.dpt_channels);
        self.norm(&format!("{head}.norm"), wide);
        for (i, tap) in channels.into_iter().enumerate() {
            self.conv(&format!("{head}.projects.{i}"), wide, tap, 1);
            self.add(format!("{head}.scratch.layer{}_rn.weight", i + 1), [features, tap, 3, 3]);
        }
        // The first two are transposed convolutions, whose weights start with the inputs; these equal the outputs.
        self.conv(&format!("{head}.resize_layers.0"), channels[0], channels[0], 4);
        self.conv(&format!("{head}.resize_layers.1"), channels[1], channels[1], 2);
        self.conv(&format!("{head}.resize_layers.3"), channels[3], channels[3], 3);
        for i in 1..=4 {
            let fusion = format!("{head}.scratch.refinenet{i}");
            self.conv(&format!("{fusion}.out_conv"), features, features, 1);
            // Nothing comes from below the deepest fusion, so it lacks the unit for it.
            for unit in if i == 4 { 2..=2 } else { 1..=2 } {
                for conv in ["conv1", "conv2"] {
                    self.conv(&format!("{fusion}.resConfUnit{unit}.{conv}"), features, features, 3);
                }
            }
        }
        self.conv(&format!("{head}.scratch.output_conv1"), features, features / 2, 3);
        self.conv(&format!("{head}.scratch.output_conv2.0"), features / 2, config.dpt_hidden, 3);
        self.conv(&format!("{head}.scratch.output_conv2.2"), config.dpt_hidden, outputs, 1);
    }
}

/// Every tensor of the network, by name, with its shape. The configuration must be one that
/// [`Config::validate`] accepts.
pub fn tensor_shapes(config: &Config) -> BTreeMap<String, Vec<usize>> {
    let mut shapes = BTreeMap::new();
    for_each_tensor(config, |name, shape| drop(shapes.insert(name, shape)));
    shapes
}

/// Calls a function with the name and shape of every tensor of the network. A few bytes of configuration may describe a hundred
/// thousand of them, which need not be kept.
pub(crate) fn for_each_tensor(config: &Config, function: impl FnMut(String, Vec<usize>)) {
    let mut shapes = Shapes(function);
    shapes.aggregator(config);
    shapes.camera_head(config);
    shapes.dense_head("depth_head", 2, config);
    if config.point_head {
        shapes.dense_head("point_head", 4, config);
    }
}

/// Whether a tensor is in every checkpoint but used in training only: it replaced masked patches.
pub(crate) fn never_read(name: &str) -> bool {
    name == "aggregator.patch_embed.mask_token"
}

/// The tensors of a file, from which the network is inferred.
struct Evidence<'a> {
    path: &'a Path,
    tensors: &'a BTreeMap<String, StoredTensor>,
}

impl Evidence<'_> {
    /// One size of a tensor that must have `rank` dimensions.
    fn size(&self, name: &str, rank: usize, dimension: usize) -> Result<usize, CheckpointError> {
        match self.tensors.get(name).map(|tensor| &tensor.shape) {
            None => {
                let names = [name.to_owned()].into_iter().collect();
                Err(CheckpointError::Missing { path: self.path.into(), names })
            }
            Some(shape) if shape.len() == rank => Ok(shape[dimension]),
            Some(shape) => Err(self.unclear(format!("`{name}` has the shape {shape:?} instead of {rank} dimensions"))),
        }
    }

    /// One more than the largest number that follows the prefix. A block in the middle may be missing: naming it
    /// is left to the comparison with the network.
    fn blocks(&self, prefix: &str) -> usize {
        let number = |name: &String| name.strip_prefix(prefix)?.split('.').next()?.parse::<usize>().ok();
        self.tensors.keys().filter_map(number).max().map_or(0, |last| last.saturating_add(1))
    }

    fn unclear(&self, reason: String) -> CheckpointError {
        CheckpointError::Inference { path: self.path.into(), reason }
    }
}

/// The network that the tensors of the file at `path` belong to. What shapes leave open is taken from the
/// published network: heads are [`HEAD_DIM`] wide (the camera head's twice that) and the taps are those of its depth.
///
/// # Errors
/// [`CheckpointError::Missing`] names a tensor that is needed here, [`CheckpointError::Inference`] says what the
/// shapes leave open, [`CheckpointError::Config`] which rule the result breaks.
pub(crate) fn infer(path: &Path, tensors: &BTreeMap<String, StoredTensor>) -> Result<Config, CheckpointError> {
    let file = Evidence { path, tensors };
    let embed_dim = file.size("aggregator.camera_token", 4, 3)?;
    let positions = file.size("aggregator.patch_embed.pos_embed", 3, 1)?;
    let pos_grid = positions.saturating_sub(1).isqrt();
    if pos_grid * pos_grid + 1 != positions {
        return Err(file.unclear(format!("the position embedding has {positions} rows, not a square and one")));
    }
    let mlp = "aggregator.patch_embed.blocks.0.mlp.fc1.weight";
    let depth = file.blocks("aggregator.frame_blocks.").max(file.blocks("aggregator.global_blocks."));
    let taps = match depth {
        24 => [4, 11, 17, 23],
        4 => [0, 1, 2, 3],
        _ => {
            return Err(
                file.unclear(format!("it has {depth} block pairs, and which four of them are tapped is unknown"))
            );
        }
    };
    let mut dpt_channels = [0; 4];
    for (i, channels) in dpt_channels.iter_mut().enumerate() {
        *channels = file.size(&format!("depth_head.projects.{i}.weight"), 4, 0)?;
    }
    let heads = embed_dim / HEAD_DIM;
    let config = Config {
        embed_dim,
        num_heads: heads,
        depth,
        vit_depth: file.blocks("aggregator.patch_embed.blocks."),
        vit_heads: heads,
        patch_size: file.size("aggregator.patch_embed.patch_embed.proj.weight", 4, 3)?,
        pos_grid,
        num_registers: file.size("aggregator.register_token", 4, 2)?,
        mlp_ratio: file.size(mlp, 2, 0)? / file.size(mlp, 2, 1)?.max(1),
        taps,
        camera_depth: file.blocks("camera_head.trunk."),
        camera_heads: heads,
        dpt_features: file.size("depth_head.scratch.layer1_rn.weight", 4, 0)?,
        dpt_hidden: file.size("depth_head.scratch.output_conv2.0.weight", 4, 0)?,
        dpt_channels,
        point_head: tensors.keys().any(|name| name.starts_with("point_head.")),
        stream: StreamSettings::default(),
    };
    config.validate().map_err(|source| CheckpointError::Config { path: path.into(), source })?;
    Ok(config)
}
