//! Process metrics under the names that Prometheus clients use.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::series::{counter, gauge};

/// Collects the process's figures at each scrape. Figures that the system doesn't provide are left out.
#[derive(Debug)]
pub(super) struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut encoder;
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if let Some(usage) = Usage::parse(&stat) {
            let seconds = usage.cpu_ticks as f64 / clock_ticks_per_second() as f64;
            counter(out, "process_cpu_seconds", "Processor time, of user and system, in seconds", seconds)?;
            let resident_bytes = usage.resident_pages * page_size() as u64;
            gauge(out, "process_resident_memory_bytes", "Resident memory in bytes", resident_bytes)?;
            gauge(out, "process_virtual_memory_bytes", "Virtual memory in bytes", usage.virtual_bytes)?;
            gauge(out, "process_threads", "Threads", usage.thread_count)?;
        }
        if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
            // One of them is that of the directory.
            let count = descriptors.count().saturating_sub(1);
            gauge(out, "process_open_fds", "Open file descriptors", count as u64)?;
        }
        let descriptors_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        gauge(out, "process_max_fds", "Maximum number of open file descriptors", descriptors_max)
    }
}

/// Fields of /proc/self/stat.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    cpu_ticks: u64,
    thread_count: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Usage {
    /// Parses the fields after the program's name, which may contain any characters.
    ///
    /// Source: proc_pid_stat(5). The first field after the name is number 3.
    fn parse(stat: &str) -> Option<Usage> {
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Usage {
            cpu_ticks: field(14)? + field(15)?,
            thread_count: field(20)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 8000 1048576 300 18446744073709551615";
        let usage = Usage { cpu_ticks: 300, thread_count: 9, virtual_bytes: 1_048_576, resident_pages: 300 };
        assert_eq!(Usage::parse(stat), Some(usage));
        assert_eq!(Usage::parse("7 (a) S 1"), None);
    }
}
