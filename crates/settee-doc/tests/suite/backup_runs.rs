//! Goal: a run of a backup is complete, or is reported as incomplete; an incomplete one is never restored,
//! and one damaged database doesn't prevent the backup of others.
//! Method: in the simulation, power losses at operations of a backup; files of runs removed, truncated and
//! lengthened; databases damaged beforehand; directories unsuitable for a backup.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_doc::{
    BackupProgress, Database, Databases, DatabasesOptions, Edit, ErrorKind, OfflineDatabases, OfflineEvent,
    Options, Stage, restore,
};
use settee_io::{Env, OperationKind, directory};
use settee_sim::{Fault, Sim, SimDisk};

const BACKUP: &str = "/backup";

fn options() -> DatabasesOptions {
    DatabasesOptions::default()
}

async fn open(env: &Env, place: &str) -> Arc<Databases> {
    Databases::open_with(env.clone(), Path::new(place), options()).await.unwrap()
}

async fn put(database: &Database, id: &str) {
    let mut edit = Edit::parse(br#"{"name":"a small document"}"#, &Options::default()).unwrap();
    edit.id = id.into();
    database.update(edit, Stage::Persisted).await.unwrap();
}

async fn fill(databases: &Databases, names: &[&str]) {
    for name in names {
        let database = databases.create(name).await.unwrap();
        put(&database, "a").await;
    }
}

async fn problems(env: &Env, place: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let offline = OfflineDatabases::open(env, Path::new(place), options()).await.unwrap();
    let report = |event| {
        if let OfflineEvent::Problem { what, .. } = event {
            problems.push(what);
        }
    };
    let sums = offline.check(None, report).await.unwrap();
    assert_eq!(sums.problem_count as usize, problems.len());
    problems
}

fn simulated<T>(disk: &SimDisk, test: impl AsyncFnOnce(Env) -> T) -> Option<T> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(test(env))
}

#[test]
fn an_interrupted_run_is_reported_not_restored_and_removed_by_the_next() {
    let (mut interrupted_count, mut operation_count) = (0, 0);
    let make = |disk: &SimDisk| {
        simulated(disk, async |env| {
            let databases = open(&env, "/data").await;
            fill(&databases, &["one", "two", "three"]).await;
            let before = disk.operation_count();
            databases.backup(Path::new(BACKUP), &["server-uuid"]).await.unwrap();
            (before, disk.operation_count())
        })
    };
    let (first, last) = make(&SimDisk::new(1)).unwrap();
    for at in first..last {
        let disk = SimDisk::new(1).crash_at_operation(at);
        assert!(make(&disk).is_none());
        let disk = disk.after_power_loss();
        operation_count += 1;
        simulated(&disk, async |env| {
            let run = format!("{BACKUP}/000001");
            let entries = directory::list(&*env.engine, Path::new(&run)).await.unwrap();
            let has = |name: &str| entries.iter().any(|entry| entry.name == name);
            if has("complete") {
                assert_eq!(problems(&env, &run).await, [] as [String; 0], "at {at}");
                restore(&env, Path::new(BACKUP), Path::new("/new")).await.unwrap();
            } else {
                interrupted_count += u64::from(has("unfinished"));
                let error = restore(&env, Path::new(BACKUP), Path::new("/new")).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound, "at {at}: {error}");
                if has("unfinished") || has("databases") {
                    let found = problems(&env, &run).await;
                    assert!(found.len() == 1 && found[0].contains("`complete`"), "at {at}: {found:?}");
                    let error = restore(&env, Path::new(&run), Path::new("/new")).await.unwrap_err();
                    assert!(error.to_string().contains("may be deleted"), "at {at}: {error}");
                    assert!(Databases::open(env.clone(), Path::new(&run)).await.is_err(), "at {at}");
                }
                assert_eq!(directory::list(&*env.engine, Path::new("/new")).await.unwrap(), [], "at {at}");
            }
            let databases = open(&env, "/data").await;
            let made = databases.backup(Path::new(BACKUP), &["server-uuid"]).await.unwrap();
            assert_eq!(made.database_count, 3);
            assert_eq!(made.removed_count, u64::from(has("unfinished")), "at {at}");
            let made = made.directory.to_str().unwrap();
            assert_eq!(problems(&env, made).await, [] as [String; 0], "at {at}");
        })
        .unwrap();
    }
    println!("{operation_count} power losses, {interrupted_count} interrupted runs");
    assert!(interrupted_count > 10);
}

#[test]
fn a_run_whose_files_are_missing_short_or_long_is_not_restored() {
    let disk = SimDisk::new(2);
    simulated(&disk, async |env| {
        let databases = open(&env, "/data").await;
        fill(&databases, &["one", "two"]).await;
        databases.backup(Path::new(BACKUP), &[]).await.unwrap();
        let run = format!("{BACKUP}/000001");
        let files: Vec<PathBuf> = disk.paths();
        let in_run = |path: &&PathBuf| path.starts_with("backup/000001") && !path.ends_with("complete");
        let files: Vec<&PathBuf> = files.iter().filter(in_run).collect();
        assert_eq!(files.len(), 3, "{files:?}");
        for file in files {
            let path = Path::new("/").join(file);
            let was = disk.read_file(file).unwrap();
            for what in ["missing", "short", "long"] {
                match what {
                    "missing" => directory::remove(&*env.engine, &path).await.unwrap(),
                    "short" => disk.damage_file(file, |bytes| bytes.truncate(bytes.len() - 1)),
                    _ => disk.damage_file(file, |bytes| bytes.push(0)),
                }
                let found = problems(&env, &run).await;
                let name = path.to_str().unwrap();
                assert!(found.iter().any(|found| found.contains(name)), "{what} {name}: {found:?}");
                let error = restore(&env, Path::new(BACKUP), Path::new("/new")).await.unwrap_err();
                assert!(error.to_string().contains(name), "{what}: {error}");
                assert_eq!(directory::list(&*env.engine, Path::new("/new")).await.unwrap(), [], "{what}");
                disk.write_file(file, was.clone());
            }
        }
        disk.write_file("backup/000001/databases/0000000002/0000000009.log", *b"x");
        let error = restore(&env, Path::new(BACKUP), Path::new("/new")).await.unwrap_err();
        assert!(error.to_string().contains("0000000009.log"), "{error}");
        directory::remove(&*env.engine, Path::new("/backup/000001/databases/0000000002/0000000009.log"))
            .await
            .unwrap();
        restore(&env, Path::new(BACKUP), Path::new("/new")).await.unwrap();
        disk.damage_file("backup/000001/complete", |bytes| bytes[20] ^= 1);
        let found = problems(&env, &run).await;
        assert!(found.len() == 1 && found[0].contains("complete"), "{found:?}");
        assert!(restore(&env, Path::new(BACKUP), Path::new("/newer")).await.is_err());
    })
    .unwrap();
}

#[test]
fn a_database_that_fails_to_copy_is_listed_and_others_are_copied() {
    let disk = SimDisk::new(3);
    simulated(&disk, async |env| {
        let databases = open(&env, "/data").await;
        fill(&databases, &["bad", "empty-later", "good"]).await;
        databases.close().await.unwrap();
    })
    .unwrap();
    let damaged = "data/databases/0000000001/0000000001.log";
    let was = disk.read_file(damaged).unwrap();
    // Its header, with persisted frames behind it.
    disk.damage_file(damaged, |bytes| bytes[20] ^= 1);
    simulated(&disk, async |env| {
        let databases = open(&env, "/data").await;
        let progress = Arc::new(BackupProgress::default());
        let made = databases.backup_with(Path::new(BACKUP), &[], progress.clone()).await.unwrap();
        assert_eq!(progress.counts(), (3, 3));
        assert_eq!(made.database_count, 2);
        let [failed] = &made.failed[..] else { panic!("{made:?}") };
        assert!(failed.name == "bad" && failed.reason.contains("/data/databases/0000000001"), "{failed:?}");
        let found = problems(&env, "/backup/000001").await;
        assert!(found.len() == 1 && found[0].contains("database bad"), "{found:?}");
        let restored = restore(&env, Path::new(BACKUP), Path::new("/new")).await.unwrap();
        assert_eq!(restored.failed, made.failed);
        let new = open(&env, "/new").await;
        for name in ["good", "empty-later"] {
            assert_eq!(new.get(name).await.unwrap().snapshot().doc_count(), 1);
        }
        let error = new.get("bad").await.err().unwrap();
        assert!(error.to_string().contains("/new/databases/0000000001"), "{error}");
        new.close().await.unwrap();
        // Its files are put back: the next run has it, and its directory fits the other restored data.
        drop(databases);
        disk.write_file(damaged, was);
        let databases = open(&env, "/data").await;
        let made = databases.backup(Path::new(BACKUP), &[]).await.unwrap();
        assert_eq!((made.database_count, made.failed), (3, vec![]));
        restore(&env, Path::new(BACKUP), Path::new("/newer")).await.unwrap();
        drop(new);
        let log = disk.read_file("newer/databases/0000000001/0000000001.log").unwrap();
        directory::create(&*env.engine, Path::new("/new/databases/0000000001")).await.unwrap();
        disk.write_file("new/databases/0000000001/0000000001.log", log);
        let new = open(&env, "/new").await;
        assert_eq!(new.get("bad").await.unwrap().snapshot().doc_count(), 1);
    })
    .unwrap();
}

#[test]
fn a_full_disk_ends_a_backup_without_damage() {
    let disk = SimDisk::new(4);
    simulated(&disk, async |env| {
        let databases = open(&env, "/data").await;
        fill(&databases, &["one", "two"]).await;
        databases.close().await.unwrap();
    })
    .unwrap();
    let mut ended_count = 0;
    for index in 0..8 {
        let disk = disk.after_power_loss().fail(OperationKind::Write, index, Fault::NoSpace);
        simulated(&disk, async |env| {
            let databases = open(&env, "/data").await;
            match databases.backup(Path::new(BACKUP), &[]).await {
                Ok(made) => assert_eq!((made.database_count, made.failed.len()), (2, 0)),
                Err(error) => {
                    ended_count += 1;
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "write {index}: {error}");
                }
            }
        })
        .unwrap();
    }
    println!("{ended_count} of 8 ended");
    assert!(ended_count > 0);
}

#[test]
fn a_backup_is_refused_inside_data_and_over_other_files() {
    let disk = SimDisk::new(5);
    simulated(&disk, async |env| {
        let databases = open(&env, "/data").await;
        fill(&databases, &["one"]).await;
        let other = open(&env, "/other").await;
        fill(&other, &["one"]).await;
        databases.backup(Path::new(BACKUP), &[]).await.unwrap();
        disk.write_file("unrelated/file", *b"x");
        disk.write_file("mounted/lost+found", *b"x");
        for place in [
            "/data",
            "/data/bk",
            "/other/databases/0000000001",
            "/other",
            "/backup/000001",
            "/backup/000001/x",
            "/backup/x",
            "/unrelated",
            "/unrelated/file",
            "/x/../data/y",
            "relative",
        ] {
            let error = databases.backup(Path::new(place), &[]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadRequest, "{place}: {error}");
        }
        databases.backup(Path::new("/mounted"), &[]).await.unwrap();
        for place in ["/data", "/data/x", "/backup/000001/x", "/backup/new", "/unrelated"] {
            let error = restore(&env, Path::new(BACKUP), Path::new(place)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadRequest, "{place}: {error}");
        }
        let error = Databases::open(env.clone(), Path::new("/backup/000001")).await.err().unwrap();
        assert!(error.to_string().contains("settee restore"), "{error}");
        other.close().await.unwrap();
        drop(other);
        let offline = OfflineDatabases::open(&env, Path::new("/other"), options()).await.unwrap();
        for place in ["/other/x", "/backup/x", "/data/databases/x"] {
            let error = offline.repair(Path::new(place), |_| ()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadRequest, "{place}: {error}");
        }
        // A check leaves no file in a run.
        let before = disk.paths();
        assert_eq!(problems(&env, "/backup/000001").await, [] as [String; 0]);
        assert_eq!(disk.paths(), before);
    })
    .unwrap();
}

#[test]
fn repair_reports_the_problems_that_check_reports() {
    for (what, problem_count) in [("catalogue", 1), ("none", 0), ("folder", 1)] {
        let disk = SimDisk::new(6);
        simulated(&disk, async |env| {
            let databases = open(&env, "/data").await;
            fill(&databases, &["one", "two"]).await;
            databases.close().await.unwrap();
            drop(databases);
            let place = Path::new("/data");
            match what {
                "catalogue" => {
                    disk.damage_file("data/catalogue/0000000001.log", |bytes| bytes[4096 + 70] ^= 1);
                }
                "folder" => {
                    let directory = place.join("databases/0000000001");
                    directory::remove_with_files(&*env.engine, &directory).await.unwrap();
                }
                _ => {}
            }
            let found = problems(&env, "/data").await;
            assert!(found.len() >= problem_count && found.is_empty() == (what == "none"), "{what} {found:?}");
            let offline = OfflineDatabases::open(&env, place, options()).await.unwrap();
            let mut report = Vec::new();
            let tell = |event| {
                if let OfflineEvent::Problem { what, .. } = event {
                    report.push(what);
                }
            };
            let sums = offline.repair(Path::new("/new"), tell).await.unwrap();
            assert_eq!(sums.problem_count as usize, found.len(), "{what}");
            assert_eq!(report, found, "{what}");
        })
        .unwrap();
    }
}
