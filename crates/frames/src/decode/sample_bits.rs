//! How many of their 16 bits the samples of a picture use.

/// The bits that the samples of a 16-bit picture use, counted from the lowest: cameras often store values of 10, 12 or 14 bits in
/// 16. A sample becomes its highest 8 of these bits; larger samples become 255. One value for a whole clip gives all of its frames the
/// same scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleBits(u8);

impl SampleBits {
    /// All 16 bits.
    pub const ALL: Self = Self(16);

    /// From 8 to 16 bits; `None` for other values.
    pub fn new(bits: u8) -> Option<Self> {
        (8..=16).contains(&bits).then_some(Self(bits))
    }

    /// The number of bits.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The least of 8, 10, 12, 14 and 16 bits, which image sensors have, that holds a sample.
    pub(super) fn holding(sample: u16) -> Self {
        let used = 16 - sample.leading_zeros() as u8;
        Self(used.next_multiple_of(2).max(8))
    }

    /// A sample as 8 bits.
    pub(super) fn byte(self, sample: u16) -> u8 {
        (sample >> (self.0 - 8)).min(255) as u8
    }
}

impl Default for SampleBits {
    fn default() -> Self {
        Self::ALL
    }
}
