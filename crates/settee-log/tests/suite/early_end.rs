//! Goal: a segment that is ended early can be sealed and listed, and no power loss in that loses a record.
//! Method: simulated disks; a user that ends segments between appends, with a power loss at every operation.

use std::path::Path;
use std::sync::Mutex;

use settee_log::{Batch, Edit, Flags, Log, LogOptions, Seq, Stage};
use settee_sim::{Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";

/// Number of batches before a power loss.
const ROUND_COUNT: u64 = 9;

fn options() -> LogOptions {
    LogOptions { batch_bytes_max: 64 << 10, segment_bytes_max: 1 << 20, ..LogOptions::default() }
}

async fn open(env: &settee_io::Env) -> (Log, Vec<u64>) {
    let mut found = Vec::new();
    let opened = Log::open(env, Path::new(DIRECTORY), options(), |_, record| found.push(record.seq.0)).await;
    (opened.unwrap().0, found)
}

async fn append(log: &Log, bytes: usize) -> Option<Seq> {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &vec![7; bytes]);
    let seq = log.append(&batch, Stage::Persisted).await.ok()?.last_seq;
    log.wait(seq, Stage::Persisted).await.ok().map(|()| seq)
}

#[test]
fn a_segment_ends_at_a_pause_and_is_sealed_without_an_append() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open(&env).await;
            log.begin_segment().await.unwrap();
            assert!(log.segments().is_empty(), "seed={seed}: an empty log has nothing to end");
            for _ in 0..5 {
                append(&log, 700).await.unwrap();
            }
            for _ in 0..2 {
                log.begin_segment().await.unwrap();
                assert_eq!(log.segments(), [1, 2], "seed={seed}: an empty segment isn't ended");
            }
            let open_number = log.seal_soon();
            while log.sealed_below() < open_number {
                log.sealed_changed(log.sealed_below()).await.unwrap();
            }
            assert_eq!(open_number, 2, "seed={seed}");
            let edit = Edit { list_to: Some(Seq(5)), ..Edit::default() };
            assert!(log.edit(edit, |_| false).await.unwrap(), "seed={seed}");
            assert_eq!(log.segments(), [2], "seed={seed}");
            assert!(log.stats().reserved_bytes <= 64 << 10, "seed={seed}: {:?}", log.stats());
            // The empty segment takes a batch larger than planned.
            append(&log, 60 << 10).await.unwrap();
            append(&log, 60 << 10).await.unwrap();
            assert_eq!(log.segments()[0], 2, "seed={seed}");
            log.close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn the_next_batch_begins_a_segment_once_the_open_one_is_ended() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open(&env).await;
        log.end_segment();
        for expected in 1..5 {
            append(&log, 700).await.unwrap();
            append(&log, 700).await.unwrap();
            assert_eq!(*log.segments().last().unwrap(), expected);
            log.end_segment();
            log.end_segment();
        }
        assert_eq!(log.segments().len(), 4);
        log.close().await.unwrap();
    })
    .unwrap();
}

/// Appends and ends segments, and notes what was acknowledged.
async fn work(log: &Log, acknowledged: &Mutex<u64>) {
    for round in 0..ROUND_COUNT {
        let seq = append(log, 300 + round as usize * 900).await.unwrap();
        *acknowledged.lock().unwrap() = seq.0;
        match round % 3 {
            0 => log.begin_segment().await.unwrap(),
            1 => log.end_segment(),
            _ => {}
        }
    }
}

#[test]
fn no_power_loss_while_segments_are_ended_loses_a_record() {
    for seed in seeds(6) {
        let run = |disk: &SimDisk| {
            let sim = Sim::with_disk(disk);
            let (env, acknowledged) = (sim.env(), Mutex::default());
            let options = LogOptions { direct: seed % 2 == 1, ..options() };
            let ended = sim.run(async {
                let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
                work(&log, &acknowledged).await;
                log.close().await.unwrap();
            });
            (ended.is_some(), acknowledged.into_inner().unwrap())
        };
        let whole = SimDisk::new(seed);
        assert_eq!(run(&whole), (true, ROUND_COUNT), "seed={seed}");
        for crash_at in 0..whole.operation_count() {
            let case = format!("seed={seed} crash_at={crash_at}");
            let disk = SimDisk::new(seed).crash_at_operation(crash_at);
            let (has_ended, acknowledged) = run(&disk);
            assert!(!has_ended, "{case}: the power fails");
            let disk = disk.after_power_loss();
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            sim.run(async {
                let (log, found) = open(&env).await;
                assert!(found.len() as u64 >= acknowledged, "{case}: {acknowledged} were acknowledged");
                assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>(), "{case}");
                let next = append(&log, 100).await.unwrap();
                assert_eq!(next.0, found.len() as u64 + 1, "{case}");
                log.begin_segment().await.unwrap();
                log.close().await.unwrap();
                let (log, again) = open(&env).await;
                assert_eq!(again.len(), found.len() + 1, "{case}");
                log.close().await.unwrap();
            })
            .unwrap();
        }
    }
}

#[test]
fn on_a_full_disk_a_segment_that_was_to_end_early_takes_what_fits_it() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open(&env).await;
        let used = || disk.paths().iter().map(|path| disk.read_file(path).unwrap().len() as u64).sum();
        for _ in 0..5 {
            append(&log, 700).await.unwrap();
        }
        let _ = disk.clone().capacity(Some(used()));
        // Until the space that was reserved for all, and the preallocated segment, are used up.
        while append(&log, 9_000).await.is_some() {}
        let segments = log.segments();
        log.end_segment();
        let mut deletion = Batch::new();
        deletion.push(Flags::TOMBSTONE, b"key", b"", b"");
        deletion.use_reserve();
        let appended = log.append(&deletion, Stage::Persisted).await.expect("the reserve is for this");
        log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
        assert_eq!(log.segments(), segments);
        // Once there is space, the next segment begins when this one is full.
        let _ = disk.clone().capacity(None);
        env.clock.sleep(std::time::Duration::from_secs(5)).await;
        assert!(append(&log, 60_000).await.is_some());
    })
    .unwrap();
}
