//! Goal: any request line, headers and body are parsed correctly or refused.
//! Method: as in `settee_sim::fuzz`; each parser has a property beyond not panicking. Whole requests are in
//! `tests/api/fuzz.rs`. `cargo xtask fuzz` runs longer.

mod content;
mod head;

use settee_sim::fuzz::Target;

/// Executions of each target in an ordinary test run.
const COUNT: u64 = 12_000;

/// All targets of this crate.
const TARGETS: [Target; 6] =
    [head::URI, head::HEADER, head::RANGES, content::MULTIPART, content::GZIP, content::BODY];

#[test]
fn uri() {
    head::URI.run(COUNT);
}

#[test]
fn header() {
    head::HEADER.run(COUNT);
}

#[test]
fn ranges() {
    head::RANGES.run(COUNT);
}

#[test]
fn multipart() {
    content::MULTIPART.run(COUNT);
}

#[test]
fn gzip() {
    content::GZIP.run(COUNT);
}

#[test]
fn body() {
    content::BODY.run(COUNT);
}

#[test]
fn real_inputs_are_accepted() {
    for target in TARGETS {
        let accepted = target.corpus.iter().filter(|input| (target.check)(input)).count();
        assert!(accepted * 2 > target.corpus.len(), "{}: {accepted}", target.name);
    }
}
