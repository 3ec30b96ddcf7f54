//! Times of pictures from a list in a text file.

use std::collections::HashMap;

use periplus_geometry::Timestamp;

/// Why a list of timestamps cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimestampError {
    /// No lines but comments.
    #[error("the list of timestamps has no lines: write a time and a file name in each")]
    Empty,
    /// A line that does not begin with a time.
    #[error(
        "line {line} of the list of timestamps begins with `{text}`, which is no time: write seconds, or nanoseconds before a comma"
    )]
    NoTime {
        /// The line, from 1.
        line: usize,
        /// What it begins with.
        text: String,
    },
    /// A line of another kind than those before it.
    #[error(
        "line {line} of the list of timestamps {}: write names in all lines or in none",
        if *named { "has a name and those before it have none" } else { "has no name" }
    )]
    Mixed {
        /// The line, from 1.
        line: usize,
        /// Whether this line has a name.
        named: bool,
    },
    /// A name that is there twice.
    #[error(
        "line {line} of the list of timestamps has the name {name} for the second time: give each picture one time"
    )]
    Repeated {
        /// The line, from 1.
        line: usize,
        /// The name.
        name: String,
    },
    /// A picture without a time.
    #[error("the picture {name} is not in the list of timestamps: add a line for it")]
    NotListed {
        /// The name of its file.
        name: String,
    },
    /// No names that match, and not one time for each picture.
    #[error(
        "the list of timestamps has {times} times for {pictures} pictures and no names of theirs: list the names, or one time for each picture"
    )]
    OtherCount {
        /// Times in the list.
        times: usize,
        /// Pictures of the clip, those that are left out included.
        pictures: usize,
    },
}

/// A list of times, one a line, in one of three forms: `seconds name` (TUM RGB-D, `rgb.txt`), `nanoseconds,name` (`EuRoC`, `data.csv`), or times
/// alone. Times without a comma are seconds, or what their number of digits says, as in [`timestamp_of_name`](crate::timestamp_of_name).
/// Empty lines and those that begin with `#` are comments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimestampList {
    times: Vec<Timestamp>,
    /// The place of each name in `times`; folders before a name are left out.
    places: HashMap<String, usize>,
}

impl TimestampList {
    /// Reads the text of a list.
    ///
    /// # Errors
    /// If a line is not as described, or there is none.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let mut list = Self { times: Vec::new(), places: HashMap::new() };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, content) in (1..).zip(text.lines().map(str::trim)) {
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let by_comma = content.split_once(',');
            let (time, name) = by_comma.or_else(|| content.split_once(char::is_whitespace)).unwrap_or((content, ""));
            let time = time.trim();
            // A fraction would be taken for an extension.
            let by_digits = || crate::timestamp_of_name(time).filter(|_| !time.contains('.'));
            let whole = if by_comma.is_some() { time.parse().ok().map(Timestamp::from_nanoseconds) } else { None };
            let found = whole.or_else(by_digits).or_else(|| Timestamp::parse(time));
            let Some(found) = found.filter(|_| time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')) else {
                return Err(TimestampError::NoTime { line, text: time.chars().take(40).collect() });
            };
            let name = name.trim().trim_end_matches(',').rsplit(['/', '\\']).next().unwrap_or_default();
            if !list.times.is_empty() && name.is_empty() != list.places.is_empty() {
                return Err(TimestampError::Mixed { line, named: !name.is_empty() });
            }
            if !name.is_empty() && list.places.insert(name.to_owned(), list.times.len()).is_some() {
                return Err(TimestampError::Repeated { line, name: name.to_owned() });
            }
            list.times.push(found);
        }
        if list.times.is_empty() { Err(TimestampError::Empty) } else { Ok(list) }
    }

    /// The time of each picture of a clip, whose file names are given in order: by name, or by order if no name is in the list and there are
    /// exactly as many times as pictures.
    ///
    /// # Errors
    /// If a picture has no time.
    pub fn times_of<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<Vec<Timestamp>, TimestampError> {
        if names.clone().any(|name| self.places.contains_key(name)) {
            let time = |name: &str| self.places.get(name).map(|&place| self.times[place]);
            return names
                .map(|name| time(name).ok_or_else(|| TimestampError::NotListed { name: name.into() }))
                .collect();
        }
        let pictures = names.count();
        if pictures != self.times.len() {
            return Err(TimestampError::OtherCount { times: self.times.len(), pictures });
        }
        Ok(self.times.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str, names: &[&str]) -> Result<Vec<String>, TimestampError> {
        let times = TimestampList::parse(text)?.times_of(names.iter().copied())?;
        Ok(times.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn lists_of_three_forms() {
        let tum =
            "# color images\n# timestamp filename\n1305031102.175304 rgb/b.png\n1305031102.211214  rgb/a.png\r\n\n";
        assert_eq!(times(tum, &["a.png", "b.png"]).unwrap(), ["1305031102.211214", "1305031102.175304"]);
        let euroc = "#timestamp [ns],filename\n1403636579763555584,x.png\n50000000, y.png\n";
        assert_eq!(times(euroc, &["y.png", "x.png"]).unwrap(), ["0.05", "1403636579.763555584"]);
        assert_eq!(times("0\n0.5\n1\n", &["a", "b", "c"]).unwrap(), ["0", "0.5", "1"]);
        assert_eq!(times("1403636579763555584\n", &["a"]).unwrap(), ["1403636579.763555584"]);
        // Names that match nothing: by order.
        assert_eq!(times("1.5 x.png\n2.5 y.png\n", &["1.jpg", "2.jpg"]).unwrap(), ["1.5", "2.5"]);
        // More lines than pictures are no fault where names match.
        assert_eq!(times("1.5 x.png\n2.5 y.png\n", &["y.png"]).unwrap(), ["2.5"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &str, names: &[&str]| times(text, names).unwrap_err();
        assert_eq!(error("# none\n", &["a"]), TimestampError::Empty);
        assert_eq!(error("1.0\nnow\n", &["a"]), TimestampError::NoTime { line: 2, text: "now".into() });
        assert!(matches!(error("\n-1.0 a\n", &["a"]), TimestampError::NoTime { line: 2, .. }));
        assert!(matches!(error("nan a\n", &["a"]), TimestampError::NoTime { line: 1, .. }));
        assert_eq!(error("1.0 a\n2.0\n", &["a"]), TimestampError::Mixed { line: 2, named: false });
        assert_eq!(error("1.0\n2.0 a\n", &["a"]), TimestampError::Mixed { line: 2, named: true });
        assert_eq!(error("1.0 a\n2.0 b/a\n", &["a"]), TimestampError::Repeated { line: 2, name: "a".into() });
        assert_eq!(error("1.0 a\n", &["a", "b"]), TimestampError::NotListed { name: "b".into() });
        assert_eq!(error("1.0\n2.0\n", &["a"]), TimestampError::OtherCount { times: 2, pictures: 1 });
        assert!(error("1.0 a\n2.0\n", &["a"]).to_string().starts_with("line 2 of the list of timestamps has no name"));
    }
}
