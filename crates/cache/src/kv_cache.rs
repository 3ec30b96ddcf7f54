//! The key-value cache of one video: the page pools of all layers and one page table for them.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use periplus_kernels::pages::{PageTable, Pools, copy_rows};

use crate::bookkeeping::{Pages, Plan};
use crate::pool::{Storage, bytes, doubled, grow};
use crate::{CacheConfig, CacheRecord, Error, PassKind, Result};

/// Keys and values of one video, in all layers.
///
/// ```text
/// let pass = cache.begin(kind)    pass.write(layer), pass.pools(layer), pass.table() for every layer    pass.commit()
/// ```
///
/// The cache is not `Clone`: pools are written in place, and two caches over the same pools would overwrite each other.
#[derive(Debug)]
pub struct KvCache {
    storage: Storage,
    pages: Pages,
    layers: Vec<Layer>,
}

#[derive(Debug, Default)]
struct Layer {
    frames: Option<Tensor>,
    special: Option<Tensor>,
}

/// Frames on their way through the layers. [`OpenPass::commit`] adds them to the cache; dropping the pass rolls it back.
#[derive(Debug)]
#[must_use = "a pass that is dropped is rolled back"]
pub struct OpenPass<'a> {
    cache: &'a mut KvCache,
    plan: Plan,
    /// Which layers are written.
    written: Vec<bool>,
}

/// How full a [`KvCache`] is. Frames of an open pass count after its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStats {
    /// Frames cached since the clip began, including those that left the window.
    pub frames: usize,
    /// Frame pages in use, each holding one frame.
    pub frame_pages_in_use: usize,
    /// Frame pages allocated and not in use.
    pub frame_pages_free: usize,
    /// Rows retained of frames that left the window.
    pub special_rows: usize,
    /// Special pages that hold these rows.
    pub special_pages_in_use: usize,
    /// Special pages allocated and not in use.
    pub special_pages_free: usize,
    /// Bytes allocated for all layers and both pools.
    pub bytes: usize,
}

impl KvCache {
    /// Creates an empty cache for `layers` layers. Memory is allocated when frames arrive.
    ///
    /// # Errors
    ///
    /// When the window, `layers`, `heads` or `head_dim` is 0, or `dtype` is not float32, bfloat16 or float16.
    pub fn new(
        config: CacheConfig,
        layers: usize,
        heads: usize,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        if layers == 0 {
            return Err(Error::Zero { what: "number of layers" });
        }
        let storage = Storage::new(heads, head_dim, dtype, device)?;
        let pages = Pages::new(config)?;
        let layers = std::iter::repeat_with(Layer::default).take(layers).collect();
        Ok(Self { storage, pages, layers })
    }

    /// Frames cached since the video began. This is the time index of the next frame.
    pub fn frames(&self) -> usize {
        self.pages.frames()
    }

    /// Frames of the scale pass; `None` before it is committed.
    pub fn scale_frames(&self) -> Option<usize> {
        (self.pages.frames() > 0).then(|| self.pages.scale_frames())
    }

    /// Begins a pass of frames of `page_size` tokens each and allocates the pages that it needs.
    ///
    /// # Errors
    ///
    /// When the scale pass is not the first of the video, or another pass is; when `page_size` differs from that of the
    /// video or is smaller than the number of special tokens; when there is too little memory. The video is then unchanged,
    /// although pools from an earlier video of another size may have been freed.
    pub fn begin(&mut self, kind: PassKind, page_size: usize) -> Result<OpenPass<'_>> {
        let mut plan = self.pages.plan(kind, page_size)?;
        self.make_room(&plan)?;
        plan.table.upload(self.storage.device())?;
        let written = vec![false; self.layers.len()];
        Ok(OpenPass { cache: self, plan, written })
    }

    /// The pools of a layer. They are written in place: the tensors also show what later passes write.
    ///
    /// # Errors
    ///
    /// When there is no such layer, or no pass has begun yet.
    pub fn pools(&self, layer: usize) -> Result<Pools<'_>> {
        let layers = self.layers.len();
        let pools = self.layers.get(layer).ok_or(Error::NoSuchLayer { layer, layers })?;
        let frames = pools.frames.as_ref().ok_or(Error::Empty)?;
        // Until rows are retained, no table refers to a special page, so any pool of the right shape will do.
        Ok(Pools { frames, special: pools.special.as_ref().unwrap_or(frames) })
    }

    /// Clears the cache, and keeps its memory for the next video of the same size.
    pub fn reset(&mut self) {
        self.pages.reset();
    }

    /// The state of the cache without its tensors. Together with [`KvCache::tensors`] it is complete.
    pub fn record(&self) -> CacheRecord {
        self.pages.clone()
    }

    /// The pages used so far by name: `frame_pages.LAYER` and `special_pages.LAYER`, each `[pages, 2, page_size, heads,
    /// head_dim]`. They are not copied: later passes write to them.
    ///
    /// # Errors
    ///
    /// When Candle refuses to slice a pool, which does not happen to the pools of this crate.
    pub fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let pages = [self.pages.frame_pages(), self.pages.special_pages_in_use()];
        let mut named = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let pools = [("frame_pages", &layer.frames), ("special_pages", &layer.special)];
            for ((name, pool), pages) in pools.into_iter().zip(pages) {
                if let Some(pool) = pool.as_ref().filter(|_| pages > 0) {
                    named.push((format!("{name}.{i}"), pool.narrow(0, 0, pages)?));
                }
            }
        }
        Ok(named)
    }

    /// Restores a saved state. The tensors are copied, so the saved ones do not change.
    ///
    /// # Errors
    ///
    /// When `record` is of another configuration or contradicts itself, or `tensors` lacks a pool or has one of another
    /// shape. The cache is then unchanged.
    pub fn restore(&mut self, record: CacheRecord, tensors: &HashMap<String, Tensor>) -> Result<()> {
        record.check_restored(&self.pages)?;
        let [frame_pages, special_pages] = [record.frame_pages(), record.special_pages_in_use()];
        let pool = |name: String, pages: usize| {
            if pages == 0 {
                return Ok(None);
            }
            let saved = tensors.get(&name).ok_or(Error::Snapshot("a pool is missing"))?;
            self.storage.restored(saved, pages, record.page_size()).map(Some)
        };
        let layers = (0..self.layers.len()).map(|i| {
            Ok(Layer {
                frames: pool(format!("frame_pages.{i}"), frame_pages)?,
                special: pool(format!("special_pages.{i}"), special_pages)?,
            })
        });
        self.layers = layers.collect::<Result<_>>()?;
        self.pages = record;
        Ok(())
    }

    /// How full the cache is.
    pub fn stats(&self) -> CacheStats {
        let frame_pages_in_use = self.pages.frame_pages_in_use();
        let special_pages_in_use = self.pages.special_pages_in_use();
        CacheStats {
            frames: self.pages.frames(),
            frame_pages_in_use,
            frame_pages_free: self.capacity(|layer| &layer.frames) - frame_pages_in_use,
            special_rows: self.pages.special_rows(),
            special_pages_in_use,
            special_pages_free: self.capacity(|layer| &layer.special) - special_pages_in_use,
            bytes: self.layers.iter().map(Layer::bytes).sum(),
        }
    }

    /// Pages that a pool has in every layer. Layers grow in order, so this is the size in the last one; after a growth that failed
    /// half-way, earlier layers have more.
    fn capacity(&self, pool: impl Fn(&Layer) -> &Option<Tensor>) -> usize {
        self.layers.last().and_then(|layer| pool(layer).as_ref()).map_or(0, |pool| pool.dims()[0])
    }

    fn make_room(&mut self, plan: &Plan) -> Result<()> {
        let rows = plan.page_size;
        let other_size = |layer: &Layer| layer.frames.as_ref().is_some_and(|pool| pool.dims()[2] != rows);
        let there = if self.layers.iter().any(other_size) {
            [0, 0]
        } else {
            [self.capacity(|layer| &layer.frames), self.capacity(|layer| &layer.special)]
        };
        let wanted = [plan.frame_pages(), plan.special_pages()];
        let most = [self.pages.most_frame_pages(plan.kind), usize::MAX];
        let more = |axis: usize| wanted[axis] > there[axis];
        if !more(0) && !more(1) {
            return Ok(());
        }
        let generous =
            [0, 1].map(|axis| if more(axis) { doubled(there[axis], wanted[axis], most[axis]) } else { there[axis] });
        let needed = [0, 1].map(|axis| wanted[axis].max(there[axis]));
        grow(generous, needed, |pages| self.resize(there, pages, rows))
    }

    /// Grows the pools of every layer. `there` are the pages of the last layer for a clip of this size, and of all layers unless an
    /// earlier growth failed.
    fn resize(&mut self, there: [usize; 2], [frames, special]: [usize; 2], rows: usize) -> Result<()> {
        for (old, pages) in there.into_iter().zip([frames, special]) {
            self.storage.check_memory(old, pages, rows, self.layers.len())?;
        }
        if there == [0, 0] {
            // Pools of a clip of another size are freed first, so that memory need not hold both.
            self.layers.iter_mut().for_each(|layer| (layer.frames, layer.special) = (None, None));
        }
        // One layer at a time, so that memory holds old and new of one layer only.
        for layer in &mut self.layers {
            self.storage.resize(&mut layer.frames, frames, rows)?;
            self.storage.resize(&mut layer.special, special, rows)?;
        }
        Ok(())
    }
}

impl OpenPass<'_> {
    /// Writes keys and values of `qkv` `[frames * page_size, 3, heads, head_dim]` to the pools of `layer`, and copies the rows
    /// to retain of the frames that leave the window.
    ///
    /// `append(pool, page, qkv, frame)` is called for each frame of the pass with its part of qkv. It fills rows
    /// `0..page_size` of the page with keys and values after their norm and rotation;
    /// [`append`](periplus_kernels::pages::append) does that for rows that are normed and rotated already.
    ///
    /// # Errors
    ///
    /// When there is no such layer, it is written already, the shape is wrong, or `append` fails. The layer then still has
    /// to be written.
    pub fn write(
        &mut self,
        layer: usize,
        qkv: &Tensor,
        append: impl Fn(&Tensor, usize, &Tensor, usize) -> candle_core::Result<()>,
    ) -> Result<()> {
        let (cache, plan) = (&*self.cache, &self.plan);
        let layers = cache.layers.len();
        let pools = cache.layers.get(layer).ok_or(Error::NoSuchLayer { layer, layers })?;
        if self.written[layer] {
            return Err(Error::WrittenTwice { layer });
        }
        // This cannot overflow: the pools hold more elements.
        cache.storage.check_rows(qkv, plan.pages.len() * plan.page_size)?;
        if plan.retains_first() {
            pools.retain(plan)?;
        }
        let frames = pools.frames.as_ref().ok_or(Error::Empty)?;
        for (frame, &page) in plan.pages.iter().enumerate() {
            append(frames, page as usize, &qkv.narrow(0, frame * plan.page_size, plan.page_size)?, frame)?;
        }
        self.written[layer] = true;
        Ok(())
    }

    /// The pools of a layer, as [`KvCache::pools`].
    ///
    /// # Errors
    ///
    /// When there is no such layer.
    pub fn pools(&self, layer: usize) -> Result<Pools<'_>> {
        self.cache.pools(layer)
    }

    /// The pages that the frames of this pass see, in all layers: scale pages, window pages, special pages.
    pub fn table(&self) -> &PageTable {
        &self.plan.table
    }

    /// Adds the frames to the cache; frames leave the window.
    ///
    /// # Errors
    ///
    /// When a layer is not written, or the device fails. The pass is then rolled back.
    pub fn commit(self) -> Result<()> {
        let Self { cache, plan, written } = self;
        if let Some(layer) = written.iter().position(|written| !written) {
            return Err(Error::NotWritten { layer });
        }
        if !plan.retains_first() {
            for layer in &cache.layers {
                layer.retain(&plan)?;
            }
        }
        cache.pages.commit(plan);
        Ok(())
    }
}

impl Layer {
    /// Copies the rows that are retained of frames that leave.
    fn retain(&self, plan: &Plan) -> Result<()> {
        if let (Some(frames), Some(special)) = (&self.frames, &self.special) {
            for copy in &plan.retained {
                copy_rows(frames, copy.source, special, copy.target, copy.count)?;
            }
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        [&self.frames, &self.special].into_iter().flatten().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Retention;
    use periplus_kernels::pages::append;

    /// The state after a growth that failed in the second layer.
    #[test]
    fn a_partly_failed_growth_leaves_a_cache_that_works() {
        let config = CacheConfig { window: 9, retention: Retention::All, pin_scale_frames: false, special_tokens: 1 };
        let mut cache = KvCache::new(config, 2, 1, 1, DType::F32, &Device::Cpu).unwrap();
        cache.storage.resize(&mut cache.layers[0].frames, 8, 2).unwrap();
        for (frame, kind) in [PassKind::Scale(1), PassKind::Keyframe, PassKind::Keyframe].into_iter().enumerate() {
            let mut pass = cache.begin(kind, 2).unwrap();
            for layer in 0..2 {
                let qkv = Tensor::full(frame as f32, (2, 3, 1, 1), &Device::Cpu).unwrap();
                pass.write(layer, &qkv, |pool, page, qkv, _| append(pool, page, 0, qkv)).unwrap();
            }
            pass.commit().unwrap();
        }
        for layer in 0..2 {
            let pool = cache.pools(layer).unwrap().frames;
            assert_eq!(pool.dims(), [4, 2, 2, 1, 1]);
            let numbers = pool.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(numbers[..12], [0., 0., 0., 0., 1., 1., 1., 1., 2., 2., 2., 2.]);
        }
    }
}
