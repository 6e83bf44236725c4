//! The engines with which `settee bench store` compares Settee. A process runs one workload on one engine and
//! prints its results as lines of JSON.
//!
//! This crate isn't part of the workspace, so that RocksDB is built only for measurements. It runs the workloads
//! of the same source as `settee bench store`, and its measurements with them (see [`store`]).
//!
//! ```text
//! cd peers && cargo build --release
//! settee bench store --peers peers/target/release/settee-peers
//! ```

use std::process::ExitCode;

#[path = "../../crates/settee-bench/src/random.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod random;
#[path = "../../crates/settee-bench/src/stats.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod stats;
mod store;

const USAGE: &str = "usage: settee-peers fjall|lmdb|redb|rocksdb store DIRECTORY SPEC

  DIRECTORY  may exist; it is not removed
  SPEC       as settee bench store writes it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [engine, "store", directory, spec] = arguments[..] else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    // Without its parent, this process would run on for long without a use. Errors are ignored.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    match store::run(engine, directory.as_ref(), spec, print) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("settee-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a message at once, since the parent waits for it.
fn print(message: store::work::Message) {
    println!("{}", serde_json::to_string(&message).expect("a message is plain data"));
}
