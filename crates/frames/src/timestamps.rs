//! Timestamps from the names of pictures.

use periplus_geometry::Timestamp;

/// The time that a picture's name states: the number at the end of the name without its extension, if it is
///
/// - nanoseconds since 1970 in 19 digits (`EuRoC`: `1403636579763555584.png`), microseconds in 16 or milliseconds in 13;
/// - seconds with a fraction (TUM RGB-D: `1305031102.175304.png`), or seconds since 1970 in 10 digits.
///
/// Other numbers count frames.
pub fn timestamp_of_name(name: &str) -> Option<Timestamp> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let start = stem.len() - stem.bytes().rev().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let number = &stem[start..];
    match number.split_once('.') {
        Some((whole, fraction)) if !whole.is_empty() && !fraction.is_empty() => Timestamp::parse(number),
        Some(_) => None,
        None => {
            let unit = match number.len() {
                19 => 1,
                16 => 1_000,
                13 => 1_000_000,
                10 => 1_000_000_000,
                _ => return None,
            };
            number.parse::<i64>().ok()?.checked_mul(unit).map(Timestamp::from_nanoseconds)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_from_counts() {
        for (name, expected) in [
            ("1403636579763555584.png", Some("1403636579.763555584")),
            ("1305031102.175304.png", Some("1305031102.175304")),
            ("rgb_1305031102.175304.jpg", Some("1305031102.175304")),
            ("1551915398123456.png", Some("1551915398.123456")),
            ("1551915398123.png", Some("1551915398.123")),
            ("1551915398.png", Some("1551915398")),
            ("0.25.png", Some("0.25")),
            ("000017.png", None),
            ("frame-000001.color.png", None),
            ("v1.2.3.png", None),
            ("frame.png", None),
        ] {
            assert_eq!(timestamp_of_name(name).map(|time| time.to_string()).as_deref(), expected, "{name}");
        }
    }
}
