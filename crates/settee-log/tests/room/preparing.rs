//! Goal: a full disk is never more than a refusal, also where it shows in zeros made ahead.
//! Method: one write of zeros fails with ENOSPC; appends go on into the next segments.

use std::path::Path;

use settee_io::OperationKind;
use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Fault, Sim, SimDisk};

#[test]
fn a_full_disk_met_while_the_next_segment_is_made_ahead_stops_nothing() {
    let options = LogOptions { segment_bytes_min: 1 << 20, ..LogOptions::default() };
    let mut stopped = Vec::new();
    for nth in 0..160 {
        let disk = SimDisk::new(3).short_writes(0.0).fail(OperationKind::Write, nth, Fault::NoSpace);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
            for index in 0..130 {
                let passed = disk.count_of(OperationKind::Write) > nth;
                let healthy = log.health().is_ok();
                let mut batch = Batch::new();
                batch.push(Flags::none(), b"key", b"", &[1; 28_000]);
                let result = match log.append(&batch, Stage::Persisted).await {
                    Ok(appended) => log.wait(appended.last_seq, Stage::Persisted).await.map_err(Into::into),
                    Err(error) => Err(error),
                };
                if let Err(error) = result {
                    let source = std::error::Error::source(&error).map(|source| source.to_string());
                    // One that failed later than the write was, was stopped by something else.
                    if passed && healthy {
                        stopped.push(format!("write {nth}, append {index}: {error} ({source:?})"));
                    }
                    return;
                }
            }
        })
        .unwrap();
    }
    assert!(stopped.is_empty(), "{stopped:#?}");
}

#[test]
fn a_next_segment_that_could_not_be_made_ahead_is_made_when_it_is_needed() {
    let options = LogOptions { segment_bytes_min: 1 << 20, ..LogOptions::default() };
    // The first two locks are of segments that are made for a batch that waits.
    for nth in 2..6 {
        let disk = SimDisk::new(3).short_writes(0.0).fail(OperationKind::Lock, nth, Fault::Io);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
            for index in 0..200 {
                let mut batch = Batch::new();
                batch.push(Flags::none(), b"key", b"", &[1; 28_000]);
                let appended = log.append(&batch, Stage::Persisted).await;
                let appended = appended.unwrap_or_else(|error| panic!("lock {nth}, append {index}: {error}"));
                log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
            }
            assert!(disk.count_of(OperationKind::Lock) > nth);
            log.close().await.unwrap();
        })
        .unwrap();
    }
}
