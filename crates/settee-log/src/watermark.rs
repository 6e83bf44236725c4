//! Positions in the log, and watermarks: how far the log has progressed.

/// A segment and an offset in it, ordered as in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Position(u64);

impl Position {
    pub(crate) const END: Position = Position(u64::MAX);

    pub(crate) fn new(segment: u32, offset: u32) -> Position {
        Position(u64::from(segment) << 32 | u64::from(offset))
    }

    pub(crate) fn from_bits(bits: u64) -> Position {
        Position(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn offset(self) -> u32 {
        self.0 as u32
    }

    /// The position `count` bytes later in the same segment.
    pub(crate) fn plus(self, count: usize) -> Position {
        Position(self.0 + count as u64)
    }

    /// Distance in bytes from `start`, which is in the same segment.
    pub(crate) fn since(self, start: Position) -> usize {
        (self.0 - start.0) as usize
    }
}

/// How far the log has reached one stage: the last `Seq`, and the end of its bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    pub seq: u64,
    pub at: Position,
}

impl Watermark {
    /// Whether this watermark covers `wanted`.
    pub(crate) fn reaches(self, wanted: Watermark) -> bool {
        self.seq >= wanted.seq && self.at >= wanted.at
    }
}
