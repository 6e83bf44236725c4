//! Goal: a failed sync of zeros written in advance is never followed by an acknowledgement: that sync may
//! have been the one that reported the loss of a commit's pages (fsync(2) reports it to a descriptor once).
//! Method: the sync of zeros fails while groups are synced; then the power fails.

use std::cell::RefCell;
use std::path::Path;

use settee_io::OperationKind;
use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Fault, Sim, SimDisk, seeds};

fn batch(value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", value);
    batch
}

#[test]
fn no_group_is_acknowledged_after_a_failed_sync_of_zeros() {
    let mut lost = Vec::new();
    for seed in seeds(150) {
        for nth in 0..6 {
            let disk = SimDisk::new(seed).delays_us(1..=4).short_writes(0.0).fail(
                OperationKind::Sync,
                nth,
                Fault::Io,
            );
            let acknowledged = RefCell::new(0_u64);
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            let options = LogOptions { segment_bytes_min: 64 << 20, ..LogOptions::default() };
            sim.run(async {
                let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
                // Other tasks are runnable, so that the background job isn't polled immediately.
                for _ in 0..6 {
                    env.spawn("busy", async {
                        loop {
                            settee_io::yield_now().await;
                        }
                    });
                }
                for _ in 0..100 {
                    let Ok(first) = log.append(&batch(&[1; 3_000]), Stage::Written).await else { return };
                    if log.wait(first.last_seq, Stage::Written).await.is_err() {
                        return;
                    }
                    let Ok(last) = log.append(&batch(&[1; 2_000]), Stage::Persisted).await else { return };
                    if log.wait(last.last_seq, Stage::Persisted).await.is_err() {
                        return;
                    }
                    *acknowledged.borrow_mut() = last.last_seq.0;
                }
            })
            .unwrap();
            let sim = Sim::with_disk(&disk.after_power_loss());
            let env = sim.env();
            let mut found = 0;
            let opened = sim.run(Log::open(&env, Path::new("/log"), options, |_, _| found += 1)).unwrap();
            let acknowledged = acknowledged.into_inner();
            if opened.is_err() || found < acknowledged {
                lost.push(format!("seed={seed} sync {nth}: {found} of {acknowledged} {:?}", opened.err()));
            }
        }
    }
    assert!(lost.is_empty(), "{} losses: {:#?}", lost.len(), &lost[..lost.len().min(5)]);
}
