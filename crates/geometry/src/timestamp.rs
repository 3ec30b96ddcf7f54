//! Timestamps of frames, in nanoseconds.

use std::fmt;

const NANOSECONDS: i64 = 1_000_000_000;

/// A time in nanoseconds: since the start of a clip, or since 1970 if the source has such times. (Seconds since 1970 in
/// float64 would lose the last digits.)
///
/// `Display` prints decimal seconds, with as many digits as needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// A timestamp of `nanoseconds`.
    pub fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// A timestamp of `seconds`, rounded to nanoseconds. `None` if `seconds` is not finite or more than 292 years.
    pub fn from_seconds(seconds: f64) -> Option<Self> {
        let nanoseconds = (seconds * NANOSECONDS as f64).round();
        (nanoseconds.abs() < i64::MAX as f64).then_some(Self(nanoseconds as i64))
    }

    /// Parses decimal seconds, such as `1305031102.175304`. Digits beyond nanoseconds are dropped.
    pub fn parse(seconds: &str) -> Option<Self> {
        let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
        if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let fraction = format!("{:0<9}", &fraction[..fraction.len().min(9)]);
        let whole = whole.parse::<i64>().ok()?.checked_mul(NANOSECONDS)?;
        whole.checked_add(fraction.parse().ok()?).map(Self)
    }

    /// The time in nanoseconds.
    pub fn nanoseconds(self) -> i64 {
        self.0
    }

    /// The time in seconds, rounded to float64.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / NANOSECONDS as f64
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, magnitude) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        let (whole, fraction) = (magnitude / NANOSECONDS as u64, magnitude % NANOSECONDS as u64);
        match format!("{fraction:09}").trim_end_matches('0') {
            "" => write!(f, "{sign}{whole}"),
            digits => write!(f, "{sign}{whole}.{digits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn no_digit_is_lost() {
        for text in ["0", "0.033333", "1403636579.763555584", "1305031102.175304", "1.5"] {
            assert_eq!(Timestamp::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Timestamp::parse("7.0000000019").unwrap().nanoseconds(), 7_000_000_001);
        assert_eq!(Timestamp::from_seconds(-0.25).unwrap().to_string(), "-0.25");
        assert_eq!(Timestamp::from_seconds(0.033_333), Timestamp::parse("0.033333"));
        assert!((Timestamp::from_nanoseconds(33_333_000).seconds() - 0.033_333).abs() < 1e-12);
        for wrong in ["", ".5", "1e9", "1.2.3", "-1", "99999999999999999999"] {
            assert_eq!(Timestamp::parse(wrong), None, "{wrong}");
        }
        assert_eq!([f64::NAN, f64::INFINITY, 1e10].map(Timestamp::from_seconds), [None; 3]);
    }
}
