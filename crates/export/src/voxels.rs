//! A set of voxels, for voxel-grid filtering.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The smallest distance between two float32 values, so between two points. Smaller voxels hold one point each.
const LEAST_DISTANCE: f64 = 1.401_298_464_324_817e-45; // 2^-149

/// Voxels along the side of a block.
const SIDE: f64 = 8.0;

/// Position of a block: the bits of integers in float64, which no voxel size overflows.
type BlockKey = [u64; 3];

/// A set of voxels, stored as hashed blocks of 8 x 8 x 8 bits (voxel hashing, Nießner et al. 2013). Neighbouring pixels
/// mostly fall into the same block, so few of them need a lookup.
pub(crate) struct VoxelSet {
    /// Side of a voxel.
    size: f64,
    /// Index of each block in `blocks`.
    indices: HashMap<BlockKey, usize>,
    /// One word per layer of each block.
    blocks: Vec<[u64; SIDE as usize]>,
    /// The block of the last point, and its index.
    last: Option<(BlockKey, usize)>,
}

impl VoxelSet {
    /// An empty set of voxels of side `size`. With 0 or less, or NaN, every point is new.
    pub(crate) fn new(size: f64) -> Self {
        Self { size, indices: HashMap::new(), blocks: Vec::new(), last: None }
    }

    /// Side of a voxel.
    pub(crate) fn size(&self) -> f64 {
        self.size
    }

    /// Adds the voxel of a finite `point`. Returns whether it is new.
    pub(crate) fn insert(&mut self, point: [f32; 3]) -> bool {
        if self.size.is_nan() || self.size < LEAST_DISTANCE {
            return true;
        }
        let voxel = point.map(|x| (f64::from(x) / self.size).floor());
        let block = voxel.map(|x| (x / SIDE).floor());
        let [x, y, z] = [0, 1, 2].map(|axis| (voxel[axis] - SIDE * block[axis]) as usize); // exact, and below SIDE
        let key = block.map(|x| (x + 0.0).to_bits()); // adding 0 makes 0 of -0
        let index = match self.last {
            Some((last, index)) if last == key => index,
            _ => self.index(key),
        };
        self.last = Some((key, index));
        let layer = &mut self.blocks[index][z];
        let bit = 1 << (y * SIDE as usize + x);
        let is_new = *layer & bit == 0;
        *layer |= bit;
        is_new
    }

    /// The index of a block, which is added if needed.
    fn index(&mut self, key: BlockKey) -> usize {
        match self.indices.entry(key) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                self.blocks.push([0; SIDE as usize]);
                *entry.insert(self.blocks.len() - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Pseudo-random points of either sign and of different sizes, the same in every run.
    fn points(scale: f64) -> Vec<[f32; 3]> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / f64::from(1 << 23) - 1.0
        };
        (0..20_000).map(|i| [0; 3].map(|_| (scale * (next() + f64::from(i / 5000) - 2.0)) as f32)).collect()
    }

    #[test]
    fn agrees_with_a_set_of_voxels_one_by_one() {
        for (scale, size) in [(1.0, 0.1), (1.0, 0.01), (30.0, 1.0), (3e37, 1e-3), (1e-44, 3e-45), (1.0, 1e30)] {
            let (mut voxels, mut expected) = (VoxelSet::new(size), HashSet::new());
            for point in points(scale) {
                let voxel = point.map(|x| ((f64::from(x) / size).floor() + 0.0).to_bits());
                assert_eq!(voxels.insert(point), expected.insert(voxel), "{point:?} of {scale} in voxels of {size}");
            }
        }
    }

    #[test]
    fn without_a_size_every_point_is_alone() {
        for size in [0.0, -1.0, f64::NAN, LEAST_DISTANCE / 2.0] {
            let mut voxels = VoxelSet::new(size);
            assert!(voxels.insert([1.0; 3]) && voxels.insert([1.0; 3]), "{size}");
        }
    }
}
