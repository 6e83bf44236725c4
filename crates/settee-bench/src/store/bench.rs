//! The state that the parts of a run share, and the runs of one workload by each engine.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use super::config::{Config, Sizes};
use super::runs::{EngineId, PEERS, Programs, Run};
use super::work::data::Order;
use super::work::{Operation, Spec};
use crate::rounds::{Series, median};
use crate::{Error, Result, space};

/// Number of records of a batch.
pub(super) const BATCH_COUNT: usize = 16;

/// The state that the parts of a run share.
pub(super) struct Bench {
    pub(super) sizes: Sizes,
    pub(super) programs: Programs,
    directory: PathBuf,
    directory_count: Cell<usize>,
    failure_count: Cell<usize>,
}

impl Bench {
    pub(super) fn new(config: &Config, program: &Path, directory: &Path) -> Bench {
        let programs =
            Programs { ours: program.to_owned(), peers: config.peers.clone(), engine: config.engine };
        Bench {
            sizes: config.sizes(),
            programs,
            directory: directory.to_owned(),
            directory_count: Cell::new(0),
            failure_count: Cell::new(0),
        }
    }

    /// The store first, then the peers.
    pub(super) fn all_engines(&self) -> Vec<EngineId> {
        let peers = self.programs.peers.iter().flat_map(|_| PEERS.map(EngineId::Peer));
        std::iter::once(EngineId::Ours).chain(peers).collect()
    }

    /// The path of a new directory, which isn't created yet.
    pub(super) fn new_directory(&self) -> PathBuf {
        let number = self.directory_count.replace(self.directory_count.get() + 1);
        self.directory.join(format!("data-{number}"))
    }

    /// Removes a directory and, unless pauses are off, syncs the file system, so that this work doesn't
    /// affect the next measurement.
    pub(super) fn remove(&self, directory: &Path) -> Result<()> {
        match std::fs::remove_dir_all(directory) {
            // A run that failed may not have created it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(|error| Error::file(directory, error))?,
        }
        if self.sizes.pause.is_zero() {
            return Ok(());
        }
        space::sync_file_system(&self.directory)
    }

    /// Number of failed runs.
    pub(super) fn failure_count(&self) -> usize {
        self.failure_count.get()
    }

    /// A spec with the usual parameters.
    pub(super) fn spec(&self, operation: Operation, value_bytes: usize, records: u64) -> Spec {
        Spec {
            operation,
            order: Order::Random,
            records,
            value_bytes,
            batch: BATCH_COUNT,
            count: 0,
            warm: 0,
            seconds_max: 0,
            lanes: 1,
            memory_bytes: self.sizes.memory_bytes,
            write_out: false,
            compaction: true,
            direct: false,
            group: None,
        }
    }

    /// Runs the specs in a new directory for each engine, alternately, round by round.
    pub(super) fn rounds(&self, all_engines: &[EngineId], specs: &[Spec]) -> Result<Vec<EngineRuns>> {
        let mut all_runs: Vec<EngineRuns> =
            all_engines.iter().map(|engine_id| EngineRuns::new(*engine_id)).collect();
        for round in 0..self.sizes.rounds {
            for turn in 0..all_runs.len() {
                let engine_runs = &mut all_runs[(round + turn) % all_engines.len()];
                if engine_runs.failure.is_some() {
                    continue;
                }
                let directory = self.new_directory();
                let mut last = Err("there are no specs".to_owned());
                for spec in specs {
                    last = self.programs.run(engine_runs.engine_id, &directory, spec);
                    if last.is_err() {
                        break;
                    }
                }
                self.remove(&directory)?;
                engine_runs.take(self, last);
            }
        }
        Ok(all_runs)
    }
}

/// The runs of one workload by one engine, one per round.
#[derive(Debug, Clone)]
pub(super) struct EngineRuns {
    pub(super) engine_id: EngineId,
    pub(super) runs: Vec<Run>,
    pub(super) failure: Option<String>,
}

impl EngineRuns {
    pub(super) fn new(engine_id: EngineId) -> EngineRuns {
        EngineRuns { engine_id, runs: Vec::new(), failure: None }
    }

    pub(super) fn take(&mut self, bench: &Bench, run: Result<Run, String>) {
        match run {
            Ok(run) => self.runs.push(run),
            Err(reason) => {
                bench.failure_count.set(bench.failure_count.get() + 1);
                self.failure = Some(reason);
            }
        }
    }

    /// The runs as windows. `weight` is the number of the row's units per operation.
    pub(super) fn series(&self, weight: f64) -> Series {
        Series(self.runs.iter().map(|run| run.report.window(weight)).collect())
    }

    pub(super) fn median(&self, of: impl Fn(&Run) -> f64) -> Option<f64> {
        median(self.runs.iter().map(of))
    }
}
