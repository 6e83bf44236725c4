//! Violations of the invariants, for tests of how the log reacts.

use super::Watermarks;
use crate::watermark::Position;

pub(crate) const VIOLATIONS: [fn(&mut Watermarks); 4] = [
    |marks| marks.written.seq = marks.accepted.seq + 1,
    |marks| marks.persisted.seq = marks.written.seq + 1,
    |marks| marks.persisted.at = marks.written.at.plus(1),
    |marks| marks.accepted.at = Position::END,
];
