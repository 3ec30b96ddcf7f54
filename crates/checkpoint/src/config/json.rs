//! Configurations in JSON: what is wrong with one is said in the words of JSON and names the key.

use super::{Config, ConfigError};
use crate::{CheckpointError, open_regular};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

/// The longest configuration file. A thousandth of it is enough; a checkpoint taken for a configuration is far longer.
const LONGEST_FILE: u64 = 1 << 20;

/// Characters of a wrong value that are shown.
const LONGEST_VALUE: usize = 40;

impl Config {
    /// Reads and validates a configuration.
    ///
    /// # Errors
    /// Text that is not a JSON object, a key that no configuration has or that is there twice, a value that its key
    /// cannot have, and what [`Config::validate`] finds.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::of(entries(text)?)
    }

    /// Reads and validates the `config` metadata of a checkpoint. Other programs use that key too, and add keys of their own:
    /// unknown keys are skipped, and text without any known key is no configuration.
    pub(crate) fn from_metadata(text: &str) -> Option<Result<Self, ConfigError>> {
        let published = published();
        let known: Vec<_> = entries(text).ok()?.into_iter().filter(|(key, _)| published.contains_key(key)).collect();
        (!known.is_empty()).then(|| Self::of(known))
    }

    /// Reads and validates a configuration file.
    ///
    /// # Errors
    /// [`CheckpointError::Read`] for a file that cannot be read, [`CheckpointError::Config`] for what
    /// [`Config::from_json`] says of its contents.
    pub fn read(path: &Path) -> Result<Self, CheckpointError> {
        let text = read_text(path).map_err(|source| CheckpointError::Read { path: path.into(), source })?;
        Self::from_json(&text).map_err(|source| CheckpointError::Config { path: path.into(), source })
    }

    fn of(entries: Vec<(String, Value)>) -> Result<Self, ConfigError> {
        let published = published();
        let mut object = Map::new();
        for (key, value) in entries {
            let Some(example) = published.get(&key) else {
                let nearest = nearest(&key, published.keys());
                return Err(ConfigError::UnknownKey { key: shortened(&key), nearest });
            };
            if let Some(expected) = expected(example, &value) {
                return Err(ConfigError::Value { key, value: shortened(&value.to_string()), expected });
            }
            if object.contains_key(&key) {
                return Err(ConfigError::Twice { key });
            }
            object.insert(key, value);
        }
        let config: Self = serde_json::from_value(Value::Object(object))?;
        config.validate()?;
        Ok(config)
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if open_regular(path)?.take(LONGEST_FILE + 1).read_to_string(&mut text)? as u64 > LONGEST_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too long for a configuration"));
    }
    Ok(text)
}

/// The published configuration: its keys are all that there are, its values show what each key holds.
fn published() -> Map<String, Value> {
    match serde_json::to_value(Config::full()) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// What `found` should be, where it is not of the kind of the published value.
fn expected(published: &Value, found: &Value) -> Option<&'static str> {
    let four = |numbers: &Vec<Value>| numbers.len() == 4 && numbers.iter().all(Value::is_u64);
    let (fits, expected) = match published {
        Value::Number(_) => (found.is_u64(), "a whole number, in digits"),
        Value::Array(_) => (found.as_array().is_some_and(four), "an array of 4 whole numbers, in digits"),
        Value::Bool(_) => (found.is_boolean(), "true or false"),
        // There is one key of this kind.
        _ => (["all", "camera", "none"].iter().any(|name| found == name), r#""all", "camera" or "none""#),
    };
    (!fits).then_some(expected)
}

/// The beginning of a long text.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

/// The known key that `key` is probably meant to be: it differs by few insertions, deletions and replacements.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> Option<String> {
    // Longer keys are none that somebody misspelt.
    let distances = known.filter(|_| key.len() <= LONGEST_VALUE).map(|name| (distance(key, name), name));
    let (distance, name) = distances.min()?;
    (distance <= 1 + name.len() / 4).then(|| name.clone())
}

/// The edit distance (Levenshtein 1966) in bytes, capitals not told from small letters, nor `-` from `_`.
fn distance(one: &str, other: &str) -> usize {
    let simple = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().map(simple).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().map(simple).enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// The keys and values of an object, in their order and each as often as it is there.
fn entries(text: &str) -> Result<Vec<(String, Value)>, ConfigError> {
    let kind = match serde_json::from_str(text)? {
        Value::Object(_) => return Ok(serde_json::from_str::<Entries>(text)?.0),
        Value::Array(_) => "an array",
        Value::String(_) => "a string",
        Value::Number(_) => "a number",
        Value::Bool(_) => "true or false",
        Value::Null => "null",
    };
    Err(ConfigError::NotAnObject(kind))
}

struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = object.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}
