//! Sizes of memory and files as people read them.

use std::fmt;

/// A number of bytes. Displays in the unit that suits it, with two decimals at most: `512 bytes`, `1.5 KiB`, `94.22 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let (mut size, mut unit) = (self.0 as f64 / 1024.0, 0);
        if self.0 < 1024 {
            return write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" });
        }
        // What rounds to 1024 of a unit is 1 of the next.
        while size >= 1023.995 && unit + 1 < UNITS.len() {
            (size, unit) = (size / 1024.0, unit + 1);
        }
        let digits = format!("{size:.2}");
        write!(f, "{} {}", digits.trim_end_matches('0').trim_end_matches('.'), UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn sizes_are_in_the_unit_that_suits_them() {
        for (bytes, expected) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (98_795_520, "94.22 MiB"),
            (10 << 30, "10 GiB"),
            (1100 << 30, "1.07 TiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), expected);
        }
    }
}
