//! `cargo xtask fuzz`: as many inputs as one has time for, for all that parses other people's bytes.
//!
//! Runs the fuzz targets, which every `cargo test` runs with some thousand inputs each, in the release
//! profile and with a number of one's own. Each prints what it did; a failure names the seed that replays
//! it and shows the input. Whole requests go through a server and cost a hundred times as much as what is
//! parsed by itself: they get a hundredth.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Executions of all targets together, unless told otherwise.
const COUNT: u64 = 20_000_000;

/// Of a crate's own parsers, each is a test of its module `fuzz` in `tests/fuzz/mod.rs`.
const PARSERS: [(&str, &[&str]); 2] = [
    ("settee-doc", &["document", "revision", "sequence", "selector", "raw", "stored"]),
    ("settee-http", &["uri", "header", "ranges", "multipart", "gzip", "body"]),
];

/// Whole requests: a test of `settee-http/tests/api/fuzz.rs`.
const REQUESTS: &str = "requests";

/// Whole requests are one in so many of another target's executions.
const REQUESTS_SHARE: u64 = 100;

/// What the command line says.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    count: u64,
    /// The first seed; those after it follow.
    seed: u64,
    /// The only target.
    target: Option<String>,
}

/// Gives the targets their inputs until there are enough, or a property doesn't hold.
///
/// # Errors
/// What is wrong with the arguments; an empty message where a target failed, which has said why.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let Options { count, seed, target } = options(arguments)?;
    let wants = |name: &str| target.as_deref().is_none_or(|wanted| wanted == name);
    let parsers = PARSERS.iter().flat_map(|(_, names)| *names).filter(|name| wants(name)).count() as u64;
    // Rounded up, so that all together are not fewer than were asked for.
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
            return Err(format!("{} wants a value\n{}", pair[0], crate::USAGE));
        };
        let number = || value.parse().map_err(|_| format!("{name} {value:?} is no number\n{}", crate::USAGE));
        match name {
            "--count" => options.count = number()?,
            "--seed" => options.seed = number()?,
            "--target" => {
                let known: Vec<&str> =
                    PARSERS.iter().flat_map(|(_, names)| *names).copied().chain([REQUESTS]).collect();
                if !known.contains(&value) {
                    return Err(format!("no target {value:?}; there are {}", known.join(", ")));
                }
                options.target = Some(value.to_owned());
            }
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
        assert_eq!(options(&[]), Ok(Options { count: COUNT, seed: 0, target: None }));
        let all = ["--seed", "7", "--target", "raw", "--count", "5"];
        assert_eq!(options(&all), Ok(Options { count: 5, seed: 7, target: Some("raw".to_owned()) }));
        let wrong: [&[&str]; 4] = [&["--count"], &["--count", "many"], &["--seeds", "7"], &["--target", "x"]];
        for wrong in wrong {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_targets_that_it_runs_are_there() {
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
