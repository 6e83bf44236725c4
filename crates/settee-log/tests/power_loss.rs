//! Goal: an acknowledged batch survives any power loss; others survive whole or not at all.
//! Method: cut power at every sync of a seeded run, before and after its effect. Each unsynced
//! sector is then kept, dropped or garbled. Reopen and compare with what was submitted; append
//! again, cut the power again, reopen again.

use std::path::Path;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::{Either, select};
use settee_io::Env;
use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk, seeds};

const FOLDER: &str = "/data/log";

/// Small segments, so that a run goes through several.
fn options() -> LogOptions {
    LogOptions { batch_bytes_max: 32 << 10, segment_bytes_max: 80 << 10, ..LogOptions::default() }
}

/// What a run submitted, batch by batch, and how many of the batches it was told are persisted.
#[derive(Default)]
struct Run {
    submitted: Vec<Vec<Vec<u8>>>,
    acknowledged_count: usize,
}

/// The values of a batch: of sizes from nothing to a few blocks, different in each.
fn values(seed: u64, index: usize) -> Vec<Vec<u8>> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index as u64 + 1);
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..1 + random() % 3).map(|_| vec![random() as u8; (random() % 9_000) as usize]).collect()
}

/// Opens the log and appends `count` batches from several tasks, some of them waiting for
/// persistence. Returns what was found at open.
fn append_batches(disk: &SimDisk, seed: u64, count: usize, run: &Mutex<Run>) -> Option<Vec<Vec<u8>>> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let mut found = Vec::new();
        let (log, _) = Log::open(&env, Path::new(FOLDER), options(), |_, record| {
            found.push(record.value.to_vec());
        })
        .await
        .unwrap_or_else(|error| panic!("seed={seed}: {error}"));
        for index in 0..count {
            let values = values(seed, index);
            let mut batch = Batch::new();
            for value in &values {
                batch.push(Flags::LISTED, &index.to_be_bytes(), b"meta", value);
            }
            let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][(seed as usize + index) % 3];
            if (seed + index as u64).is_multiple_of(5) {
                // Somebody appends and goes away before it is told: all of it counts, or nothing.
                let gone = values_of_one_who_goes(&log, &env, seed, index).await;
                run.lock().unwrap().submitted.extend(gone);
            }
            run.lock().unwrap().submitted.push(values);
            let appended = log.append(&batch, stage).await.unwrap();
            log.wait(appended.last_seq, stage).await.unwrap();
            if stage == Stage::Persisted {
                let mut run = run.lock().unwrap();
                run.acknowledged_count = run.submitted.len();
            }
        }
        log.close().await.unwrap();
        let mut run = run.lock().unwrap();
        run.acknowledged_count = run.submitted.len();
        found
    })
}

/// An append whose future is dropped after a time. Returns its values where it was accepted.
async fn values_of_one_who_goes(log: &Log, env: &Env, seed: u64, index: usize) -> Option<Vec<Vec<u8>>> {
    let value = vec![0xCC; 20_000];
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"gone", b"", &value);
    let append = pin!(log.append(&batch, Stage::Persisted));
    let leave = env.clock.sleep(Duration::from_micros(seed * 97 % 3_000 + index as u64));
    match select(append, leave).await {
        Either::Left((appended, _)) => appended.is_ok().then(|| vec![value]),
        Either::Right(_) => None,
    }
}

fn recover(disk: &SimDisk, case: &str) -> Vec<Vec<u8>> {
    append_batches(disk, 0, 0, &Mutex::default()).unwrap_or_else(|| panic!("no power to recover: {case}"))
}

/// How many whole batches `found` holds, where it is a prefix of what was submitted.
fn whole_batches(run: &Run, found: &[Vec<u8>], case: &str) -> usize {
    let mut rest = found;
    let mut count = 0;
    for batch in &run.submitted {
        if rest.is_empty() {
            break;
        }
        assert!(rest.len() >= batch.len(), "half a batch: {case}");
        let (this, others) = rest.split_at(batch.len());
        assert!(this == batch, "not what was submitted: {case}");
        (rest, count) = (others, count + 1);
    }
    assert!(rest.is_empty(), "more than was submitted: {case}");
    count
}

fn check(run: &Run, found: &[Vec<u8>], case: &str) {
    let count = whole_batches(run, found, case);
    assert!(
        run.acknowledged_count <= count,
        "lost {} of {}: {case}",
        run.acknowledged_count - count,
        run.acknowledged_count
    );
}

/// Runs the workload with a cut of the power, and after it once more with another.
fn crash_twice(seed: u64, first: SimDisk, second_at: u64, case: &str) {
    let run = Mutex::new(Run::default());
    append_batches(&first, seed, 8, &run);
    let run = run.into_inner().unwrap();
    let disk = first.after_power_loss();
    let found = recover(&disk, case);
    check(&run, &found, case);

    // What recovery found is there for good, also when the power goes during it or soon after.
    let again = Mutex::new(Run {
        submitted: found.iter().map(|value| vec![value.clone()]).collect(),
        acknowledged_count: found.len(),
    });
    let disk = disk.after_power_loss().crash_at_sync(second_at);
    append_batches(&disk, seed + 1, 4, &again);
    let case = format!("{case} second_at={second_at}");
    let found = recover(&disk.after_power_loss(), &case);
    check(&again.into_inner().unwrap(), &found, &case);
}

#[test]
fn acknowledged_batches_survive_power_loss() {
    let mut crash_count = 0;
    for seed in seeds(200) {
        let whole = SimDisk::new(seed);
        append_batches(&whole, seed, 8, &Mutex::default());
        for crash_at in 0..=whole.sync_count() {
            crash_twice(
                seed,
                SimDisk::new(seed).crash_at_sync(crash_at),
                crash_at % 7,
                &format!("seed={seed} crash_at={crash_at}"),
            );
            crash_twice(
                seed,
                SimDisk::new(seed).crash_after_sync(crash_at),
                crash_at % 5,
                &format!("seed={seed} crash_after={crash_at}"),
            );
            crash_count += 4;
        }
    }
    println!("{crash_count} power losses tried, lost 0");
    assert!(crash_count > 2_000 || std::env::var_os("SETTEE_SEED").is_some());
}

#[test]
fn acknowledged_batches_survive_power_loss_at_any_operation() {
    for seed in seeds(20) {
        let whole = SimDisk::new(seed);
        append_batches(&whole, seed, 8, &Mutex::default());
        for crash_at in 0..=whole.operation_count() {
            let case = format!("seed={seed} operation={crash_at}");
            crash_twice(seed, SimDisk::new(seed).crash_at_operation(crash_at), crash_at % 6, &case);
        }
    }
}

/// The test above must be able to fail: without syncs, of files or of folders, it does.
#[test]
fn a_missing_sync_is_caught() {
    type Fault = fn(SimDisk) -> SimDisk;
    let faults: [(&str, Fault); 2] =
        [("files", |disk| disk.ignore_syncs(true)), ("folders", |disk| disk.ignore_folder_syncs(true))];
    for (name, fault) in faults {
        let lost = seeds(20).find_map(|seed| {
            let run = Mutex::new(Run::default());
            let disk = fault(SimDisk::new(seed));
            append_batches(&disk, seed, 8, &run);
            disk.cut_power();
            let run = run.into_inner().unwrap();
            let outcome = std::panic::catch_unwind(|| {
                let case = format!("seed={seed} without syncs of {name}");
                check(&run, &recover(&disk.after_power_loss(), &case), &case);
            });
            outcome.err().map(|panic| (seed, panic))
        });
        let (seed, panic) = lost.unwrap_or_else(|| panic!("syncs of {name} left out, and nothing noticed"));
        let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        println!("with syncs of {name} left out: {message} (seed {seed})");
    }
}
