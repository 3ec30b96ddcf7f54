//! The hyper-parameters of a network and the stream settings its checkpoint suggests.

mod json;
mod memory;

use periplus_cache::{CacheConfig, Retention};
use serde::{Deserialize, Serialize};

/// Width of an aggregator head. The 3-D rotary embedding splits it into 20 + 22 + 22 channels.
pub const HEAD_DIM: usize = 64;

/// The largest size in a network. It is far beyond any real one, and keeps every product within 64 bits.
const LARGEST_SIZE: usize = 1 << 20;

/// The most blocks in a stack.
const LARGEST_DEPTH: usize = 1024;

/// The most parameters of a network (some sixty times the published one).
const LARGEST_PARAMETERS: u64 = 1 << 36;

/// The hyper-parameters of the network, and the stream settings that go with it.
///
/// Reads and writes the JSON of a checkpoint's `config` metadata. Absent keys take the published values, so that `{}`
/// is [`Config::full`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Channels `C` of a token.
    pub embed_dim: usize,
    /// Heads of the frame and global blocks; each is [`HEAD_DIM`] wide.
    pub num_heads: usize,
    /// Frame blocks, and as many global blocks.
    pub depth: usize,
    /// Blocks of the patch embedding.
    pub vit_depth: usize,
    /// Heads of the patch embedding.
    pub vit_heads: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Side, in patches, of the square grid that the position embedding was trained on.
    pub pos_grid: usize,
    /// Register tokens of a frame.
    pub num_registers: usize,
    /// Hidden width of an MLP over its outer width.
    pub mlp_ratio: usize,
    /// The block pairs, counted from 0, whose outputs the heads receive.
    pub taps: [usize; 4],
    /// Blocks of the camera head's trunk.
    pub camera_depth: usize,
    /// Heads of the camera head's trunk, which is `2 C` wide.
    pub camera_heads: usize,
    /// Channels in which the dense heads fuse the taps.
    pub dpt_features: usize,
    /// Channels before the last convolution of the dense heads.
    pub dpt_hidden: usize,
    /// Channels of each tap in the dense heads.
    pub dpt_channels: [usize; 4],
    /// Whether the network has a point head beside the depth head, as stage-1 checkpoints do.
    pub point_head: bool,
    /// The stream settings that the checkpoint suggests. A session may use others.
    #[serde(flatten)]
    pub stream: StreamSettings,
}

/// The settings of a stream. They shape no tensor of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamSettings {
    /// Frames that go in together at first and see each other in full.
    pub scale_frames: usize,
    /// Latest cached frames that a new frame sees in full. It counts itself, but not scale frames.
    pub window: usize,
    /// Refinement passes of the camera head.
    pub camera_iterations: usize,
    /// Which tokens of a frame stay visible after it leaves the window.
    #[serde(with = "RetentionName")]
    pub keep_special: Retention,
    /// Whether the scale frames stay visible for the whole clip instead of leaving the window.
    pub include_scale_frames: bool,
}

/// The names of [`Retention`] in JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Retention", rename_all = "lowercase")]
enum RetentionName {
    All,
    Camera,
    None,
}

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not JSON.
    #[error("the configuration is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON that is not an object.
    #[error("the configuration is {0}, which must be an object as {{\"depth\": 24}}")]
    NotAnObject(&'static str),
    /// An unknown key.
    #[error("the configuration's `{key}` is unknown{}", meant(nearest.as_deref()))]
    UnknownKey {
        /// The key.
        key: String,
        /// The key that it resembles.
        nearest: Option<String>,
    },
    /// A key that occurs more than once.
    #[error("the configuration's `{key}` is there twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// A value of the wrong type.
    #[error("the configuration's `{key}` is {value}, which must be {expected}")]
    Value {
        /// The key.
        key: String,
        /// Its value, or the beginning of it.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A size that is zero or absurdly large.
    #[error("the configuration's `{field}` is {value}, which must lie between 1 and {largest}")]
    Size {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The largest that is accepted.
        largest: usize,
    },
    /// Each size is valid, but together they are too large.
    #[error("the configuration describes a network of more than {LARGEST_PARAMETERS} parameters")]
    TooLarge,
    /// Aggregator heads of another width than [`HEAD_DIM`].
    #[error(
        "the configuration's `embed_dim` {embed_dim} over `num_heads` {num_heads} must be {HEAD_DIM}, the width of a \
         head that the rotary embedding is made for"
    )]
    HeadDim {
        /// Channels.
        embed_dim: usize,
        /// Heads of the aggregator.
        num_heads: usize,
    },
    /// A width that its parts do not divide.
    #[error("the configuration's `{field}` is {value}, which must {rule}")]
    Divides {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// What it must do.
        rule: &'static str,
    },
    /// Taps that are not four block pairs in order.
    #[error("the configuration's `taps` {taps:?} must increase and lie below `depth` {depth}")]
    Taps {
        /// The taps.
        taps: [usize; 4],
        /// Block pairs of the network.
        depth: usize,
    },
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |nearest| format!("; `{nearest}` is probably meant"))
}

impl Default for Config {
    fn default() -> Self {
        Self::full()
    }
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            scale_frames: 8,
            window: 64,
            camera_iterations: 4,
            keep_special: Retention::All,
            include_scale_frames: true,
        }
    }
}

impl Config {
    /// Side of the square pictures that the network was trained on, in pixels: its position embedding has one vector for each of
    /// their patches. 518 for the published networks. Pictures of this width suit the network best.
    pub fn image_size(&self) -> u32 {
        u32::try_from(self.pos_grid.saturating_mul(self.patch_size)).unwrap_or(u32::MAX)
    }

    /// The published network of 1.158 billion parameters.
    pub fn full() -> Self {
        Self {
            embed_dim: 1024,
            num_heads: 16,
            depth: 24,
            vit_depth: 24,
            vit_heads: 16,
            patch_size: 14,
            pos_grid: 37,
            num_registers: 4,
            mlp_ratio: 4,
            taps: [4, 11, 17, 23],
            camera_depth: 4,
            camera_heads: 16,
            dpt_features: 256,
            dpt_hidden: 32,
            dpt_channels: [256, 512, 1024, 1024],
            point_head: false,
            stream: StreamSettings::default(),
        }
    }

    /// The configuration as one line of JSON, as checkpoints carry it.
    ///
    /// # Panics
    /// Never: whole numbers, booleans and names always have a JSON form.
    #[allow(clippy::expect_used)] // The invariant is stated above.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers, flags and names have a JSON form")
    }

    /// Special tokens of a frame: camera, registers, scale.
    pub fn num_special(&self) -> usize {
        1 + self.num_registers + 1
    }

    /// Whether the other configuration describes the same network, whatever the stream settings.
    pub fn same_network(&self, other: &Self) -> bool {
        let stream = self.stream.clone();
        *self == Self { stream, ..other.clone() }
    }

    /// Checks that such a network and stream are possible.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.stream.validate()?;
        for (field, value, largest) in [
            ("embed_dim", self.embed_dim, LARGEST_SIZE),
            ("num_heads", self.num_heads, LARGEST_SIZE),
            ("depth", self.depth, LARGEST_DEPTH),
            ("vit_depth", self.vit_depth, LARGEST_DEPTH),
            ("vit_heads", self.vit_heads, LARGEST_SIZE),
            ("patch_size", self.patch_size, LARGEST_SIZE),
            ("pos_grid", self.pos_grid, LARGEST_SIZE),
            ("num_registers", self.num_registers, LARGEST_SIZE),
            ("mlp_ratio", self.mlp_ratio, LARGEST_SIZE),
            ("camera_depth", self.camera_depth, LARGEST_DEPTH),
            ("camera_heads", self.camera_heads, LARGEST_SIZE),
            ("dpt_features", self.dpt_features, LARGEST_SIZE),
            ("dpt_hidden", self.dpt_hidden, LARGEST_SIZE),
        ] {
            size(field, value, largest)?;
        }
        for channels in self.dpt_channels {
            size("dpt_channels", channels, LARGEST_SIZE)?;
            // Half of the channels of the position embedding are of x, half of y, each half sines, half cosines.
            divides("dpt_channels", channels, channels.is_multiple_of(4), "be a multiple of 4")?;
        }
        // The position embedding is also added to half of the features.
        divides("dpt_features", self.dpt_features, self.dpt_features.is_multiple_of(8), "be a multiple of 8")?;
        if self.num_heads.checked_mul(HEAD_DIM) != Some(self.embed_dim) {
            return Err(ConfigError::HeadDim { embed_dim: self.embed_dim, num_heads: self.num_heads });
        }
        divides("vit_heads", self.vit_heads, self.embed_dim.is_multiple_of(self.vit_heads), "divide `embed_dim`")?;
        let trunk = 2 * self.embed_dim;
        divides(
            "camera_heads",
            self.camera_heads,
            trunk.is_multiple_of(self.camera_heads),
            "divide twice `embed_dim`",
        )?;
        let ascending = self.taps.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || self.taps[3] >= self.depth {
            return Err(ConfigError::Taps { taps: self.taps, depth: self.depth });
        }
        if self.parameters() > LARGEST_PARAMETERS {
            return Err(ConfigError::TooLarge);
        }
        Ok(())
    }
}

impl StreamSettings {
    /// The settings of the key-value cache, for frames of `special_tokens` special tokens.
    pub fn cache(&self, special_tokens: usize) -> CacheConfig {
        CacheConfig {
            window: self.window,
            retention: self.keep_special,
            pin_scale_frames: self.include_scale_frames,
            special_tokens,
        }
    }

    /// Checks that such a stream is possible.
    ///
    /// # Errors
    /// [`ConfigError::Size`] for a zero or absurd number of scale frames, window or camera iterations.
    pub fn validate(&self) -> Result<(), ConfigError> {
        size("scale_frames", self.scale_frames, LARGEST_SIZE)?;
        size("window", self.window, LARGEST_SIZE)?;
        size("camera_iterations", self.camera_iterations, LARGEST_DEPTH)
    }
}

fn size(field: &'static str, value: usize, largest: usize) -> Result<(), ConfigError> {
    if (1..=largest).contains(&value) { Ok(()) } else { Err(ConfigError::Size { field, value, largest }) }
}

fn divides(field: &'static str, value: usize, holds: bool, rule: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::Divides { field, value, rule }) }
}
