//! Other engines: the binary of the `peers` crate, which runs once per workload and round.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::{Error, Result};

/// The engines, by the binary's names.
pub(super) const ENGINES: [&str; 2] = ["fjall", "rocksdb"];

/// Maximum characters of a program's error output that an error shows.
const MESSAGE_LENGTH_MAX: usize = 500;

/// A peer's report on its run.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct PeerRun {
    pub bytes: u64,
    pub seconds: f64,
    /// The median latency, if each operation was timed.
    pub p50_us: Option<f64>,
    /// A description of its configuration.
    pub setup: String,
}

impl PeerRun {
    /// MB/s of values.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds.max(1e-9)
    }
}

/// Runs `workload` on `engine` in a directory within `directory`, which is removed afterwards.
///
/// # Errors
/// [`Error::Wrong`] with the program's error output.
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
    // It doesn't exist if the peer failed before creating it.
    let _ = std::fs::remove_dir_all(&directory);
    let report = text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    report.map_err(|reason| Error::wrong(&format!("{engine} {workload}"), reason))
}

/// Runs a command and returns its output.
///
/// # Errors
/// The command's error output, or the reason why it didn't start.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text: String = text.trim().chars().take(MESSAGE_LENGTH_MAX).collect();
    Err(format!("{}: {text}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_peer_is_an_error_with_its_status() {
        let directory = tempfile::tempdir().unwrap();
        let error = run(Path::new("false"), "fjall", "durable", directory.path(), 1).unwrap_err();
        assert!(error.to_string().contains("fjall durable: exit status: 1"), "{error}");
        let error = run(Path::new("echo"), "fjall", "durable", directory.path(), 1).unwrap_err();
        assert!(error.to_string().contains("expected"), "{error}");
        assert!(run(&directory.path().join("none"), "fjall", "durable", directory.path(), 1).is_err());
    }

    #[test]
    fn a_peers_report_is_parsed() {
        let report = r#"{"engine": "fjall", "operations": 3, "bytes": 3000000, "seconds": 2.0, "p50_us": null,
            "p99_us": null, "setup": "as it comes"}"#;
        let run: PeerRun = serde_json::from_str(report).unwrap();
        assert_eq!((run.rate(), run.p50_us, &*run.setup), (1.5, None, "as it comes"));
    }
}
