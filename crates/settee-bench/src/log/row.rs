//! One line of the table: what the log reached, what it is held against, the aim.

use std::fmt::Write as _;

use serde::Serialize;

/// What a row is held against, measured in the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Against {
    /// What it is.
    pub name: String,
    /// Its figure, in the row's unit.
    pub figure: f64,
}

/// What a row should reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Aim {
    /// A ratio no smaller than this.
    RatioAtLeast(f64),
    /// A ratio no larger than this.
    RatioAtMost(f64),
    /// No more than this above what it is held against, in the row's unit.
    ExcessAtMost(f64),
}

/// Which way a figure is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    /// A rate: the ratio is ours over theirs.
    Higher,
    /// A time that is compared as a rate: the ratio is theirs over ours.
    Lower,
    /// A time that is told as a multiple: the ratio is ours over theirs.
    Multiple,
}

/// One workload's result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was done, in words.
    pub workload: String,
    /// How far every write had got when the clock stopped.
    pub durability: &'static str,
    /// What the figures are in.
    pub unit: &'static str,
    /// The log's figure.
    pub ours: f64,
    /// What it is held against; none where that isn't there.
    pub against: Option<Against>,
    /// The one over the other, as the aim wants it.
    pub ratio: Option<f64>,
    /// What the ratio should be, where the row has an aim.
    pub aim: Option<Aim>,
    /// Whether it is; none where there is no aim, or nothing to hold the row against.
    pub met: Option<bool>,
    /// What else there is to know: settings, other figures.
    pub notes: Vec<String>,
}

impl Row {
    pub(super) fn new(
        workload: impl Into<String>,
        durability: &'static str,
        unit: &'static str,
        ours: f64,
    ) -> Row {
        let workload = workload.into();
        Row {
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

    pub(super) fn against(mut self, better: Better, name: impl Into<String>, figure: f64) -> Row {
        let (over, under) = match better {
            Better::Higher | Better::Multiple => (self.ours, figure),
            Better::Lower => (figure, self.ours),
        };
        self.ratio = (under > 0.0).then(|| over / under);
        self.against = Some(Against { name: name.into(), figure });
        self.judge();
        self
    }

    pub(super) fn aim(mut self, aim: Aim) -> Row {
        self.aim = Some(aim);
        self.judge();
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Row {
        self.notes.push(note.into());
        self
    }

    fn judge(&mut self) {
        self.met = match (self.aim, self.ratio, &self.against) {
            (Some(Aim::RatioAtLeast(least)), Some(ratio), _) => Some(ratio >= least),
            (Some(Aim::RatioAtMost(most)), Some(ratio), _) => Some(ratio <= most),
            (Some(Aim::ExcessAtMost(most)), _, Some(against)) => Some(self.ours - against.figure <= most),
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
            Some(Aim::RatioAtLeast(least)) => format!("≥ {least}"),
            Some(Aim::RatioAtMost(most)) => format!("≤ {most}"),
            Some(Aim::ExcessAtMost(most)) => format!("≤ +{most}"),
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

/// A number with as many decimals as tell something.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 99.95 => format!("{value:.0}"),
        magnitude if magnitude >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_its_aim_and_only_where_there_is_something_to_hold_it_against() {
        let row = |ours| Row::new("w", "written", "MB/s", ours).aim(Aim::RatioAtLeast(2.0));
        assert_eq!(row(1.0).met, None);
        assert_eq!(row(4.0).against(Better::Higher, "peer", 2.0).met, Some(true));
        assert_eq!(row(3.9).against(Better::Higher, "peer", 2.0).met, Some(false));
        assert_eq!(row(3.9).against(Better::Higher, "peer", 0.0).met, None);
        let time = |ours, aim| Row::new("w", "persisted", "µs", ours).aim(aim);
        let rated = time(100.0, Aim::RatioAtLeast(0.9)).against(Better::Lower, "raw", 90.0);
        assert_eq!((rated.ratio, rated.met), (Some(0.9), Some(true)));
        let multiple = time(301.0, Aim::RatioAtMost(3.0)).against(Better::Multiple, "sync", 100.0);
        assert_eq!((multiple.ratio, multiple.met), (Some(3.01), Some(false)));
        let excess = |ours| time(ours, Aim::ExcessAtMost(5.0)).against(Better::Multiple, "idle", 2.0);
        assert_eq!((excess(7.0).met, excess(7.1).met), (Some(true), Some(false)));
    }

    #[test]
    fn a_row_shows_its_aim_and_whether_it_was_met() {
        let row = Row::new("append", "written", "MB/s", 50.0).aim(Aim::RatioAtLeast(2.0)).note("said");
        assert!(row.lines().contains("no peer") && row.lines().ends_with("    said\n"), "{}", row.lines());
        let missed = row.against(Better::Higher, "peer", 40.0);
        let lines = missed.lines();
        assert!(lines.contains("peer 40.0") && lines.contains("≥ 2 MISSED"), "{lines}");
        let parsed: serde_json::Value = serde_json::from_str(&missed.json()).unwrap();
        assert_eq!((&parsed["met"], &parsed["ratio"]), (&false.into(), &1.25.into()));
    }
}
