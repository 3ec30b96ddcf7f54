//! `periplus inspect`: the contents of a checkpoint, and the memory that a stream with it needs.

use std::path::PathBuf;

use clap::Args;
use periplus::Config;
use periplus::checkpoint::FloatType;
use periplus_units::Bytes;

use crate::console;
use crate::failure::Failure;
use crate::options::{Float, PictureOptions, StreamOptions, open_any_weights};

/// Show a checkpoint's architecture, its size, and the memory that a stream with it needs
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// The checkpoint: a .safetensors or .pt file, the index of several .safetensors files, their folder, or "demo" for the bundled one
    #[arg(value_name = "FILE|demo")]
    weights: PathBuf,
    /// The network's configuration (JSON), for a checkpoint that does not carry its own
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The weights to use, if the file holds several sets: the keys that lead to them, such as model or ema.model
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    picture: PictureOptions,
    /// Dtype of weights and cache in the stream
    #[arg(long, value_name = "f32|bf16|f16", hide_possible_values = true, default_value = "f32")]
    dtype: Float,
    #[command(flatten)]
    stream: StreamOptions,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let weights = open_any_weights(&arguments.weights, arguments.config.as_deref(), arguments.key.as_deref())?;
    let config = Config { stream: arguments.stream.over(&weights.config().stream)?, ..weights.config().clone() };
    let picture = arguments.picture.size(&config)?;

    let stored = weights.float_types();
    let stored: Vec<_> = stored.iter().map(|(float, count)| format!("{} in {float}", millions(*count))).collect();
    console::print(&format!(
        "{architecture}\n\
         Parameters           {parameters} ({stored}, {bytes}){key}\n\
         {memory}",
        architecture = architecture(&config),
        parameters = millions(config.parameters()),
        stored = stored.join(", "),
        bytes = Bytes(weights.bytes()),
        key = match weights.key() {
            "" => String::new(),
            key => format!("\nWeights under        {key}"),
        },
        memory = memory(&config, picture, arguments.dtype.into()),
    ))
}

fn architecture(config: &Config) -> String {
    format!(
        "Patch embedding      {} blocks, {} channels, {} heads, patches of {patch} x {patch} pixels, \
         trained on {side} x {side} pixels\n\
         Aggregator           {} pairs of blocks, {} channels, {} heads, {} registers, taps after pairs {:?}\n\
         Camera head          {} blocks, {} channels, {} heads\n\
         Dense heads          {}, {} channels",
        config.vit_depth,
        config.embed_dim,
        config.vit_heads,
        config.depth,
        config.embed_dim,
        config.num_heads,
        config.num_registers,
        config.taps,
        config.camera_depth,
        2 * config.embed_dim,
        config.camera_heads,
        if config.point_head { "depth and points" } else { "depth" },
        config.dpt_features,
        patch = config.patch_size,
        side = config.image_size(),
    )
}

/// The memory that a stream needs, as a table.
fn memory(config: &Config, picture: [u32; 2], float: FloatType) -> String {
    let [width, height] = picture.map(|side| side as usize);
    let stream = &config.stream;
    let page = config.page_bytes(height, width, float.size());
    let pages = config.most_frame_pages();
    let special = match config.special_bytes_per_frame(float.size()) {
        0 => "none, as nothing is kept of keyframes that leave the window".into(),
        bytes => format!(
            "{} for every keyframe that leaves the window, in pages of {}: one at first, twice as many when all are full",
            Bytes(bytes),
            Bytes(page)
        ),
    };
    let camera = config.camera_bytes_per_frame(FloatType::F32.size());
    let full = config.stream_bytes(height, width, pages, float.size());
    let growth = camera.saturating_add(config.special_bytes_per_frame(float.size()));
    format!(
        "\n\
         A stream of {width} x {height} pixels in {float}, {} scale frames, window {}, {} camera iterations:\n\
         Weights              {}\n\
         Frames in full       {} at most: {pages} pages of {}\n\
         Special tokens       {special}\n\
         Camera head          {} for every keyframe, in room that doubles when it is full\n\
         Total                {} when the window is full, and {} more for every keyframe after; what a frame computes with comes on \
         top",
        stream.scale_frames,
        stream.window,
        stream.camera_iterations,
        Bytes(config.weight_bytes(float.size())),
        Bytes(page.saturating_mul(pages as u64)),
        Bytes(page),
        Bytes(camera),
        Bytes(full),
        Bytes(growth),
    )
}

fn millions(count: u64) -> String {
    format!("{:.2} M", count as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_network_needs_what_it_is_known_to_need() {
        let config = Config::full();
        let text = memory(&config, [518, 378], FloatType::Bf16);
        // The products of the trunk, 906.57 M numbers, at 2 bytes each, the other 251.37 M at 4.
        assert!(text.contains("Weights              2.63 GiB"), "{text}");
        // 2 (key, value) x 24 layers x 1024 channels x 2 bytes = 96 KiB a token; 1005 tokens a frame, 8 + 64 + 1 frames.
        assert!(text.contains("Frames in full       6.72 GiB at most: 73 pages of 94.22 MiB"), "{text}");
        assert!(text.contains("576 KiB for every keyframe that leaves the window, in pages of 94.22 MiB"), "{text}");
        // 4 passes x 4 blocks x 2 x 2048 channels x 4 bytes.
        assert!(text.contains("Camera head          256 KiB for every keyframe"), "{text}");
        // 2.63 + 6.72 GiB, and 73 times 256 KiB of the camera head.
        assert!(
            text.contains("Total                9.36 GiB when the window is full, and 832 KiB more for every keyframe"),
            "{text}"
        );
        assert!(architecture(&config).contains("trained on 518 x 518"));
        assert_eq!(millions(config.parameters()), "1157.94 M");
    }
}
