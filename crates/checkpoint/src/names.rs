//! Which tensors of a file are the network's: under which key, and with which prefix before their names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::CheckpointError;

/// The start of the network's names, after any prefix that training programs put there.
const NETWORK: &str = "aggregator.";

/// A tensor that every network has.
const LANDMARK: &str = "aggregator.camera_token";

/// The most sets of weights that are distinguished. Files hold two or three.
const MOST_SETS: usize = 16;

/// Longer names are not the network's.
const LONGEST_NAME: usize = 255;

/// Where the network's tensors are in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Which of the groups of tensors.
    pub(crate) group: usize,
    /// What stands before their names.
    pub(crate) prefix: String,
    /// The keys that lead to the group, and the prefix, separated by dots. Empty for plain names in the outermost group.
    pub(crate) key: String,
}

impl Choice {
    /// The tensors of the group by their names in the network. Other tensors keep their names.
    pub(crate) fn sorted<T>(&self, tensors: impl IntoIterator<Item = (String, T)>) -> BTreeMap<String, T> {
        let mut sorted = BTreeMap::new();
        for (mut name, tensor) in tensors {
            if name.starts_with(&self.prefix) {
                name.drain(..self.prefix.len());
                sorted.insert(name, tensor);
            } else {
                sorted.entry(name).or_insert(tensor);
            }
        }
        sorted
    }
}

/// Chooses the tensors of the network among `groups` of tensors that are saved together. `key` gives the keys that lead to a group,
/// separated by dots, empty for the outermost one; `names` gives the names in it.
///
/// Wrappers and training programs put prefixes before the names (`module.` of data-parallel training, `_orig_mod.` of
/// `torch.compile`, `model.` of Lightning), also several. Whatever stands before `aggregator.` is taken off.
///
/// # Errors
/// [`CheckpointError::SeveralWeights`] if more than one set of tensors could be meant, [`CheckpointError::NoSuchKey`] if `wanted`
/// names none of them.
pub(crate) fn choose<'a, N: Iterator<Item = &'a str>>(
    path: &Path,
    groups: usize,
    key: impl Fn(usize) -> String,
    names: impl Fn(usize) -> N,
    wanted: Option<&str>,
) -> Result<Choice, CheckpointError> {
    let mut found = Vec::new();
    for group in 0..groups {
        for prefix in prefixes(&names, group) {
            let group_key = key(group);
            let keys = [&group_key, prefix.trim_end_matches('.')].into_iter().filter(|key| !key.is_empty());
            let key = keys.collect::<Vec<_>>().join(".");
            let choice = Choice { group, prefix: prefix.into(), key };
            // Names without any prefix are the network's own.
            if choice.key == wanted.unwrap_or_default() {
                return Ok(choice);
            }
            if found.len() < MOST_SETS {
                found.push(choice);
            }
        }
    }
    if found.is_empty() {
        // For the message that says what the file holds instead.
        let group = (0..groups).find(|&group| names(group).next().is_some()).unwrap_or(0);
        return Ok(Choice { group, prefix: String::new(), key: String::new() });
    }
    if wanted.is_none() && found.len() == 1 {
        return Ok(found.remove(0));
    }
    let keys = found.into_iter().map(|choice| choice.key).collect();
    Err(match wanted {
        None => CheckpointError::SeveralWeights { path: path.into(), keys },
        Some(key) => CheckpointError::NoSuchKey { path: path.into(), key: key.into(), keys },
    })
}

/// What stands before the network's names in a group: each prefix behind which the landmark follows, or where it is
/// missing, any name of the network.
fn prefixes<'a, N: Iterator<Item = &'a str>>(names: impl Fn(usize) -> N, group: usize) -> BTreeSet<&'a str> {
    let before = |part: &str| {
        let prefix = |name: &'a str| {
            let mut places = name.match_indices(part).map(|(at, _)| at);
            let found = places.find(|&at| at == 0 || name.as_bytes()[at - 1] == b'.');
            found.map(|at| &name[..at])
        };
        let mut found = BTreeSet::new();
        let names = names(group).filter(|name| name.len() <= LONGEST_NAME);
        for prefix in names.filter_map(prefix) {
            if found.len() < MOST_SETS || prefix.is_empty() {
                found.insert(prefix);
            }
        }
        found
    };
    let found = before(LANDMARK);
    if found.is_empty() { before(NETWORK) } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(groups: &[(&str, &[&str])], wanted: Option<&str>) -> Result<Choice, String> {
        let names = |group: usize| groups[group].1.iter().copied();
        let chosen = choose(Path::new("FILE"), groups.len(), |group| groups[group].0.into(), names, wanted);
        chosen.map_err(|error| error.to_string())
    }

    fn chosen(groups: &[(&str, &[&str])], wanted: Option<&str>) -> Result<Vec<String>, String> {
        let choice = choice(groups, wanted)?;
        let tensors = groups[choice.group].1.iter().map(|&name| (name.to_owned(), ()));
        Ok(choice.sorted(tensors).into_keys().collect())
    }

    #[test]
    fn any_prefix_is_taken_off() {
        for prefix in ["", "module.", "_orig_mod.", "model.", "ema.", "module._orig_mod.", "a.b.c."] {
            let names = [format!("{prefix}aggregator.camera_token"), format!("{prefix}depth_head.x"), "step".into()];
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let expected = ["aggregator.camera_token", "depth_head.x", "step"];
            assert_eq!(chosen(&[("", &names)], None).unwrap(), expected, "{prefix}");
        }
        // No prefix ends inside a word.
        assert_eq!(chosen(&[("", &["my_aggregator.camera_token"])], None).unwrap(), ["my_aggregator.camera_token"]);
    }

    #[test]
    fn two_sets_of_weights_are_asked_about() {
        let one: &[&str] = &["aggregator.camera_token"];
        let optimizer: &[&str] = &["exp_avg"];
        let groups = [("", &[][..]), ("optimizer", optimizer), ("model", one)];
        assert_eq!(chosen(&groups, None).unwrap(), one);
        let groups = [("", &[][..]), ("model", one), ("ema.state", one)];
        assert_eq!(
            chosen(&groups, None).unwrap_err(),
            "FILE holds several sets of weights, say which one to use: model, ema.state"
        );
        assert_eq!(chosen(&groups, Some("ema.state")).unwrap(), one);
        assert_eq!(
            chosen(&groups, Some("emma")).unwrap_err(),
            "FILE holds no weights under `emma`; it holds weights under `model`, `ema.state`"
        );
        assert_eq!(
            chosen(&[("", one)], Some("model")).unwrap_err(),
            "FILE holds no weights under `model`; it holds weights under their plain names"
        );
        let both: &[&str] = &["net.aggregator.camera_token", "ema.aggregator.camera_token"];
        assert!(chosen(&[("", both)], None).unwrap_err().ends_with("ema, net"));
        assert_eq!(
            chosen(&[("", both)], Some("net")).unwrap(),
            ["aggregator.camera_token", "ema.aggregator.camera_token"]
        );
        // Plain names at the outside are the network's own.
        assert_eq!(chosen(&[("", one), ("ema", one)], None).unwrap(), one);
    }

    #[test]
    fn key_and_prefix_are_told() {
        let key = |groups: &[(&str, &[&str])]| choice(groups, None).unwrap().key;
        assert_eq!(key(&[("", &["aggregator.camera_token"])]), "");
        assert_eq!(key(&[("", &["_orig_mod.aggregator.camera_token"])]), "_orig_mod");
        assert_eq!(key(&[("", &[]), ("ema.state", &["module.aggregator.camera_token"])]), "ema.state.module");
        assert_eq!(key(&[("", &["of.another.model"])]), "");
    }

    /// Names and keys come from the file, so a message must not repeat all of them.
    #[test]
    fn a_thousand_sets_of_weights_are_not_all_told() {
        let names: Vec<_> = (0..1000).map(|i| format!("net{i}.aggregator.camera_token")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert!(chosen(&[("", &names)], None).unwrap_err().matches("net").count() <= MOST_SETS);
        let long = format!("{}.aggregator.camera_token", "x".repeat(300));
        assert_eq!(chosen(&[("", &[&long])], None).unwrap(), [long.as_str()]);
    }

    #[test]
    fn plain_names_do_not_replace_those_behind_the_prefix() {
        for names in [
            ["aggregator.camera_token", "ema.aggregator.camera_token"],
            ["ema.aggregator.camera_token", "aggregator.camera_token"],
        ] {
            let choice = choice(&[("", &names)], Some("ema")).unwrap();
            let sorted = choice.sorted(names.map(|name| (name.to_owned(), name)));
            assert_eq!(
                sorted.into_iter().collect::<Vec<_>>(),
                [("aggregator.camera_token".to_owned(), "ema.aggregator.camera_token")]
            );
        }
    }
}
