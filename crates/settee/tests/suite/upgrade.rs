//! Goal: `settee upgrade` keeps all that a data directory of an earlier release holds, and commands that find
//! such a directory say so and change nothing.
//! Method: the built binary on the data of that release (`tests/upgrade`), whose server was killed; the documents
//! are compared with that release's own dump, and the rest through a server.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Server, fails, name, ok};

fn unpacked(file: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/upgrade").join(file);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Creates the earlier release's data directory.
fn create_previous(directory: &Path) {
    let bytes = unpacked("data.gz");
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let mut take = |size: usize| rest.split_off(..size).unwrap();
        let size = u32::from_le_bytes(take(4).try_into().unwrap());
        let path = directory.join(std::str::from_utf8(take(size as usize)).unwrap());
        let size = u64::from_le_bytes(take(8).try_into().unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, take(size as usize)).unwrap();
    }
}

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => drop(files.insert(path.clone(), std::fs::read(path).unwrap())),
        }
    }
    files
}

/// A dump's lines, which may be in any order.
fn lines(dump: &[u8]) -> Vec<Value> {
    let mut lines: Vec<&[u8]> = dump.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    lines.sort();
    lines.into_iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[test]
fn an_upgrade_keeps_all_that_an_earlier_release_stored() {
    let home = tempfile::tempdir().unwrap();
    let (old, new) = (home.path().join("old"), home.path().join("new"));
    create_previous(&old);
    let before = files(&old);
    let (old_name, new_name) = (name(&old), name(&new));
    for command in [
        &["serve", "--listen", "127.0.0.1:0", "--data-dir", old_name][..],
        &["check", old_name],
        &["dump", "--db", "documents", "--data-dir", old_name],
        &["backup", "--data-dir", old_name, name(&home.path().join("backup"))],
    ] {
        let (_, stderr) = fails(command, b"");
        assert!(stderr.contains("was written by an earlier version"), "{command:?}: {stderr}");
        assert!(stderr.contains(&format!("settee upgrade {old_name} ")), "{command:?}: {stderr}");
    }
    assert_eq!(files(&old), before);
    let (stdout, _) = ok(&["upgrade", old_name, new_name], b"");
    assert!(stdout.starts_with("4 databases of "), "{stdout}");
    assert_eq!(files(&old), before);
    let (stdout, _) = ok(&["check", new_name], b"");
    assert!(stdout.starts_with("sound: "), "{stdout}");
    for (database, file) in
        [("documents", "documents"), ("empty", "empty"), ("limits/of", "limits_of"), ("parts", "parts")]
    {
        let arguments =
            ["dump", "--db", database, "--data-dir", new_name, "--all-revisions", "--attachments"];
        let expected = lines(&unpacked(&format!("{file}.jsonl.gz")));
        assert!(lines(ok(&arguments, b"").0.as_bytes()) == expected, "{database}");
    }
    let kept = |file: &str| (std::fs::read(old.join(file)).unwrap(), std::fs::read(new.join(file)).unwrap());
    for (then, now) in ["server-uuid", "config.toml"].map(kept) {
        assert_eq!(then, now);
    }
    let server = Server::start(&new);
    let get = |path: &str| serde_json::from_str::<Value>(&server.send_ok("GET", path, "")).unwrap();
    assert_eq!(get("/_all_dbs"), serde_json::json!(["documents", "empty", "limits/of", "parts"]));
    assert_eq!(
        (get("/limits%2Fof/_revs_limit"), get("/limits%2Fof/_purged_infos_limit")),
        (20.into(), 5.into())
    );
    assert_eq!(get("/parts")["props"]["partitioned"], true);
    assert_eq!(get("/documents/_purged_infos")["purged_infos"].as_array().unwrap().len(), 3);
    assert_eq!(get("/documents")["purge_seq"].as_str().unwrap().split('-').next(), Some("3"));
    // Updates continue long and short paths, and remove what they replace.
    for id in ["generation-017", "generation-033", "generation-097", "replicated-300"] {
        let document = get(&format!("/documents/{id}?revs=true"));
        let revision = document["_rev"].as_str().unwrap();
        server.send_ok("PUT", &format!("/documents/{id}"), &format!(r#"{{"_rev":"{revision}"}}"#));
        let updated = get(&format!("/documents/{id}?revs=true"));
        let ids = |document: &Value| document["_revisions"]["ids"].as_array().unwrap().clone();
        assert_eq!(ids(&updated)[1..], ids(&document)[..], "{id}");
    }
    server.stop();
    assert!(ok(&["check", new_name], b"").0.starts_with("sound: "));
}
