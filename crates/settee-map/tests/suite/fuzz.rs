//! Goal: whatever the function and the document, a plan reports the engine's rows, or none where the engine throws.
//! A function over the members that it reads does what it does over the whole document.
//! Method: functions of a grammar that is full of JavaScript's traps, and documents that are, run by both.
//!
//! `SETTEE_SEED` repeats one function with its documents; `SETTEE_PAIRS` is the number of pairs of a search.

use rand::SeedableRng;
use rand::rngs::StdRng;
use settee_map::{Document, Members, Plan, Scratch};

use crate::documents;
use crate::grammar;
use crate::reference::{Engine, Mapped, map_by_plan};

const PAIRS: u64 = 12_000;
const DOCUMENTS_PER_FUNCTION: u64 = 8;

/// Percentage of the functions that must have plans, and of the runs that must need no engine: or nothing is tested.
const PLANNED_PERCENT_MIN: u64 = 40;
const DECIDED_PERCENT_MIN: u64 = 60;

/// Percentage of the functions whose members must be known, and of those members' documents that must have others.
const KNOWN_PERCENT_MIN: u64 = 10;
const NARROWED_PERCENT_MIN: u64 = 50;

#[derive(Debug, Default)]
struct Counts {
    functions: u64,
    planned: u64,
    runs: u64,
    decided: u64,
    rows: u64,
    dropped: u64,
    reasons: std::collections::BTreeMap<String, u64>,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} isn't a number")))
}

#[test]
fn plans_and_the_engine_give_the_same_rows() {
    let mut counts = Counts::default();
    if let Some(seed) = number("SETTEE_SEED") {
        compare(seed, &mut counts, true);
        return;
    }
    let functions = number("SETTEE_PAIRS").unwrap_or(PAIRS) / DOCUMENTS_PER_FUNCTION;
    let first = number("SETTEE_SEED_FIRST").unwrap_or(0);
    for seed in first..first + functions {
        compare(seed, &mut counts, false);
    }
    let mut reasons: Vec<_> =
        std::mem::take(&mut counts.reasons).into_iter().map(|(reason, n)| (n, reason)).collect();
    reasons.sort_unstable_by(|a, b| b.cmp(a));
    println!("{counts:?}");
    for (count, reason) in reasons.iter().take(60) {
        println!("{count:>8} {reason}");
    }
    assert!(
        counts.planned * 100 >= counts.functions * PLANNED_PERCENT_MIN,
        "few functions have plans: {counts:?}"
    );
    assert!(
        counts.decided * 100 >= counts.runs * DECIDED_PERCENT_MIN,
        "many runs need the engine: {counts:?}"
    );
    assert!(counts.rows > counts.decided / 10, "few rows: {counts:?}");
}

fn compare(seed: u64, counts: &mut Counts, is_shown: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let source = grammar::function(&mut random);
    counts.functions += 1;
    if is_shown {
        println!("{source}");
    }
    let plan = match Plan::compile(&source) {
        Ok(plan) => plan,
        Err(outside) => {
            *counts.reasons.entry(format!("outside: {}", outside.reason)).or_default() += 1;
            if is_shown {
                println!("{outside}");
            }
            return;
        }
    };
    counts.planned += 1;
    let engine = Engine::compile(&source)
        .unwrap_or_else(|error| panic!("seed={seed}: the engine refuses what has a plan: {error}\n{source}"));
    let mut scratch = Scratch::new();
    for _ in 0..DOCUMENTS_PER_FUNCTION {
        let document = documents::document(&mut random);
        let planned = map_by_plan(&plan, &document, &mut scratch);
        counts.runs += 1;
        if let Mapped::Undecided(reason) = planned {
            *counts.reasons.entry(format!("engine: {reason}")).or_default() += 1;
            continue;
        }
        let mapped = engine.map(&document);
        if is_shown {
            println!("{document}\n  plan:   {planned:?}\n  engine: {mapped:?}");
        }
        match (&planned, &mapped) {
            (Mapped::Dropped(message), Mapped::Dropped(expected)) => {
                counts.dropped += 1;
                assert_eq!(
                    message, expected,
                    "SETTEE_SEED={seed}
{source}
over {document}"
                );
            }
            (Mapped::Rows(rows), _) => {
                assert_eq!(planned, mapped, "SETTEE_SEED={seed}\n{source}\nover {document}");
                counts.rows += rows.len() as u64;
            }
            _ => panic!("SETTEE_SEED={seed}: plan {planned:?}, engine {mapped:?}\n{source}\nover {document}"),
        }
        counts.decided += 1;
    }
}

#[test]
fn functions_do_the_same_over_the_members_that_they_read() {
    let (mut known, mut runs, mut narrowed) = (0, 0, 0);
    let first = number("SETTEE_SEED").or(number("SETTEE_SEED_FIRST")).unwrap_or(0);
    let functions = number("SETTEE_PAIRS").unwrap_or(PAIRS) / DOCUMENTS_PER_FUNCTION;
    let functions = if number("SETTEE_SEED").is_some() { 1 } else { functions };
    for seed in first..first + functions {
        let mut random = StdRng::seed_from_u64(seed);
        let source = grammar::function(&mut random);
        let Some(members) = Members::read_by(&source) else { continue };
        let (Ok(whole), Ok(part)) = (Engine::compile(&source), Engine::compile(&source)) else { continue };
        known += 1;
        for _ in 0..DOCUMENTS_PER_FUNCTION {
            let document = documents::document(&mut random);
            let mut text = Vec::new();
            match Document::new(document.as_bytes()) {
                Ok(document) => members.write(&document, &mut text),
                Err(_) => continue,
            }
            let text = String::from_utf8(text).expect("UTF-8");
            runs += 1;
            narrowed += u64::from(text.len() < document.len());
            let mapped = whole.map(&document);
            assert_eq!(mapped, part.map(&text), "SETTEE_SEED={seed}\n{source}\nover {document}\nand {text}");
            if matches!(mapped, Mapped::Undecided(_)) {
                break;
            }
        }
    }
    println!("{known} of {functions} functions, {narrowed} of {runs} documents");
    assert!(functions == 1 || known * 100 >= functions * KNOWN_PERCENT_MIN, "{known} of {functions}");
    assert!(functions == 1 || narrowed * 100 >= runs * NARROWED_PERCENT_MIN, "{narrowed} of {runs}");
}
