//! The project's commands. `cargo xtask test` must pass before a change is merged.
//!
//! `test` runs named steps in order, each a process group with a time limit (`steps`). `tidy` is the first of
//! them and checks the rules that no compiler checks (`tidy`). `crashes` simulates a given number of power
//! losses (`crashes`), `fuzz` runs a given number of inputs (`fuzz`).

use std::path::PathBuf;
use std::process::ExitCode;

mod circles;
mod crashes;
mod fuzz;
mod steps;
mod tidy;
mod usage;

use usage::USAGE;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["tidy"] => root().and_then(|root| tidy::run(&root)),
        ["circles"] => root().and_then(|root| tidy::print_circles(&root)),
        ["test"] => root().and_then(|root| steps::run(&root, None)),
        ["crashes", ref options @ ..] => root().and_then(|root| crashes::run(&root, options)),
        ["fuzz", ref options @ ..] => root().and_then(|root| fuzz::run(&root, options)),
        ["test", "--only", names] => root().and_then(|root| steps::run(&root, Some(names))),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // With an empty message, `steps::run` has printed its table, whose last line must stay the last.
            if !message.is_empty() {
                eprintln!("{message}");
            }
            ExitCode::FAILURE
        }
    }
}

/// The repository's root, determined at run time: two checkouts may share a build directory.
fn root() -> Result<PathBuf, String> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask`")?;
    PathBuf::from(manifest)
        .join("../..")
        .canonicalize()
        .map_err(|error| format!("no repository root: {error}"))
}
