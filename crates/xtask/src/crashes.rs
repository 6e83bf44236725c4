//! `cargo xtask crashes`: as many power losses as one has time for.
//!
//! Runs a crate's test of power losses, the log's, the store's or the documents', which every `cargo test`
//! runs with some thousands of them, in the release profile and with a number of one's own. What it prints
//! last is how many were tried and how many batches were lost; a failure names the two variables
//! that replay it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Power losses, unless told otherwise.
const COUNT: u64 = 1_000_000;

/// The crates that have such a test: the names that they are given here, their own, and the test's.
const CRATES: [(&str, &str, &str); 3] = [
    ("log", "settee-log", "acknowledged_batches_survive_power_loss_kills_and_errors"),
    ("store", "settee-store", "what_was_shown_survives_power_loss_kills_and_errors"),
    ("doc", "settee-doc", "what_is_acknowledged_survives_power_loss"),
];

/// What the command line says.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    count: u64,
    /// The first seed; those after it follow.
    seed: u64,
    /// Which of [`CRATES`].
    tested: usize,
}

/// Tries power losses until there are enough, or one loses something.
///
/// # Errors
/// What is wrong with the arguments; an empty message where the test failed, which has said why.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let Options { count, seed, tested } = options(arguments)?;
    let (_, package, test) = CRATES[tested];
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(&cargo)
        .args(["test", "--release", "--locked", "-p", package, "--test", "suite"])
        .args(["--", "--exact", &format!("power_loss::{test}"), "--nocapture"])
        .env("SETTEE_CRASHES", count.to_string())
        .env("SETTEE_SEED_FIRST", seed.to_string())
        .env_remove("SETTEE_SEED")
        .env_remove("SETTEE_EVENT")
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot start {cargo:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(String::new()) }
}

fn options(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options { count: COUNT, seed: 0, tested: 0 };
    for pair in arguments.chunks(2) {
        let [name, value] = *pair else {
            return Err(format!("{} wants a value\n{}", pair[0], crate::USAGE));
        };
        if name == "--crate" {
            let found = CRATES.iter().position(|(short, package, _)| [*short, *package].contains(&value));
            let unknown = || format!("no crate {value:?} has such a test\n{}", crate::USAGE);
            options.tested = found.ok_or_else(unknown)?;
            continue;
        }
        let number = value.parse().map_err(|_| format!("{name} {value:?} is no number\n{}", crate::USAGE))?;
        match name {
            "--count" => options.count = number,
            "--seed" => options.seed = number,
            _ => return Err(format!("no option is named {name:?}\n{}", crate::USAGE)),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_options_can_be_left_out_and_come_in_any_order() {
        assert_eq!(options(&[]), Ok(Options { count: COUNT, seed: 0, tested: 0 }));
        assert_eq!(options(&["--seed", "7"]), Ok(Options { count: COUNT, seed: 7, tested: 0 }));
        let both = ["--seed", "7", "--crate", "store", "--count", "5"];
        assert_eq!(options(&both), Ok(Options { count: 5, seed: 7, tested: 1 }));
        let wrong: [&[&str]; 5] =
            [&["--count"], &["--count", "many"], &["--seeds", "7"], &["7"], &["--crate", "none"]];
        for wrong in wrong {
            assert!(options(wrong).is_err_and(|problem| problem.contains(crate::USAGE)), "{wrong:?}");
        }
    }

    #[test]
    fn the_tests_that_it_runs_are_there() {
        let root = crate::root().unwrap();
        for (_, package, test) in CRATES {
            let path = root.join("crates").join(package).join("tests/suite/power_loss.rs");
            assert!(std::fs::read_to_string(path).unwrap().contains(&format!("fn {test}()")), "{package}");
        }
    }
}
