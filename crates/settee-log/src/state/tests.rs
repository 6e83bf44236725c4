//! Violations of the state's invariants, for tests that check what follows.

use super::LogState;
use super::watermarks::tests::VIOLATIONS;

/// Violates an invariant; there are [`COUNT`].
pub(crate) fn violate(state: &mut LogState, number: usize) {
    VIOLATIONS[number](&mut state.watermarks);
}

pub(crate) const COUNT: usize = VIOLATIONS.len();
