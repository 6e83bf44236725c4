//! Goal: acknowledged records survive the zeros that a background job writes after them.
//! Method: deletions fill the open segment up to the end of the reserved space, and are acknowledged; the
//! power fails at each operation after that.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk, seeds};

fn batch(value: &[u8], is_deletion: bool) -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", value);
    if is_deletion {
        batch.use_reserve();
    }
    batch
}

fn run(disk: &SimDisk) -> u64 {
    let options = LogOptions { segment_bytes_min: 64 << 20, ..LogOptions::default() };
    let acknowledged = Cell::new(0);
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
        let Ok(first) = log.append(&batch(b"first", false), Stage::Persisted).await else { return };
        if log.wait(first.last_seq, Stage::Persisted).await.is_err() {
            return;
        }
        acknowledged.set(first.last_seq.0);
        let Ok(large) = log.append(&batch(&[1; 100_001], false), Stage::Accepted).await else { return };
        // Disk space is reserved up to here.
        let reserved = disk.read_file("/log/0000000001.log").unwrap().len() as u32;
        let mut last = large;
        loop {
            let at = last.locations[0];
            let end = (at.offset + at.length).next_multiple_of(8);
            if end + (48 + 28 + 3 + 100_u32).next_multiple_of(8) > reserved {
                break;
            }
            last = log.append(&batch(&[2; 100], true), Stage::Accepted).await.unwrap();
        }
        if log.wait(last.last_seq, Stage::Persisted).await.is_err() {
            return;
        }
        acknowledged.set(last.last_seq.0);
        env.clock.sleep(Duration::from_millis(20)).await;
    });
    acknowledged.get()
}

#[test]
fn zeros_written_in_advance_never_touch_a_block_covered_by_a_sync() {
    let mut lost = Vec::new();
    for seed in seeds(20) {
        let whole = SimDisk::new(seed);
        run(&whole);
        for at in 0..whole.operation_count() {
            let disk = SimDisk::new(seed).crash_at_operation(at);
            let acknowledged = run(&disk);
            let sim = Sim::with_disk(&disk.after_power_loss());
            let env = sim.env();
            let mut found = 0;
            let opened = sim
                .run(Log::open(&env, Path::new("/log"), LogOptions::default(), |_, _| found += 1))
                .unwrap();
            if opened.is_err() || found < acknowledged {
                lost.push(format!("seed={seed} at={at}: {found} of {acknowledged} {:?}", opened.err()));
            }
        }
    }
    assert!(lost.is_empty(), "{} losses: {:#?}", lost.len(), &lost[..lost.len().min(5)]);
}
