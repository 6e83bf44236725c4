//! One measurement, the rounds of a workload, and the row that they make.

use std::time::Duration;

use serde::Serialize;

use crate::report::Bound;
use crate::stats::{Elapsed, Samples};

/// Width of the column of workloads, in characters.
const WORKLOAD_WIDTH: usize = 68;

/// One row of the tables of `bench io`, `bench reads` and `bench store`.
#[derive(Debug, Clone, Serialize)]
pub struct IoRow {
    /// A description of the workload.
    pub workload: String,
    /// The unit of `rate`: `reads/s`, `MB/s`.
    pub unit: &'static str,
    /// The rate, the median of the rounds. None: not measured, for the reason in `note`.
    pub rate: Option<f64>,
    /// Number of operations of all rounds.
    pub operations: u64,
    /// Median latency in microseconds.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: Option<f64>,
    /// This process's processor time per operation in microseconds, all threads together.
    pub cpu_us: Option<f64>,
    /// Voluntary context switches per operation.
    pub switches: Option<f64>,
    /// The peer's name.
    pub peer: Option<String>,
    /// The rate divided by the peer's, the median over the rounds.
    pub ratio: Option<f64>,
    /// The bound of the ratio.
    pub aim: Option<Bound>,
    /// Whether the ratio is within the bound. None: there is no bound or no ratio.
    pub met: Option<bool>,
    /// A further remark.
    pub note: Option<String>,
}

impl IoRow {
    /// Computes the row of a workload's rounds.
    pub(crate) fn new(workload: impl Into<String>, unit: &'static str, series: &Series) -> IoRow {
        IoRow {
            workload: workload.into(),
            unit,
            rate: series.median(|window| Some(window.rate())),
            operations: series.0.iter().map(|window| window.operations).sum(),
            p50_us: series.median(|window| Some(window.latency?.p50.as_secs_f64() * 1e6)),
            p99_us: series.median(|window| Some(window.latency?.p99.as_secs_f64() * 1e6)),
            cpu_us: series.median(|window| window.each(window.cpu?.as_secs_f64() * 1e6)),
            switches: series.median(|window| window.each(window.switches? as f64)),
            peer: None,
            ratio: None,
            aim: None,
            met: None,
            note: None,
        }
    }

    /// A row without figures, with the reason why the workload couldn't be measured.
    pub(crate) fn missing(
        workload: impl Into<String>,
        unit: &'static str,
        reason: impl Into<String>,
    ) -> IoRow {
        let mut row = IoRow::new(workload, unit, &Series::default());
        row.note = Some(reason.into());
        row
    }

    /// Adds the bound of the ratio and judges it.
    pub(crate) fn with_aim(mut self, aim: Bound) -> IoRow {
        self.aim = Some(aim);
        self.met = self.ratio.map(|ratio| aim.is_met(ratio));
        self
    }

    /// Adds the ratio to `peer`, whose `series` was measured in the same rounds. Without a series, a note
    /// says that there is no peer.
    pub(crate) fn against(mut self, peer: &str, ours: &Series, series: Option<&Series>) -> IoRow {
        self.peer = Some(peer.to_owned());
        self.ratio = series.and_then(|series| ours.ratio_to(series));
        self.met = self.aim.zip(self.ratio).map(|(aim, ratio)| aim.is_met(ratio));
        if series.is_none() && self.note.is_none() {
            self.note = Some(format!("no {peer}"));
        }
        self
    }

    /// Adds a ratio that was computed elsewhere.
    pub(crate) fn with_ratio(mut self, peer: &str, ratio: f64) -> IoRow {
        self.peer = Some(peer.to_owned());
        self.ratio = Some(ratio);
        self.met = self.aim.map(|aim| aim.is_met(ratio));
        self
    }

    /// Adds a note.
    pub(crate) fn with_note(mut self, note: impl Into<String>) -> IoRow {
        self.note = Some(note.into());
        self
    }

    /// The row as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }

    /// The row as a line of the table, without its note.
    pub fn line(&self) -> String {
        let optional = |value: Option<f64>| value.map_or("–".to_owned(), figure);
        let latency = match (self.p50_us, self.p99_us) {
            (Some(p50), Some(p99)) => format!("{} / {}", figure(p50), figure(p99)),
            _ => "–".to_owned(),
        };
        let verdict = match (self.aim, self.met) {
            (None, _) => String::new(),
            (Some(aim), Some(true)) => format!("{}  met", aim.text()),
            (Some(aim), Some(false)) => format!("{}  MISSED", aim.text()),
            (Some(aim), None) => format!("{}  unknown", aim.text()),
        };
        let ratio = match (self.ratio, &self.peer) {
            (Some(ratio), Some(peer)) => format!("{ratio:.2} × {peer}"),
            _ => String::new(),
        };
        format!(
            "{:<WORKLOAD_WIDTH$} {:>9} {:<7} {:>17} {:>8} {:>7}   {ratio:<24} {verdict}",
            self.workload,
            optional(self.rate),
            self.unit,
            latency,
            optional(self.cpu_us),
            optional(self.switches),
        )
        .trim_end()
        .to_owned()
    }
}

/// The heading of a table of these rows.
pub fn heading() -> String {
    format!(
        "{:<WORKLOAD_WIDTH$} {:>9} {:<7} {:>17} {:>8} {:>7}   {:<24} aim",
        "workload", "rate", "", "p50/p99 µs", "CPU µs", "sleeps", "ratio"
    )
}

/// Median, 99th percentile and maximum of the latencies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) longest: Duration,
}

impl Latency {
    pub(crate) fn of(samples: &Samples) -> Option<Latency> {
        samples.percentiles([0.5, 0.99, 1.0]).map(|[p50, p99, longest]| Latency { p50, p99, longest })
    }
}

/// One measurement of a workload.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub(crate) operations: u64,
    /// Units of the rate per operation: 1, or megabytes.
    pub(crate) weight: f64,
    pub(crate) wall: Duration,
    pub(crate) cpu: Option<Duration>,
    pub(crate) switches: Option<u64>,
    pub(crate) latency: Option<Latency>,
}

impl Window {
    pub(crate) fn new(operations: u64, elapsed: Elapsed) -> Window {
        Window {
            operations,
            weight: 1.0,
            wall: elapsed.wall,
            cpu: Some(elapsed.client_cpu),
            switches: None,
            latency: None,
        }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 * self.weight / self.wall.as_secs_f64().max(1e-9)
    }

    fn each(&self, value: f64) -> Option<f64> {
        (self.operations > 0).then(|| value / self.operations as f64)
    }
}

/// The measurements of one workload, one per round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(pub(crate) Vec<Window>);

impl Series {
    /// The median over the rounds of `of`. None if no round has a value.
    pub(crate) fn median(&self, of: impl Fn(&Window) -> Option<f64>) -> Option<f64> {
        median(self.0.iter().filter_map(of).collect())
    }

    /// The median over the rounds of the rate divided by the peer's in the same round.
    pub(crate) fn ratio_to(&self, peer: &Series) -> Option<f64> {
        let ratios = self.0.iter().zip(&peer.0).map(|(ours, peer)| ours.rate() / peer.rate().max(1e-9));
        median(ratios.collect())
    }

    /// Like [`Series::ratio_to`], for operations per second of processor time, which other load affects
    /// less.
    pub(crate) fn per_cpu_ratio_to(&self, peer: &Series) -> Option<f64> {
        let cost = |window: &Window| window.each(window.cpu?.as_secs_f64()).filter(|cost| *cost > 0.0);
        let pairs = self.0.iter().zip(&peer.0);
        median(pairs.filter_map(|(ours, peer)| Some(cost(peer)? / cost(ours)?)).collect())
    }

    /// The longest latency of all rounds.
    pub(crate) fn longest(&self) -> Option<Duration> {
        self.0.iter().filter_map(|window| Some(window.latency?.longest)).max()
    }
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Voluntary context switches of this process's threads, from `/proc/self/task/*/status` (proc(5)). None if
/// the system doesn't report them.
pub(crate) fn switch_count() -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let counts = tasks.flatten().filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    Some(counts.sum())
}

/// Formats a number with three significant digits, or as an integer.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 99.95 => format!("{value:.0}"),
        magnitude if magnitude >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(operations: u64) -> Window {
        let wall = Duration::from_secs(2);
        Window::new(operations, Elapsed { wall, client_cpu: Duration::from_millis(1), server_cpu: None })
    }

    #[test]
    fn ratios_are_medians_of_pairs_from_the_same_round() {
        let ours = Series(vec![window(100), window(10), window(90)]);
        let peer = Series(vec![window(100), window(100), window(100)]);
        assert_eq!(ours.ratio_to(&peer), Some(0.9));
        assert_eq!(ours.per_cpu_ratio_to(&peer), Some(0.9));
        let row = IoRow::new("reads", "reads/s", &ours)
            .against("peer", &ours, Some(&peer))
            .with_aim(Bound::AtLeast(0.9));
        assert_eq!((row.rate, row.operations, row.met), (Some(45.0), 200, Some(true)));
        assert!(row.line().ends_with("0.90 × peer              ≥ 0.9  met"), "{}", row.line());
    }

    #[test]
    fn a_missed_aim_is_shown_and_without_a_peer_there_is_no_ratio() {
        let ours = Series(vec![window(100)]);
        let row = IoRow::new("reads", "reads/s", &ours).with_ratio("alone", 1.6).with_aim(Bound::AtMost(1.5));
        assert_eq!(row.met, Some(false));
        assert!(row.line().ends_with("≤ 1.5  MISSED"), "{}", row.line());
        let row =
            IoRow::new("reads", "reads/s", &ours).against("fio", &ours, None).with_aim(Bound::AtLeast(0.9));
        assert_eq!((row.ratio, row.met, row.note.as_deref()), (None, None, Some("no fio")));
        assert!(row.line().ends_with("≥ 0.9  unknown"), "{}", row.line());
    }

    #[test]
    fn a_row_without_measurement_keeps_its_reason() {
        let row = IoRow::missing("reads, io_uring", "reads/s", "not permitted");
        assert_eq!((row.rate, row.operations, row.note.as_deref()), (None, 0, Some("not permitted")));
        let parsed: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
        assert_eq!(parsed["rate"], serde_json::Value::Null);
    }

    #[test]
    fn sleeping_threads_are_counted() {
        let before = switch_count().unwrap();
        (0..5).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        assert!(switch_count().unwrap() >= before + 5);
    }
}
