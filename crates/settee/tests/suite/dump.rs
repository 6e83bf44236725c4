//! Goal: loading a dump with all revisions and attachments restores the database, in a data directory and
//! over HTTP; a dump counts what it leaves out; files of other programs are loaded, or refused with a hint.
//! Method: the built binary, on a database with conflicts, deletions, attachments and local documents.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Server, fails, name, ok, run, settee, text};

/// A text attachment, which the store compresses, and a binary one.
const ATTACHMENTS: &str = r#"{"notes.txt":{"content_type":"text/plain","data":"aGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8="},
    "raw":{"content_type":"image/png","data":"/wD+"}}"#;

fn hash(digit: char) -> String {
    digit.to_string().repeat(32)
}

/// Creates a database with every kind of content that a dump may contain.
fn fill(server: &Server) {
    server.send_ok("PUT", "/cities", "");
    server.send_ok("PUT", "/cities/ulm", &format!("{{\"spire_m\":161.50,\"_attachments\":{ATTACHMENTS}}}"));
    let response: Value = serde_json::from_str(&server.send_ok("PUT", "/cities/bonn", "{}")).unwrap();
    server.send_ok("DELETE", &format!("/cities/bonn?rev={}", response["rev"].as_str().unwrap()), "");
    let branch = |digit: char, deleted: bool| {
        json!({
            "_id": "kiel", "_rev": format!("2-{}", hash(digit)), "_deleted": deleted, "branch": digit.to_string(),
            "_revisions": { "start": 2, "ids": [hash(digit), hash('0')] },
            "_attachments": if deleted { json!({}) } else { json!({ "a": { "data": "AAAA", "revpos": 2 } }) },
        })
    };
    let branches = [branch('a', false), branch('b', false), branch('c', true)];
    let body = json!({ "new_edits": false, "docs": branches });
    server.send_ok("POST", "/cities/_bulk_docs", &body.to_string());
    server.send_ok("PUT", "/cities/_design/d", "{\"language\":\"none\"}");
    for body in ["{\"seq\":1}", "{\"seq\":2.0,\"_rev\":\"0-1\"}"] {
        server.send_ok("PUT", "/cities/_local/mark", body);
    }
}

/// The lines of a dump as a set, since their order is that of the changes. Some servers add the length to an
/// attachment's content; it is removed.
fn lines(dumped: &str) -> BTreeSet<String> {
    dumped.lines().map(|line| line.replace("\"length\":3,", "").replace("\"length\":23,", "")).collect()
}

/// Flags of a complete dump.
const COMPLETE: [&str; 2] = ["--all-revisions", "--attachments"];

#[test]
fn a_complete_dump_restores_every_leaf_attachment_and_local_document() {
    let home = tempfile::tempdir().unwrap();
    let [data, copy] = ["data", "copy"].map(|name| home.path().join(name));
    let server = Server::start(&data);
    fill(&server);
    let url = server.admin_url();
    let dump =
        |db: &str, target: [&str; 2]| ok(&[&["dump", "--db", db], &COMPLETE[..], &target[..]].concat(), b"");
    let load = |db: &str, target: [&str; 2], dumped: &str| {
        ok(&[&["load", "-", "--create", "--db", db], &target[..]].concat(), dumped.as_bytes()).0
    };
    let (dumped, stderr) = dump("cities", ["--url", &url]);
    assert!(!stderr.contains("left out"), "{stderr}");
    // ulm, a tombstone, three branches, a design document, a local document.
    assert_eq!(dumped.lines().count(), 7, "{dumped}");
    assert!(dumped.contains("161.50") && dumped.contains("\"_rev\":\"0-2\",\"seq\":2.0"), "{dumped}");

    // Over HTTP; the second load adds nothing.
    assert!(load("again", ["--url", &url], &dumped).starts_with("loaded 7 documents (0 already there"));
    assert!(load("again", ["--url", &url], &dumped).starts_with("loaded 0 documents (7 already there"));
    assert_eq!(lines(&dump("again", ["--url", &url]).0), lines(&dumped));
    // Into a data directory, and a dump of it.
    let directory = ["--data-dir", name(&copy)];
    assert!(load("cities", directory, &dumped).starts_with("loaded 7 documents (0 already there"));
    assert!(load("cities", directory, &dumped).starts_with("loaded 0 documents (7 already there"));
    assert_eq!(lines(&dump("cities", directory).0), lines(&dumped));
    server.stop();
    assert_eq!(lines(&dump("cities", ["--data-dir", name(&data)]).0), lines(&dumped));

    let copied = Server::start(&copy);
    let kiel = copied.send_ok("GET", "/cities/kiel?conflicts=true&deleted_conflicts=true", "");
    let kiel: Value = serde_json::from_str(&kiel).unwrap();
    assert_eq!(kiel["_rev"], json!(format!("2-{}", hash('b'))));
    assert_eq!(kiel["_conflicts"], json!([format!("2-{}", hash('a'))]));
    assert_eq!(kiel["_deleted_conflicts"], json!([format!("2-{}", hash('c'))]));
    let notes = copied.send_ok("GET", "/cities/ulm/notes.txt", "");
    assert_eq!(notes, "hello hello hello hello");
}

#[test]
fn a_dump_restores_revisions_of_any_text() {
    let home = tempfile::tempdir().unwrap();
    let [data, copy] = ["data", "copy"].map(|name| home.path().join(name));
    let server = Server::start(&data);
    server.send_ok("PUT", "/texts", "");
    let leaf = |ids: Value| {
        let start = ids.as_array().unwrap().len();
        json!({ "_id": "a", "n": start, "_revisions": { "start": start, "ids": ids },
            "_rev": format!("{start}-{}", ids[0].as_str().unwrap()) })
    };
    let long = "x".repeat(255);
    let mut chain: Vec<String> = (0..40).map(|number| format!("{number}{}", "-".repeat(200))).collect();
    chain.push("1-\"\u{fc}\n".to_owned());
    let docs = [leaf(json!(["x"])), leaf(json!([hash('a'), "", long])), leaf(json!(chain))];
    let body = json!({ "new_edits": false, "docs": docs }).to_string();
    server.send_ok("POST", "/texts/_bulk_docs", &body);
    let url = server.admin_url();
    let dump = |target: [&str; 2]| ok(&[&["dump", "--db", "texts"], &COMPLETE[..], &target].concat(), b"").0;
    let dumped = dump(["--url", &url]);
    assert_eq!(dumped.lines().count(), 3, "{dumped}");
    for text in ["\"1-x\"", "\"ids\":[\"x\"]", "1-\\\"\u{fc}\\n", &long, &chain[39]] {
        assert!(dumped.contains(text), "{text}: {dumped}");
    }
    let directory = ["--data-dir", name(&copy)];
    for count in ["loaded 3 documents (0 already there", "loaded 0 documents (3 already there"] {
        let load = [&["load", "-", "--create", "--db", "texts"], &directory[..]].concat();
        assert!(ok(&load, dumped.as_bytes()).0.starts_with(count));
    }
    assert_eq!(lines(&dump(directory)), lines(&dumped));
    server.stop();
    assert_eq!(lines(&dump(["--data-dir", name(&data)])), lines(&dumped));
}

#[test]
fn a_dump_of_several_pages_of_changes_contains_each_document_once() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&home.path().join("data"));
    server.send_ok("PUT", "/many", "");
    let docs: Vec<Value> = (0..2_100).map(|n| json!({ "_id": format!("{n}") })).collect();
    server.send_ok("POST", "/many/_bulk_docs", &json!({ "docs": docs }).to_string());
    let (dumped, _) = ok(&["dump", "--db", "many", "--all-revisions", "--url", &server.admin_url()], b"");
    assert_eq!((dumped.lines().count(), lines(&dumped).len()), (2_100, 2_100));
}

#[test]
fn a_dump_counts_what_it_leaves_out_and_its_stubs_are_refused_with_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let server = Server::start(&data);
    fill(&server);
    let url = server.admin_url();
    let left_out = "left out: 1 deleted document, 2 conflicting or deleted revisions, 1 local document \
                    (--all-revisions has them); the content of 3 attachments (--attachments has it)";
    let over_http = ok(&["dump", "--db", "cities", "--url", &url], b"");
    assert!(over_http.1.contains("dumped 3 documents") && over_http.1.contains(left_out), "{}", over_http.1);
    let with_content = ok(&["dump", "--db", "cities", "--url", &url, "--attachments"], b"");
    assert!(!with_content.1.contains("attachment"), "{}", with_content.1);
    server.stop();
    let target = ["--data-dir", name(&data)];
    let from_directory = ok(&[&["dump", "--db", "cities"], &target[..]].concat(), b"");
    assert_eq!(from_directory, over_http);
    let again = ok(&[&["dump", "--db", "cities", "--attachments"], &target[..]].concat(), b"");
    assert_eq!(lines(&again.0), lines(&with_content.0));

    let load = [&["load", "-", "--db", "copy", "--create"], &target[..]].concat();
    let (_, stderr) = fails(&load, over_http.0.as_bytes());
    assert!(stderr.contains("a stub") && stderr.contains("--attachments"), "{stderr}");
    assert!(ok(&load, with_content.0.as_bytes()).0.starts_with("loaded 2 documents (1 already there"));
    // Without revisions, twice: attachments are compared by their digests.
    let plain = ok(&[&["dump", "--db", "cities", "--attachments", "--no-rev"], &target[..]].concat(), b"").0;
    let load = [&["load", "-", "--db", "plain", "--create"], &target[..]].concat();
    assert!(ok(&load, plain.as_bytes()).0.starts_with("loaded 3 documents"));
    assert!(ok(&load, plain.as_bytes()).0.starts_with("loaded 0 documents (3 already there"));
    let other = plain.replace("\"digest\":\"md5-", "\"digest\":\"md5-x");
    assert!(fails(&load, other.as_bytes()).1.contains("already exists with other content"));
}

/// Loads `input` into a new database. Returns its documents.
fn loaded(home: &Path, input: &[u8]) -> Result<Vec<Value>, String> {
    let data = home.join(format!("data-{}", fs::read_dir(home).unwrap().count()));
    let target = ["--db", "x", "--data-dir", name(&data)];
    let output = run(settee(&[&["load", "-", "--create"], &target[..]].concat()), input);
    if !output.status.success() {
        return Err(text(&output.stderr).to_owned());
    }
    let dumped = ok(&[&["dump", "--all-revisions", "--attachments"], &target[..]].concat(), b"").0;
    Ok(dumped.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn files_of_other_programs_are_loaded() {
    let home = tempfile::tempdir().unwrap();
    let listing = "{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n\
        {\"id\":\"a\",\"key\":\"a\",\"value\":{\"rev\":\"1-967a00dff5e02add41819138abb3284d\"},\
         \"doc\":{\"_id\":\"a\",\"_rev\":\"1-967a00dff5e02add41819138abb3284d\"}},\r\n\
        {\"id\":\"b\",\"key\":\"b\",\"value\":{},\"doc\":{\"_id\":\"b\",\"n\":1}}\r\n]}\n";
    let backup = "{\"name\":\"@cloudant/couchbackup\",\"version\":\"2.11.0\",\"mode\":\"full\"}\n\
        [{\"_id\":\"a\",\"_rev\":\"2-967a00dff5e02add41819138abb3284d\",\
          \"_revisions\":{\"start\":2,\"ids\":[\"967a00dff5e02add41819138abb3284d\",\"11111111111111111111111111111111\"]}}]\n\
        [{\"_id\":\"bro{\"marker\":\"@cloudant/couchbackup:resume\"}\n\
        []\n[{\"_id\":\"b\",\"n\":1}]\n";
    let headless = "[{\"_id\":\"a\"},{\"_id\":\"b\"}]\n[]\n[{\"_id\":\"c\"}]\n";
    let cases: [(&str, &str, &[&str]); 5] = [
        ("docs", "{\"docs\":[{\"_id\":\"a\"},\n{\"_id\":\"b\"}]}", &["a", "b"]),
        ("docs with new_edits", "{\"new_edits\":false, \"docs\" : [ ] }\n", &[]),
        ("_all_docs", listing, &["a", "b"]),
        ("couchbackup", backup, &["a", "b"]),
        ("couchbackup without a header", headless, &["a", "b", "c"]),
    ];
    for (what, input, ids) in cases {
        let found = loaded(home.path(), input.as_bytes()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found: Vec<&str> = found.iter().map(|document| document["_id"].as_str().unwrap()).collect();
        assert_eq!(found, ids, "{what}");
    }
    let found = loaded(home.path(), backup.as_bytes()).unwrap();
    assert_eq!(found[0]["_revisions"]["ids"][1], json!("1".repeat(32)), "ancestors are kept");
}

#[test]
fn unsupported_input_is_refused_with_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let row = "{\"id\":\"a\",\"key\":\"a\",\"value\":{\"rev\":\"1-x\"}}";
    let bare = format!("{{\"total_rows\":1,\"offset\":0,\"rows\":[{row}]}}");
    for (input, hint) in [
        (bare.as_bytes(), "line 1: the row has no document: request _all_docs with include_docs=true"),
        (b"{\"docs\":[{\"_id\":\"a\"}]", "the input ends inside the object"),
        (b"{\"docs\":[{\"_id\":\"a\"}]}\n{\"_id\":\"b\"}", "unexpected text after"),
        (b"PK\x03\x04....", "unzip -p FILE | settee load -"),
        (b"\xfd7zXZ\x00....", "xz -dc FILE | settee load -"),
        (b"\x1f\x8b\x08\x00junk", "gzip: "),
    ] {
        let stderr = loaded(home.path(), input).unwrap_err();
        assert!(stderr.contains(hint), "{hint}: {stderr}");
    }
}

#[test]
fn an_existing_file_is_replaced_only_with_force() {
    let home = tempfile::tempdir().unwrap();
    let (data, out) = (home.path().join("data"), home.path().join("out.jsonl"));
    ok(&["load", "-", "--db", "x", "--create", "--data-dir", name(&data)], b"{}");
    fs::write(&out, "mine").unwrap();
    let dump = ["dump", "--db", "x", "--data-dir", name(&data), "--out", name(&out)];
    let (code, stderr) = fails(&dump, b"");
    assert!(code == 1 && stderr.contains("already exists; --force replaces it"), "{stderr}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
    ok(&[&dump[..], &["--force"]].concat(), b"");
    assert!(fs::read_to_string(&out).unwrap().starts_with("{\"_id\":"));
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2, "no temporary file is left");
}

#[test]
fn documents_that_are_stored_in_chunks_are_loaded_checked_compacted_and_dumped() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let filler: String = (0..1_000_000).map(|number| format!("{number:09}")).collect();
    let plain = format!("{{\"_id\":\"a\",\"filler\":\"{filler}\"}}");
    let attached = format!("{{\"_id\":\"b\",\"filler\":\"{filler}b\",\"_attachments\":{ATTACHMENTS}}}");
    let input = format!("{plain}\n{}\n", attached.replace('\n', ""));
    let local = ["--data-dir", name(&data)];
    let load =
        [&["load", "-", "--create", "--db", "db", "--document-bytes-max", "9100000"], &local[..]].concat();
    assert!(ok(&load, input.as_bytes()).0.starts_with("loaded 2 documents"));
    // The second time it is compared with the stored one.
    assert!(ok(&load, plain.as_bytes()).0.starts_with("loaded 0 documents (1 already there"));
    ok(&["compact", name(&data)], b"");
    ok(&["check", name(&data)], b"");
    let server = Server::start(&data);
    let url = server.admin_url();
    let dump = |target: [&str; 2]| ok(&[&["dump", "--db", "db"], &COMPLETE[..], &target[..]].concat(), b"").0;
    let dumped = dump(["--url", &url]);
    assert!(dumped.contains(&format!("\"filler\":\"{filler}\"")), "a is missing");
    assert!(dumped.contains(&format!("\"filler\":\"{filler}b\"")), "b is missing");
    server.stop();
    assert!(lines(&dump(local)) == lines(&dumped), "the dumps differ");
}
