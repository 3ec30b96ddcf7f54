//! How much memory a network and its stream need. Counts saturate instead of overflowing.

use super::{Config, HEAD_DIM};
use crate::shapes::for_each_tensor;
use crate::{FloatType, never_read};

fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |product, &factor| product.saturating_mul(factor as u64))
}

impl Config {
    /// Parameters of the network, which must be one that [`Config::validate`] accepts.
    pub fn parameters(&self) -> u64 {
        let mut sum = 0_u64;
        for_each_tensor(self, |_, shape| sum = sum.saturating_add(product(&shape)));
        sum
    }

    /// Bytes of the loaded weights where a value of the trunk takes `element_bytes`. Only the weights of its products are stored so:
    /// element-wise weights stay in float32, and so do the heads. (A GPU stores the dense heads of a 16-bit
    /// model in 16 bits, too: less by some 60 MB of the published network.)
    pub fn weight_bytes(&self, element_bytes: usize) -> u64 {
        let mut sum = 0_u64;
        for_each_tensor(self, |name, shape| {
            let product_of_trunk = name.starts_with("aggregator.") && name.ends_with(".weight") && shape.len() > 1;
            let element = if product_of_trunk { element_bytes } else { FloatType::F32.size() };
            if !never_read(&name) {
                sum = sum.saturating_add(product(&shape).saturating_mul(element as u64));
            }
        });
        sum
    }

    /// Bytes of the keys and values of one token over all layers, at `element_bytes` per value.
    pub fn token_bytes(&self, element_bytes: usize) -> u64 {
        product(&[2, self.depth, self.num_heads, HEAD_DIM, element_bytes])
    }

    /// Bytes of a page, over all layers: the tokens of one frame of `height` x `width` pixels. Special tokens come in
    /// pages of this size, too; they begin with one, and their number doubles when all are full.
    pub fn page_bytes(&self, height: usize, width: usize, element_bytes: usize) -> u64 {
        let side = self.patch_size.max(1);
        let tokens = product(&[height / side, width / side]).saturating_add(self.num_special() as u64);
        tokens.saturating_mul(self.token_bytes(element_bytes))
    }

    /// The most pages of whole frames that a stream ever uses.
    pub fn most_frame_pages(&self) -> usize {
        self.stream.cache(self.num_special()).most_frame_pages(self.stream.scale_frames)
    }

    /// Bytes of the special tokens that remain of every cached frame that leaves the window.
    pub fn special_bytes_per_frame(&self, element_bytes: usize) -> u64 {
        let tokens = self.stream.cache(self.num_special()).retained_rows();
        self.token_bytes(element_bytes).saturating_mul(tokens as u64)
    }

    /// Bytes of the weights and of all that a stream of `height` x `width` pixels has cached after `keyframes` frames: full pages,
    /// special tokens and the camera head's, where values of the trunk take `element_bytes`. Room to grow in, and what a frame
    /// computes with, come on top.
    pub fn stream_bytes(&self, height: usize, width: usize, keyframes: usize, element_bytes: usize) -> u64 {
        let pages = self.most_frame_pages().min(keyframes) as u64;
        let left = (keyframes as u64).saturating_sub(pages);
        [
            self.weight_bytes(element_bytes),
            self.page_bytes(height, width, element_bytes).saturating_mul(pages),
            self.special_bytes_per_frame(element_bytes).saturating_mul(left),
            self.camera_bytes_per_frame(FloatType::F32.size()).saturating_mul(keyframes as u64),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// Bytes that a pass over `frames` frames of `height` x `width` pixels computes with on the CPU, beside weights and cache.
    /// An estimate from above: it counts the largest tensors that are alive at once.
    pub fn working_bytes(&self, height: usize, width: usize, frames: usize) -> u64 {
        let side = self.patch_size.max(1);
        let patches = product(&[height / side, width / side]);
        let tokens = patches.saturating_add(self.num_special() as u64).saturating_mul(frames as u64);
        let tokens = tokens.saturating_mul(product(&[self.embed_dim, FloatType::F32.size()]));
        // Each tap joins the outputs of a frame block and a global block.
        let taps = tokens.saturating_mul(2 * self.taps.len() as u64);
        // A block: its input and sums, queries, keys and values, the hidden layer.
        let block = tokens.saturating_mul(5 + self.mlp_ratio as u64);
        // A dense head takes one frame at a time. Half of its features come at every pixel (2 bytes a feature), and maps of lower
        // resolution are alive beside them: 5 bytes a feature and pixel were measured.
        let features = product(&[6, self.dpt_features]).saturating_add(product(&[4, self.dpt_hidden]));
        let pixels = product(&[height, width]);
        let dense = pixels.saturating_mul(features);
        // Depth and confidence, twice while they are read back, and the picture.
        let outputs = pixels.saturating_mul(20).saturating_mul(frames as u64);
        [taps, block.max(dense), outputs].into_iter().fold(0, u64::saturating_add)
    }

    /// Bytes of the largest tensor in float32.
    pub fn largest_tensor_bytes(&self) -> u64 {
        let mut largest = 0;
        for_each_tensor(self, |_, shape| largest = largest.max(product(&shape)));
        largest.saturating_mul(FloatType::F32.size() as u64)
    }

    /// Bytes by which every cached frame grows the caches of the camera head, one per pass and block of its trunk:
    /// a key and a value, each `2 C` wide.
    pub fn camera_bytes_per_frame(&self, element_bytes: usize) -> u64 {
        product(&[self.stream.camera_iterations, self.camera_depth, 2, 2, self.embed_dim, element_bytes])
    }
}
