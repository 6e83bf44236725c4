//! Other engines: the binary of the `peers` crate, a process for each run.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::{Error, Result};

/// The engines, as the binary knows them.
pub(super) const ENGINES: [&str; 2] = ["fjall", "rocksdb"];

/// Most characters of a program's words that an error shows.
const MESSAGE_LENGTH_MAX: usize = 500;

/// What a peer tells of its run.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct PeerRun {
    pub bytes: u64,
    pub seconds: f64,
    /// The median latency, where each operation was timed.
    pub p50_us: Option<f64>,
    /// How it is set up, in words.
    pub setup: String,
}

impl PeerRun {
    /// MB/s of values.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds.max(1e-9)
    }
}

/// Runs `workload` on `engine` in a directory within `directory`, which is gone afterwards.
///
/// # Errors
/// [`Error::Wrong`] with what the program said.
pub(super) fn run(
    program: &Path,
    engine: &str,
    workload: &str,
    directory: &Path,
    amount: usize,
) -> Result<PeerRun> {
    let directory = directory.join(format!("peer-{engine}"));
    let arguments = [OsStr::new(engine), OsStr::new(workload), directory.as_os_str()];
    let text = output(Command::new(program).args(arguments).arg(amount.to_string()));
    // It isn't there where the peer failed before it made it.
    let _ = std::fs::remove_dir_all(&directory);
    let told = text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    told.map_err(|said| Error::wrong(&format!("{engine} {workload}"), said))
}

/// What it printed, or what went wrong in its words.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().chars().take(MESSAGE_LENGTH_MAX).collect();
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said: String = said(&output.stderr);
            Err(format!("{}: {said}", output.status))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_fails_is_an_error_with_what_it_said() {
        let directory = tempfile::tempdir().unwrap();
        let error = run(Path::new("false"), "fjall", "durable", directory.path(), 1).unwrap_err();
        assert!(error.to_string().contains("fjall durable: exit status: 1"), "{error}");
        let error = run(Path::new("echo"), "fjall", "durable", directory.path(), 1).unwrap_err();
        assert!(error.to_string().contains("expected"), "{error}");
        assert!(run(&directory.path().join("none"), "fjall", "durable", directory.path(), 1).is_err());
    }

    #[test]
    fn what_a_peer_tells_is_read() {
        let told = r#"{"engine": "fjall", "operations": 3, "bytes": 3000000, "seconds": 2.0, "p50_us": null,
            "p99_us": null, "setup": "as it comes"}"#;
        let run: PeerRun = serde_json::from_str(told).unwrap();
        assert_eq!((run.rate(), run.p50_us, &*run.setup), (1.5, None, "as it comes"));
    }
}
