//! Reading configurations in JSON. Errors name the key, and describe the value in terms of JSON.

use super::{Config, ConfigError};
use crate::{CheckpointError, open_regular};
use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

/// The longest configuration file, in bytes. Real ones take a thousandth of it; a checkpoint given by mistake is far longer.
const LONGEST_FILE: u64 = 1 << 20;

/// Characters of a wrong value that are shown.
const LONGEST_VALUE: usize = 40;

/// Bytes of the longest text of a value: four numbers and the space between them.
const LONGEST_TEXT: usize = 256;

impl Config {
    /// Reads and validates a configuration.
    ///
    /// # Errors
    /// Text that is not a JSON object, an unknown key, a key that occurs twice, a value of the wrong type, and what
    /// [`Config::validate`] finds.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let published = published();
        let mut found = Found::default();
        for_each_entry(text, |key, value| found.add(&published, &key, value))?;
        found.config()
    }

    /// Reads and validates the `config` metadata of a checkpoint. Other programs use that key too, and add keys of their own:
    /// unknown keys are skipped, and text without any known key is no configuration.
    pub(crate) fn from_metadata(text: &str) -> Option<Result<Self, ConfigError>> {
        let published = published();
        let mut found = None;
        for_each_entry(text, |key, value| {
            if published.contains_key(&*key) {
                found.get_or_insert_with(Found::default).add(&published, &key, value);
            }
        })
        .ok()?;
        found.map(Found::config)
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
}

/// The valid entries of a configuration, and the error of the first invalid one.
#[derive(Default)]
struct Found {
    object: Map<String, Value>,
    error: Option<ConfigError>,
}

impl Found {
    fn add(&mut self, published: &Map<String, Value>, key: &str, text: &str) {
        if self.error.is_none() {
            self.error = self.try_add(published, key, text).err();
        }
    }

    fn try_add(&mut self, published: &Map<String, Value>, key: &str, text: &str) -> Result<(), ConfigError> {
        let Some(example) = published.get(key) else {
            let nearest = nearest(key, published.keys());
            return Err(ConfigError::UnknownKey { key: shortened(key), nearest });
        };
        // No value that is right is so long.
        let value = if text.len() <= LONGEST_TEXT { serde_json::from_str(text)? } else { Value::Null };
        if let Some(expected) = expected(example, &value) {
            let value = if value.is_null() { text.into() } else { value.to_string() };
            return Err(ConfigError::Value { key: key.into(), value: shortened(&value), expected });
        }
        match self.object.insert(key.into(), value) {
            Some(_) => Err(ConfigError::Twice { key: key.into() }),
            None => Ok(()),
        }
    }

    fn config(self) -> Result<Config, ConfigError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let config: Config = serde_json::from_value(Value::Object(self.object))?;
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

/// The published configuration. It has all keys, and its values show the type of each.
fn published() -> Map<String, Value> {
    match serde_json::to_value(Config::full()) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// What `found` should be, if it does not have the type of the published value.
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

/// The known key that `key` is probably meant to be: it differs by few insertions, deletions and replacements (Levenshtein 1966).
/// Capitals count as small letters, and `-` as `_`.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> Option<String> {
    // Longer keys are not spelling mistakes.
    if key.len() > LONGEST_VALUE {
        return None;
    }
    let simple = key.to_ascii_lowercase().replace('-', "_");
    let (distance, name) = known.map(|name| (strsim::levenshtein(&simple, name), name)).min()?;
    (distance <= 1 + name.len() / 4).then(|| name.clone())
}

/// Calls a function with each key of an object and the text of its value, in order, repeated keys included. Values are not parsed
/// into memory, since the values of a hostile text would take a hundred times its bytes.
fn for_each_entry<'a>(text: &'a str, function: impl FnMut(Cow<'a, str>, &'a str)) -> Result<(), ConfigError> {
    serde_json::from_str::<IgnoredAny>(text)?;
    let kind = match text.trim_ascii_start().bytes().next() {
        Some(b'{') => {
            let mut json = serde_json::Deserializer::from_str(text);
            return Ok(json.deserialize_map(Entries(function))?);
        }
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        _ => "a number",
    };
    Err(ConfigError::NotAnObject(kind))
}

struct Entries<F>(F);

impl<'de, F: FnMut(Cow<'de, str>, &'de str)> Visitor<'de> for Entries<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<(), A::Error> {
        while let Some((Key(key), value)) = object.next_entry::<_, &RawValue>()? {
            (self.0)(key, value.get());
        }
        Ok(())
    }
}

/// A key, copied only if it holds escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
