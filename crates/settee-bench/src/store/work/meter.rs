//! Resources used by a process: time, memory, bytes of files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use super::data::Source;
use super::engine::Failure;
use super::message::Report;
use crate::stats::{Samples, Stopwatch, proc_field};

/// The counters of the process before the engine was opened.
#[derive(Debug)]
pub(crate) struct Baseline {
    resident: u64,
    anonymous: u64,
    written: u64,
    opening: Instant,
    open_seconds: f64,
}

impl Baseline {
    pub(crate) fn new() -> Baseline {
        // Created first, so that the source doesn't count as the engine's memory.
        let _made = Source::get();
        Baseline {
            resident: status("VmHWM:"),
            anonymous: status("RssAnon:"),
            written: counter("write_bytes:"),
            opening: Instant::now(),
            open_seconds: 0.0,
        }
    }

    /// Records the duration of the opening, which has finished.
    pub(crate) fn opened(mut self) -> Baseline {
        self.open_seconds = self.opening.elapsed().as_secs_f64();
        self
    }

    pub(crate) fn finish(&self, report: &mut Report, directory: &Path) -> Result<(), Failure> {
        report.open_seconds = self.open_seconds;
        report.peak_bytes = status("VmHWM:").saturating_sub(self.resident);
        report.anonymous_bytes = status("RssAnon:").saturating_sub(self.anonymous);
        report.written_bytes_in_all = counter("write_bytes:") - self.written;
        report.disk_bytes = disk_bytes(directory)?;
        Ok(())
    }
}

/// Measures the time and the counters of a part of a run.
pub(crate) struct Meter {
    written: u64,
    fetched: u64,
    device: Option<(u32, u32)>,
    device_reads: u64,
    stopwatch: Stopwatch,
}

impl Meter {
    pub(crate) fn start() -> Meter {
        Meter::of_device(None)
    }

    /// Also counts the reads of the directory's device, by all processes.
    pub(crate) fn with_reads(directory: &Path) -> Meter {
        Meter::of_device(device(directory))
    }

    fn of_device(device: Option<(u32, u32)>) -> Meter {
        Meter {
            device,
            device_reads: device_reads(device),
            written: counter("write_bytes:"),
            fetched: counter("read_bytes:"),
            stopwatch: Stopwatch::start(None),
        }
    }

    /// The report of `operations` of `bytes` in all, with the latencies that were measured.
    pub(crate) fn end(&self, operations: u64, bytes: u64, latencies: &Samples) -> Report {
        let elapsed = self.stopwatch.read();
        let percentiles = latencies.percentiles([0.5, 0.99]);
        Report {
            operations,
            bytes,
            seconds: elapsed.wall.as_secs_f64(),
            cpu_seconds: elapsed.client_cpu.as_secs_f64(),
            p50_us: percentiles.map(|[p50, _]| p50),
            p99_us: percentiles.map(|[_, p99]| p99),
            written_bytes: counter("write_bytes:") - self.written,
            fetched_bytes: counter("read_bytes:") - self.fetched,
            device_reads: device_reads(self.device) - self.device_reads,
            ..Report::default()
        }
    }
}

/// A counter of `/proc/self/io` (proc(5)). 0 if the system doesn't report it.
fn counter(name: &str) -> u64 {
    proc_field("/proc/self/io", name).unwrap_or(0)
}

/// A size in `/proc/self/status` (proc(5)), in bytes. 0 if the system doesn't report it.
fn status(name: &str) -> u64 {
    proc_field("/proc/self/status", name).unwrap_or(0) << 10
}

/// The numbers of the device that a directory is on.
fn device(directory: &Path) -> Option<(u32, u32)> {
    let number = fs::metadata(directory).ok()?.dev();
    Some((rustix::fs::major(number), rustix::fs::minor(number)))
}

/// Number of reads that a device has completed, from `/proc/diskstats`
/// (Documentation/admin-guide/iostats.rst in Linux's source). 0 if the system doesn't report it.
fn device_reads(device: Option<(u32, u32)>) -> u64 {
    let Some((major, minor)) = device else { return 0 };
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let count = text.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let is_it = fields.next()?.parse() == Ok(major) && fields.next()?.parse() == Ok(minor);
        is_it.then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    count.unwrap_or(0)
}

/// Bytes that the files below a directory take on disk. Files that are removed meanwhile don't count.
pub(crate) fn disk_bytes(directory: &Path) -> Result<u64, Failure> {
    let mut sum = 0;
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(directory) else { continue };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => directories.push(entry.path()),
                Ok(metadata) => sum += metadata.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    Ok(sum)
}
