//! Goal: an upgrade that power losses interrupt anywhere ends with the same databases as one that none
//! interrupts, and leaves the previous directory as it was; until then no server opens the new one. Damage in a
//! previous database, and previous files that changed meanwhile, are refused.
//! Method: in the simulation, the data of an earlier release (`tests/upgrade`) is upgraded with seeded power
//! losses, until one upgrade ends. The command's tests compare the documents with that release's own dump.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use settee_doc::{Databases, ErrorKind, Revision, RevisionId, Seq, UpgradeEvent, UpgradeSummary, upgrade};
use settee_io::Env;
use settee_sim::trial::Random;
use settee_sim::{Sim, SimDisk, seeds};

/// Upgrades that power losses interrupt.
const UPGRADE_COUNT: u64 = 12;

const NAMES: [&str; 4] = ["documents", "empty", "limits/of", "parts"];

/// The files of an earlier release's data directory, by their paths in it.
fn previous_files() -> BTreeMap<PathBuf, Vec<u8>> {
    let packed = include_bytes!("../../../../tests/upgrade/data.gz");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    let (mut files, mut rest) = (BTreeMap::new(), &bytes[..]);
    while !rest.is_empty() {
        let mut take = |size: usize| rest.split_off(..size).unwrap();
        let size = u32::from_le_bytes(take(4).try_into().unwrap());
        let path = std::str::from_utf8(take(size as usize)).unwrap();
        let size = u64::from_le_bytes(take(8).try_into().unwrap());
        files.insert(path.into(), take(size as usize).to_vec());
    }
    files
}

fn disk_with_previous(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    for (path, bytes) in previous_files() {
        disk.write_file(Path::new("/old").join(path), bytes);
    }
    disk
}

async fn upgraded(env: &Env) -> settee_doc::Result<UpgradeSummary> {
    upgrade(env, Path::new("/old"), Path::new("/new"), &["config.toml"], |_| ()).await
}

/// A leaf, with its path and its body.
type Content = (String, Revision, bool, Vec<RevisionId>, Vec<u8>, usize);

/// The leaves of all databases.
async fn contents(env: &Env) -> Vec<Content> {
    let databases = Databases::open(env.clone(), Path::new("/new")).await.unwrap();
    let mut contents = Vec::new();
    for name in NAMES {
        let snapshot = databases.get(name).await.unwrap().snapshot();
        let mut rows = snapshot.changes(Seq(0), false);
        while let Some(row) = rows.next().await.unwrap() {
            let id = row.id.to_owned();
            let leaves = snapshot.open_leaves(&id).await.unwrap();
            for index in 0..leaves.count() {
                let document = snapshot.read_whole(leaves.document(index).await.unwrap()).await.unwrap();
                let (path, attachment_count) =
                    (leaves.history(index).await.unwrap(), document.attachments.len());
                let (revision, body) = (document.revision, document.body.to_vec());
                contents.push((id.clone(), revision, document.deleted, path, body, attachment_count));
            }
        }
    }
    databases.close().await.unwrap();
    contents.sort();
    contents
}

#[test]
fn an_upgrade_that_power_losses_interrupt_ends_as_one_that_none_interrupts() {
    let sim = Sim::with_disk(&disk_with_previous(0));
    let env = sim.env();
    let whole = sim.run(upgraded(&env)).unwrap().unwrap();
    let operation_count = sim.disk().operation_count();
    let expected = sim.run(contents(&env)).unwrap();
    let ids: BTreeSet<_> = expected.iter().map(|(id, ..)| id).collect();
    assert!(expected.len() > 40 && whole.database_count == 4 && whole.document_count == ids.len() as u64);
    let (mut loss_count, mut resumed_count) = (0, 0);
    for seed in seeds(UPGRADE_COUNT) {
        let mut random = Random::new(seed, 0);
        let mut disk = disk_with_previous(seed);
        loop {
            disk = disk.crash_at_operation(1 + random.below(operation_count));
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            let ended = sim.run(upgraded(&env));
            if let Some(ended) = ended {
                let summary = ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                resumed_count += summary.earlier_count;
                assert_eq!(summary.database_count, 4, "seed {seed}");
                // What was not on stable storage when it ended is lost.
                disk = disk.after_power_loss();
                break;
            }
            loss_count += 1;
            disk = disk.after_power_loss();
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            sim.run(async {
                let opened = Databases::open(env.clone(), Path::new("/new")).await;
                let has_begun = disk.paths().iter().any(|path| path.ends_with("upgrade.unfinished"));
                if has_begun {
                    assert_eq!(opened.map(drop).unwrap_err().kind(), ErrorKind::BadRequest, "seed {seed}");
                }
            });
        }
        for (path, bytes) in previous_files() {
            assert_eq!(disk.read_file(Path::new("/old").join(&path)), Some(bytes), "seed {seed}: {path:?}");
        }
        let config = |place: &str| disk.read_file(Path::new(place).join("config.toml"));
        assert!(config("/new").is_some() && config("/new") == config("/old"), "seed {seed}");
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        assert_eq!(sim.run(contents(&env)).unwrap(), expected, "seed {seed}");
    }
    assert!(loss_count >= UPGRADE_COUNT && resumed_count > 0, "{loss_count} {resumed_count}");
}

#[test]
fn damage_in_a_previous_database_and_files_that_changed_meanwhile_are_refused() {
    let rewritten = |disk: &SimDisk| {
        let is_rewritten =
            |path: &PathBuf| path.starts_with("old") && path.extension() == Some("seg".as_ref());
        Path::new("/").join(disk.paths().into_iter().find(is_rewritten).unwrap())
    };
    let sim = Sim::with_disk(&disk_with_previous(0));
    let (env, path) = (sim.env(), rewritten(sim.disk()));
    sim.disk().damage_file(&path, |bytes| bytes[700] ^= 1);
    let error = sim.run(upgraded(&env)).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    let text = error.to_string();
    assert!(
        text.contains("documents") && text.contains(path.file_name().unwrap().to_str().unwrap()),
        "{text}"
    );
    // A database that has data according to the catalogue, and whose file holds nothing.
    let sim = Sim::with_disk(&disk_with_previous(0));
    let env = sim.env();
    sim.disk().damage_file("/old/databases/0000000004/0000000001.log", |bytes| bytes.fill(0));
    let error = sim.run(upgraded(&env)).unwrap().unwrap_err();
    assert!(error.to_string().contains("the files of the database parts are gone"), "{error}");
    // The end of a log, which a crash may have torn, is left out, and that is said.
    let sim = Sim::with_disk(&disk_with_previous(0));
    let (env, mut notes) = (sim.env(), Vec::new());
    let path = "/old/databases/0000000005/0000000003.log";
    let end = sim.disk().read_file(path).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    sim.disk().damage_file(path, |bytes| bytes[end] ^= 1);
    let report = |event| {
        if let UpgradeEvent::Note(text) = event {
            notes.push(text);
        }
    };
    sim.run(upgrade(&env, Path::new("/old"), Path::new("/new"), &[], report)).unwrap().unwrap();
    assert!(notes.len() == 1 && notes[0].contains(path), "{notes:?}");
    // An upgrade of these files had begun.
    let operation_count = {
        let sim = Sim::with_disk(&disk_with_previous(0));
        let env = sim.env();
        sim.run(upgraded(&env)).unwrap().unwrap();
        sim.disk().operation_count()
    };
    let disk = disk_with_previous(0).crash_at_operation(operation_count - 20);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    assert!(sim.run(upgraded(&env)).is_none());
    let sim = Sim::with_disk(&disk.after_power_loss());
    let env = sim.env();
    sim.disk().damage_file(path, |bytes| bytes.push(0));
    let error = sim.run(upgraded(&env)).unwrap().unwrap_err();
    assert!(error.to_string().contains("other files"), "{error}");
    // A directory in the present format has nothing to upgrade.
    let sim = Sim::with_disk(&disk_with_previous(0));
    let env = sim.env();
    sim.run(async {
        upgraded(&env).await.unwrap();
        let again = upgrade(&env, Path::new("/new"), Path::new("/newer"), &[], |_| ()).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::BadRequest);
        let over = upgraded(&env).await.unwrap_err();
        assert!(over.to_string().contains("is not empty"), "{over}");
        for place in ["/old", "/new"] {
            let opened = Databases::open(env.clone(), Path::new(place)).await;
            assert_eq!(opened.is_ok(), place == "/new");
        }
    });
}
