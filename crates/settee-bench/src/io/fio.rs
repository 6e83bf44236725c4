//! The peer `fio`, if it is installed.
//!
//! It runs on the same file in the same round, in a separate process, with io_uring and past the page cache.
//! Its report is used unchanged; if it fails, there is no figure.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::rounds::Window;
use crate::stats::{Elapsed, Samples};

/// Maximum characters of its error output that an error shows.
const MESSAGE_LENGTH_MAX: usize = 200;

/// An installed `fio`.
#[derive(Debug, Clone)]
pub(crate) struct Fio {
    /// The output of `fio --version`.
    pub(crate) version: String,
}

impl Fio {
    /// Finds `fio` on the path.
    pub(crate) fn find() -> Option<Fio> {
        let output = Command::new("fio").arg("--version").stderr(Stdio::null()).output().ok()?;
        let version = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !version.is_empty()).then_some(Fio { version })
    }

    /// Reads random 4 KiB blocks of the first `bytes` of `file`, with `depth` reads in flight.
    ///
    /// # Errors
    /// The reason, or fio's error output.
    pub(crate) fn random_reads(
        &self,
        file: &Path,
        bytes: u64,
        depth: usize,
        duration: Duration,
    ) -> Result<Window, String> {
        let arguments = random_read_arguments(depth, duration);
        self.run(&[file.to_owned()], Some(bytes), &arguments, "read")
    }

    /// Reads random 4 KiB blocks of whole files, with `depth` reads in flight.
    ///
    /// # Errors
    /// Those of [`Fio::random_reads`].
    pub(crate) fn random_reads_of(
        &self,
        files: &[PathBuf],
        depth: usize,
        duration: Duration,
    ) -> Result<Window, String> {
        let arguments = random_read_arguments(depth, duration);
        self.run(files, None, &arguments, "read")
    }

    /// Writes `bytes` to `file` in order, in writes of 1 MiB, `depth` in flight, and syncs it once.
    ///
    /// # Errors
    /// The reason, or fio's error output.
    pub(crate) fn sequential_writes(&self, file: &Path, bytes: u64, depth: usize) -> Result<Window, String> {
        let arguments = [
            "--rw=write".to_owned(),
            "--bs=1m".to_owned(),
            format!("--iodepth={depth}"),
            "--fallocate=none".to_owned(),
            "--end_fsync=1".to_owned(),
        ];
        let mut window = self.run(&[file.to_owned()], Some(bytes), &arguments, "write")?;
        window.units = bytes as f64 / 1e6;
        Ok(window)
    }

    /// Runs a job on the first `bytes` of files. `None`: on whole files.
    fn run(
        &self,
        files: &[PathBuf],
        bytes: Option<u64>,
        arguments: &[String],
        kind: &str,
    ) -> Result<Window, String> {
        // In fio a colon separates file names.
        let name = |file: &PathBuf| Some(file.to_str()?.replace(':', "\\:"));
        let names: Option<Vec<String>> = files.iter().map(name).collect();
        let names = names.ok_or("a file's name is not UTF-8")?.join(":");
        let output = Command::new("fio")
            .args(["--name=peer", "--ioengine=io_uring", "--direct=1", "--output-format=json"])
            .args(["--allow_file_create=0", &format!("--filename={names}")])
            .args(bytes.map(|bytes| format!("--size={bytes}")))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("fio: {error}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let text: String = text.trim().chars().take(MESSAGE_LENGTH_MAX).collect();
            return Err(format!("fio: {}: {text}", output.status));
        }
        parse(&output.stdout, kind).ok_or_else(|| "fio: its report isn't as expected".to_owned())
    }
}

fn random_read_arguments(depth: usize, duration: Duration) -> [String; 6] {
    [
        "--readonly".to_owned(),
        "--rw=randread".to_owned(),
        "--bs=4k".to_owned(),
        format!("--iodepth={depth}"),
        "--time_based".to_owned(),
        format!("--runtime={}ms", duration.as_millis().max(1)),
    ]
}

/// The window of the only job in fio's report.
fn parse(report: &[u8], kind: &str) -> Option<Window> {
    // Warnings may precede the report.
    let start = report.iter().position(|&byte| byte == b'{')?;
    let report: Value = serde_json::from_slice(&report[start..]).ok()?;
    let job = report["jobs"].get(0)?;
    if job["error"].as_i64()? != 0 {
        return None;
    }
    let side = &job[kind];
    let wall_ms = side["runtime"].as_f64()?;
    let busy = (job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?) / 100.0;
    let percentile = |name: &str| Some(side["clat_ns"]["percentile"][name].as_f64()? / 1e3);
    let percentiles = percentile("50.000000").zip(percentile("99.000000"));
    let operations = side["total_ios"].as_u64()?;
    let milliseconds = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    let elapsed = Elapsed {
        wall: milliseconds(wall_ms),
        client_cpu: milliseconds(job["job_runtime"].as_f64().unwrap_or(0.0) * busy),
        server_cpu: None,
        switches: job["ctx"].as_u64(),
    };
    let window = Window::new(operations, Samples::default(), elapsed);
    (operations > 0 && wall_ms > 0.0)
        .then(|| Window { percentiles: percentiles.map(|(p50, p99)| [p50, p99]), ..window })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_parsed_after_warnings() {
        let report = r#"fio: a warning
            {"jobs": [{"error": 0, "job_runtime": 2000, "usr_cpu": 10.0, "sys_cpu": 15.0, "ctx": 500,
              "read": {"total_ios": 1000, "runtime": 2000,
                "clat_ns": {"max": 9000, "percentile": {"50.000000": 4000, "99.000000": 8000}}}}]}"#;
        let window = parse(report.as_bytes(), "read").unwrap();
        assert_eq!((window.operations, window.rate(), window.elapsed.switches), (1000, 500.0, Some(500)));
        assert_eq!(window.elapsed.client_cpu, Duration::from_millis(500));
        assert_eq!(window.percentiles, Some([4.0, 8.0]));
    }

    #[test]
    fn a_report_of_a_failed_or_empty_job_gives_no_figure() {
        for report in [
            r#"{"jobs": [{"error": 5, "usr_cpu": 0, "sys_cpu": 0, "read": {"total_ios": 9, "runtime": 9}}]}"#,
            r#"{"jobs": [{"error": 0, "usr_cpu": 0, "sys_cpu": 0, "read": {"total_ios": 0, "runtime": 9}}]}"#,
            r#"{"jobs": []}"#,
            "no report",
        ] {
            assert!(parse(report.as_bytes(), "read").is_none(), "{report}");
        }
    }
}
