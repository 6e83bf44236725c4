//! Goal: an online backup of all databases is a valid data directory with every database and document that
//! was acknowledged before it.
//! Method: in the simulation, a task creates, writes and deletes databases during several backups, with few
//! databases open at once; each backup is checked, restored and compared with what was acknowledged. Also:
//! damage is reported by document ids, and repaired into a new directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use settee_doc::{
    Content, Database, Databases, DatabasesOptions, Edit, ErrorKind, NewAttachment, OfflineDatabases,
    OfflineEvent, Options, Stage, restore,
};
use settee_io::Env;
use settee_sim::{Sim, SimDisk, seeds};

fn options() -> DatabasesOptions {
    DatabasesOptions { open_databases_max: 3, database_idle_s: 1, ..DatabasesOptions::default() }
}

async fn put(database: &Database, id: &str) -> settee_doc::Result<()> {
    let mut edit = Edit::parse(br#"{"name":"a small document"}"#, &Options::default()).unwrap();
    edit.id = id.into();
    database.update(edit, Stage::Persisted).await.map(drop)
}

async fn problems(env: &Env, directory: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let offline = OfflineDatabases::open(env, directory, options()).await.unwrap();
    let report = |event| {
        if let OfflineEvent::Problem { what, touched, .. } = event {
            problems.push(format!("{what}; touches {touched}"));
        }
    };
    let sums = offline.check(None, report).await.unwrap();
    assert_eq!(sums.problem_count as usize, problems.len());
    problems
}

/// Names, and the number of documents acknowledged in each.
type Known = BTreeMap<String, usize>;

#[test]
fn a_backup_has_everything_acknowledged_before() {
    let (mut linked, mut came, mut went) = (0, 0, 0);
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let env = sim.env();
        let counts = sim
            .run(async {
                let databases =
                    Databases::open_with(env.clone(), Path::new("/data"), options()).await.unwrap();
                let known: Arc<Mutex<Known>> = Arc::default();
                let (ends, deleted) =
                    (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeSet::new())));
                let (done, is_done) = tokio::sync::oneshot::channel();
                let (writer, acknowledged, ended, lost, clock) =
                    (databases.clone(), known.clone(), ends.clone(), deleted.clone(), env.clock.clone());
                env.spawn("writer", async move {
                    let mut step = seed as usize;
                    while !ended.load(Ordering::Relaxed) {
                        step += 1;
                        let name = format!("db{}", step * 7 % 11);
                        if step.is_multiple_of(9) && acknowledged.lock().unwrap().contains_key(&name) {
                            // Including writes in progress when the backup begins.
                            acknowledged.lock().unwrap().remove(&name);
                            lost.lock().unwrap().insert(name.clone());
                            writer.delete(&name).await.unwrap();
                            continue;
                        }
                        match writer.create(&name).await {
                            Err(error) if error.kind() == ErrorKind::DatabaseExists => {}
                            created => {
                                created.unwrap();
                                acknowledged.lock().unwrap().insert(name.clone(), 0);
                            }
                        }
                        let database = writer.get(&name).await.unwrap();
                        put(&database, &format!("{step}")).await.unwrap();
                        *acknowledged.lock().unwrap().get_mut(&name).unwrap() += 1;
                        clock.sleep(Duration::from_millis(5)).await;
                    }
                    done.send(()).unwrap();
                });
                let mut counts = (0, 0, 0);
                for number in 1..=3 {
                    env.clock.sleep(Duration::from_millis(300)).await;
                    let before = known.lock().unwrap().clone();
                    deleted.lock().unwrap().clear();
                    let made = databases.backup(Path::new("/backup"), &["server-uuid"]).await.unwrap();
                    let deleted = deleted.lock().unwrap().clone();
                    counts.0 += made.files.linked_count;
                    let case = format!("seed={seed} number={number}");
                    assert_eq!(made.directory, Path::new(&format!("/backup/{number:06}")), "{case}");
                    assert_eq!(problems(&env, &made.directory).await, [] as [String; 0], "{case}");
                    let to = format!("/restored/{number}");
                    restore(&env, &made.directory, Path::new(&to)).await.unwrap();
                    let restored =
                        Databases::open_with(env.clone(), Path::new(&to), options()).await.unwrap();
                    for (name, count) in before.iter().filter(|(name, _)| !deleted.contains(*name)) {
                        let database =
                            restored.get(name).await.unwrap_or_else(|error| panic!("{case} {name}: {error}"));
                        assert!(database.info().doc_count >= *count as u64, "{case} {name}");
                    }
                    for name in restored.names() {
                        restored.get(&name).await.unwrap_or_else(|error| panic!("{case} {name}: {error}"));
                        counts.1 += u64::from(!before.contains_key(&name));
                    }
                    counts.2 += deleted.len() as u64;
                    restored.close().await.unwrap();
                }
                ends.store(true, Ordering::Relaxed);
                is_done.await.unwrap();
                assert!(databases.backup(Path::new("relative"), &[]).await.is_err());
                databases.close().await.unwrap();
                counts
            })
            .unwrap();
        (linked, came, went) = (linked + counts.0, came + counts.1, went + counts.2);
    }
    println!("linked {linked}, databases that came meanwhile {came}, that went {went}");
    assert!(linked > 0);
}

#[test]
fn a_damaged_document_is_reported_by_id_and_others_are_salvaged() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open_with(env.clone(), Path::new("/data"), options()).await.unwrap();
        for name in ["one", "two"] {
            let database = databases.create(name).await.unwrap();
            for number in 0..50 {
                put(&database, &format!("doc-{number}")).await.unwrap();
            }
        }
        databases.close().await.unwrap();
        drop(databases);
        assert_eq!(problems(&env, Path::new("/data")).await, [] as [String; 0]);
        let path = "data/databases/0000000001/0000000001.log";
        let bytes = disk.read_file(path).unwrap();
        let at = bytes.windows(7).position(|window| window == b"ddoc-20").unwrap();
        disk.damage_file(path, |bytes| bytes[at + 40] ^= 1);
        let found = problems(&env, Path::new("/data")).await;
        let is_named = |problem: &String| {
            problem.contains("0000000001.log at offset") && problem.contains("document \"doc-20\"")
        };
        assert!(found.iter().any(is_named), "{found:?}");
        let offline = OfflineDatabases::open(&env, Path::new("/data"), options()).await.unwrap();
        let mut lost = Vec::new();
        let report =
            |event| lost.extend(if let OfflineEvent::Lost { what, .. } = event { Some(what) } else { None });
        let sums = offline.repair(Path::new("/new"), report).await.unwrap();
        assert_eq!(lost, ["document \"doc-20\""]);
        drop(offline);
        // No path chunks exist beside the documents: each has one revision.
        assert_eq!(sums.record_count, 99, "{sums:?}");
        assert_eq!(problems(&env, Path::new("/new")).await, [] as [String; 0]);
        let new = Databases::open_with(env.clone(), Path::new("/new"), options()).await.unwrap();
        for (name, count) in [("one", 49), ("two", 50)] {
            assert_eq!(new.get(name).await.unwrap().info().doc_count, count, "{name}");
        }
        new.close().await.unwrap();
    })
    .unwrap();
}

/// A document with two attachments, each written to the log before it.
async fn put_with_attachments(database: &Database, id: &str) {
    let mut edit = Edit::parse(b"{}", &Options::default()).unwrap();
    edit.id = id.into();
    for (name, byte) in [("first", b'1'), ("second", b'2')] {
        let mut uploading = database.upload(id, "image/png", false, u64::MAX);
        uploading.write(&vec![byte; 100_000]).await.unwrap();
        let content = Content::Stored(uploading.finish(None).await.unwrap());
        let (name, content_type) = (name.into(), "image/png".into());
        edit.attachments.push(NewAttachment { name, content_type, revpos: None, content });
    }
    database.update(edit, Stage::Persisted).await.unwrap();
}

#[test]
fn a_document_is_repaired_without_its_lost_attachment() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open_with(env.clone(), Path::new("/data"), options()).await.unwrap();
        let database = databases.create("one").await.unwrap();
        put_with_attachments(&database, "both").await;
        put_with_attachments(&database, "cut").await;
        // So that it isn't the log's end, which a crash may tear.
        for number in 0..5 {
            put(&database, &format!("doc-{number}")).await.unwrap();
        }
        drop(database);
        databases.close().await.unwrap();
        drop(databases);
        let is_log = |path: &&std::path::PathBuf| path.to_string_lossy().contains("databases/0000000001/");
        let (path, at) = disk
            .paths()
            .iter()
            .filter(is_log)
            .rev()
            .find_map(|path| {
                let bytes = disk.read_file(path).unwrap();
                let at = bytes.windows(50_000).rposition(|window| window.iter().all(|byte| *byte == b'2'))?;
                Some((path.clone(), at))
            })
            .expect("it is stored");
        disk.damage_file(&path, |bytes| bytes[at] ^= 1);
        let found = problems(&env, Path::new("/data")).await;
        assert!(found.iter().any(|problem| problem.contains("document \"cut\"")), "{path:?} {at} {found:?}");
        let offline = OfflineDatabases::open(&env, Path::new("/data"), options()).await.unwrap();
        let mut lost = Vec::new();
        let report =
            |event| lost.extend(if let OfflineEvent::Lost { what, .. } = event { Some(what) } else { None });
        offline.repair(Path::new("/new"), report).await.unwrap();
        assert!(
            lost.iter().any(|what| what.starts_with("attachment \"second\" of document \"cut\"")),
            "{lost:?}"
        );
        drop(offline);
        assert_eq!(problems(&env, Path::new("/new")).await, [] as [String; 0]);
        let new = Databases::open_with(env.clone(), Path::new("/new"), options()).await.unwrap();
        let database = new.get("one").await.unwrap();
        for (id, names) in [("both", &["first", "second"][..]), ("cut", &["first"])] {
            let view = database.snapshot();
            let document = view.document(id).await.unwrap();
            let found: Vec<&str> = document.attachments.iter().map(|one| &one.name[..]).collect();
            assert_eq!(found, names, "{id}");
            for attachment in &document.attachments {
                let mut reader = view.attachment(id, attachment, None, false);
                let mut length = 0;
                while let Some(bytes) = reader.next().await.unwrap() {
                    length += bytes.len();
                }
                assert_eq!(length, 100_000);
            }
        }
        drop(database);
        new.close().await.unwrap();
    })
    .unwrap();
}
