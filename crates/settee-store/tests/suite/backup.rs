//! Goal: a backup made under writes is a whole store with everything acknowledged before; nothing done to the
//! store later affects it; and files of an earlier backup are not copied again.
//! Method: in the simulation, run seeded commits with small limits in one task and backups in another, then
//! compact. Check each backup and compare its contents. Cut the power during backups, replace everything that
//! is being copied, or close the store.

use crate::common::model;

use std::cell::Cell;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::{Model, OPTIONS, Random, commit};
use settee_io::Env;
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{
    Backup, BackupFiles, Batch, CheckEvent, EarlierBackup, LogOptions, Snapshot, Stage, Store, StoreOptions,
    checksum_file, copy_file,
};

fn options(seed: u64) -> StoreOptions {
    StoreOptions {
        checkpoint_entries_min: [4, 40][seed as usize % 2],
        checkpoint_bytes_max: 30 << 10,
        garbage_percent_max: 10,
        log: LogOptions { segment_bytes_max: 40 << 10, ..OPTIONS.log },
        ..OPTIONS
    }
}

/// Makes a backup with an earlier one, whose files are in `files`, and replaces those with the new one's.
async fn back_up(store: &Store, to: &str, earlier: &str, files: &mut BackupFiles) -> Backup {
    let earlier = EarlierBackup { directory: Path::new(earlier), files };
    let (done, made) = store.backup(Path::new(to), Some(earlier)).await.unwrap();
    *files = made;
    done
}

async fn copy_store(env: &Env, from: &str, to: &str) {
    settee_io::directory::create(&*env.engine, Path::new(to)).await.unwrap();
    for entry in settee_io::directory::list(&*env.engine, Path::new(from)).await.unwrap() {
        let (from, to) = (Path::new(from).join(&entry.name), Path::new(to).join(&entry.name));
        copy_file(env, &from, &to).await.unwrap();
    }
}

/// Keys, each with its update, meta and value.
type Contents = Vec<(Vec<u8>, u64, Vec<u8>, Vec<u8>)>;

async fn contents(snapshot: &Snapshot) -> Contents {
    let mut contents = Vec::new();
    let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(entry) = scan.next().await.unwrap() {
        let value = snapshot.read(entry.location).await.unwrap().value();
        contents.push((entry.key.to_vec(), entry.seq().0, entry.meta.to_vec(), value.to_vec()));
    }
    contents
}

fn of_model(model: &Model) -> Contents {
    let row = |(key, (seq, meta, value, _)): (&Vec<u8>, &model::Value)| {
        (key.clone(), *seq, meta.clone(), value.clone())
    };
    model.entries.iter().map(row).collect()
}

async fn problems(env: &Env, directory: &Path, seed: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let on_event = |event| {
        if let CheckEvent::Problem(problem) = event {
            problems.push(problem.to_string());
        }
    };
    settee_store::check(env, directory, &options(seed), on_event).await.unwrap();
    problems
}

#[test]
fn a_backup_under_writes_is_whole_and_stays_so() {
    let linked = Cell::new(0);
    let unchanged = Cell::new(0);
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let store = Arc::new(Store::open(&env, Path::new("/data/store"), options(seed)).await.unwrap().0);
            // Contents after each commit, by its update.
            let history: Arc<Mutex<Vec<(u64, Contents)>>> = Arc::new(Mutex::new(vec![(0, Vec::new())]));
            let ends = Arc::new(AtomicBool::new(false));
            let (done, writer_done) = tokio::sync::oneshot::channel();
            let (writer, past, is_ended, clock) =
                (store.clone(), history.clone(), ends.clone(), env.clock.clone());
            env.spawn("writer", async move {
                let mut random = Random::new(seed);
                let mut model = Model::default();
                while !is_ended.load(Ordering::Relaxed) {
                    let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][random.below(3)];
                    let seq = commit(&writer, &mut model, &mut random, stage).await;
                    past.lock().unwrap().push((seq.0, of_model(&model)));
                    if random.below(3) == 0 {
                        writer.wait(seq, Stage::Persisted).await.unwrap();
                    }
                    clock.sleep(Duration::from_millis(random.below(30) as u64)).await;
                }
                done.send(()).unwrap();
            });
            let (mut found, mut files) = (Vec::new(), BackupFiles::new());
            for number in 1..=4 {
                env.clock.sleep(Duration::from_millis(400)).await;
                let before = history.lock().unwrap().last().unwrap().0;
                let directory = format!("/backup/{number}");
                let previous = format!("/backup/{}", number - 1);
                let made = back_up(&store, &directory, &previous, &mut files).await;
                linked.set(linked.get() + made.linked_count);
                for (name, file) in &files {
                    let checksum = checksum_file(&env, &Path::new(&directory).join(name)).await.unwrap();
                    assert_eq!(file.checksum, checksum, "seed={seed} {directory}/{name}");
                }
                found.push((directory, before));
                if number == 2 {
                    store.compact().await.unwrap();
                }
            }
            ends.store(true, Ordering::Relaxed);
            writer_done.await.unwrap();
            store.compact().await.unwrap();
            // Nothing was committed since: only the log's last segments may be copied again.
            let same = back_up(&store, "/backup/5", "/backup/4", &mut files).await;
            let again = back_up(&store, "/backup/6", "/backup/5", &mut files).await;
            assert_eq!(again.copied_bytes, 0, "seed={seed}: {again:?} after {same:?}");
            unchanged.set(unchanged.get() + again.linked_count);
            store.close().await.unwrap();
            assert_eq!(
                problems(&env, Path::new("/data/store"), seed).await,
                [] as [String; 0],
                "seed={seed}"
            );
            for (directory, before) in found {
                let case = format!("seed={seed} {directory}");
                assert_eq!(problems(&env, Path::new(&directory), seed).await, [] as [String; 0], "{case}");
                let restored = format!("{directory}-restored");
                copy_store(&env, &directory, &restored).await;
                let (store, recovery) = Store::open(&env, Path::new(&restored), options(seed)).await.unwrap();
                assert_eq!(recovery.cut_bytes, 0, "{case}");
                let seq = store.snapshot().seq().0;
                assert!(seq >= before, "{case}: {seq} of {before} acknowledged");
                let expected = history.lock().unwrap().iter().find(|(at, _)| *at == seq).cloned();
                let (_, expected) = expected.unwrap_or_else(|| panic!("{case}: {seq} is no batch's end"));
                assert_eq!(contents(&store.snapshot()).await, expected, "{case}");
                // It is a store like any other.
                let (mut model, mut random) = (Model::default(), Random::new(seed));
                let mut batch = Batch::new();
                batch.put(b"more", b"", bytes::Bytes::from(random.bytes(9)), false);
                model.last_in_seq_index = 0;
                store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
                store.compact().await.unwrap();
                store.close().await.unwrap();
                assert_eq!(problems(&env, Path::new(&restored), seed).await, [] as [String; 0], "{case}");
                assert_eq!(problems(&env, Path::new(&directory), seed).await, [] as [String; 0], "{case}");
            }
        })
        .unwrap();
    }
    println!("linked {}, unchanged {}", linked.get(), unchanged.get());
    assert!(linked.get() > 20 && unchanged.get() > 40);
}

#[test]
fn a_power_loss_during_a_backup_harms_neither_the_store_nor_an_earlier_backup() {
    let (mut cut_count, mut tried) = (0, 0);
    for seed in seeds(12) {
        let make = |disk: &SimDisk| {
            let sim = Sim::with_disk(disk);
            let env = sim.env();
            let model = Arc::new(Mutex::new(Model::default()));
            let shared = model.clone();
            let first = Arc::new(AtomicBool::new(false));
            let is_first_made = first.clone();
            let finished = sim.run(async move {
                let mut random = Random::new(seed);
                let store = Store::open(&env, Path::new("/data/store"), options(seed)).await.unwrap().0;
                let mut model = Model::default();
                for _ in 0..40 {
                    commit(&store, &mut model, &mut random, Stage::Accepted).await;
                }
                store.checkpoint().await.unwrap();
                store.flush().await.unwrap();
                env.clock.sleep(Duration::from_millis(500)).await;
                *shared.lock().unwrap() = model;
                let mut files = store.backup(Path::new("/backup/1"), None).await.unwrap().1;
                is_first_made.store(true, Ordering::Relaxed);
                store.compact().await.unwrap();
                back_up(&store, "/backup/2", "/backup/1", &mut files).await;
                store.close().await.unwrap();
            });
            let model = model.lock().unwrap().clone();
            (finished.is_some(), first.load(Ordering::Relaxed), model)
        };
        let whole = SimDisk::new(seed);
        assert!(make(&whole).0, "seed={seed}");
        let count = whole.operation_count();
        for at in (count / 3..count).step_by(3) {
            let disk = SimDisk::new(seed).crash_at_operation(at);
            let (finished, first_made, model) = make(&disk);
            tried += 1;
            cut_count += usize::from(!finished);
            if model.entries.is_empty() {
                continue;
            }
            let disk = disk.after_power_loss();
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            sim.run(async {
                let case = format!("seed={seed} at={at}");
                let directories =
                    if first_made { &["/data/store", "/backup/1"][..] } else { &["/data/store"] };
                for directory in directories {
                    let (store, _) = Store::open(&env, Path::new(directory), options(seed)).await.unwrap();
                    assert_eq!(contents(&store.snapshot()).await, of_model(&model), "{case} {directory}");
                    store.close().await.unwrap();
                    assert_eq!(
                        problems(&env, Path::new(directory), seed).await,
                        [] as [String; 0],
                        "{case} {directory}"
                    );
                }
            })
            .unwrap();
        }
    }
    println!("{tried} power losses, {cut_count} of them before the end");
    assert!(cut_count > 100);
}

/// A store whose backup takes 16 seconds to copy.
async fn slow_to_copy(env: &Env, random: &mut Random) -> Arc<Store> {
    let options =
        StoreOptions { compaction_bytes_per_second: 100 << 10, checkpoint_entries_min: 1 << 20, ..OPTIONS };
    let store = Arc::new(Store::open(env, Path::new("/data/store"), options).await.unwrap().0);
    for number in 0..200 {
        put(&store, number, random).await;
    }
    store.flush().await.unwrap();
    store
}

async fn put(store: &Store, number: u32, random: &mut Random) {
    let mut batch = Batch::new();
    batch.put(&number.to_be_bytes(), &[], random.bytes(8 << 10).into(), true);
    store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
}

#[test]
fn while_a_backup_copies_all_that_it_copies_may_be_replaced() {
    let sim = Sim::new(7);
    let env = sim.env();
    sim.run(async {
        let mut random = Random::new(7);
        let store = slow_to_copy(&env, &mut random).await;
        // Some of the segments are the store's, the others are the log's.
        store.compact().await.unwrap();
        for number in 100..300 {
            put(&store, number, &mut random).await;
        }
        store.flush().await.unwrap();
        let (expected, begun) = (contents(&store.snapshot()).await, env.clock.now());
        let (copier, (done, backup)) = (store.clone(), tokio::sync::oneshot::channel());
        env.spawn("backup", async move {
            done.send(copier.backup(Path::new("/backup/1"), None).await.unwrap()).unwrap();
        });
        env.clock.sleep(Duration::from_millis(500)).await;
        store.checkpoint().await.unwrap().unwrap();
        let took = env.clock.now() - begun;
        assert!(took < Duration::from_secs(2), "the checkpoint waited for the backup: {took:?}");
        for number in 0..250 {
            put(&store, number, &mut random).await;
        }
        store.compact().await.unwrap();
        // By this compaction, or by one in the background.
        let compacted_count = store.store_stats().compacted_count;
        assert!(compacted_count > 50, "{compacted_count}");
        let (made, _) = backup.await.unwrap();
        let took = env.clock.now() - begun;
        assert!(made.copied_count > 40 && took > Duration::from_secs(10), "{made:?} in {took:?}");
        assert_eq!(problems(&env, Path::new("/backup/1"), 0).await, [] as [String; 0]);
        let (copy, _) = Store::open(&env, Path::new("/backup/1"), options(0)).await.unwrap();
        assert!(contents(&copy.snapshot()).await == expected, "other contents");
    })
    .unwrap();
}

#[test]
fn a_copy_made_beside_checkpoints_opens_and_has_what_was_accepted_before() {
    let mut with_checkpoint = 0;
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let store = Arc::new(Store::open(&env, Path::new("/data/store"), options(1)).await.unwrap().0);
            let (writer, clock) = (store.clone(), env.clock.clone());
            let accepted = Arc::new(std::sync::atomic::AtomicU32::new(0));
            let counter = accepted.clone();
            env.spawn("writes", async move {
                let mut random = Random::new(seed);
                for number in 0..80 {
                    put(&writer, number, &mut random).await;
                    counter.store(number + 1, Ordering::Release);
                    if number % 3 == 0 {
                        // It ends while a backup waits for its flush, or shortly before or after that.
                        writer.checkpoint().await.unwrap();
                    }
                    clock.sleep(Duration::from_micros(random.below(1500) as u64)).await;
                }
            });
            for round in 0..8 {
                env.clock.sleep(Duration::from_millis(7)).await;
                let (before, to) = (accepted.load(Ordering::Acquire), format!("/backup/{round}"));
                store.backup(Path::new(&to), None).await.unwrap();
                let copy = Store::open(&env, Path::new(&to), options(1)).await;
                let (copy, _) = copy.unwrap_or_else(|error| panic!("seed={seed} round={round}: {error}"));
                let found = contents(&copy.snapshot()).await.len() as u32;
                assert!(found >= before, "seed={seed} round={round}: {found} of {before}");
                with_checkpoint += u32::from(copy.store_stats().tree_bytes > 0);
                copy.close().await.unwrap();
            }
        })
        .unwrap();
    }
    assert!(with_checkpoint > 100, "{with_checkpoint}");
}

#[test]
fn a_store_that_is_closed_ends_its_backup_which_is_no_whole_one() {
    let sim = Sim::new(7);
    let (env, disk) = (sim.env(), sim.disk().clone());
    sim.run(async {
        let mut random = Random::new(7);
        let store = slow_to_copy(&env, &mut random).await;
        store.checkpoint().await.unwrap().unwrap();
        let (copier, (done, backup)) = (store.clone(), tokio::sync::oneshot::channel());
        env.spawn("backup", async move {
            done.send(copier.backup(Path::new("/backup/1"), None).await).unwrap();
        });
        env.clock.sleep(Duration::from_millis(500)).await;
        let begun = env.clock.now();
        store.close().await.unwrap();
        let took = env.clock.now() - begun;
        assert!(took < Duration::from_secs(1), "closing waited for the backup: {took:?}");
        // The backup does not keep the store from being opened again or removed.
        let again = Store::open(&env, Path::new("/data/store"), options(0)).await.unwrap().0;
        assert_eq!(contents(&again.snapshot()).await.len(), 200);
        again.close().await.unwrap();
        for path in disk.paths().into_iter().filter(|path| path.starts_with("/data/store")) {
            settee_io::directory::remove(&*env.engine, &path).await.unwrap();
        }
        let error = backup.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "/data/store is closed");
        assert!(disk.read_file("/backup/1/manifest").is_none() && disk.paths().len() > 1);
        assert!(store.backup(Path::new("/backup/2"), None).await.is_err());
    })
    .unwrap();
}
