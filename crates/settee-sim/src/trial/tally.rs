//! Counts of what trials have tried.

use std::collections::BTreeMap;

/// Counts of what was tried.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Power losses during a process, after which the subject was opened and compared.
    pub power_losses: u64,
    /// The other counts, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// A hash over all operations on the disks.
    pub trace: u64,
}

impl Tally {
    /// Adds to the count of that name.
    pub fn count(&mut self, what: &'static str, count: u64) {
        *self.counts.entry(what).or_default() += count;
    }

    /// Adds the counts of other trials.
    pub fn add(&mut self, other: Tally) {
        self.power_losses += other.power_losses;
        other.counts.into_iter().for_each(|(what, count)| self.count(what, count));
        self.trace = self.trace.rotate_left(1) ^ other.trace;
    }
}
