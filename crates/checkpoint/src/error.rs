//! What can be wrong with a checkpoint, each in one sentence.

use crate::FloatType;
use crate::config::ConfigError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Names shown before "and so many more".
const SHOWN: usize = 4;

/// Why weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refuses to open or map the file.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses to create or write the file, for example because the disk is full.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file that was to be written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is of another kind.
    #[error("{} is {kind}: {advice}", path.display())]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: String,
        /// What to do.
        advice: String,
    },
    /// The file ends before its contents do.
    #[error("{} is cut off: {missing} bytes are missing at its end; copy or download it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that are missing.
        missing: u64,
    },
    /// The file contradicts its own format.
    #[error("{} is damaged: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What contradicts.
        reason: String,
    },
    /// The file holds more than one set of weights of this network.
    #[error("{} holds several sets of weights, say which one to use: {}", path.display(), keys.join(", "))]
    SeveralWeights {
        /// The file.
        path: PathBuf,
        /// The keys under which they are.
        keys: Vec<String>,
    },
    /// The file holds weights of this network, but under other keys than the requested one.
    #[error("{} holds no weights under `{key}`; it holds weights under {}", path.display(), quoted(keys))]
    NoSuchKey {
        /// The file.
        path: PathBuf,
        /// The requested key.
        key: String,
        /// The keys under which there are weights.
        keys: Vec<String>,
    },
    /// The file is a part of a checkpoint.
    #[error("{} is one of several shards of a checkpoint: give the index file or the folder instead", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
    },
    /// The configuration that the file carries, that was given or that was inferred is not valid.
    #[error("{}: {source}", path.display())]
    Config {
        /// The file that the configuration comes from.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// The file carries no configuration, and its tensors leave it open.
    #[error("{} does not tell its architecture: {reason}; give a configuration file", path.display())]
    Inference {
        /// The checkpoint.
        path: PathBuf,
        /// What is open.
        reason: String,
    },
    /// No tensor of the file is one of this network.
    #[error("{} is a checkpoint of another model; it holds {}", path.display(), names.or("no tensors"))]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// What its tensors are called.
        names: Sample<String>,
    },
    /// The network has tensors that the file lacks.
    #[error("{} lacks tensors of its network ({}): {}", path.display(), names.count(), names)]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// Those that are missing.
        names: Sample<String>,
    },
    /// Tensors have other shapes than in the network.
    #[error(
        "{} has tensors of another shape than its network ({}): {}", path.display(), tensors.count(), tensors
    )]
    Shape {
        /// The checkpoint.
        path: PathBuf,
        /// Those that do not fit.
        tensors: Sample<ShapeMismatch>,
    },
    /// Tensors have a type that weights cannot have.
    #[error(
        "{} has tensors that are not float32, float16 or bfloat16 ({}): {}",
        path.display(), tensors.count(), tensors
    )]
    Type {
        /// The checkpoint.
        path: PathBuf,
        /// Name and dtype of each, as in `name (I64)`.
        tensors: Sample<String>,
    },
    /// Values that are finite in the source would be infinite in the requested dtype.
    #[error("{count} values of tensor {name} are too large for {to}; use bf16 or f32")]
    Overflow {
        /// The tensor.
        name: String,
        /// How many.
        count: usize,
        /// The requested dtype.
        to: FloatType,
    },
    /// A tensor is larger than the memory that the system gives.
    #[error("tensor {name} of shape {shape:?} does not fit in memory")]
    Memory {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The function that [`Weights::with_progress`](super::Weights::with_progress) was given has asked to stop.
    #[error("stopped before all weights were read")]
    Stopped,
    /// A requested tensor that the network does not have.
    #[error("the network has no tensor {name}")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// Keys in a sentence. The empty key is that of plain names.
fn quoted(keys: &[String]) -> String {
    let key = |key: &String| if key.is_empty() { "their plain names".into() } else { format!("`{key}`") };
    keys.iter().map(key).collect::<Vec<_>>().join(", ")
}

/// A tensor whose shape is not the network's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// The tensor.
    pub name: String,
    /// The shape in the network.
    pub expected: Vec<usize>,
    /// The shape in the file.
    pub found: Vec<usize>,
}

impl fmt::Display for ShapeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} should be {:?} and is {:?}", self.name, self.expected, self.found)
    }
}

/// The first few of a list, and how many there are. A file may hold more than anybody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<T> {
    first: Vec<T>,
    count: usize,
}

impl<T> Sample<T> {
    /// The first few.
    pub fn first(&self) -> &[T] {
        &self.first
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn push(&mut self, item: T) {
        if self.first.len() < SHOWN {
            self.first.push(item);
        }
        self.count += 1;
    }

    /// The list, or what to say of an empty one.
    fn or(&self, nothing: &'static str) -> impl fmt::Display
    where
        T: fmt::Display,
    {
        if self.count == 0 { nothing.to_owned() } else { self.to_string() }
    }
}

impl<T> Default for Sample<T> {
    fn default() -> Self {
        Self { first: Vec::new(), count: 0 }
    }
}

impl<T> FromIterator<T> for Sample<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut sample = Self::default();
        items.into_iter().for_each(|item| sample.push(item));
        sample
    }
}

impl<T: fmt::Display> fmt::Display for Sample<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.first.iter().enumerate() {
            write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
        }
        match self.count - self.first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
