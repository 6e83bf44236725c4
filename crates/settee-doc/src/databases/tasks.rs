//! Background jobs that a client requested, for the list of active tasks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A compaction of a database in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactionTask {
    /// Number of the task, counted from the start of the process.
    pub number: u64,
    /// The database's name.
    pub database: String,
    /// Its start, in microseconds since 1970.
    pub started_us: u64,
}

/// The tasks in progress.
#[derive(Clone, Default)]
pub(super) struct Tasks(Arc<Mutex<TaskList>>);

#[derive(Default)]
struct TaskList {
    begun_count: u64,
    compactions: BTreeMap<u64, CompactionTask>,
}

/// A task in progress; dropping it ends it.
pub(super) struct Task {
    tasks: Tasks,
    number: u64,
}

impl Tasks {
    /// Registers a compaction. There is at most one per open database.
    pub(super) fn begin_compaction(&self, database: &str, started_us: u64) -> Task {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.begun_count += 1;
        let number = state.begun_count;
        let task = CompactionTask { number, database: database.to_owned(), started_us };
        state.compactions.insert(number, task);
        Task { tasks: self.clone(), number }
    }

    /// The compactions in progress, in the order in which they began.
    pub(super) fn compactions(&self) -> Vec<CompactionTask> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.compactions.values().cloned().collect()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.tasks.0.lock().unwrap_or_else(PoisonError::into_inner).compactions.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_listed_while_it_is_in_progress() {
        let tasks = Tasks::default();
        let first = tasks.begin_compaction("a", 7);
        let second = tasks.begin_compaction("b", 8);
        let names = |tasks: &Tasks| {
            let state = tasks.0.lock().unwrap();
            state.compactions.values().map(|task| task.database.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&tasks), ["a", "b"]);
        drop(first);
        assert_eq!(names(&tasks), ["b"]);
        drop(second);
        assert_eq!(names(&tasks), [""; 0]);
    }
}
