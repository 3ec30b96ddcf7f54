//! The pools of all layers over one set of books.

use candle_core::{DType, Device, Tensor};
use periplus_kernels::pages::{PageTable, Pools, copy_rows};

use crate::bookkeeping::{Pages, Plan};
use crate::pool::{Storage, bytes, doubled, grow};
use crate::{CacheConfig, Error, Pass, Result};

/// Keys and values of one stream, all layers.
///
/// ```text
/// begin(pass)    write(layer) -> pools(layer), table() for every layer    commit() or rollback()
/// ```
///
/// It is deliberately not `Clone`: pools are written in place, and two caches over the same pools would overwrite
/// each other.
#[derive(Debug)]
pub struct KvCache {
    storage: Storage,
    pages: Pages,
    layers: Vec<Layer>,
    open: Option<Plan>,
}

#[derive(Debug, Default)]
struct Layer {
    frames: Option<Tensor>,
    special: Option<Tensor>,
    written: bool,
}

/// How full a [`KvCache`] is. Frames that are open do not count before their commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStats {
    /// Frames cached since the clip began, those that left the window included.
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
    /// An empty cache for `layers` layers; memory is allocated when frames come.
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
        Ok(Self { storage, pages, layers, open: None })
    }

    /// Frames cached since the clip began, which is the time index of the next one. An open frame does not count.
    pub fn frames(&self) -> usize {
        self.pages.frames()
    }

    /// Begins a pass of frames of `page_size` tokens each, and makes room for it.
    ///
    /// # Errors
    ///
    /// When a pass is open; when the scale pass is not the first of the clip, or another one is; when `page_size`
    /// differs from that of the clip or has no room for the special tokens; when memory is short. The clip is then as
    /// before, though pools kept from a clip of another size may be gone.
    pub fn begin(&mut self, pass: Pass, page_size: usize) -> Result<()> {
        if self.open.is_some() {
            return Err(Error::AlreadyOpen);
        }
        let mut plan = self.pages.plan(pass, page_size)?;
        self.make_room(&plan)?;
        plan.table.upload(self.storage.device())?;
        for layer in &mut self.layers {
            layer.written = false;
        }
        self.open = Some(plan);
        Ok(())
    }

    /// Writes the keys and values of `qkv` `[frames * page_size, 3, heads, head_dim]` of the open frames to the pools of
    /// `layer`, and retains what they push out.
    ///
    /// `append(pool, page, qkv, frame)` is called for each open frame with its part of qkv, to fill rows `0..page_size` of
    /// its page with keys and values that are normed and turned:
    /// [`append`](periplus_kernels::pages::append) does so for those that are already.
    ///
    /// # Errors
    ///
    /// When no pass is open, there is no such layer, it is written already, the shape is wrong, or `append` fails. The
    /// layer then still is to be written.
    pub fn write(
        &mut self,
        layer: usize,
        qkv: &Tensor,
        append: impl Fn(&Tensor, usize, &Tensor, usize) -> candle_core::Result<()>,
    ) -> Result<()> {
        let plan = self.open.as_ref().ok_or(Error::NotOpen)?;
        let layers = self.layers.len();
        let pools = self.layers.get_mut(layer).ok_or(Error::NoSuchLayer { layer, layers })?;
        if pools.written {
            return Err(Error::WrittenTwice { layer });
        }
        // No overflow: the pools hold more elements than that.
        self.storage.check_rows(qkv, plan.pages.len() * plan.page_size)?;
        if plan.retains_first() {
            pools.retain(plan)?;
        }
        let frames = pools.frames.as_ref().ok_or(Error::NotOpen)?;
        for (frame, &page) in plan.pages.iter().enumerate() {
            append(frames, page as usize, &qkv.narrow(0, frame * plan.page_size, plan.page_size)?, frame)?;
        }
        pools.written = true;
        Ok(())
    }

    /// The pools of a layer. They are written in place, so they show what later passes write, too.
    ///
    /// # Errors
    ///
    /// When there is no such layer, or no pass was begun yet.
    pub fn pools(&self, layer: usize) -> Result<Pools<'_>> {
        let layers = self.layers.len();
        let pools = self.layers.get(layer).ok_or(Error::NoSuchLayer { layer, layers })?;
        let frames = pools.frames.as_ref().ok_or(Error::Empty)?;
        // Before anything is retained, no table names a special page; any pool of the right shape will do.
        Ok(Pools { frames, special: pools.special.as_ref().unwrap_or(frames) })
    }

    /// The pages that the open frames see, in all layers: scale pages, window pages, special pages.
    ///
    /// # Errors
    ///
    /// When no pass is open.
    pub fn table(&self) -> Result<&PageTable> {
        self.open.as_ref().map(|plan| &plan.table).ok_or(Error::NotOpen)
    }

    /// Keeps the open frames; what leaves the window leaves.
    ///
    /// # Errors
    ///
    /// When no pass is open or a layer is not written, or the device fails. The pass then stays open.
    pub fn commit(&mut self) -> Result<()> {
        let plan = self.open.as_ref().ok_or(Error::NotOpen)?;
        if let Some(layer) = self.layers.iter().position(|layer| !layer.written) {
            return Err(Error::NotWritten { layer });
        }
        if !plan.retains_first() {
            for layer in &self.layers {
                layer.retain(plan)?;
            }
        }
        if let Some(plan) = self.open.take() {
            self.pages.commit(plan);
        }
        Ok(())
    }

    /// Drops the open frames, of which no trace remains.
    ///
    /// # Errors
    ///
    /// When no pass is open.
    pub fn rollback(&mut self) -> Result<()> {
        self.open.take().map(drop).ok_or(Error::NotOpen)
    }

    /// Forgets the clip, open frames included, and keeps the memory for a clip of the same size.
    pub fn reset(&mut self) {
        self.open = None;
        self.pages.reset();
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

    /// Pages that a pool has in every layer: in the last one, as they grow in order. After a growth that failed in
    /// between, the layers before have more.
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
        let most = [self.pages.most_frame_pages(plan.pass), usize::MAX];
        let more = |axis: usize| wanted[axis] > there[axis];
        if !more(0) && !more(1) {
            return Ok(());
        }
        let generous =
            [0, 1].map(|axis| if more(axis) { doubled(there[axis], wanted[axis], most[axis]) } else { there[axis] });
        let needed = [0, 1].map(|axis| wanted[axis].max(there[axis]));
        grow(generous, needed, |pages| self.resize(there, pages, rows))
    }

    /// Gives the pools of every layer so many pages. `there` are those of the last layer for a clip of this size, and of all
    /// unless an earlier try has failed.
    fn resize(&mut self, there: [usize; 2], [frames, special]: [usize; 2], rows: usize) -> Result<()> {
        for (old, pages) in there.into_iter().zip([frames, special]) {
            self.storage.check_memory(old, pages, rows, self.layers.len())?;
        }
        if there == [0, 0] {
            // Of a clip of another size, if of any. They go first, so that memory need not hold both.
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

impl Layer {
    /// Copies what is retained of the frames that leave.
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

    /// What a growth leaves that failed in the second layer.
    #[test]
    fn a_partly_failed_growth_leaves_a_cache_that_works() {
        let config = CacheConfig { window: 9, retention: Retention::All, pin_scale_frames: false, special_tokens: 1 };
        let mut cache = KvCache::new(config, 2, 1, 1, DType::F32, &Device::Cpu).unwrap();
        cache.storage.resize(&mut cache.layers[0].frames, 8, 2).unwrap();
        for (frame, pass) in [Pass::Scale(1), Pass::Keyframe, Pass::Keyframe].into_iter().enumerate() {
            cache.begin(pass, 2).unwrap();
            for layer in 0..2 {
                let qkv = Tensor::full(frame as f32, (2, 3, 1, 1), &Device::Cpu).unwrap();
                cache.write(layer, &qkv, |pool, page, qkv, _| append(pool, page, 0, qkv)).unwrap();
            }
            cache.commit().unwrap();
        }
        for layer in 0..2 {
            let pool = cache.pools(layer).unwrap().frames;
            assert_eq!(pool.dims(), [4, 2, 2, 1, 1]);
            let numbers = pool.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(numbers[..12], [0., 0., 0., 0., 1., 1., 1., 1., 2., 2., 2., 2.]);
        }
    }
}
