//! Rows of results, printed as a table or as JSON lines.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::stats::{Elapsed, Samples};

/// Figures recorded of another server, to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Recorded {
    /// Operations per second.
    pub rate: f64,
    /// Median and 99th percentile of the latency in milliseconds, if recorded.
    pub p50_p99_ms: Option<(f64, f64)>,
    /// The server's processor time per operation in microseconds.
    pub cpu_us: f64,
}

/// The machine's limit for a row, measured in the same run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// A description of what was measured.
    pub name: String,
    /// Operations per second.
    pub rate: f64,
    /// Processor time per operation in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<f64>,
    /// The row's rate divided by `rate`.
    pub share: f64,
    /// The row's processor time divided by `cpu_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_multiple: Option<f64>,
}

/// The bound of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A minimum.
    AtLeast(f64),
    /// A maximum.
    AtMost(f64),
}

impl Bound {
    /// Whether `figure` is within the bound.
    pub fn is_met(self, figure: f64) -> bool {
        match self {
            Bound::AtLeast(min) => figure >= min,
            Bound::AtMost(max) => figure <= max,
        }
    }

    /// The bound with its sign, as tables show it.
    pub(crate) fn text(self) -> String {
        match self {
            Bound::AtLeast(min) => format!("≥ {min}"),
            Bound::AtMost(max) => format!("≤ {max}"),
        }
    }
}

/// A bound of one of a row's figures, with the measured figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Aim {
    /// The figure's name.
    pub what: String,
    /// The figure's bound.
    pub bound: Bound,
    /// The measured figure. None: not measured.
    pub reached: Option<f64>,
    /// Whether the figure is within the bound. None: not measured.
    pub met: Option<bool>,
}

impl Aim {
    fn new(what: String, bound: Bound, reached: Option<f64>) -> Aim {
        let met = reached.map(|reached| bound.is_met(reached));
        Aim { what, bound, reached, met }
    }

    fn text(&self) -> String {
        let verdict = match self.met {
            None => "not measured",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        let reached = self.reached.map_or(String::new(), |reached| format!("{} ", figure(reached)));
        format!("{} {}: {reached}{verdict}", self.what, self.bound.text())
    }
}

/// A bound of a figure that several rows share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// Minimum of the rate divided by the recorded one.
    Rate(f64),
    /// Minimum of the recorded processor time divided by the server's.
    Cpu(f64),
    /// Minimum of the rate divided by the limit's.
    Share(f64),
    /// Maximum of the processor time divided by the limit's.
    CpuMultiple(f64),
    /// Maximum of the latency's 99th percentile in milliseconds.
    P99(f64),
}

/// The result of one workload.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The name for `--rows`; empty in tables without that option.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'static str,
    /// A description of the workload: sizes, clients and batches, unless the title has them.
    pub workload: String,
    /// The unit of operations: `docs`, `rows`, `requests`.
    pub unit: &'static str,
    /// Number of operations.
    pub operations: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Operations per second.
    pub rate: f64,
    /// Median latency of a request in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency of a request in milliseconds.
    pub p99_ms: Option<f64>,
    /// This process's processor time per operation in microseconds.
    pub client_cpu_us: f64,
    /// The server's processor time per operation in microseconds, if measured.
    pub server_cpu_us: Option<f64>,
    /// CouchDB's recorded figures, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// The rate divided by the recorded one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_ratio: Option<f64>,
    /// The recorded processor time per operation divided by `server_cpu_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ratio: Option<f64>,
    /// The machine's limit, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// The bounds of figures, with the measured ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aims: Vec<Aim>,
    /// Further remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Row {
    /// Computes a row.
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
            name: "",
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
            limit: None,
            aims: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Sets the name for `--rows`.
    pub(crate) fn named(mut self, name: &'static str) -> Row {
        self.name = name;
        self
    }

    /// Compares the row with recorded figures.
    pub fn against(mut self, recorded: Option<Recorded>) -> Row {
        self.recorded = recorded;
        self.rate_ratio = recorded.map(|recorded| self.rate / recorded.rate);
        self.cpu_ratio = match (recorded, self.server_cpu_us) {
            (Some(recorded), Some(cpu_us)) if cpu_us > 0.0 => Some(recorded.cpu_us / cpu_us),
            _ => None,
        };
        self
    }

    /// Compares the row with a limit of the machine: operations per second, and processor time per operation
    /// in microseconds.
    pub fn with_limit(mut self, name: impl Into<String>, rate: f64, cpu_us: Option<f64>) -> Row {
        let share = if rate > 0.0 { self.rate / rate } else { 0.0 };
        let cpu_multiple = match (self.server_cpu_us, cpu_us) {
            (Some(server), Some(limit)) if limit > 0.0 => Some(server / limit),
            _ => None,
        };
        self.limit = Some(Limit { name: name.into(), rate, cpu_us, share, cpu_multiple });
        self
    }

    /// Adds a note.
    pub fn note(mut self, note: impl Into<String>) -> Row {
        self.notes.push(note.into());
        self
    }

    /// Adds an aim and judges it.
    pub fn aim(mut self, what: impl Into<String>, bound: Bound, reached: Option<f64>) -> Row {
        self.aims.push(Aim::new(what.into(), bound, reached));
        self
    }

    /// Adds an aim for each of `goals` and judges it.
    pub(crate) fn judged(mut self, goals: &[Goal]) -> Row {
        for goal in goals {
            let limit = self.limit.as_ref();
            let (what, bound, reached) = match *goal {
                Goal::Rate(min) => ("rate × recorded", Bound::AtLeast(min), self.rate_ratio),
                Goal::Cpu(min) => ("recorded CPU ×", Bound::AtLeast(min), self.cpu_ratio),
                Goal::Share(min) => ("of the limit", Bound::AtLeast(min), limit.map(|limit| limit.share)),
                Goal::CpuMultiple(max) => {
                    let reached = limit.and_then(|limit| limit.cpu_multiple);
                    ("CPU × the limit's", Bound::AtMost(max), reached)
                }
                Goal::P99(max) => ("p99 ms", Bound::AtMost(max), self.p99_ms),
            };
            self.aims.push(Aim::new(what.to_owned(), bound, reached));
        }
        self
    }

    /// The row as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }
}

/// A row without figures: a response was wrong or missing.
#[derive(Debug, Clone, Serialize)]
pub struct Failed {
    /// The name for `--rows`.
    pub name: &'static str,
    /// A description of the workload.
    pub workload: String,
    /// The reason.
    pub failed: String,
}

impl Failed {
    /// The row as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }

    /// The row as a line of the table.
    pub fn line(&self) -> String {
        format!("{:<WORKLOAD_WIDTH$} FAILED: {}", self.workload, self.failed)
    }
}

/// The outcome of a row.
#[derive(Debug, Clone)]
pub enum Reported {
    /// The row was measured, and every response was right.
    Measured(Box<Row>),
    /// The row failed.
    Failed(Failed),
}

/// Width of the column of workloads, in characters.
const WORKLOAD_WIDTH: usize = 58;

/// The table's heading. `compared` adds the columns of recorded figures and limits.
pub fn heading(compared: bool) -> String {
    let mut line = format!(
        "{:<WORKLOAD_WIDTH$} {:>10} {:<10} {:>17} {:>9} {:>9}",
        "workload", "rate", "", "p50/p99 ms", "CPU µs", "client"
    );
    if compared {
        write!(
            line,
            " | {:>9} {:>7} {:>6} {:>6} | {:>9} {:>7} {:>5} {:>5}",
            "recorded", "CPU µs", "rate ×", "CPU ×", "limit", "CPU µs", "share", "CPU ×"
        )
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
        let recorded = row.recorded.as_ref();
        let limit = row.limit.as_ref();
        write!(
            line,
            " | {:>9} {:>7} {:>6} {:>6} | {:>9} {:>7} {:>5} {:>5}",
            optional(recorded.map(|recorded| recorded.rate)),
            optional(recorded.map(|recorded| recorded.cpu_us)),
            optional(row.rate_ratio),
            optional(row.cpu_ratio),
            optional(limit.map(|limit| limit.rate)),
            optional(limit.and_then(|limit| limit.cpu_us)),
            optional(limit.map(|limit| limit.share)),
            optional(limit.and_then(|limit| limit.cpu_multiple)),
        )
        .expect("writing to memory");
    }
    line
}

/// The lines below a row in the table: the aims and the limit's name, then the notes.
pub fn remarks(row: &Row) -> Vec<String> {
    let mut lines = Vec::new();
    let mut judged: Vec<String> = row.aims.iter().map(Aim::text).collect();
    if let Some(limit) = &row.limit {
        judged.push(format!("limit: {}", limit.name));
    }
    if !judged.is_empty() {
        lines.push(judged.join("; "));
    }
    lines.extend(row.notes.iter().cloned());
    lines
}

/// Formats a number with three significant digits, or as an integer with its digits in groups of three.
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
    fn a_rows_figures_are_per_operation() {
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
    fn a_limit_is_compared_by_rate_and_by_processor_time() {
        let limit = row().with_limit("bare", 1000.0, Some(10.0)).limit.unwrap();
        assert_eq!((limit.share, limit.cpu_multiple), (0.5, Some(2.0)));
        let limit = row().with_limit("bare", 0.0, None).limit.unwrap();
        assert_eq!((limit.share, limit.cpu_multiple), (0.0, None));
    }

    #[test]
    fn only_measured_figures_are_judged() {
        let goals =
            [Goal::Rate(10.0), Goal::Cpu(5.1), Goal::Share(0.5), Goal::CpuMultiple(1.9), Goal::P99(1.5)];
        let met = |row: Row| row.judged(&goals).aims.iter().map(|aim| aim.met).collect::<Vec<_>>();
        let recorded = Recorded { rate: 50.0, p50_p99_ms: None, cpu_us: 100.0 };
        let whole = row().against(Some(recorded)).with_limit("bare", 1000.0, Some(10.0));
        assert_eq!(met(whole), [Some(true), Some(false), Some(true), Some(false), Some(true)]);
        assert_eq!(met(row()), [None, None, None, None, Some(true)]);
    }

    #[test]
    fn an_aim_shows_its_bound_the_figure_and_the_verdict() {
        let row =
            row().aim("KiB each", Bound::AtMost(16.0), Some(20.0)).aim("share", Bound::AtLeast(0.5), None);
        assert_eq!(remarks(&row), ["KiB each ≤ 16: 20.0 MISSED; share ≥ 0.5: not measured"]);
        let parsed: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
        assert_eq!(parsed["aims"][0]["bound"]["at_most"], 16.0);
        assert_eq!(parsed["aims"][0]["met"], false);
    }

    #[test]
    fn a_failed_row_has_no_figure() {
        let failed = Failed { name: "get-1", workload: "get".to_owned(), failed: "status 500".to_owned() };
        let parsed: serde_json::Value = serde_json::from_str(&failed.json()).unwrap();
        assert_eq!((&parsed["failed"], parsed.get("rate")), (&"status 500".into(), None));
        assert!(failed.line().ends_with("FAILED: status 500"));
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
