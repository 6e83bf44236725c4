//! Goal: the log keeps its guarantees on failing and full disks, and reads never wait.
//! Method: the simulated disk fails, stalls or is full at a chosen operation.

use std::path::Path;
use std::time::Duration;

use settee_io::OperationKind;
use settee_log::{AppendError, Batch, Flags, Log, LogOptions, OpenError, Stage};
use settee_sim::{Fault, Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";

fn batch(value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", value);
    batch
}

async fn open(env: &settee_io::Env) -> Result<(Log, Vec<Vec<u8>>), OpenError> {
    let mut found = Vec::new();
    let (log, _) = Log::open(env, Path::new(DIRECTORY), LogOptions::default(), |_, record| {
        found.push(record.value.to_vec())
    })
    .await?;
    Ok((log, found))
}

async fn put(log: &Log, value: &[u8]) -> Result<(), AppendError> {
    let appended = log.append(&batch(value), Stage::Persisted).await?;
    Ok(log.wait(appended.last_seq, Stage::Persisted).await?)
}

#[test]
fn accepted_records_are_read_from_memory_and_later_from_the_file() {
    for seed in seeds(50) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open(&env).await.unwrap();
            let mut places = Vec::new();
            for index in 0..20_u8 {
                let value = vec![index; 100 + usize::from(index) * 400];
                let stage = if index % 3 == 0 { Stage::Persisted } else { Stage::Accepted };
                let appended = log.append(&batch(&value), stage).await.unwrap();
                places.push((appended.locations[0], value));
                for (location, value) in &places {
                    assert_eq!(log.read(*location).await.unwrap().value(), value, "seed={seed}");
                }
            }
            log.flush().await.unwrap();
            for (location, value) in &places {
                assert_eq!(log.read(*location).await.unwrap().value(), value, "seed={seed}");
            }
        })
        .unwrap();
    }
}

#[test]
fn reads_do_not_wait_for_writes_or_syncs() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open(&env).await.unwrap();
        let first = log.append(&batch(b"first"), Stage::Persisted).await.unwrap();
        log.flush().await.unwrap();
        // From here on every write and sync takes at least ten seconds; reads don't.
        let _slow = disk.clone().delays_us(10_000_000..=10_000_000);
        let second = log.append(&batch(b"second"), Stage::Persisted).await.unwrap();
        env.clock.sleep(Duration::from_millis(1)).await;
        let third = log.append(&batch(b"third"), Stage::Persisted).await.unwrap();
        let start = env.clock.now();
        assert_eq!(&log.read(second.locations[0]).await.unwrap().value()[..], b"second");
        assert_eq!(&log.read(third.locations[0]).await.unwrap().value()[..], b"third");
        assert_eq!(env.clock.now(), start, "a read of what is in memory waited");
        let _fast = disk.clone().delays_us(10..=10);
        assert_eq!(&log.read(first.locations[0]).await.unwrap().value()[..], b"first");
        assert!(env.clock.now() - start < Duration::from_secs(1), "a read waited for a sync");
        log.flush().await.unwrap();
    })
    .unwrap();
}

#[test]
fn concurrent_writers_share_syncs_and_a_single_one_waits_for_one() {
    let disk = SimDisk::new(7).delays_us(1_000..=1_000).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open(&env).await.unwrap();
        put(&log, b"the segment exists").await.unwrap();
        let before = log.stats();
        put(&log, b"alone").await.unwrap();
        let alone = log.stats();
        assert_eq!((alone.sync_count - before.sync_count, alone.write_count - before.write_count), (1, 1));
        // All append before the first sync completes (disk space is available): it covers the first batch, a
        // second sync the rest.
        let mut last = None;
        for _ in 0..50 {
            last = Some(log.append(&batch(&[1; 200]), Stage::Persisted).await.unwrap().last_seq);
            env.clock.sleep(Duration::ZERO).await;
        }
        log.wait(last.unwrap(), Stage::Persisted).await.unwrap();
        assert!(log.stats().sync_count - alone.sync_count <= 2, "{:?}", log.stats());
    })
    .unwrap();
}

#[test]
fn written_bytes_are_synced_within_their_age_limit() {
    let disk = SimDisk::new(3);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open(&env).await.unwrap();
        let appended = log.append(&batch(b"nobody waits"), Stage::Accepted).await.unwrap();
        env.clock.sleep(Duration::from_secs(3)).await;
        assert_eq!(log.persisted(), appended.last_seq);
    })
    .unwrap();
}

#[test]
fn a_failed_write_or_sync_stops_the_log_and_reads_continue() {
    let options =
        LogOptions { batch_bytes_max: 16 << 10, segment_bytes_max: 40 << 10, ..LogOptions::default() };
    let faults = [
        (OperationKind::Write, 2),
        (OperationKind::Write, 5),
        (OperationKind::Sync, 0),
        (OperationKind::SyncDirectory, 3),
        (OperationKind::Allocate, 1),
    ];
    for (kind, nth) in faults {
        let disk = SimDisk::new(5).fail(kind, nth, Fault::Io);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let acknowledged = sim
            .run(async {
                let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
                let first = log.append(&batch(b"first"), Stage::Persisted).await.unwrap();
                log.flush().await.unwrap();
                let mut acknowledged = 1;
                let stopped = loop {
                    // Sometimes a separate write, and a later sync.
                    let separate = log.append(&batch(b"apart"), Stage::Written).await;
                    let separate = match separate {
                        Ok(appended) => log.wait(appended.last_seq, Stage::Written).await.err(),
                        Err(error) => panic!("{kind} {nth}: {error}"),
                    };
                    if separate.is_none()
                        && acknowledged % 4 == 0
                        && let Err(stopped) = log.flush().await
                    {
                        break stopped.into();
                    }
                    match put(&log, &[acknowledged; 2_000]).await {
                        Ok(()) => acknowledged += 1,
                        Err(error) => break error,
                    }
                };
                assert!(matches!(stopped, AppendError::Stopped(_)), "{kind} {nth}: {stopped}");
                assert!(matches!(put(&log, b"more").await, Err(AppendError::Stopped(_))));
                assert!(log.health().is_err());
                assert_eq!(&log.read(first.locations[0]).await.unwrap().value()[..], b"first");
                acknowledged
            })
            .unwrap();
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        let (_, found) = sim.run(async { open(&env).await.unwrap() }).unwrap();
        assert!(found.len() >= usize::from(acknowledged), "{kind} {nth}: {} of {acknowledged}", found.len());
    }
}

#[test]
fn a_full_disk_refuses_appends_until_there_is_space() {
    for seed in seeds(50) {
        let disk = SimDisk::new(seed).capacity(Some(300_000));
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let acknowledged = sim
            .run(async {
                let (log, _) = open(&env).await.unwrap();
                let mut acknowledged = 0_u8;
                let refused = loop {
                    match put(&log, &[acknowledged; 10_000]).await {
                        Ok(()) => acknowledged += 1,
                        Err(error) => break error,
                    }
                };
                assert!(matches!(refused, AppendError::NoSpace { .. }), "seed={seed}: {refused}");
                assert!(acknowledged > 10, "seed={seed}: {acknowledged}");
                assert!(log.health().is_ok(), "seed={seed}");
                let mut deletion = batch(&[acknowledged; 10_000]);
                deletion.use_reserve();
                let appended = log.append(&deletion, Stage::Persisted).await.unwrap();
                log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
                acknowledged += 1;
                let _more = disk.clone().capacity(Some(600_000));
                for _ in 0..5 {
                    put(&log, &[acknowledged; 10_000]).await.unwrap();
                    acknowledged += 1;
                }
                acknowledged
            })
            .unwrap();
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        let (_, found) = sim.run(async { open(&env).await.unwrap() }).unwrap();
        let expected: Vec<_> = (0..acknowledged).map(|index| vec![index; 10_000]).collect();
        assert!(found == expected, "seed={seed}: {} of {acknowledged}", found.len());
    }
}

#[test]
fn batches_fill_segments_and_all_are_found_again() {
    let disk = SimDisk::new(11);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let options =
        LogOptions { segment_bytes_min: 33 << 20, segment_bytes_max: 33 << 20, ..LogOptions::default() };
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
        for index in 0..12_u8 {
            log.append(&batch(&vec![index; 7_000_000]), Stage::Written).await.unwrap();
        }
        log.close().await.unwrap();
        let too_large = log.append(&batch(&vec![0; 17 << 20]), Stage::Written).await;
        assert!(matches!(too_large, Err(AppendError::TooLarge { .. })), "{too_large:?}");
    })
    .unwrap();
    let segments =
        disk.paths().iter().filter(|path| path.extension().is_some_and(|end| end == "log")).count();
    // The next one may have been preallocated.
    assert!((3..=4).contains(&segments), "{segments}");
    let (_, found) = sim.run(async { open(&env).await.unwrap() }).unwrap();
    assert_eq!(found.iter().map(|value| value[0]).collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
}

#[test]
fn no_append_enters_a_segment_that_is_being_closed() {
    let options =
        LogOptions { batch_bytes_max: 16 << 10, segment_bytes_max: 40 << 10, ..LogOptions::default() };
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let acknowledged = sim
            .run(async {
                let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
                let mut acknowledged = 0;
                for index in 0..12 {
                    if index % 3 == 2 {
                        // Too large for the rest of the segment; cancelled while the next one begins.
                        let large = batch(&[2; 15 << 10]);
                        let append = std::pin::pin!(log.append(&large, Stage::Persisted));
                        let leave = env.clock.sleep(Duration::from_micros(seed * 37));
                        futures_util::future::select(append, leave).await;
                    }
                    // Small enough for the old segment, if it were still open.
                    put(&log, b"small").await.unwrap();
                    put(&log, &[1; 9_000]).await.unwrap();
                    acknowledged += 2;
                }
                acknowledged
            })
            .unwrap();
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        let mut found = 0;
        let opened = sim.run(async {
            Log::open(&env, Path::new(DIRECTORY), options, |_, record| {
                found += usize::from(record.value[0] != 2)
            })
            .await
        });
        opened.unwrap().unwrap_or_else(|error| panic!("seed={seed}: {error}"));
        assert_eq!(found, acknowledged, "seed={seed}");
    }
}

#[test]
fn written_bytes_are_synced_within_their_age_limit_also_under_load() {
    let disk = SimDisk::new(1).delays_us(2_000..=2_000);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open(&env).await.unwrap();
        let mut appended = std::collections::VecDeque::new();
        for _ in 0..5_000 {
            let seq = log.append(&batch(b"x"), Stage::Accepted).await.unwrap().last_seq;
            appended.push_back((seq, env.clock.now()));
            while appended.front().is_some_and(|(seq, _)| *seq <= log.persisted()) {
                appended.pop_front();
            }
            if let Some((_, since)) = appended.front() {
                assert!(env.clock.now() - *since < Duration::from_millis(1_100));
            }
            env.clock.sleep(Duration::from_millis(1)).await;
        }
    })
    .unwrap();
}

#[test]
fn a_failed_directory_sync_is_not_treated_as_a_full_disk() {
    // The first two are of the parent directories; the third is of the segment's name.
    for nth in 0..3 {
        let disk = SimDisk::new(1).fail(OperationKind::SyncDirectory, nth, Fault::NoSpace);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open(&env).await.unwrap();
            assert!(matches!(put(&log, b"x").await, Err(AppendError::Stopped(_))), "{nth}");
            assert!(log.health().is_err(), "{nth}");
        })
        .unwrap();
    }
}

#[test]
fn a_failed_sync_of_zeros_is_not_treated_as_a_full_disk() {
    for nth in 0..3 {
        // The commits' own syncs are part of their writes; the remaining ones are those of reserved space.
        let disk = SimDisk::new(1).fail(OperationKind::Sync, nth, Fault::NoSpace);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let options = LogOptions { segment_bytes_min: 64 << 20, ..LogOptions::default() };
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
            let mut count = 0;
            while disk.count_of(OperationKind::Sync) <= nth && put(&log, &[1; 2_000]).await.is_ok() {
                count += 1;
                assert!(count < 1_000, "no zeros were synced");
            }
            env.clock.sleep(Duration::from_secs(1)).await;
            assert!(log.health().is_err(), "{nth}");
        })
        .unwrap();
    }
}

#[test]
fn directories_of_a_process_that_was_killed_are_made_durable_by_the_next() {
    for (seed, killed_at) in
        seeds(40).flat_map(|seed| (0..8_000).step_by(250).map(move |killed_at| (seed, killed_at)))
    {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let kill = env.clock.sleep(Duration::from_micros(killed_at));
            let process = std::pin::pin!(async {
                let (log, _) = open(&env).await.unwrap();
                let _ = put(&log, b"first").await;
            });
            futures_util::future::select(process, kill).await;
        })
        .unwrap();
        drop(sim);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open(&env).await.unwrap();
            put(&log, b"second").await.unwrap();
        })
        .unwrap();
        let disk = disk.after_power_loss();
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let (_, found) = sim.run(async { open(&env).await.unwrap() }).unwrap();
        let last = found.last().map(Vec::as_slice);
        assert_eq!(last, Some(&b"second"[..]), "seed={seed} killed_at={killed_at}");
    }
}
