//! Violations of the state's invariants, for tests of how the log reacts.

use super::LogState;
use super::watermarks::tests::VIOLATIONS;

/// Makes the violation with this number, below [`VIOLATION_COUNT`].
pub(crate) fn violate(state: &mut LogState, number: usize) {
    VIOLATIONS[number](&mut state.watermarks);
}

pub(crate) const VIOLATION_COUNT: usize = VIOLATIONS.len();
