//! Counts the steps of matching, for tests: values passed in a text, and comparisons.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count() {
    STEPS.set(STEPS.get() + 1);
}

/// Number of steps that `what` takes.
pub(super) fn of(what: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    what();
    STEPS.get() - before
}
