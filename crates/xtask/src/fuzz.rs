//! `cargo xtask fuzz`: a given number of inputs for the parsers of untrusted bytes.
//!
//! Runs the fuzz targets in the release profile with a given number of inputs; `cargo test` runs some
//! thousand inputs each. Each target prints its statistics; a failure names the seed that replays it and
//! shows the input. Whole requests pass through a server and cost a hundred times as much as an input of a
//! parser, so their number is a hundredth.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::usage::USAGE;

/// Default number of inputs of all targets together.
const COUNT: u64 = 20_000_000;

/// The crates' parsers. Each is a test of the crate's module `fuzz`, in `tests/fuzz/mod.rs`.
const PARSERS: [(&str, &[&str]); 2] = [
    ("settee-doc", &["document", "revision", "sequence", "selector", "raw", "stored"]),
    ("settee-http", &["uri", "header", "ranges", "multipart", "gzip", "body"]),
];

/// The target of whole requests, a test of `settee-http/tests/api/fuzz.rs`.
const REQUESTS: &str = "requests";

/// Divisor of another target's number of inputs for that of whole requests.
const REQUESTS_SHARE: u64 = 100;

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    count: u64,
    /// The first of consecutive seeds.
    seed: u64,
    /// The only target. None: all targets.
    target: Option<String>,
}

/// Runs the targets until the number of inputs is reached, or a property doesn't hold.
///
/// # Errors
/// A description of wrong arguments; an empty message if a target failed, which has printed the reason.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let Options { count, seed, target } = options(arguments)?;
    let wants = |name: &str| target.as_deref().is_none_or(|wanted| wanted == name);
    let parsers = PARSERS.iter().flat_map(|(_, names)| *names).filter(|name| wants(name)).count() as u64;
    // Rounded up, so that all targets together have at least `count` inputs.
    let share = if parsers > 0 { count.div_ceil(parsers) } else { count };
    for (package, names) in PARSERS {
        let names: Vec<String> =
            names.iter().filter(|name| wants(name)).map(|name| format!("fuzz::{name}")).collect();
        if !names.is_empty() {
            let arguments = ["-p", package, "--lib", "--"].map(str::to_owned);
            test(root, arguments.into_iter().chain(names), share, seed)?;
        }
    }
    if wants(REQUESTS) {
        let count = if target.is_some() { count } else { share.div_ceil(REQUESTS_SHARE) };
        let arguments = ["-p", "settee-http", "--test", "api", "--"].map(str::to_owned);
        test(root, arguments.into_iter().chain([format!("fuzz::{REQUESTS}")]), count, seed)?;
    }
    Ok(())
}

fn test(root: &Path, arguments: impl Iterator<Item = String>, count: u64, seed: u64) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(&cargo)
        .args(["test", "--release", "--locked"])
        .args(arguments)
        .args(["--exact", "--nocapture"])
        .env("SETTEE_FUZZ", count.to_string())
        .env("SETTEE_SEED_FIRST", seed.to_string())
        .env_remove("SETTEE_SEED")
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot start {cargo:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(String::new()) }
}

fn options(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options { count: COUNT, seed: 0, target: None };
    for pair in arguments.chunks(2) {
        let [name, value] = *pair else {
            return Err(format!("{} needs a value\n{USAGE}", pair[0]));
        };
        let number = || value.parse().map_err(|_| format!("{name} {value:?} isn't a number\n{USAGE}"));
        match name {
            "--count" => options.count = number()?,
            "--seed" => options.seed = number()?,
            "--target" => {
                let known: Vec<&str> =
                    PARSERS.iter().flat_map(|(_, names)| *names).copied().chain([REQUESTS]).collect();
                if !known.contains(&value) {
                    return Err(format!("unknown target {value:?}; known: {}", known.join(", ")));
                }
                options.target = Some(value.to_owned());
            }
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
        assert_eq!(options(&[]), Ok(Options { count: COUNT, seed: 0, target: None }));
        let all = ["--seed", "7", "--target", "raw", "--count", "5"];
        assert_eq!(options(&all), Ok(Options { count: 5, seed: 7, target: Some("raw".to_owned()) }));
        let wrong: [&[&str]; 4] = [&["--count"], &["--count", "many"], &["--seeds", "7"], &["--target", "x"]];
        for wrong in wrong {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_targets_that_it_runs_exist() {
        let root = crate::root().unwrap();
        let has = |path: String, name: &str| {
            let text = std::fs::read_to_string(root.join("crates").join(path)).unwrap();
            assert!(text.contains(&format!("\nfn {name}()")), "{name}");
        };
        for (package, names) in PARSERS {
            names.iter().for_each(|name| has(format!("{package}/tests/fuzz/mod.rs"), name));
        }
        has("settee-http/tests/api/fuzz.rs".to_owned(), REQUESTS);
    }
}
