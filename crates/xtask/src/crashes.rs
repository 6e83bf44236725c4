//! `cargo xtask crashes`: as many power losses as one has time for.
//!
//! Runs the log's test of power losses, which every `cargo test` runs with some ten thousand of
//! them, in the release profile and with a number of one's own. What it prints last is how many
//! were tried and how many batches were lost; a failure names the two variables that replay it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Power losses, unless told otherwise.
const COUNT: u64 = 1_000_000;

/// The test, and the crate's test program that it is in.
const PROGRAM: &str = "test --release --locked -p settee-log --test power_loss";
const TEST: &str = "acknowledged_batches_survive_power_loss_kills_and_errors";

/// What the command line says.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    count: u64,
    /// The first seed; those after it follow.
    seed: u64,
}

/// Tries power losses until there are enough, or one loses something.
///
/// # Errors
/// What is wrong with the arguments; an empty message where the test failed, which has said why.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let Options { count, seed } = options(arguments)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(&cargo)
        .args(PROGRAM.split_whitespace())
        .args(["--", "--exact", TEST, "--nocapture"])
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
    let mut options = Options { count: COUNT, seed: 0 };
    for pair in arguments.chunks(2) {
        let [name, value] = *pair else {
            return Err(format!("{} wants a number\n{}", pair[0], crate::USAGE));
        };
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
    fn both_options_can_be_left_out_and_come_in_any_order() {
        assert_eq!(options(&[]), Ok(Options { count: COUNT, seed: 0 }));
        assert_eq!(options(&["--seed", "7"]), Ok(Options { count: COUNT, seed: 7 }));
        assert_eq!(options(&["--seed", "7", "--count", "5"]), Ok(Options { count: 5, seed: 7 }));
        for wrong in [&["--count"][..], &["--count", "many"], &["--seeds", "7"], &["7"]] {
            assert!(options(wrong).is_err_and(|problem| problem.contains(crate::USAGE)), "{wrong:?}");
        }
    }

    #[test]
    fn the_test_that_it_runs_is_there() {
        let root = crate::root().unwrap();
        let text = std::fs::read_to_string(root.join("crates/settee-log/tests/power_loss.rs")).unwrap();
        assert!(text.contains(&format!("fn {TEST}()")));
    }
}
