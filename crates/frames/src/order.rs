//! The order of pictures in a folder.

use std::cmp::Ordering;

/// How the names of pictures are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Runs of digits count as whole numbers: `frame2` before `frame10`.
    Natural,
    /// Byte by byte, as `sort` of most languages.
    Name,
    /// Numbers with a fraction count as decimals: `0.25` before `0.5`. As names of times in seconds are meant.
    Time,
}

/// The order that suits `names` without their extensions: by time if all end in a number with a fraction, else natural.
pub(crate) fn suited_order<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Order {
    let mut names = names.into_iter().peekable();
    if names.peek().is_some() && names.all(|name| decimal(name).is_some()) { Order::Time } else { Order::Natural }
}

impl Order {
    /// Compares two names without their extensions. Only identical names are equal.
    pub fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Natural => natural_order(a, b),
            Self::Name => a.cmp(b),
            Self::Time => match (decimal(a), decimal(b)) {
                (Some(one), Some(other)) => one.cmp(&other).then_with(|| a.cmp(b)),
                _ => natural_order(a, b),
            },
        }
    }
}

type Decimal<'a> = (&'a [u8], usize, &'a [u8], &'a [u8]);

/// The number with a fraction at the end of a name: what stands before it, its digits before the point without leading zeros
/// (their count first, so that longer numbers are larger), and its digits behind the point without trailing zeros.
fn decimal(name: &[u8]) -> Option<Decimal<'_>> {
    let digits = |name: &[u8]| name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, fraction) = name.split_at(name.len() - digits(name));
    let rest = rest.strip_suffix(b".").filter(|_| !fraction.is_empty())?;
    let (before, whole) = rest.split_at(rest.len() - digits(rest));
    if whole.is_empty() || before.ends_with(b".") {
        return None;
    }
    let zeros = whole.iter().take_while(|&&digit| digit == b'0').count();
    let end = fraction.len() - fraction.iter().rev().take_while(|&&digit| digit == b'0').count();
    Some((before, whole.len() - zeros, &whole[zeros..], &fraction[..end]))
}

/// Natural order of file names: runs of digits compare as numbers of any length (`frame2` before `frame10`), all else
/// byte by byte (for UTF-8 that is the order of code points, upper case before lower). Names that are equal this way
/// (`frame1`, `frame01`) compare byte by byte, so that only identical names are equal and the order is total.
pub fn natural_order(a: &[u8], b: &[u8]) -> Ordering {
    let (mut rest_a, mut rest_b) = (a, b);
    loop {
        let (token_a, token_b) = (next_token(&mut rest_a), next_token(&mut rest_b));
        match token_a.cmp(&token_b) {
            Ordering::Equal if token_a.is_none() => return a.cmp(b),
            Ordering::Equal => {}
            unequal => return unequal,
        }
    }
}

/// A number without leading zeros or a byte that is no digit. The derived order would put all numbers before all
/// bytes; `key` puts them where the digits are.
#[derive(PartialEq, Eq)]
enum Token<'a> {
    Number(&'a [u8]),
    Byte(u8),
}

impl Token<'_> {
    fn key(&self) -> (u8, usize, &[u8]) {
        match self {
            Token::Number(digits) => (b'0', digits.len(), digits),
            Token::Byte(byte) => (*byte, 0, &[]),
        }
    }
}

impl Ord for Token<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Token<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn next_token<'a>(name: &mut &'a [u8]) -> Option<Token<'a>> {
    let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        let (&byte, rest) = name.split_first()?;
        *name = rest;
        return Some(Token::Byte(byte));
    }
    let (number, rest) = name.split_at(digits);
    *name = rest;
    let zeros = number.iter().take_while(|&&digit| digit == b'0').count();
    Some(Token::Number(&number[zeros..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(names: &[&'static str]) -> Vec<&'static str> {
        let mut names = names.to_vec();
        names.sort_by(|a, b| natural_order(a.as_bytes(), b.as_bytes()));
        names
    }

    #[test]
    fn numbers_count_as_numbers() {
        assert_eq!(
            sorted(&["frame10.png", "frame2.png", "frame1.png", "frame.png", "frame02b.png", "frame02.png"]),
            ["frame.png", "frame1.png", "frame02.png", "frame2.png", "frame02b.png", "frame10.png"]
        );
        assert_eq!(sorted(&["a2_10", "a10_1", "a2_9"]), ["a2_9", "a2_10", "a10_1"]);
    }

    #[test]
    fn fractions_count_as_decimals() {
        let mut names = ["1700000000.1", "1700000000.5", "1700000000.25", "1700000000.0583", "1700000001.0"];
        let order = suited_order(names.iter().map(|name| name.as_bytes()));
        assert_eq!(order, Order::Time);
        names.sort_by(|a, b| order.compare(a.as_bytes(), b.as_bytes()));
        assert_eq!(names, ["1700000000.0583", "1700000000.1", "1700000000.25", "1700000000.5", "1700000001.0"]);
        let mut names = ["t10.5", "t9.75", "t9.8"];
        names.sort_by(|a, b| Order::Time.compare(a.as_bytes(), b.as_bytes()));
        assert_eq!(names, ["t9.75", "t9.8", "t10.5"]);
        for others in [&["frame-1.color", "frame-2.color"][..], &["1.5", "frame2"], &["v1.2.3", "v1.2.10"], &[]] {
            assert_eq!(suited_order(others.iter().map(|name| name.as_bytes())), Order::Natural, "{others:?}");
        }
    }

    #[test]
    fn numbers_longer_than_any_integer() {
        assert_eq!(
            sorted(&["t99999999999999999999999999999999999999999", "t100000000000000000000000000000000000000000"]),
            ["t99999999999999999999999999999999999999999", "t100000000000000000000000000000000000000000"]
        );
    }

    #[test]
    fn other_scripts_and_zero() {
        assert_eq!(
            sorted(&["кадр10", "кадр9", "frame0", "frame00", "z"]),
            ["frame0", "frame00", "z", "кадр9", "кадр10"]
        );
    }

    proptest! {
        #[test]
        fn is_a_total_order(names in prop::collection::vec("[a0-2.é]{0,6}", 3)) {
            let order = |i: usize, j: usize| natural_order(names[i].as_bytes(), names[j].as_bytes());
            prop_assert_eq!(order(0, 1), order(1, 0).reverse());
            prop_assert_eq!(order(0, 1) == Ordering::Equal, names[0] == names[1]);
            if order(0, 1).is_le() && order(1, 2).is_le() {
                prop_assert!(order(0, 2).is_le());
            }
        }

        #[test]
        fn follows_the_numbers(a in any::<u64>(), b in any::<u64>()) {
            prop_assert_eq!(natural_order(format!("f{a}.png").as_bytes(), format!("f{b}.png").as_bytes()), a.cmp(&b));
        }
    }
}
