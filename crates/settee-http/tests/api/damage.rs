//! Goal: requests to a database with damaged files report which file and how; the files stay unchanged, so
//! that data can be rescued, and other databases work.
//! Method: damage a stopped server's files in each way, restart it, send requests, and compare the files;
//! then restore them.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use settee_http::ServerOptions;

use crate::client::{Client, Server, ids};

const DOC_COUNT: usize = 60;
const VALUE_LENGTH: usize = 16 << 10;

/// Writes documents that fill several segments.
fn fill(client: &mut Client, name: &str) {
    client.create(name);
    for number in 0..DOC_COUNT {
        // Nonrepeating content, so that no two segments are alike.
        let part =
            |part: usize| format!("{name:8}{:08x}", (number * VALUE_LENGTH + part) * 0x9e37 % 0xffff_fffb);
        let value: String = (0..VALUE_LENGTH / 16).map(part).collect();
        client.put(&format!("/{name}/d{number:03}"), &format!("{{\"v\":\"{value}\"}}")).expect_status(201);
    }
}

/// A directory with the databases `broken` and `sound`, in the directories `1` and `2`.
fn filled() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_in(directory.path(), ServerOptions::default());
    let mut client = server.connect();
    fill(&mut client, "broken");
    fill(&mut client, "sound");
    drop(server);
    directory
}

fn database_directory(data: &Path, number: u32) -> PathBuf {
    data.join("databases").join(format!("{number:010}"))
}

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn restore(directory: &Path, sound: &BTreeMap<PathBuf, Vec<u8>>) {
    for path in files(directory).keys().filter(|path| !sound.contains_key(*path)) {
        std::fs::remove_file(path).unwrap();
    }
    for (path, bytes) in sound {
        std::fs::write(path, bytes).unwrap();
    }
}

/// The damage to the second segment, and the text that reports it.
type Damage = (&'static str, fn(&Path, &Path), &'static str);

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// A complete segment header as a future version may write it: the magic, its format, and the checksum in its
/// current place.
fn header_of_format_99() -> [u8; 80] {
    /// XXH3-64 of the 72 bytes before it.
    const CHECKSUM: u64 = 0xfd52_6492_92bb_6651;
    let mut header = [0; 80];
    header[..8].copy_from_slice(b"SETTEELG");
    header[8] = 99;
    header[12] = 2;
    header[72..].copy_from_slice(&CHECKSUM.to_le_bytes());
    header
}

const DAMAGES: [Damage; 7] = [
    (
        "truncated",
        |file, _| change(file, |bytes| bytes.truncate(bytes.len() / 2)),
        "shorter than it should be",
    ),
    (
        "garbled",
        // The segment index of a sealed segment too, because replay uses it.
        |file, _| change(file, |bytes| bytes[10_000..].iter_mut().for_each(|byte| *byte ^= 0x5a)),
        "a frame is damaged",
    ),
    (
        "no segment at all",
        |file, _| change(file, |bytes| *bytes = b"#!/bin/sh\n".repeat(10_000)),
        "its header is damaged",
    ),
    ("foreign", |file, foreign| std::fs::copy(foreign, file).map(drop).unwrap(), "another log"),
    (
        "of a newer format",
        |file, _| change(file, |bytes| bytes[..80].copy_from_slice(&header_of_format_99())),
        "has format 99; this version reads",
    ),
    ("empty", |file, _| std::fs::write(file, b"").unwrap(), "its header is damaged"),
    ("missing", |file, _| std::fs::remove_file(file).unwrap(), "is missing"),
];

#[test]
fn a_damaged_database_says_what_it_is_and_stays_as_it_is_and_others_work() {
    let data = filled();
    let directory = database_directory(data.path(), 1);
    let sound = files(&directory);
    let name = "0000000002.log";
    assert!(
        sound.contains_key(&directory.join("0000000003.log")),
        "segments on both sides: {:?}",
        sound.keys()
    );
    for (what, damage, words) in DAMAGES {
        damage(&directory.join(name), &database_directory(data.path(), 2).join(name));
        let damaged = files(&directory);
        assert!(damaged != sound, "{what}");

        let server = Server::start_in(data.path(), ServerOptions::default());
        let mut client = server.connect();
        let asked = [
            client.get("/broken"),
            client.get("/broken/d000"),
            client.get("/broken/_all_docs"),
            client.get("/broken/_changes"),
            client.put("/broken/new", "{}"),
            client.post("/broken/_bulk_docs", "{\"docs\":[{}]}"),
        ];
        for reply in asked {
            let json = reply.json();
            assert_eq!(
                (reply.status, json["error"].as_str()),
                (500, Some("internal_server_error")),
                "{what}"
            );
            let reason = json["reason"].as_str().unwrap();
            assert!(reason.contains(name) && reason.contains(words), "{what}: {reason}");
        }
        client.put("/broken", "").expect_status(412);
        assert_eq!(client.get("/_all_dbs").json(), serde_json::json!(["broken", "sound"]), "{what}");
        assert_eq!(ids(&client.get("/sound/_all_docs").expect_status(200), "rows").len(), DOC_COUNT);
        let revision = client.post("/sound", "{\"_id\":\"new\"}").expect_status(201).rev();
        client.delete(&format!("/sound/new?rev={revision}")).expect_status(200);
        assert!(files(&directory) == damaged, "{what}: changed a damaged database");

        restore(&directory, &sound);
        // Each request tries to open it again until that succeeds.
        let rows = ids(&client.get("/broken/_all_docs").expect_status(200), "rows");
        assert_eq!(rows.len(), DOC_COUNT, "{what}");
        client.put(&format!("/broken/_local/{}", what.replace(' ', "-")), "{}").expect_status(201);
        drop(server);
        // Undoes the changes of opening, so that each kind of damage meets the same files.
        restore(&directory, &sound);
    }
}

#[test]
fn a_damaged_database_can_be_deleted_and_made_anew() {
    let data = filled();
    std::fs::remove_file(database_directory(data.path(), 1).join("0000000002.log")).unwrap();
    let server = Server::start_in(data.path(), ServerOptions::default());
    let mut client = server.connect();
    client.get("/broken").expect_status(500);
    client.delete("/broken").expect_status(200);
    client.get("/broken").expect_error(404, "not_found", "Database does not exist.");
    client.create("broken");
    assert_eq!(ids(&client.get("/broken/_all_docs").expect_status(200), "rows"), [""; 0]);
}

#[test]
fn a_body_that_is_garbled_in_mid_run_is_an_error_and_never_an_answer() {
    let data = filled();
    let server = Server::start_in(data.path(), ServerOptions::default());
    let mut client = server.connect();
    let document = client.get("/broken/d003").expect_status(200).json();
    let value = document["v"].as_str().unwrap().as_bytes();
    let (path, at) = files(&database_directory(data.path(), 1))
        .into_iter()
        .find_map(|(path, bytes)| {
            Some((path, bytes.windows(value.len()).position(|window| window == value)?))
        })
        .expect("bodies are stored as they are");
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"?", at as u64).unwrap();

    let reply = client.get("/broken/d003").expect_status(500);
    let reason = reply.json()["reason"].as_str().unwrap().to_owned();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(reason.contains("damaged record") && reason.contains(name), "{reason}");
    assert_eq!(client.head("/broken/d003").status, 200, "the index knows the document");
    client.get("/broken/d004").expect_status(200);
    client.put("/broken/new", "{}").expect_status(201);
    file.write_all_at(&value[..1], at as u64).unwrap();
    assert_eq!(client.get("/broken/d003").expect_status(200).json(), document);
}
