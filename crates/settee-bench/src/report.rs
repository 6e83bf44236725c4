//! Rows of results, printed as a table or as JSON lines: one form for all benchmarks.

use std::fmt::Write as _;

use serde::Serialize;

use crate::rounds::{Series, Window};

/// Width of the column of workloads, in characters.
const WORKLOAD_WIDTH: usize = 66;

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
}

/// A figure with which a row is judged or compared, mostly a ratio.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// What follows the figure: `× fio`, `ms p99`.
    pub what: String,
    /// The figure. None: not measured.
    pub figure: Option<f64>,
    /// The aim, if there is one.
    pub aim: Option<Bound>,
    /// Whether the figure is within the aim. None: there is no aim or no figure.
    pub met: Option<bool>,
}

impl Compared {
    fn text(&self) -> String {
        let text = match self.figure {
            Some(value) => format!("{} {}", figure(value), self.what),
            None => format!("– {}", self.what),
        };
        let bound = match self.aim {
            None => return text,
            Some(Bound::AtLeast(min)) => format!("≥ {min}"),
            Some(Bound::AtMost(max)) => format!("≤ {max}"),
        };
        let verdict = match self.met {
            None => "not measured",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        format!("{text} ({bound}: {verdict})")
    }
}

/// The result of one workload.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The name for `--rows`; empty in tables without that option.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'static str,
    /// A description of the workload: sizes, clients and batches, unless the title has them.
    pub workload: String,
    /// The unit of `rate`: `docs/s`, `MB/s`, `µs`.
    pub unit: &'static str,
    /// The rate or another figure: of all rounds the median. None: not measured, for the reason in `missing`.
    pub rate: Option<f64>,
    /// Number of operations of all rounds.
    pub operations: u64,
    /// Median latency in microseconds.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: Option<f64>,
    /// The server's processor time per operation in microseconds, if there is a server and it is known.
    pub server_cpu_us: Option<f64>,
    /// This process's processor time per operation in microseconds, all threads together.
    pub cpu_us: Option<f64>,
    /// This process's voluntary context switches per operation.
    pub sleeps: Option<f64>,
    /// The figures with which it is judged or compared.
    pub compared: Vec<Compared>,
    /// Further remarks.
    pub notes: Vec<String>,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl Row {
    /// Computes the row of a workload's rounds.
    pub fn new(workload: impl Into<String>, unit: &'static str, series: &Series) -> Row {
        Row {
            name: "",
            workload: workload.into(),
            unit,
            rate: series.rate(),
            operations: series.0.iter().map(|window| window.operations).sum(),
            p50_us: series.median(|window| window.percentiles().map(|both| both[0])),
            p99_us: series.median(|window| window.percentiles().map(|both| both[1])),
            server_cpu_us: series.median(Window::server_cpu_us),
            cpu_us: series.median(Window::client_cpu_us),
            sleeps: series.median(Window::sleeps),
            compared: Vec::new(),
            notes: Vec::new(),
            missing: None,
        }
    }

    /// A row of one figure that isn't a rate.
    pub(crate) fn figure(workload: impl Into<String>, unit: &'static str, figure: f64) -> Row {
        Row { rate: Some(figure), operations: 1, ..Row::new(workload, unit, &Series::default()) }
    }

    /// A row without figures, with the reason.
    pub(crate) fn missing(workload: impl Into<String>, unit: &'static str, reason: impl Into<String>) -> Row {
        Row { missing: Some(reason.into()), ..Row::new(workload, unit, &Series::default()) }
    }

    /// The row of a series, or one without figures.
    pub(crate) fn of(
        workload: impl Into<String>,
        unit: &'static str,
        series: &Result<Series, String>,
    ) -> Row {
        match series {
            Ok(series) => Row::new(workload, unit, series),
            Err(reason) => Row::missing(workload, unit, reason),
        }
    }

    /// Adds a figure to compare and, with `aim`, to judge.
    pub fn compare(
        mut self,
        what: impl Into<String>,
        figure: Option<f64>,
        aim: impl Into<Option<Bound>>,
    ) -> Row {
        let aim = aim.into();
        let met = aim.zip(figure).map(|(aim, figure)| aim.is_met(figure));
        self.compared.push(Compared { what: what.into(), figure, aim, met });
        self
    }

    /// Adds the ratio of the rate to that of a peer, measured in the same rounds if it was measured.
    pub(crate) fn against(
        self,
        peer: &str,
        ours: &Series,
        theirs: Option<&Series>,
        aim: impl Into<Option<Bound>>,
    ) -> Row {
        self.compare(format!("× {peer}"), theirs.and_then(|theirs| ours.ratio_to(theirs)), aim)
    }

    /// Adds a note.
    pub fn note(mut self, note: impl Into<String>) -> Row {
        self.notes.push(note.into());
        self
    }

    /// The figures with an aim.
    pub fn aims(&self) -> impl Iterator<Item = &Compared> {
        self.compared.iter().filter(|compared| compared.aim.is_some())
    }

    /// The row as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }

    /// The row as a line of the table, and a line each for what it is compared with and for each note.
    pub fn text(&self) -> String {
        let optional = |value: Option<f64>| value.map_or("–".to_owned(), figure);
        let latency = match (self.p50_us, self.p99_us) {
            (Some(p50), Some(p99)) => format!("{} / {}", figure(p50), figure(p99)),
            _ => "–".to_owned(),
        };
        let mut text = match &self.missing {
            Some(reason) => format!("{:<WORKLOAD_WIDTH$} {reason}", self.workload),
            None => format!(
                "{:<WORKLOAD_WIDTH$} {:>10} {:<10} {latency:>17} {:>8} {:>8} {:>7}",
                self.workload,
                optional(self.rate),
                self.unit,
                optional(self.server_cpu_us),
                optional(self.cpu_us),
                optional(self.sleeps),
            ),
        };
        let compared: Vec<String> = self.compared.iter().map(Compared::text).collect();
        for line in [compared.join("; ")].iter().chain(&self.notes).filter(|line| !line.is_empty()) {
            write!(text, "\n    {line}").expect("writing to memory");
        }
        text
    }
}

/// The table's heading.
pub fn heading() -> String {
    format!(
        "{:<WORKLOAD_WIDTH$} {:>10} {:<10} {:>17} {:>8} {:>8} {:>7}",
        "workload", "rate", "", "p50/p99 µs", "server", "CPU µs", "sleeps"
    )
}

/// Numbers of aims that were met, missed, and not measured.
#[derive(Debug, Default)]
pub struct Verdicts([u64; 3]);

impl Verdicts {
    /// Counts a row's aims.
    pub fn count(&mut self, row: &Row) {
        for Compared { met, .. } in row.aims() {
            self.0[match met {
                Some(true) => 0,
                Some(false) => 1,
                None => 2,
            }] += 1;
        }
    }

    /// The numbers as a line below the table.
    pub fn text(&self) -> String {
        let [met, missed, not_measured] = self.0;
        format!("aims: {met} met, {missed} missed, {not_measured} not measured")
    }
}

/// Formats a number with three significant digits, or as an integer with its digits in groups of three.
pub(crate) fn figure(value: f64) -> String {
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

/// The figures of all rounds, for a note that shows their spread.
pub(crate) fn figures(values: impl IntoIterator<Item = f64>) -> String {
    values.into_iter().map(figure).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::{Elapsed, Samples};

    fn series() -> Series {
        let elapsed = Elapsed {
            wall: Duration::from_secs(2),
            client_cpu: Duration::from_millis(10),
            server_cpu: Some(Duration::from_millis(20)),
            switches: None,
        };
        let mut latencies = Samples::default();
        latencies.push(Duration::from_micros(1500));
        Series(vec![Window::new(1000, latencies, elapsed)])
    }

    #[test]
    fn a_rows_figures_are_per_operation() {
        let row = Row::new("get", "docs/s", &series());
        assert_eq!((row.rate, row.p50_us, row.p99_us), (Some(500.0), Some(1500.0), Some(1500.0)));
        assert_eq!((row.cpu_us, row.server_cpu_us, row.sleeps), (Some(10.0), Some(20.0), None));
    }

    #[test]
    fn a_row_is_one_line_of_json_and_of_the_table() {
        let row = Row::new("get", "docs/s", &series());
        let parsed: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
        assert_eq!(parsed["rate"], 500.0);
        assert_eq!(row.text().chars().count(), heading().chars().count());
    }

    #[test]
    fn only_measured_figures_are_judged_and_each_shows_its_aim_and_the_verdict() {
        let ours = series();
        let row = Row::new("get", "docs/s", &ours)
            .against("fio", &ours, Some(&ours), Bound::AtLeast(1.0))
            .against("pread", &ours, None, Bound::AtLeast(0.5))
            .compare("KiB each", Some(20.0), Bound::AtMost(16.0))
            .compare("× idle", Some(1.5), None)
            .note("said");
        let met: Vec<_> = row.compared.iter().map(|compared| compared.met).collect();
        assert_eq!(met, [Some(true), None, Some(false), None]);
        let text = row.text();
        let expected = "\n    1.00 × fio (≥ 1: met); – × pread (≥ 0.5: not measured); \
            20.0 KiB each (≤ 16: MISSED); 1.50 × idle\n    said";
        assert!(text.ends_with(expected), "{text}");
        let parsed: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
        assert_eq!(parsed["compared"][2]["aim"]["at_most"], 16.0);
        assert_eq!(parsed["compared"][2]["met"], false);
        let mut verdicts = Verdicts::default();
        verdicts.count(&row);
        assert_eq!(verdicts.text(), "aims: 1 met, 1 missed, 1 not measured");
    }

    #[test]
    fn a_row_without_a_measurement_has_its_reason_and_no_figure() {
        let row = Row::missing("reads, io_uring", "reads/s", "not permitted");
        assert_eq!((row.rate, row.operations), (None, 0));
        let parsed: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
        assert_eq!(
            (&parsed["missing"], &parsed["rate"]),
            (&"not permitted".into(), &serde_json::Value::Null)
        );
        assert!(row.text().ends_with("not permitted"));
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
