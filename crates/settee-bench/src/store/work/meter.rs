//! Resources used by a process: time, memory, bytes of files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::data::Source;
use super::engine::Failure;
use super::message::Report;

/// Maximum number of latencies that one lane keeps. Later ones count only for the rate.
const LATENCY_COUNT_MAX: usize = 4 << 20;

/// Latencies in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies(Vec<u32>);

impl Latencies {
    pub(crate) fn push(&mut self, time: Duration) {
        if self.0.len() < LATENCY_COUNT_MAX {
            self.0.push(u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
        }
    }

    pub(crate) fn append(&mut self, mut other: Latencies) {
        self.0.append(&mut other.0);
    }

    /// Number of latencies.
    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Median and 99th percentile in microseconds. None if there is no latency.
    pub(crate) fn percentiles(&mut self) -> (Option<f64>, Option<f64>) {
        self.0.sort_unstable();
        let at = |share: f64| {
            let rank = (share * self.0.len() as f64).ceil() as usize;
            self.0.get(rank.saturating_sub(1)).map(|&nanoseconds| f64::from(nanoseconds) / 1e3)
        };
        (at(0.5), at(0.99))
    }
}

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
    start: Instant,
    cpu: f64,
    written: u64,
    fetched: u64,
    device: Option<(u32, u32)>,
    device_reads: u64,
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
            cpu: cpu_seconds(),
            start: Instant::now(),
        }
    }

    pub(crate) fn end(&self) -> Report {
        Report {
            seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() - self.cpu,
            written_bytes: counter("write_bytes:") - self.written,
            fetched_bytes: counter("read_bytes:") - self.fetched,
            device_reads: device_reads(self.device) - self.device_reads,
            ..Report::default()
        }
    }
}

/// Processor time of all threads (clock_gettime(2)).
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A counter of `/proc/self/io` (proc(5)). 0 if the system doesn't report it.
fn counter(name: &str) -> u64 {
    field("/proc/self/io", name)
}

/// A size in `/proc/self/status` (proc(5)), in bytes. 0 if the system doesn't report it.
fn status(name: &str) -> u64 {
    field("/proc/self/status", name) << 10
}

fn field(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    value.split_ascii_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentiles(), (None, None));
        (1..=200).rev().for_each(|us| latencies.push(Duration::from_micros(us)));
        assert_eq!(latencies.percentiles(), (Some(100.0), Some(198.0)));
    }

    #[test]
    fn the_system_reports_memory_and_processor_time() {
        assert!(status("VmHWM:") > 1 << 20);
        assert!(cpu_seconds() > 0.0);
    }
}
