//! How much memory a network and its stream need. Counts saturate instead of overflowing.

use super::{Config, HEAD_DIM};
use crate::checkpoint::tensor_shapes;
use periplus_cache::Retention;

fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |product, &factor| product.saturating_mul(factor as u64))
}

impl Config {
    /// Parameters of the network, which must be one that [`Config::validate`] accepts.
    pub fn parameters(&self) -> u64 {
        tensor_shapes(self).values().fold(0, |sum, shape| sum.saturating_add(product(shape)))
    }

    /// Bytes of the keys and values of one token over all layers, at `element_bytes` a number.
    pub fn token_bytes(&self, element_bytes: usize) -> u64 {
        product(&[2, self.depth, self.num_heads, HEAD_DIM, element_bytes])
    }

    /// Bytes of the pages of whole frames for pictures of `height` x `width` pixels: the scale frames, the window,
    /// and the frame under way, which is written before another leaves.
    pub fn frame_pool_bytes(&self, height: usize, width: usize, element_bytes: usize) -> u64 {
        let side = self.patch_size.max(1);
        let tokens = product(&[height / side, width / side]).saturating_add(self.num_special() as u64);
        let frames = (self.stream.scale_frames as u64).saturating_add(self.stream.window as u64).saturating_add(1);
        frames.saturating_mul(tokens).saturating_mul(self.token_bytes(element_bytes))
    }

    /// Bytes by which every cached frame that leaves the window grows the special pages.
    pub fn special_bytes_per_frame(&self, element_bytes: usize) -> u64 {
        let tokens = match self.stream.keep_special {
            Retention::All => self.num_special(),
            Retention::Camera => 1,
            Retention::None => 0,
        };
        self.token_bytes(element_bytes).saturating_mul(tokens as u64)
    }

    /// Bytes by which every cached frame grows the caches of the camera head, one per pass and block of its trunk:
    /// a key and a value, each `2 C` wide.
    pub fn camera_bytes_per_frame(&self, element_bytes: usize) -> u64 {
        product(&[self.stream.camera_iterations, self.camera_depth, 2, 2, self.embed_dim, element_bytes])
    }
}
