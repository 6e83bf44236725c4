//! Goal: a server holds many more databases than are open: their cost on disk, in syncs and in descriptors;
//! the order of closing; and databases that are never closed.
//! Method: single cases in the simulation, by its counts of operations; sizes on the real file system.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use settee_doc::{
    Database, Databases, DatabasesOptions, Edit, ErrorKind, NameRange, OfflineDatabases, OfflineEvent,
    Options, Stage,
};
use settee_io::{Env, OperationKind, ThreadOptions};
use settee_sim::{Fault, Sim, SimDisk};

fn options(open_databases_max: usize, database_idle_s: u64) -> DatabasesOptions {
    DatabasesOptions { open_databases_max, database_idle_s, ..DatabasesOptions::default() }
}

async fn put(database: &Database, id: &str) -> settee_doc::Result<()> {
    let mut edit = Edit::parse(br#"{"name":"a small document"}"#, &Options::default()).unwrap();
    edit.id = id.into();
    database.update(edit, Stage::Persisted).await.map(drop)
}

/// Runs a test on the databases of an empty disk.
fn with_databases<F: Future<Output = ()>>(
    disk: &SimDisk,
    options: DatabasesOptions,
    test: impl FnOnce(Env, Arc<Databases>) -> F,
) {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open_with(env.clone(), Path::new("/data"), options).await.unwrap();
        test(env, databases).await;
    })
    .unwrap();
}

/// As [`with_databases`], for a test that cuts the power.
fn until_the_power_loss<F: Future<Output = ()>>(
    disk: &SimDisk,
    options: DatabasesOptions,
    test: impl FnOnce(Env, Arc<Databases>) -> F,
) {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    let ended = sim.run(async {
        test(env.clone(), Databases::open_with(env, Path::new("/data"), options).await.unwrap()).await;
    });
    assert!(ended.is_none() || disk.is_power_lost());
}

async fn seconds(env: &Env, count: u64) {
    env.clock.sleep(Duration::from_secs(count)).await;
}

/// Whether a database is open: a request for it then opens no file.
async fn is_open(disk: &SimDisk, databases: &Databases, name: &str) -> bool {
    let before = disk.operation_count();
    databases.get(name).await.unwrap();
    disk.operation_count() == before
}

#[test]
fn creating_a_database_takes_a_sync_and_no_file() {
    // A short write is repeated, and counted again.
    let disk = SimDisk::new(1).short_writes(0.0);
    with_databases(&disk, options(10, 1), async |_, databases| {
        databases.create_closed("first").await.unwrap();
        let (mut counts, at_first) = (Vec::new(), disk.sync_count());
        for number in 0..500 {
            let before = disk.sync_count();
            databases.create_closed(&format!("db{number}")).await.unwrap();
            counts.push(disk.sync_count() - before);
        }
        let (most, all) = (*counts.iter().max().unwrap(), disk.sync_count() - at_first);
        let at_segments = counts.iter().filter(|count| **count > 1).count();
        println!("500 creations: {all} syncs; {at_segments} took more than one, {most} at most");
        // When the catalogue begins a segment, its directory is synced too; the previous one is sealed in the
        // background.
        let files_in =
            |directory: &str| disk.paths().iter().filter(|path| path.starts_with(directory)).count();
        let segment_count = files_in("data/catalogue") - 1;
        assert!(most <= 3 && all <= 500 + 3 * segment_count as u64, "{all} syncs, {segment_count} segments");
        databases.get("db7").await.unwrap();
        assert_eq!(databases.stats().database_count, 501);
        assert_eq!(files_in("data/databases"), 0);
        put(&databases.get("db7").await.unwrap(), "a").await.unwrap();
        assert_eq!(files_in("data/databases"), 2, "a segment and the lock file");
    });
}

#[test]
fn concurrent_creations_and_deletions_share_syncs() {
    let disk = SimDisk::new(2);
    with_databases(&disk, options(10, 1), async |env, databases| {
        let at_once = async |delete: bool| {
            let before = disk.sync_count();
            let mut ends = Vec::new();
            for number in 0..40 {
                let (databases, name) = (databases.clone(), format!("db{number}"));
                let (done, end) = tokio::sync::oneshot::channel();
                env.spawn("one of many", async move {
                    let outcome = match delete {
                        true => databases.delete(&name).await,
                        false => databases.create_closed(&name).await,
                    };
                    done.send(outcome).unwrap();
                });
                ends.push(end);
            }
            for end in ends {
                end.await.unwrap().unwrap();
            }
            disk.sync_count() - before
        };
        databases.create_closed("first").await.unwrap();
        let syncs = at_once(false).await;
        assert!(syncs < 20, "{syncs} syncs for 40 creations");
        assert_eq!(databases.names().len(), 41);
        at_once(true).await;
        assert_eq!(databases.names(), ["first"]);
    });
}

#[test]
fn concurrent_creation_and_deletion_of_a_name_leave_the_last_outcome() {
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        with_databases(&disk, options(1, 1), async |env, databases| {
            let mut ends = Vec::new();
            for number in 0..12 {
                let databases = databases.clone();
                let (done, end) = tokio::sync::oneshot::channel();
                env.spawn("one of many", async move {
                    let (outcome, refusal) = match number % 3 {
                        0 => (databases.delete("db").await, ErrorKind::NotFound),
                        1 => (databases.create_closed("db").await, ErrorKind::DatabaseExists),
                        _ => (databases.get("db").await.map(drop), ErrorKind::NotFound),
                    };
                    if let Err(error) = &outcome {
                        assert_eq!(error.kind(), refusal, "seed={seed}: {error}");
                    }
                    done.send((number % 3, outcome.is_ok())).unwrap();
                });
                ends.push(end);
            }
            let mut balance = 0;
            for end in ends {
                match end.await.unwrap() {
                    (0, true) => balance -= 1,
                    (1, true) => balance += 1,
                    _ => {}
                }
            }
            // Each successful deletion had a creation before it.
            assert!((0..=1).contains(&balance), "seed={seed}: {balance}");
            assert_eq!(databases.names().len(), balance as usize, "seed={seed}");
            assert_eq!(databases.get("db").await.is_ok(), balance == 1, "seed={seed}");
            databases.close().await.unwrap();
        });
    }
}

#[test]
fn the_least_recently_used_is_closed_first() {
    let disk = SimDisk::new(4);
    with_databases(&disk, options(3, 3600), async |env, databases| {
        for name in ["a", "b", "c", "d"] {
            put(&databases.create(name).await.unwrap(), "x").await.unwrap();
            seconds(&env, 2).await;
        }
        assert_eq!(databases.stats().open_count, 3);
        for (asked, expected) in [("b", true), ("a", false), ("b", true), ("d", true), ("c", false)] {
            assert_eq!(is_open(&disk, &databases, asked).await, expected, "{asked}");
            seconds(&env, 2).await;
        }
        // Now b, d and c are open, in this order.
        assert!(!is_open(&disk, &databases, "a").await);
        assert!(is_open(&disk, &databases, "d").await && is_open(&disk, &databases, "c").await);
        assert!(!is_open(&disk, &databases, "b").await);
    });
}

#[test]
fn databases_in_use_stay_open_beyond_the_limit_until_released() {
    let disk = SimDisk::new(5);
    with_databases(&disk, options(2, 60), async |env, databases| {
        let mut in_use = Vec::new();
        for number in 0..400 {
            let database = databases.create(&format!("db{number}")).await.unwrap();
            put(&database, "x").await.unwrap();
            in_use.push(database);
        }
        assert_eq!(databases.stats().open_count, 400);
        seconds(&env, 200).await;
        for database in &in_use {
            put(database, "y").await.unwrap();
        }
        assert_eq!(databases.stats().open_count, 400);
        // A snapshot keeps a database in use, even without the database.
        let view = in_use.pop().unwrap().snapshot();
        let batch_count = databases.stats().log.batch_count;
        drop(in_use);
        seconds(&env, 10).await;
        assert_eq!(databases.stats().open_count, 2, "one for the view, and one that was used lately");
        seconds(&env, 200).await;
        assert_eq!(databases.stats().open_count, 1);
        // The catalogue recorded that each has data when it was first written.
        assert_eq!(databases.stats().log.batch_count, batch_count, "what was done stays counted");
        assert_eq!(view.document("y").await.unwrap().id, "y");
        drop(view);
        seconds(&env, 200).await;
        let stats = databases.stats();
        assert_eq!((stats.open_count, stats.stopped_count, stats.database_count), (0, 0, 400));
        databases.health().unwrap();
        assert_eq!(databases.get("db7").await.unwrap().snapshot().doc_count(), 2);
    });
}

#[test]
fn a_stopped_database_stays_open_and_readable() {
    let disk = SimDisk::new(6);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open_with(env.clone(), Path::new("/data"), options(1, 1)).await.unwrap();
        let database = databases.create("db").await.unwrap();
        databases.create_closed("other").await.unwrap();
        put(&database, "a").await.unwrap();
        let mut edit = Edit::parse(b"{}", &Options::default()).unwrap();
        edit.id = "b".into();
        // Its sync happens in the close, and fails.
        database.update(edit, Stage::Accepted).await.unwrap();
        drop(database);
        let next = disk.count_of(OperationKind::Sync);
        let _planned = disk.clone().fail(OperationKind::Sync, next, Fault::Io);
        seconds(&env, 30).await;
        assert_eq!(databases.health().unwrap_err().kind(), ErrorKind::Stopped);
        databases.get("other").await.unwrap();
        seconds(&env, 30).await;
        assert_eq!(databases.stats().stopped_count, 1);
        let database = databases.get("db").await.unwrap();
        assert_eq!(database.snapshot().document("a").await.unwrap().id, "a");
        assert_eq!(put(&database, "c").await.unwrap_err().kind(), ErrorKind::Stopped);
    })
    .unwrap();
}

#[test]
fn a_closed_database_with_missing_files_is_not_a_new_one() {
    let disk = SimDisk::new(8);
    with_databases(&disk, options(10, 1), async |env, databases| {
        databases.create("empty").await.unwrap();
        put(&databases.create("idle").await.unwrap(), "a").await.unwrap();
        seconds(&env, 10).await;
        put(&databases.create("open").await.unwrap(), "a").await.unwrap();
        databases.close().await.unwrap();
    });
    for number in [2, 3] {
        disk.damage_file(format!("/data/databases/{number:010}/0000000001.log"), Vec::clear);
    }
    with_databases(&disk, options(10, 1), async |env, databases| {
        assert_eq!(databases.get("empty").await.unwrap().snapshot().doc_count(), 0);
        for (name, number) in [("idle", 2), ("open", 3)] {
            for _ in 0..2 {
                let error = databases.get(name).await.err().unwrap();
                assert_eq!(error.kind(), ErrorKind::Internal);
                assert!(error.to_string().contains(&format!("/data/databases/{number:010}")), "{error}");
            }
            databases.delete(name).await.unwrap();
            databases.create(name).await.unwrap();
        }
        seconds(&env, 10).await;
        databases.health().unwrap();
        assert_eq!(databases.stats().stopped_count, 0);
    });
}

#[test]
fn a_database_whose_first_requests_stored_nothing_is_still_a_new_one() {
    let disk = SimDisk::new(1);
    let names = ["conflict", "nothing", "replicated-nothing", "no-local"];
    with_databases(&disk, options(10, 3600), async |env, databases| {
        for name in names {
            databases.create(name).await.unwrap();
        }
        let edit = |id: &str, text: &[u8]| {
            let mut edit = Edit::parse(text, &Options::default()).unwrap();
            edit.id = id.into();
            edit
        };
        let conflict = edit("a", br#"{"_rev":"1-00000000000000000000000000000000"}"#);
        let outcome = databases.get("conflict").await.unwrap().update(conflict, Stage::Persisted).await;
        assert_eq!(outcome.err().unwrap().kind(), ErrorKind::Conflict);
        let nothing = databases.get("nothing").await.unwrap();
        assert_eq!(nothing.update_all(Vec::new(), Stage::Persisted).await.unwrap().len(), 0);
        let nothing = databases.get("replicated-nothing").await.unwrap();
        assert_eq!(nothing.replicate_all(Vec::new(), Stage::Persisted).await.unwrap().len(), 0);
        let gone = edit("_local/a", br#"{"_deleted":true}"#);
        let outcome = databases.get("no-local").await.unwrap().put_local(gone, Stage::Accepted).await;
        assert_eq!(outcome.err().unwrap().kind(), ErrorKind::NotFound);
        seconds(&env, 2).await;
        databases.close().await.unwrap();
    });
    with_databases(&disk, options(10, 3600), async |_, databases| {
        for name in names {
            put(&databases.get(name).await.unwrap(), "a").await.unwrap();
        }
    });
}

/// With a power loss before any closing.
#[test]
fn a_written_database_with_missing_files_is_not_a_new_one() {
    let mut recorded_at_once = 0;
    for seed in 0..40 {
        // Nothing is closed as idle.
        let options = options(10, 3600);
        let disk = SimDisk::new(seed);
        until_the_power_loss(&disk, options, async |env, databases| {
            for name in ["empty", "persisted", "accepted", "local"] {
                databases.create(name).await.unwrap();
            }
            let database = databases.get("accepted").await.unwrap();
            let mut edit = Edit::parse(b"{}", &Options::default()).unwrap();
            edit.id = "a".into();
            database.update(edit, Stage::Accepted).await.unwrap();
            let mut edit = Edit::parse(b"{}", &Options::default()).unwrap();
            edit.id = "_local/a".into();
            databases.get("local").await.unwrap().put_local(edit, Stage::Persisted).await.unwrap();
            put(&databases.get("persisted").await.unwrap(), "a").await.unwrap();
            let before = disk.sync_count();
            // Before the age at which written data is synced, and at which it is written.
            env.clock.sleep(Duration::from_millis(if seed % 2 == 0 { 1500 } else { seed })).await;
            recorded_at_once += disk.sync_count() - before;
            disk.cut_power();
            env.clock.sleep(Duration::from_secs(1)).await;
        });
        let disk = disk.after_power_loss();
        // If the record was lost with the power, opening writes it again.
        if seed % 2 == 1 {
            until_the_power_loss(&disk, options, async |env, databases| {
                for name in ["empty", "persisted", "accepted", "local"] {
                    let database = databases.get(name).await.unwrap();
                    assert!(name != "persisted" || database.snapshot().doc_count() == 1, "seed={seed}");
                    if name == "accepted" {
                        put(&database, "b").await.unwrap();
                    }
                }
                seconds(&env, 2).await;
                disk.cut_power();
            });
        }
        let disk = if seed % 2 == 1 { disk.after_power_loss() } else { disk };
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            for number in 2..=4 {
                let directory = format!("/data/databases/{number:010}");
                settee_io::directory::remove_with_files(&*env.engine, Path::new(&directory)).await.unwrap();
            }
            let offline = OfflineDatabases::open(&env, Path::new("/data"), options).await.unwrap();
            let mut problems = Vec::new();
            let report = |event| {
                if let OfflineEvent::Problem { what, .. } = event {
                    problems.push(what)
                }
            };
            offline.check(None, report).await.unwrap();
            assert!(
                problems.len() == 3 && problems.iter().all(|what| what.contains("are gone")),
                "{seed} {problems:?}"
            );
            drop(offline);
            let databases = Databases::open_with(env.clone(), Path::new("/data"), options).await.unwrap();
            assert_eq!(databases.get("empty").await.unwrap().snapshot().doc_count(), 0);
            for name in ["persisted", "accepted", "local"] {
                let error = databases.get(name).await.err().unwrap();
                assert!(error.to_string().contains("are gone"), "seed={seed} {name}: {error}");
            }
        })
        .unwrap();
    }
    println!("syncs in which 3 records were persisted, of 40 runs: {recorded_at_once}");
}

#[test]
fn closing_persists_accepted_data() {
    let disk = SimDisk::new(7);
    let mut options = options(10, 1);
    (options.log.accepted_age_ms_max, options.log.written_age_ms_max) = (3_600_000, 3_600_000);
    with_databases(&disk, options, async |env, databases| {
        let database = databases.create("db").await.unwrap();
        let mut edit = Edit::parse(b"{}", &Options::default()).unwrap();
        edit.id = "a".into();
        database.update(edit, Stage::Accepted).await.unwrap();
        assert_eq!(database.snapshot().doc_count(), 0);
        drop(database);
        seconds(&env, 5).await;
    });
    with_databases(&disk.after_power_loss(), options, async |_, databases| {
        assert_eq!(databases.get("db").await.unwrap().snapshot().doc_count(), 1);
    });
}

#[test]
fn closing_all_ends_openings_and_prevents_later_ones() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        with_databases(&disk, options(2, 1), async |env, databases| {
            let mut ends = Vec::new();
            for number in 0..6 {
                put(&databases.create(&format!("db{number}")).await.unwrap(), "a").await.unwrap();
            }
            for number in 0..6 {
                let (databases, name) = (databases.clone(), format!("db{number}"));
                let (done, end) = tokio::sync::oneshot::channel();
                env.spawn("opener", async move {
                    let outcome = databases.get(&name).await.map(drop);
                    done.send(outcome.map_err(|error| error.kind())).unwrap();
                });
                ends.push(end);
            }
            env.clock.sleep(Duration::from_micros(seed * 100)).await;
            databases.close().await.unwrap();
            assert_eq!(databases.stats().open_count, 0);
            for end in ends {
                assert!(matches!(end.await.unwrap(), Ok(()) | Err(ErrorKind::Stopped)));
            }
            assert_eq!(databases.get("db0").await.err().unwrap().kind(), ErrorKind::Stopped);
            // Every file was closed: another server may use them.
            drop(databases);
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            for number in 0..6 {
                assert_eq!(databases.get(&format!("db{number}")).await.unwrap().snapshot().doc_count(), 1);
            }
        });
    }
}

#[test]
fn names_of_any_range_equal_those_of_a_sorted_set() {
    let disk = SimDisk::new(9);
    with_databases(&disk, options(1, 1), async |_, databases| {
        let model: BTreeSet<String> = (0..700).map(|number| format!("db{}", number * 3)).collect();
        for name in &model {
            databases.create_closed(name).await.unwrap();
        }
        assert_eq!(databases.names(), Vec::from_iter(model.iter().cloned()));
        let bounds = |name: &str| {
            [Bound::Unbounded, Bound::Included(name.to_owned()), Bound::Excluded(name.to_owned())]
        };
        let ends = ["", "db1", "db12", "db3", "db500", "db501", "db999", "e"];
        let mut case_count = 0;
        for (start, end) in ends.iter().flat_map(|start| ends.iter().map(move |end| (start, end))) {
            for (start, end) in bounds(start).iter().flat_map(|a| bounds(end).map(|b| (a.clone(), b))) {
                for (descending, skip, limit) in [
                    (false, 0, usize::MAX),
                    (true, 0, usize::MAX),
                    (false, 300, 300),
                    (true, 255, 257),
                    (true, 1, 0),
                ] {
                    let range = NameRange { start: start.clone(), end: end.clone(), descending, skip, limit };
                    let within = |name: &&String| {
                        (match &start {
                            Bound::Unbounded => true,
                            Bound::Included(start) => *name >= start,
                            Bound::Excluded(start) => *name > start,
                        }) && match &end {
                            Bound::Unbounded => true,
                            Bound::Included(end) => *name <= end,
                            Bound::Excluded(end) => *name < end,
                        }
                    };
                    let mut expected: Vec<&String> = model.iter().filter(within).collect();
                    if descending {
                        expected.reverse();
                    }
                    let expected: Vec<&String> = expected.into_iter().skip(skip).take(limit).collect();
                    let mut found = Vec::new();
                    databases.visit_names(range.clone(), |name| found.push(name.to_owned()));
                    assert!(found.iter().eq(expected), "{range:?}");
                    case_count += 1;
                }
            }
        }
        assert_eq!(case_count, 8 * 8 * 9 * 5);
    });
}

/// Bytes that a directory and its files take on the disk.
#[expect(clippy::disallowed_methods, reason = "what the file system says of it")]
fn allocated_bytes(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let of = |path: &Path| std::fs::metadata(path).unwrap().blocks() * 512;
    let files = std::fs::read_dir(directory).unwrap();
    of(directory) + files.map(|entry| of(&entry.unwrap().path())).sum::<u64>()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_small_documents_take_at_most_128_kib_open_and_closed() {
    let root = tempfile::tempdir().unwrap();
    let env = Env::current(ThreadOptions::default());
    let databases = Databases::open(env.clone(), root.path()).await.unwrap();
    for name in ["one-by-one", "at-once"] {
        databases.create_closed(name).await.unwrap();
    }
    let directories = settee_io::directory::list(&*env.engine, &root.path().join("databases")).await.unwrap();
    assert!(directories.is_empty(), "an empty database has no directory");
    let database = databases.get("one-by-one").await.unwrap();
    for number in 0..10 {
        put(&database, &format!("document-{number}")).await.unwrap();
    }
    let mut edits = Vec::new();
    for number in 0..10 {
        let mut edit = Edit::parse(br#"{"name":"a small document"}"#, &Options::default()).unwrap();
        edit.id = format!("document-{number}");
        edits.push(edit);
    }
    let database = databases.get("at-once").await.unwrap();
    database.update_all(edits, Stage::Persisted).await.unwrap();
    let sizes = || {
        ["0000000001", "0000000002"].map(|name| allocated_bytes(&root.path().join("databases").join(name)))
    };
    let open = sizes();
    drop(database);
    databases.close().await.unwrap();
    let closed = sizes();
    println!("ten documents, one by one and at once: open {open:?}, closed {closed:?} bytes");
    for size in open.into_iter().chain(closed) {
        assert!(size <= 128 << 10, "{size} bytes");
    }
}
