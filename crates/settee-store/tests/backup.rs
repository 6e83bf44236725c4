//! Goal: a backup made while others write is a whole store that holds all that was acknowledged before;
//! nothing that is done to the store later harms it; and what an earlier one has isn't copied again.
//! Method: in the simulation, seeded commits with small limits in a task of its own, beside backups; then
//! compaction; then a check of each backup, and its contents. The power is cut while backups are made.

#[path = "common/model.rs"]
mod model;

use std::cell::Cell;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use model::{Model, OPTIONS, Random, commit};
use settee_io::Env;
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{CheckEvent, LogOptions, Snapshot, Stage, Store, StoreOptions, copy_store};

fn options(seed: u64) -> StoreOptions {
    StoreOptions {
        checkpoint_entries_min: [4, 40][seed as usize % 2],
        checkpoint_bytes_max: 30 << 10,
        garbage_percent_max: 10,
        log: LogOptions { segment_bytes_max: 40 << 10, ..OPTIONS.log },
        ..OPTIONS
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

async fn problems(env: &Env, folder: &Path, seed: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let told = |event| {
        if let CheckEvent::Problem(problem) = event {
            problems.push(problem.to_string());
        }
    };
    settee_store::check(env, folder, &options(seed), told).await.unwrap();
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
                    clock.sleep(std::time::Duration::from_millis(random.below(30) as u64)).await;
                }
                done.send(()).unwrap();
            });
            let mut found = Vec::new();
            for number in 1..=4 {
                env.clock.sleep(std::time::Duration::from_millis(400)).await;
                let before = history.lock().unwrap().last().unwrap().0;
                let folder = format!("/backup/{number}");
                let previous = format!("/backup/{}", number - 1);
                let made = store
                    .backup(Path::new(&folder), (number > 1).then(|| Path::new(&previous)))
                    .await
                    .unwrap();
                linked.set(linked.get() + made.linked_count);
                found.push((folder, before));
                if number == 2 {
                    store.compact().await.unwrap();
                }
            }
            ends.store(true, Ordering::Relaxed);
            writer_done.await.unwrap();
            store.compact().await.unwrap();
            // Nothing has come in between: nothing but the log's last segments may be copied again.
            let same = store.backup(Path::new("/backup/5"), Some(Path::new("/backup/4"))).await.unwrap();
            let again = store.backup(Path::new("/backup/6"), Some(Path::new("/backup/5"))).await.unwrap();
            assert_eq!(again.copied_bytes, 0, "seed={seed}: {again:?} after {same:?}");
            unchanged.set(unchanged.get() + again.linked_count);
            store.close().await.unwrap();
            assert_eq!(
                problems(&env, Path::new("/data/store"), seed).await,
                [] as [String; 0],
                "seed={seed}"
            );
            for (folder, before) in found {
                let case = format!("seed={seed} {folder}");
                assert_eq!(problems(&env, Path::new(&folder), seed).await, [] as [String; 0], "{case}");
                let restored = format!("{folder}-restored");
                copy_store(&env, Path::new(&folder), Path::new(&restored)).await.unwrap();
                let (store, recovery) = Store::open(&env, Path::new(&restored), options(seed)).await.unwrap();
                assert_eq!(recovery.cut_bytes, 0, "{case}");
                let seq = store.snapshot().seq().0;
                assert!(seq >= before, "{case}: {seq} of {before} acknowledged");
                let expected = history.lock().unwrap().iter().find(|(at, _)| *at == seq).cloned();
                let (_, expected) = expected.unwrap_or_else(|| panic!("{case}: {seq} is no batch's end"));
                assert_eq!(contents(&store.snapshot()).await, expected, "{case}");
                // It is a store like any other.
                let (mut model, mut random) = (Model::default(), Random::new(seed));
                let mut batch = settee_store::Batch::new();
                batch.put(b"more", b"", bytes::Bytes::from(random.bytes(9)), false);
                model.last_listed = 0;
                store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
                store.compact().await.unwrap();
                store.close().await.unwrap();
                assert_eq!(problems(&env, Path::new(&restored), seed).await, [] as [String; 0], "{case}");
                assert_eq!(problems(&env, Path::new(&folder), seed).await, [] as [String; 0], "{case}");
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
                env.clock.sleep(std::time::Duration::from_millis(500)).await;
                *shared.lock().unwrap() = model;
                store.backup(Path::new("/backup/1"), None).await.unwrap();
                is_first_made.store(true, Ordering::Relaxed);
                store.compact().await.unwrap();
                store.backup(Path::new("/backup/2"), Some(Path::new("/backup/1"))).await.unwrap();
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
                let folders = if first_made { &["/data/store", "/backup/1"][..] } else { &["/data/store"] };
                for folder in folders {
                    let (store, _) = Store::open(&env, Path::new(folder), options(seed)).await.unwrap();
                    assert_eq!(contents(&store.snapshot()).await, of_model(&model), "{case} {folder}");
                    store.close().await.unwrap();
                    assert_eq!(
                        problems(&env, Path::new(folder), seed).await,
                        [] as [String; 0],
                        "{case} {folder}"
                    );
                }
            })
            .unwrap();
        }
    }
    println!("{tried} power losses, {cut_count} of them before the end");
    assert!(cut_count > 100);
}
