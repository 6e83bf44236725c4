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

/// A run's list without checksums.
fn without_checksums(list: &[u8]) -> String {
    let text = std::str::from_utf8(list).unwrap().replace("settee backup 3", "settee backup 2");
    let mut old = String::new();
    for line in text.lines().filter(|line| !line.starts_with("checksum ")) {
        match line.splitn(5, ' ').collect::<Vec<_>>()[..] {
            ["file", length, _, _, path] => old += &format!("file {length} {path}\n"),
            _ => old += &format!("{line}\n"),
        }
    }
    let checksum = blake3::hash(old.as_bytes()).to_hex();
    old + &format!("checksum {}\n", &checksum[..32])
}

#[test]
fn a_run_without_checksums_is_restored_by_lengths_and_the_next_shares_nothing_with_it() {
    let disk = SimDisk::new(4);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = open(&env, "/data").await;
        databases.create(NAME).await.unwrap();
        write(&databases, (0..5).map(|id| (format!("doc-{id}"), "{}".to_owned()))).await;
        disk.write_file("data/server-uuid", *b"of the original");
        databases.backup(Path::new(BACKUP), &["server-uuid"]).await.unwrap();
        let list = without_checksums(&disk.read_file("backup/000001/complete").unwrap());
        disk.write_file("backup/000001/complete", list.clone().into_bytes());
        let mut remarks = Vec::new();
        let place = Path::new("/backup/000001");
        let offline = OfflineDatabases::open(&env, place, DatabasesOptions::default()).await.unwrap();
        let report =
            |event| remarks.extend(if let OfflineEvent::Note(text) = event { Some(text) } else { None });
        assert_eq!(offline.check(None, report).await.unwrap().problem_count, 0);
        assert!(remarks.len() == 1 && remarks[0].contains("no checksums"), "{remarks:?}");
        let restored = restore(&env, Path::new(BACKUP), Path::new("/copy")).await.unwrap();
        assert!(restored.note.unwrap().contains("no checksums"));
        assert_eq!(disk.read_file("copy/server-uuid"), None);
        let copy = open(&env, "/copy").await;
        assert_eq!(contents(&copy).await, contents(&databases).await);
        let made = databases.backup(Path::new(BACKUP), &[]).await.unwrap();
        assert_eq!(made.files.linked_count, 0, "{made:?}");
        let made = databases.backup(Path::new(BACKUP), &[]).await.unwrap();
        assert_eq!(made.files.copied_count, 0, "{made:?}");
        let restored = restore(&env, Path::new(BACKUP), Path::new("/newer")).await.unwrap();
        assert_eq!((restored.note, restored.run), (None, Path::new("/backup/000003").to_path_buf()));
    })
    .unwrap();
}
