//! Counts what matching does, for tests: values that are passed in a text, and comparisons.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count() {
    STEPS.set(STEPS.get() + 1);
}

/// The steps that something takes.
pub(super) fn of(what: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    what();
    STEPS.get() - before
}
