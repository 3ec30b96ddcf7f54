//! Weights of a network, from files or from a seed.

use crate::config::{Config, ConfigError};
use crate::file::{Contents, MappedFile, StoredTensor};
use crate::kind::Kind;
use crate::writer::Writer;
use crate::{
    CheckpointError, FloatType, Sample, ShapeMismatch, never_read, pytorch, safetensors, shapes, shards, synthetic,
    tensor_shapes,
};
use candle_core::{Device, Tensor};
use periplus_units::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The most bytes that a tensor may take as float32 for every byte of its file. Stored as float16 it takes 2. Expanded tensors, which
/// repeat values, may take more, but are small in real checkpoints.
const MOST_REPEATED: u64 = 10;

/// The weights of a network, one tensor at a time.
pub struct Weights {
    config: Config,
    shapes: BTreeMap<String, Vec<usize>>,
    source: Source,
    progress: Option<Progress>,
}

/// Reports how much has been read.
struct Progress {
    /// Called with the bytes read so far and with the total.
    report: Box<dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync>,
    total: u64,
    /// Bytes of the tensors that are still to be read.
    unread: Mutex<BTreeMap<String, u64>>,
}

impl Progress {
    fn has_read(&self, name: &str) -> Result<(), CheckpointError> {
        // The map is right between any two calls, so a panic elsewhere has not broken it.
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        if unread.remove(name).is_none() {
            return Ok(());
        }
        match (self.report)(self.total - unread.values().sum::<u64>(), self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CheckpointError::Stopped),
        }
    }
}

enum Source {
    File(Contents),
    Synthetic { seed: u64 },
}

impl Weights {
    /// Opens a safetensors checkpoint and compares it with its network: a file, the index of several files, or the folder
    /// that holds one index.
    ///
    /// The architecture is that of the given configuration file, else of the file's `config` metadata, else it is
    /// inferred from the shapes. Metadata of other programs is ignored.
    ///
    /// The file is mapped and not read at once: as long as these weights are in use, it must not be written to or cut short in
    /// place. Replacing it by another file is fine. If it is cut short, the system ends the program.
    ///
    /// # Errors
    /// A file that cannot be read, is of another kind (a `.pt` file is to be converted first), cut off, damaged, of another
    /// model or only one of several shards; a configuration that is not valid; tensors that are missing or have another shape
    /// or dtype than the network needs.
    pub fn open(path: &Path, config: Option<&Path>) -> Result<Self, CheckpointError> {
        Self::of_safetensors(open_file(path)?, config)
    }

    /// As [`open`](Self::open), for a checkpoint that is part of the program. Errors call it `name`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn bundled(name: &str, bytes: &'static [u8], config: Option<&Path>) -> Result<Self, CheckpointError> {
        Self::of_safetensors(MappedFile::bundled(name, bytes), config)
    }

    fn of_safetensors(file: MappedFile, config: Option<&Path>) -> Result<Self, CheckpointError> {
        if Kind::of(&file)? == Kind::PyTorch {
            return Err(CheckpointError::OtherKind {
                path: file.path().into(),
                kind: "a PyTorch file".into(),
                advice: "convert it first with `periplus convert IN.pt OUT.safetensors`".into(),
            });
        }
        Self::of_file(file, config, None)
    }

    /// Opens a safetensors or PyTorch (`.pt`) checkpoint, to look at it or to [`write`](Self::write) it anew. The pickle of a
    /// PyTorch file is read, never run. Where the file holds several sets of weights, `key` says which.
    ///
    /// # Errors
    /// As [`open`](Self::open); besides, a file in the form that PyTorch wrote before version 1.6, and
    /// [`CheckpointError::SeveralWeights`] or [`CheckpointError::NoSuchKey`].
    pub fn open_any(path: &Path, config: Option<&Path>, key: Option<&str>) -> Result<Self, CheckpointError> {
        Self::of_file(open_file(path)?, config, key)
    }

    fn of_file(file: MappedFile, config: Option<&Path>, key: Option<&str>) -> Result<Self, CheckpointError> {
        let path = file.path().to_path_buf();
        let contents = match Kind::of(&file)? {
            Kind::Safetensors => safetensors::read(file, key)?,
            Kind::PyTorch => pytorch::read(file, key)?,
            Kind::ShardIndex => shards::read(&file, key)?,
        };
        Self::of(contents, &path, config).map_err(|error| match error {
            CheckpointError::Missing { .. }
            | CheckpointError::Inference { .. }
            | CheckpointError::OtherModel { .. }
                if shards::is_shard(&path) =>
            {
                CheckpointError::Shard { path: path.clone() }
            }
            error => error,
        })
    }

    /// Seeded weights of any network, computed on request.
    ///
    /// # Errors
    /// A configuration that is not valid.
    pub fn synthetic(config: Config, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        let (shapes, source) = (tensor_shapes(&config), Source::Synthetic { seed });
        Ok(Self { config, shapes, source, progress: None })
    }

    fn of(contents: Contents, path: &Path, given: Option<&Path>) -> Result<Self, CheckpointError> {
        if !contents.tensors.keys().any(|name| name.starts_with("aggregator.")) {
            let mut names = Sample::default();
            contents.tensors.keys().for_each(|name| names.push(name.clone()));
            return Err(CheckpointError::OtherModel { path: path.into(), names });
        }
        let config = match (given, &contents.config) {
            (Some(given), _) => Config::read(given)?,
            (None, own) => {
                let own = own.as_deref().and_then(Config::from_metadata).transpose();
                match own.map_err(|source| CheckpointError::Config { path: path.into(), source })? {
                    Some(own) => own,
                    None => shapes::infer(path, &contents.tensors)?,
                }
            }
        };
        let shapes = compare(&contents, path, &config)?;
        Ok(Self { config, shapes, source: Source::File(contents), progress: None })
    }

    /// The keys that lead to the weights in their file, separated by dots, such as `ema.model`. A prefix of names (`module`,
    /// `_orig_mod`) counts as a key. Empty for plain names in the outermost dictionary.
    pub fn key(&self) -> &str {
        match &self.source {
            Source::File(contents) => &contents.key,
            Source::Synthetic { .. } => "",
        }
    }

    /// What a PyTorch file holds besides tensors and plain values: classes and functions that were passed over. Nothing of
    /// them was run.
    pub fn passed_over(&self) -> &[String] {
        match &self.source {
            Source::File(contents) => &contents.passed_over,
            Source::Synthetic { .. } => &[],
        }
    }

    /// Compares the checksums that the format keeps with the data. `false` if there are none to compare: safetensors has none,
    /// and PyTorch can be told to write none. This reads the whole file.
    ///
    /// # Errors
    /// [`CheckpointError::Corrupt`] names an entry whose data differs from its checksum.
    pub fn check_sums(&self) -> Result<bool, CheckpointError> {
        match &self.source {
            Source::File(contents) => contents.check_sums(),
            Source::Synthetic { .. } => Ok(false),
        }
    }

    /// Sets a function that is called whenever a tensor is read for the first time, with the bytes read so far and the total bytes
    /// that the network reads, as they are stored. Loading a network and writing a file both read all. If the function breaks, they
    /// end with [`CheckpointError::Stopped`].
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        let read = self.shapes.iter().filter(|(name, _)| !never_read(name));
        let size = |name: &str, shape: &[usize]| (shape.iter().product::<usize>() * self.stored_as(name).size()) as u64;
        let unread: BTreeMap<_, _> = read.map(|(name, shape)| (name.clone(), size(name, shape))).collect();
        self.progress =
            Some(Progress { report: Box::new(progress), total: unread.values().sum(), unread: Mutex::new(unread) });
        self
    }

    /// The network that these weights are of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tensors of the file that the network does not have.
    pub fn unexpected(&self) -> impl Iterator<Item = &str> {
        let contents = match &self.source {
            Source::File(contents) => Some(contents),
            Source::Synthetic { .. } => None,
        };
        let names = contents.into_iter().flat_map(|contents| contents.tensors.keys());
        names.map(String::as_str).filter(|&name| !self.shapes.contains_key(name))
    }

    /// The dtypes in which the network's tensors are stored, with the number of parameters in each.
    pub fn float_types(&self) -> BTreeMap<FloatType, u64> {
        let mut types = BTreeMap::new();
        for (name, shape) in &self.shapes {
            *types.entry(self.stored_as(name)).or_default() += shape.iter().product::<usize>() as u64;
        }
        types
    }

    /// The narrowest dtype that holds all weights exactly as they are stored.
    pub fn float_type(&self) -> FloatType {
        match self.float_types().into_keys().collect::<Vec<_>>()[..] {
            [only] => only,
            _ => FloatType::F32,
        }
    }

    /// Bytes of the network's tensors as they are stored.
    pub fn bytes(&self) -> u64 {
        self.float_types().into_iter().map(|(float, count)| count * float.size() as u64).sum()
    }

    fn stored_as(&self, name: &str) -> FloatType {
        match &self.source {
            Source::File(contents) => match contents.tensors.get(name).map(|tensor| &tensor.float) {
                Some(Ok(float)) => *float,
                _ => FloatType::F32,
            },
            Source::Synthetic { .. } => FloatType::F32,
        }
    }

    /// Whether the network has a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.shapes.contains_key(name)
    }

    /// A tensor of the network as float32 on the CPU, in the shape that [`tensor_shapes`] gives.
    ///
    /// # Errors
    /// [`CheckpointError::Unknown`] for a name that the network does not have, [`CheckpointError::Memory`] for a tensor that does not
    /// fit in memory, [`CheckpointError::Stopped`] when the progress function breaks.
    pub fn get(&self, name: &str) -> Result<Tensor, CheckpointError> {
        let unknown = || CheckpointError::Unknown { name: name.into() };
        let shape = self.shapes.get(name).ok_or_else(unknown)?;
        Ok(Tensor::from_vec(self.values(name, shape)?, shape.as_slice(), &Device::Cpu)?)
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        let values = match &self.source {
            Source::Synthetic { seed } => synthetic::values(name, shape, *seed)?,
            Source::File(contents) => {
                let stored = contents.tensors.get(name);
                let stored = stored.ok_or_else(|| CheckpointError::Unknown { name: name.into() })?;
                let file = &contents.files[stored.file as usize];
                let values = stored.decode(self.stored_as(name), file.bytes());
                file.release(&stored.bytes);
                values.ok_or_else(|| CheckpointError::Memory { name: name.into(), shape: shape.into() })?
            }
        };
        if let Some(progress) = &self.progress {
            progress.has_read(name)?;
        }
        Ok(values)
    }

    /// Writes all tensors and the configuration to a safetensors file, holding one tensor in memory at a time. The
    /// file appears when it is complete and replaces one that was there; after an error nothing is left of it.
    ///
    /// # Errors
    /// [`CheckpointError::Write`] when the system refuses, [`CheckpointError::Overflow`] when a value is too large
    /// for the dtype, [`CheckpointError::Stopped`] when the progress function breaks.
    pub fn write(&self, path: &Path, float: FloatType) -> Result<(), CheckpointError> {
        let mut writer = Writer::create(path, &self.config.to_json(), &self.shapes, float)?;
        for (name, shape) in &self.shapes {
            writer.write(name, &self.values(name, shape)?)?;
        }
        writer.finish()
    }
}

/// Opens a file, or the index in a folder of shards.
fn open_file(path: &Path) -> Result<MappedFile, CheckpointError> {
    let index = if path.is_dir() { shards::index_in(path) } else { None };
    MappedFile::open(index.as_deref().unwrap_or(path))
}

/// The tensors of the network, if the file has all of them, in the right shape and in a dtype that weights can have.
fn compare(contents: &Contents, path: &Path, config: &Config) -> Result<BTreeMap<String, Vec<usize>>, CheckpointError> {
    let (mut missing, mut misshapen, mut unusable) = (Sample::default(), Sample::default(), Sample::default());
    let (mut shapes, mut repeated) = (BTreeMap::new(), None);
    shapes::for_each_tensor(config, |name, expected| match contents.tensors.get(&name) {
        // Nothing reads it, so an export may lack it.
        None if never_read(&name) => {}
        None => missing.push(name),
        Some(StoredTensor { float: Err(float), .. }) => unusable.push(format!("{name} ({float})")),
        Some(StoredTensor { shape, .. }) if **shape != *expected => {
            misshapen.push(ShapeMismatch { name, expected, found: shape.to_vec() });
        }
        Some(_) => {
            let bytes = expected.iter().product::<usize>() as u64 * FloatType::F32.size() as u64;
            if bytes > contents.bytes().saturating_mul(MOST_REPEATED) {
                repeated.get_or_insert((name.clone(), bytes));
            }
            shapes.insert(name, expected);
        }
    });
    if missing.count() > 0 {
        return Err(CheckpointError::Missing { path: path.into(), names: missing });
    }
    if misshapen.count() > 0 {
        return Err(CheckpointError::Shape { path: path.into(), tensors: misshapen });
    }
    if unusable.count() > 0 {
        return Err(CheckpointError::Type { path: path.into(), tensors: unusable });
    }
    if let Some((name, bytes)) = repeated {
        let (bytes, file) = (Bytes(bytes), Bytes(contents.bytes()));
        let reason = format!("its tensor {name} of {bytes} repeats the same values over and over in a file of {file}");
        return Err(CheckpointError::Corrupt { path: path.into(), reason });
    }
    Ok(shapes)
}
