//! Which tensors of a file are the network's: under which key, and with which prefix before their names.

use std::collections::BTreeSet;
use std::path::Path;

use crate::CheckpointError;

/// The network's tensors have names that start so, behind whatever prefix training programs put there.
const NETWORK: &str = "aggregator.";

/// A tensor that every network has.
const LANDMARK: &str = "aggregator.camera_token";

/// Tensors that are saved together: the names in one dictionary of a file, and the keys that lead to it.
pub(crate) struct Group<T> {
    /// Keys from the outside in, separated by dots; empty for the file's outermost dictionary.
    pub(crate) key: String,
    pub(crate) tensors: Vec<(String, T)>,
}

/// The tensors of the network, with their names in the network. Others of the same group keep the names that they have.
///
/// Wrappers and training programs put prefixes before the names (`module.` of data-parallel training, `_orig_mod.` of
/// `torch.compile`, `model.` of Lightning), also several. Whatever stands before `aggregator.` is taken off.
///
/// # Errors
/// [`CheckpointError::SeveralWeights`] if more than one set of tensors could be meant and `key` names none of them.
pub(crate) fn choose<T>(
    path: &Path,
    groups: Vec<Group<T>>,
    key: Option<&str>,
) -> Result<Vec<(String, T)>, CheckpointError> {
    let mut candidates = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        for prefix in prefixes(group) {
            let label = [group.key.as_str(), prefix.trim_end_matches('.')];
            let label: Vec<_> = label.into_iter().filter(|part| !part.is_empty()).collect();
            candidates.push((label.join("."), index, prefix));
        }
    }
    let chosen = match key {
        Some(key) => candidates.iter().find(|(label, ..)| label == key),
        // Names without any prefix are the network's own.
        None => match &candidates[..] {
            [only] => Some(only),
            several => several.iter().find(|(label, ..)| label.is_empty()),
        },
    };
    let Some((_, index, prefix)) = chosen.cloned() else {
        if candidates.is_empty() {
            // For the message that says what the file holds instead.
            let first = groups.into_iter().find(|group| !group.tensors.is_empty());
            return Ok(first.map_or(Vec::new(), |group| group.tensors));
        }
        let keys = candidates.into_iter().map(|(label, ..)| label).collect();
        return Err(CheckpointError::SeveralWeights { path: path.into(), keys });
    };
    let Some(group) = groups.into_iter().nth(index) else { return Ok(Vec::new()) };
    let mut tensors = group.tensors;
    for (name, _) in &mut tensors {
        if let Some(rest) = name.strip_prefix(prefix.as_str()) {
            *name = rest.to_owned();
        }
    }
    Ok(tensors)
}

/// What stands before the network's names in a group: each prefix behind which the landmark follows, or where it is
/// missing, any name of the network.
fn prefixes<T>(group: &Group<T>) -> BTreeSet<String> {
    let before = |part: &str| {
        let prefix = |name: &str| {
            let mut places = name.match_indices(part).map(|(at, _)| at);
            let found = places.find(|&at| at == 0 || name.as_bytes()[at - 1] == b'.');
            found.map(|at| name[..at].to_owned())
        };
        group.tensors.iter().filter_map(|(name, _)| prefix(name)).collect::<BTreeSet<_>>()
    };
    let found = before(LANDMARK);
    if found.is_empty() { before(NETWORK) } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(groups: &[(&str, &[&str])], key: Option<&str>) -> Result<Vec<String>, String> {
        let group = |&(key, names): &(&str, &[&str])| Group {
            key: key.into(),
            tensors: names.iter().map(|&name| (name.to_owned(), ())).collect(),
        };
        let tensors = choose(Path::new("FILE"), groups.iter().map(group).collect(), key);
        tensors.map(|tensors| tensors.into_iter().map(|(name, ())| name).collect()).map_err(|error| error.to_string())
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
        assert!(chosen(&groups, Some("emma")).unwrap_err().ends_with("say which one to use: model, ema.state"));
        let both: &[&str] = &["net.aggregator.camera_token", "ema.aggregator.camera_token"];
        assert!(chosen(&[("", both)], None).unwrap_err().ends_with("ema, net"));
        assert_eq!(
            chosen(&[("", both)], Some("net")).unwrap(),
            ["aggregator.camera_token", "ema.aggregator.camera_token"]
        );
        // Plain names at the outside are the network's own.
        assert_eq!(chosen(&[("", one), ("ema", one)], None).unwrap(), one);
    }
}
