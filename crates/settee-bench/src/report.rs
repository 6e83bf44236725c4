//! Rows of measurements, as a table for people and as JSON lines for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::stats::{Elapsed, Samples};

/// A figure measured elsewhere, to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Recorded {
    /// Operations a second.
    pub rate: f64,
    /// Median and 99th percentile of the latency in milliseconds, where they were kept.
    pub p50_p99_ms: Option<(f64, f64)>,
    /// The server's processor time for an operation in microseconds.
    pub cpu_us: f64,
}

/// One workload's result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was done, in words: sizes, clients and batches where they aren't the table's own.
    pub workload: String,
    /// What is counted: `docs`, `rows`, `requests`.
    pub unit: &'static str,
    /// How many of them.
    pub operations: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Operations a second.
    pub rate: f64,
    /// Median latency of a request in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency of a request in milliseconds.
    pub p99_ms: Option<f64>,
    /// This process's processor time for an operation in microseconds.
    pub client_cpu_us: f64,
    /// The server's processor time for an operation in microseconds.
    pub server_cpu_us: Option<f64>,
    /// What CouchDB reached, recorded on another day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// This rate over the recorded one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_ratio: Option<f64>,
    /// The recorded processor time of an operation over the server's here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ratio: Option<f64>,
    /// What was reached of what the machine allows, as measured in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_ratio: Option<f64>,
    /// How that limit is made up, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Row {
    /// A row from what was counted and timed.
    pub fn new(
        workload: impl Into<String>,
        unit: &'static str,
        operations: u64,
        elapsed: &Elapsed,
        latencies: &Samples,
    ) -> Row {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / operations.max(1) as f64;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let percentiles = latencies.percentiles([0.5, 0.99]).map(|both| both.map(milliseconds));
        let seconds = elapsed.wall.as_secs_f64();
        Row {
            workload: workload.into(),
            unit,
            operations,
            seconds,
            rate: if seconds > 0.0 { operations as f64 / seconds } else { 0.0 },
            p50_ms: percentiles.map(|both| both[0]),
            p99_ms: percentiles.map(|both| both[1]),
            client_cpu_us: each(elapsed.client_cpu),
            server_cpu_us: elapsed.server_cpu.map(each),
            recorded: None,
            rate_ratio: None,
            cpu_ratio: None,
            limit_ratio: None,
            note: None,
        }
    }

    /// The row compared with a recorded figure.
    pub fn against(mut self, recorded: Option<Recorded>) -> Row {
        self.recorded = recorded;
        self.rate_ratio = recorded.map(|recorded| self.rate / recorded.rate);
        self.cpu_ratio = match (recorded, self.server_cpu_us) {
            (Some(recorded), Some(cpu_us)) if cpu_us > 0.0 => Some(recorded.cpu_us / cpu_us),
            _ => None,
        };
        self
    }

    /// The row compared with a limit of the machine.
    pub fn with_limit(mut self, ratio: f64, note: String) -> Row {
        self.limit_ratio = Some(ratio);
        self.note = Some(note);
        self
    }

    /// The row as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }
}

/// Width of the column of workloads, in characters.
const WORKLOAD_WIDTH: usize = 58;

/// The table's heading. `compared` adds the columns of recorded figures.
pub fn heading(compared: bool) -> String {
    let mut line = format!(
        "{:<WORKLOAD_WIDTH$} {:>10} {:<10} {:>17} {:>9} {:>9}",
        "workload", "rate", "", "p50/p99 ms", "CPU µs", "client"
    );
    if compared {
        write!(line, " | {:>9} {:>7} {:>6} {:>6}", "recorded", "CPU µs", "rate ×", "CPU ×")
            .expect("writing to memory");
    }
    line
}

/// One line of the table.
pub fn line(row: &Row, compared: bool) -> String {
    let latency = match (row.p50_ms, row.p99_ms) {
        (Some(p50), Some(p99)) => format!("{} / {}", figure(p50), figure(p99)),
        _ => "–".to_owned(),
    };
    let optional = |value: Option<f64>| value.map_or("–".to_owned(), figure);
    let mut line = format!(
        "{:<WORKLOAD_WIDTH$} {:>10} {:<10} {:>17} {:>9} {:>9}",
        row.workload,
        figure(row.rate),
        format!("{}/s", row.unit),
        latency,
        optional(row.server_cpu_us),
        figure(row.client_cpu_us),
    );
    if compared {
        let (rate, cpu) =
            (row.recorded.map(|recorded| recorded.rate), row.recorded.map(|recorded| recorded.cpu_us));
        write!(
            line,
            " | {:>9} {:>7} {:>6} {:>6}",
            optional(rate),
            optional(cpu),
            optional(row.rate_ratio),
            optional(row.cpu_ratio)
        )
        .expect("writing to memory");
    }
    line
}

/// A number with three significant digits, or all before the point, in groups of three.
fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        magnitude if magnitude >= 99.95 => 0,
        magnitude if magnitude >= 9.995 => 1,
        magnitude if magnitude >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if decimals > 0 {
        return text;
    }
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let elapsed = Elapsed {
            wall: Duration::from_secs(2),
            client_cpu: Duration::from_millis(10),
            server_cpu: Some(Duration::from_millis(20)),
        };
        let mut latencies = Samples::default();
        latencies.push(Duration::from_micros(1500));
        Row::new("get", "docs", 1000, &elapsed, &latencies)
    }

    #[test]
    fn a_row_divides_by_what_was_done() {
        let row = row().against(Some(Recorded { rate: 50.0, p50_p99_ms: None, cpu_us: 100.0 }));
        assert_eq!((row.rate, row.p50_ms, row.p99_ms), (500.0, Some(1.5), Some(1.5)));
        assert_eq!((row.client_cpu_us, row.server_cpu_us), (10.0, Some(20.0)));
        assert_eq!((row.rate_ratio, row.cpu_ratio), (Some(10.0), Some(5.0)));
    }

    #[test]
    fn a_row_is_one_line_of_json_and_of_the_table() {
        let row = row();
        let parsed: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
        assert_eq!(parsed["rate"], 500.0);
        assert!(parsed.get("recorded").is_none());
        assert_eq!(line(&row, true).chars().count(), heading(true).chars().count());
        assert_eq!(line(&row, false).chars().count(), heading(false).chars().count());
    }

    #[test]
    fn figures_keep_three_digits_and_group_thousands() {
        let cases =
            [(1234567.4, "1,234,567"), (126.4, "126"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012")];
        for (value, text) in cases {
            assert_eq!(figure(value), text);
        }
        assert_eq!(figure(0.0), "0.000");
    }
}
