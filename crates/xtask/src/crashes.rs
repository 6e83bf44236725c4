//! `cargo xtask crashes`: a given number of simulated power losses.
//!
//! Runs the test of power losses of `settee-log`, `settee-store` or `settee-doc` in the release profile with
//! a given number of power losses; `cargo test` runs some thousands of them. At the end it prints the numbers
//! of power losses and of lost batches. A failure names the two variables that replay it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::usage::USAGE;

/// Default number of power losses.
const COUNT: u64 = 1_000_000;

/// The crates that have such a test: the name on the command line, the package, and the test.
const CRATES: [(&str, &str, &str); 3] = [
    ("log", "settee-log", "acknowledged_batches_survive_power_loss_kills_and_errors"),
    ("store", "settee-store", "what_was_shown_survives_power_loss_kills_and_errors"),
    ("doc", "settee-doc", "what_is_acknowledged_survives_power_loss"),
];

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    count: u64,
    /// The first of consecutive seeds.
    seed: u64,
    /// Index in [`CRATES`].
    tested: usize,
}

/// Runs the test until the number of power losses is reached, or one loses acknowledged data.
///
/// # Errors
/// A description of wrong arguments; an empty message if the test failed, which has printed the reason.
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
            return Err(format!("{} needs a value\n{USAGE}", pair[0]));
        };
        if name == "--crate" {
            let found = CRATES.iter().position(|(short, package, _)| [*short, *package].contains(&value));
            let unknown = || format!("no crate {value:?} has such a test\n{USAGE}");
            options.tested = found.ok_or_else(unknown)?;
            continue;
        }
        let number = value.parse().map_err(|_| format!("{name} {value:?} isn't a number\n{USAGE}"))?;
        match name {
            "--count" => options.count = number,
            "--seed" => options.seed = number,
            _ => return Err(format!("unknown option {name:?}\n{USAGE}")),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_optional_and_in_any_order() {
        assert_eq!(options(&[]), Ok(Options { count: COUNT, seed: 0, tested: 0 }));
        assert_eq!(options(&["--seed", "7"]), Ok(Options { count: COUNT, seed: 7, tested: 0 }));
        let both = ["--seed", "7", "--crate", "store", "--count", "5"];
        assert_eq!(options(&both), Ok(Options { count: 5, seed: 7, tested: 1 }));
        let wrong: [&[&str]; 5] =
            [&["--count"], &["--count", "many"], &["--seeds", "7"], &["7"], &["--crate", "none"]];
        for wrong in wrong {
            assert!(options(wrong).is_err_and(|problem| problem.contains(USAGE)), "{wrong:?}");
        }
    }

    #[test]
    fn the_tests_that_it_runs_exist() {
        let root = crate::root().unwrap();
        for (_, package, test) in CRATES {
            let path = root.join("crates").join(package).join("tests/suite/power_loss.rs");
            assert!(std::fs::read_to_string(path).unwrap().contains(&format!("fn {test}()")), "{package}");
        }
    }
}
