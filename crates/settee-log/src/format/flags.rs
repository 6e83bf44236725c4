//! The flags of a record.

/// Properties of a record besides its key and value. The log stores them; the crates above define their
/// meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub(super) u8);

impl Flags {
    /// The key has no value from here on.
    pub const TOMBSTONE: Flags = Flags(1);
    /// The record is in the seq index, from which the feed of changes is read.
    pub const IN_SEQ_INDEX: Flags = Flags(2);
    /// The value is a merge operand, to be combined with the key's older values.
    pub const OPERAND: Flags = Flags(16);
    /// All flags that this version knows.
    pub(super) const KNOWN: u32 = 1 | 2 | 16;

    /// No flag.
    pub const fn none() -> Flags {
        Flags(0)
    }

    /// The flags as encoded in a record.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Decodes flags; `None` if `bits` contains unknown ones.
    pub(crate) fn from_bits(bits: u8) -> Option<Flags> {
        (u32::from(bits) & !Flags::KNOWN == 0).then_some(Flags(bits))
    }

    /// The union of these flags and `other`.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}
