//! The workloads of `bench store`, the same for every engine. `settee-bench` and the peers' program both
//! compile this directory and differ in their implementations of [`TestEngine`].
//!
//! A run is one [`Spec`] on one directory in a separate process and ends with one [`message::Report`]. The
//! futures of engines with blocking calls are never pending.
//!
//! Invariants:
//! 1. Keys and values depend only on the number of the record and its version ([`data`]).
//! 2. Values that are read are compared with the written ones; a run that finds other bytes fails.
//! 3. Random data is generated before the measured time; within it, data is sliced and keys are hashed, at
//!    the same cost for every engine.

use std::path::Path;
use std::sync::Arc;

pub(crate) mod data;
mod engine;
mod loads;
pub(crate) mod message;
pub(crate) mod meter;
mod reads;
mod rewrites;
mod spec;

pub(crate) use data::Key;
pub(crate) use engine::{Failure, Reader, TestEngine};
pub(crate) use message::Message;
pub(crate) use spec::{Operation, Spec};

/// Runs a spec on an open engine and sends its messages. `base` has the counters before the opening.
pub(crate) async fn run<S: TestEngine>(
    subject: Arc<S>,
    spec: &Spec,
    directory: &Path,
    base: meter::Baseline,
    mut send: impl FnMut(Message) + Send,
) -> Result<(), Failure> {
    let mut report = match spec.operation {
        Operation::Ingest | Operation::IngestBesideReader => loads::ingest(&subject, spec).await?,
        Operation::LoadAndHold => {
            loads::ingest(&subject, spec).await?;
            send(Message::Loaded);
            // Waits for the kill, or for the end of the input if the parent has exited.
            std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
            return Ok(());
        }
        Operation::Durable => loads::durable(&subject, spec).await?,
        Operation::Read => reads::random(&subject, spec, directory).await?,
        Operation::ScanKeys | Operation::ScanValues => reads::scan(&subject, spec, directory).await?,
        Operation::ReadInOrder => reads::in_order(&subject, spec, directory).await?,
        Operation::Overwrite => rewrites::overwrite(&subject, spec, directory, &mut send).await?,
        Operation::Open => reads::first(&subject, spec).await?,
    };
    report.setup = subject.setup();
    report.engine = subject.counters();
    base.finish(&mut report, directory)?;
    send(Message::Report(Box::new(report)));
    Ok(())
}
