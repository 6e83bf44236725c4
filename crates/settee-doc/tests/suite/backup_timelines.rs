//! Goal: a run of a backup holds its databases' data, whatever else was backed up to the same directory; a
//! restored copy is another server, where clients that followed the original start again.
//! Method: in the simulation, a run is restored and changed differently from the original, so that files of
//! both have the same names and sizes; both are backed up to the same directory, and each run is restored and
//! compared. Bits of a run's files are flipped. A restored copy parses earlier positions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use settee_doc::{
    Databases, DatabasesOptions, Edit, OfflineDatabases, OfflineEvent, Options, Range, Revision, Seq, Stage,
    restore,
};
use settee_io::{Env, directory};
use settee_sim::{Sim, SimDisk};

const BACKUP: &str = "/backup";
const NAME: &str = "one";

async fn open(env: &Env, place: &str) -> Arc<Databases> {
    Databases::open(env.clone(), Path::new(place)).await.unwrap()
}

/// Documents with their revisions and bodies.
type Contents = BTreeMap<String, (Revision, Vec<u8>)>;

async fn contents(databases: &Databases) -> Contents {
    let view = databases.get(NAME).await.unwrap().snapshot();
    let mut rows = view.all_docs(&Range::default()).await.unwrap();
    let mut ids = Vec::new();
    while let Some(row) = rows.next().await.unwrap() {
        ids.push(row.id.to_owned());
    }
    let mut contents = Contents::new();
    for id in ids {
        let document = view.document(&id).await.unwrap();
        contents.insert(id, (document.revision, document.body.to_vec()));
    }
    contents
}

/// Overwrites documents.
async fn write(databases: &Databases, docs: impl Iterator<Item = (String, String)>) {
    let database = databases.get(NAME).await.unwrap();
    for (id, text) in docs {
        let mut edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
        edit.revision = database.snapshot().find(&id).await.unwrap().map(|summary| summary.revision);
        edit.id = id;
        database.update(edit, Stage::Persisted).await.unwrap();
    }
}

async fn back_up(databases: &Databases) {
    databases.backup(Path::new(BACKUP), &["config.toml"]).await.unwrap();
}

async fn problems(env: &Env, place: &str, database: Option<&str>) -> Vec<String> {
    let mut problems = Vec::new();
    let options = DatabasesOptions::default();
    let offline = OfflineDatabases::open(env, Path::new(place), options).await.unwrap();
    let report = |event| {
        if let OfflineEvent::Problem { what, .. } = event {
            problems.push(what);
        }
    };
    let sums = offline.check(database, report).await.unwrap();
    assert_eq!(sums.problem_count as usize, problems.len());
    problems
}

/// Backs up twice with edits between, restores the first run, makes other edits there and backs that up to
/// the same directory. `edit` makes edits of the same sizes for each number.
fn two_timelines(edit: impl AsyncFn(&Databases, usize)) {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let original = open(&env, "/data").await;
        original.create(NAME).await.unwrap();
        edit(&original, 0).await;
        back_up(&original).await;
        let first = contents(&original).await;
        original.close().await.unwrap();
        drop(original);
        let original = open(&env, "/data").await;
        edit(&original, 1).await;
        back_up(&original).await;
        let second = contents(&original).await;
        restore(&env, Path::new("/backup/000001"), Path::new("/copy")).await.unwrap();
        let copy = open(&env, "/copy").await;
        assert_eq!(contents(&copy).await, first);
        edit(&copy, 2).await;
        back_up(&copy).await;
        let third = contents(&copy).await;
        back_up(&original).await;
        assert_ne!(second, third);
        for (number, expected) in [(1, &first), (2, &second), (3, &third), (4, &second)] {
            let (run, to) = (format!("{BACKUP}/{number:06}"), format!("/restored/{number}"));
            assert_eq!(problems(&env, &run, None).await, [] as [String; 0], "run {number}");
            restore(&env, Path::new(&run), Path::new(&to)).await.unwrap();
            let restored = open(&env, &to).await;
            let found = contents(&restored).await;
            assert!(found == *expected, "run {number} has other documents");
            restored.close().await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn a_run_has_its_own_log_beside_a_run_with_one_of_the_same_size_and_end() {
    let last = "x".repeat(6 << 10);
    two_timelines(async |databases, number| {
        let docs = [
            (format!("doc-{number}"), "{}".to_owned()),
            ("last".to_owned(), format!("{{\"t\":\"{last}\"}}")),
        ];
        write(databases, docs.into_iter()).await;
    });
}

#[test]
fn a_run_has_its_own_index_beside_a_run_with_one_of_the_same_size_and_end() {
    two_timelines(async |databases, number| {
        write(databases, (0..400).map(|id| (format!("doc-{id}"), format!("{{\"number\":{number}}}")))).await;
        databases.get(NAME).await.unwrap().compact().await.unwrap();
    });
}

#[test]
fn a_run_with_a_flipped_bit_is_reported_and_not_restored() {
    let disk = SimDisk::new(2);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = open(&env, "/data").await;
        disk.write_file("data/config.toml", *b"[log]");
        databases.create(NAME).await.unwrap();
        databases.create("other").await.unwrap();
        write(&databases, (0..50).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
        databases.get(NAME).await.unwrap().compact().await.unwrap();
        write(&databases, (50..60).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
        back_up(&databases).await;
        let in_run =
            |path: &std::path::PathBuf| path.starts_with("backup/000001") && !path.ends_with("complete");
        let files: Vec<_> = disk.paths().into_iter().filter(in_run).collect();
        let is_there = |end: &str| files.iter().any(|path| path.to_string_lossy().ends_with(end));
        assert!(files.len() >= 5 && is_there(".tree") && is_there("config.toml"), "{files:?}");
        for file in &files {
            let length = disk.read_file(file).unwrap().len();
            let (path, name) = (Path::new("/").join(file), file.to_string_lossy().into_owned());
            let is_named =
                |found: &str| found.contains(&path.display().to_string()) && found.contains("checksum");
            for at in [0, length / 3, length - 1] {
                disk.damage_file(file, |bytes| bytes[at] ^= 1);
                let found = problems(&env, "/backup/000001", None).await;
                assert!(found.iter().any(|found| is_named(found)), "{name} at {at}: {found:?}");
                let error =
                    restore(&env, Path::new(BACKUP), Path::new("/new")).await.unwrap_err().to_string();
                assert!(
                    is_named(&error) && error.contains("nothing was restored"),
                    "{name} at {at}: {error}"
                );
                assert_eq!(directory::list(&*env.engine, Path::new("/new")).await.unwrap(), []);
                let found = problems(&env, "/backup/000001", Some("other")).await;
                assert_eq!(found, [] as [String; 0], "another database's file, {name} at {at}");
                disk.damage_file(file, |bytes| bytes[at] ^= 1);
            }
        }
        assert_eq!(problems(&env, "/backup/000001", None).await, [] as [String; 0]);
        restore(&env, Path::new(BACKUP), Path::new("/new")).await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_restored_database_is_another_incarnation_and_a_position_past_its_end_means_the_start() {
    let sim = Sim::new(3);
    let env = sim.env();
    sim.run(async {
        let original = open(&env, "/data").await;
        // More than one commit renews the incarnations.
        for number in 0..1_100 {
            original.create_closed(&format!("db{number}")).await.unwrap();
        }
        original.create(NAME).await.unwrap();
        write(&original, (0..5).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
        back_up(&original).await;
        env.clock.sleep(Duration::from_secs(1)).await;
        restore(&env, Path::new(BACKUP), Path::new("/copy")).await.unwrap();
        let copy = open(&env, "/copy").await;
        assert_eq!(copy.names(), original.names());
        write(&copy, (5..20).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
        let (before, after) = (original.get(NAME).await.unwrap(), copy.get(NAME).await.unwrap());
        let position = before.seq_text(before.snapshot().update_seq());
        assert_eq!(before.parse_since(&position).unwrap(), before.snapshot().update_seq());
        assert_eq!(after.parse_since(&position).unwrap(), Seq(0), "{position}");
        assert_ne!(before.created_us(), after.created_us());
        for name in ["db0", "db999", "db1099"] {
            let text = original.get(name).await.unwrap().seq_text(Seq(0));
            assert_ne!(copy.get(name).await.unwrap().seq_text(Seq(0)), text, "{name}");
        }
        let end = after.snapshot().update_seq();
        assert_eq!(after.parse_since(&after.seq_text(end)).unwrap(), end);
        let past = after.seq_text(Seq(end.0 + 100));
        assert_eq!(after.parse_since(&past).unwrap(), Seq(0), "{past}");
    })
    .unwrap();
}

/// A run's list as another version would write it.
fn of_version(list: &[u8], version: u32) -> Vec<u8> {
    let text = std::str::from_utf8(list).unwrap();
    let body = text[..text.rfind("checksum ").unwrap()]
        .replace("settee backup 4", &format!("settee backup {version}"));
    let checksum = blake3::hash(body.as_bytes()).to_hex();
    format!("{body}checksum {}\n", &checksum[..32]).into_bytes()
}

#[test]
fn a_run_of_another_version_is_refused_by_name_and_the_next_shares_nothing_with_it() {
    let disk = SimDisk::new(4);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = open(&env, "/data").await;
        databases.create(NAME).await.unwrap();
        write(&databases, (0..5).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
        disk.write_file("data/server-uuid", *b"of the original");
        databases.backup(Path::new(BACKUP), &["server-uuid"]).await.unwrap();
        let list = disk.read_file("backup/000001/complete").unwrap();
        for version in [2, 3, 5] {
            disk.write_file("backup/000001/complete", of_version(&list, version));
            let error = restore(&env, Path::new(BACKUP), Path::new("/copy")).await.unwrap_err().to_string();
            let words = format!("has format {version}; this version reads 4");
            assert!(error.contains(&words) && error.contains("/backup/000001/complete"), "{error}");
            assert!(directory::list(&*env.engine, Path::new("/copy")).await.unwrap().is_empty());
            let found = problems(&env, "/backup/000001", None).await;
            assert!(found.len() == 1 && found[0].contains(&words), "{found:?}");
        }
        let made = databases.backup(Path::new(BACKUP), &[]).await.unwrap();
        assert_eq!(made.files.linked_count, 0, "{made:?}");
        let made = databases.backup(Path::new(BACKUP), &[]).await.unwrap();
        assert_eq!(made.files.copied_count, 0, "{made:?}");
        let restored = restore(&env, Path::new(BACKUP), Path::new("/newer")).await.unwrap();
        assert_eq!(restored.run, Path::new("/backup/000003"));
        // The server's identity isn't restored.
        disk.write_file("backup/000001/complete", list);
        restore(&env, Path::new("/backup/000001"), Path::new("/copy")).await.unwrap();
        assert_eq!(disk.read_file("copy/server-uuid"), None);
        let copy = open(&env, "/copy").await;
        assert_eq!(contents(&copy).await, contents(&databases).await);
    })
    .unwrap();
}

/// What a check says of a place's databases beside problems, of which there must be none.
async fn notes(env: &Env, place: &str) -> Vec<String> {
    let mut notes = Vec::new();
    let offline = OfflineDatabases::open(env, Path::new(place), DatabasesOptions::default()).await.unwrap();
    let report = |event| notes.extend(if let OfflineEvent::Note(text) = event { Some(text) } else { None });
    assert_eq!(offline.check(None, report).await.unwrap().problem_count, 0, "{place}");
    notes
}

#[test]
fn each_restore_starts_a_timeline_and_check_shows_them() {
    let sim = Sim::new(5);
    let env = sim.env();
    sim.run(async {
        let mut databases = open(&env, "/data").await;
        databases.create(NAME).await.unwrap();
        for round in 0..3_usize {
            let docs = (0..5).map(|id| (format!("doc-{round}-{id}"), "{}".to_owned()));
            write(&databases, docs).await;
            if round == 1 {
                databases.get(NAME).await.unwrap().compact().await.unwrap();
            }
            back_up(&databases).await;
            let expected = contents(&databases).await;
            databases.close().await.unwrap();
            let (run, to) = (format!("{BACKUP}/{:06}", round + 1), format!("/copy/{round}"));
            restore(&env, Path::new(&run), Path::new(&to)).await.unwrap();
            // The catalogue, and the database.
            let shown = notes(&env, &to).await;
            assert_eq!(shown.len(), 2, "{shown:?}");
            for note in &shown {
                let restored: Vec<u64> = note
                    .strip_prefix("its log was restored from a backup after update ")
                    .unwrap()
                    .split(", ")
                    .map(|number| number.parse().unwrap())
                    .collect();
                assert!(restored.len() == round + 1 && restored.is_sorted(), "{note}");
            }
            databases = open(&env, &to).await;
            assert_eq!(contents(&databases).await, expected);
        }
    })
    .unwrap();
}

#[test]
fn a_power_loss_during_a_restore_leaves_no_databases_or_all_of_them() {
    let whole = SimDisk::new(6);
    let sim = Sim::with_disk(&whole);
    let expected = sim
        .run(async {
            let env = sim.env();
            let databases = open(&env, "/data").await;
            for name in [NAME, "other"] {
                databases.create(name).await.unwrap();
            }
            write(&databases, (0..20).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
            databases.get(NAME).await.unwrap().compact().await.unwrap();
            write(&databases, (20..25).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
            back_up(&databases).await;
            contents(&databases).await
        })
        .unwrap();
    let with_backup = |seed| {
        let disk = SimDisk::new(seed);
        for path in whole.paths().into_iter().filter(|path| path.starts_with("backup")) {
            disk.write_file(&path, whole.read_file(&path).unwrap());
        }
        disk
    };
    let restored = async |env: &Env| restore(env, Path::new(BACKUP), Path::new("/copy")).await.map(drop);
    let operations = |seed| {
        let disk = with_backup(seed);
        let start = disk.operation_count();
        let sim = Sim::with_disk(&disk);
        sim.run(async { restored(&sim.env()).await.unwrap() }).unwrap();
        start..disk.operation_count()
    };
    let (mut none, mut all) = (0, 0);
    // The seed decides which names survive: after the last rename there are several.
    let last = (8..18).map(|seed| (operations(seed).end - 1, seed));
    for (crash_at, seed) in operations(7).map(|crash_at| (crash_at, 7)).chain(last) {
        let disk = with_backup(seed).crash_at_operation(crash_at);
        let sim = Sim::with_disk(&disk);
        let ended = sim.run(async { restored(&sim.env()).await });
        assert!(ended.is_none(), "at {crash_at}: the power fails");
        let disk = disk.after_power_loss();
        let has_catalogue = disk.paths().iter().any(|path| path.starts_with("copy/catalogue"));
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let opened = Databases::open(env.clone(), Path::new("/copy")).await;
            if !has_catalogue {
                let is_none = opened.map_or(true, |databases| databases.names().is_empty());
                assert!(is_none, "at {crash_at}");
                none += 1;
                return;
            }
            let databases = opened.unwrap_or_else(|error| panic!("at {crash_at}: {error}"));
            assert_eq!(contents(&databases).await, expected, "at {crash_at}");
            write(&databases, (30..32).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
            databases.close().await.unwrap();
            drop(databases);
            assert_eq!(notes(&env, "/copy").await.len(), 2, "at {crash_at}");
            all += 1;
        })
        .unwrap();
    }
    assert!(none > 20 && all > 1, "{none} {all}");
}
