//! Goal: any input is either decoded correctly or refused.
//! Method: valid or nearly valid inputs from seeds (`settee_sim::fuzz`); each decoder is checked for a
//! property beyond not panicking. `cargo xtask fuzz` runs for any length of time.
//!
//! `raw.rs` is a module of `crate::selector`, whose private parser it tests.

mod document;
mod selector;
mod stored;

use settee_sim::fuzz::Target;

/// Executions of each target in an ordinary test run.
const COUNT: u64 = 12_000;

/// All targets of this crate.
pub(crate) const TARGETS: [Target; 6] = [
    document::DOCUMENT,
    document::REVISION,
    document::SEQUENCE,
    selector::SELECTOR,
    crate::selector::fuzz::RAW,
    stored::STORED,
];

#[test]
fn document() {
    document::DOCUMENT.run(COUNT);
}

#[test]
fn revision() {
    document::REVISION.run(COUNT);
}

#[test]
fn sequence() {
    document::SEQUENCE.run(COUNT);
}

#[test]
fn selector() {
    selector::SELECTOR.run(COUNT);
}

#[test]
fn raw() {
    crate::selector::fuzz::RAW.run(COUNT);
}

#[test]
fn stored() {
    stored::STORED.run(COUNT);
}

#[test]
fn real_inputs_are_accepted() {
    for target in TARGETS {
        let accepted = target.corpus.iter().filter(|input| (target.check)(input)).count();
        assert!(accepted * 2 > target.corpus.len(), "{}: {accepted}", target.name);
    }
}
