//! One row of the table: the log's figure, the peer's, and the aim.

use std::fmt::Write as _;

use serde::Serialize;

use crate::io::row::{self, figure};

/// The figure with which a row is compared, measured in the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Against {
    /// The peer's name.
    pub name: String,
    /// The peer's figure, in the row's unit.
    pub figure: f64,
}

/// The bound of a row's figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum LogAim {
    /// Minimum of the ratio.
    RatioAtLeast(f64),
    /// Maximum of the ratio.
    RatioAtMost(f64),
    /// Maximum difference to the peer's figure, in the row's unit.
    ExcessAtMost(f64),
}

/// The kind of a figure, which determines the ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    /// A rate: the ratio is the log's figure divided by the peer's.
    Higher,
    /// A time, compared as a rate: the ratio is the peer's figure divided by the log's.
    Lower,
    /// A time, as a multiple: the ratio is the log's figure divided by the peer's.
    Multiple,
}

/// The result of one workload.
#[derive(Debug, Clone, Serialize)]
pub struct LogRow {
    /// A description of the workload.
    pub workload: String,
    /// Stage that every write has reached at the end of the measured time.
    pub durability: &'static str,
    /// The unit of the figures.
    pub unit: &'static str,
    /// The log's figure.
    pub ours: f64,
    /// The peer. None: not measured.
    pub against: Option<Against>,
    /// The ratio of the figures, by their kind.
    pub ratio: Option<f64>,
    /// The bound, if the row has one.
    pub aim: Option<LogAim>,
    /// Whether the figure is within the bound. None: there is no bound or no peer.
    pub met: Option<bool>,
    /// Further remarks: settings, other figures.
    pub notes: Vec<String>,
}

impl LogRow {
    pub(super) fn new(
        workload: impl Into<String>,
        durability: &'static str,
        unit: &'static str,
        ours: f64,
    ) -> LogRow {
        let workload = workload.into();
        LogRow {
            workload,
            durability,
            unit,
            ours,
            against: None,
            ratio: None,
            aim: None,
            met: None,
            notes: vec![],
        }
    }

    pub(super) fn against(mut self, better: Better, name: impl Into<String>, figure: f64) -> LogRow {
        let (over, under) = match better {
            Better::Higher | Better::Multiple => (self.ours, figure),
            Better::Lower => (figure, self.ours),
        };
        self.ratio = (under > 0.0).then(|| over / under);
        self.against = Some(Against { name: name.into(), figure });
        self.judge();
        self
    }

    pub(super) fn aim(mut self, aim: LogAim) -> LogRow {
        self.aim = Some(aim);
        self.judge();
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> LogRow {
        self.notes.push(note.into());
        self
    }

    fn judge(&mut self) {
        self.met = match (self.aim, self.ratio, &self.against) {
            (Some(LogAim::RatioAtLeast(least)), Some(ratio), _) => Some(ratio >= least),
            (Some(LogAim::RatioAtMost(most)), Some(ratio), _) => Some(ratio <= most),
            (Some(LogAim::ExcessAtMost(most)), _, Some(against)) => Some(self.ours - against.figure <= most),
            _ => None,
        };
    }

    /// The row as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }

    /// The row as a line of the table, and a line for each note.
    pub fn lines(&self) -> String {
        let against = self
            .against
            .as_ref()
            .map_or("no peer".to_owned(), |against| format!("{} {}", against.name, figure(against.figure)));
        let ratio = self.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        let aim = match self.aim {
            None => "–".to_owned(),
            Some(LogAim::RatioAtLeast(least)) => format!("≥ {least}"),
            Some(LogAim::RatioAtMost(most)) => format!("≤ {most}"),
            Some(LogAim::ExcessAtMost(most)) => format!("≤ +{most}"),
        };
        let met = match self.met {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        let mut text = format!(
            "{:<60} {:<10} {:>9} {:<9} {:>34} {:>6} {:>6} {}",
            self.workload,
            self.durability,
            figure(self.ours),
            self.unit,
            against,
            ratio,
            aim,
            met
        );
        text.truncate(text.trim_end().len());
        text.push('\n');
        for note in &self.notes {
            writeln!(text, "    {note}").expect("writing to memory");
        }
        text
    }
}

/// The table's heading.
pub fn heading() -> String {
    format!(
        "{:<60} {:<10} {:>9} {:<9} {:>34} {:>6} {:>6}",
        "workload", "durability", "log", "", "against", "ratio", "aim"
    )
}

/// The median of at least one value.
pub(super) fn median(values: &[f64]) -> f64 {
    row::median(values.to_vec()).expect("there is a round")
}

/// The figures of all rounds, for a note that shows their spread.
pub(super) fn rounds_text(values: &[f64]) -> String {
    let texts: Vec<String> = values.iter().map(|value| figure(*value)).collect();
    texts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_its_aim_only_if_it_has_a_peer() {
        let row = |ours| LogRow::new("w", "written", "MB/s", ours).aim(LogAim::RatioAtLeast(2.0));
        assert_eq!(row(1.0).met, None);
        assert_eq!(row(4.0).against(Better::Higher, "peer", 2.0).met, Some(true));
        assert_eq!(row(3.9).against(Better::Higher, "peer", 2.0).met, Some(false));
        assert_eq!(row(3.9).against(Better::Higher, "peer", 0.0).met, None);
        let time = |ours, aim| LogRow::new("w", "persisted", "µs", ours).aim(aim);
        let rated = time(100.0, LogAim::RatioAtLeast(0.9)).against(Better::Lower, "raw", 90.0);
        assert_eq!((rated.ratio, rated.met), (Some(0.9), Some(true)));
        let multiple = time(301.0, LogAim::RatioAtMost(3.0)).against(Better::Multiple, "sync", 100.0);
        assert_eq!((multiple.ratio, multiple.met), (Some(3.01), Some(false)));
        let excess = |ours| time(ours, LogAim::ExcessAtMost(5.0)).against(Better::Multiple, "idle", 2.0);
        assert_eq!((excess(7.0).met, excess(7.1).met), (Some(true), Some(false)));
    }

    #[test]
    fn a_row_shows_its_aim_and_whether_it_was_met() {
        let row = LogRow::new("append", "written", "MB/s", 50.0).aim(LogAim::RatioAtLeast(2.0)).note("said");
        assert!(row.lines().contains("no peer") && row.lines().ends_with("    said\n"), "{}", row.lines());
        let missed = row.against(Better::Higher, "peer", 40.0);
        let lines = missed.lines();
        assert!(lines.contains("peer 40.0") && lines.contains("≥ 2 MISSED"), "{lines}");
        let parsed: serde_json::Value = serde_json::from_str(&missed.json()).unwrap();
        assert_eq!((&parsed["met"], &parsed["ratio"]), (&false.into(), &1.25.into()));
    }
}
