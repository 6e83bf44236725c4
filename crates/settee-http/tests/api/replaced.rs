//! Goal: revisions that aren't leaves any more are read by every endpoint that takes a revision, until a
//! compaction or a purge; `revs_info` tells which of them can be read.
//! Method: such revisions are read before and after what removes them, and edits still refuse them.

use serde_json::{Value, json};

use crate::client::{Client, Server};

/// A database whose document `a` was updated twice; returns its three revisions.
fn updated(client: &mut Client) -> [String; 3] {
    client.create("db");
    let first = client.put("/db/a", "{\"n\":1}").rev();
    let second = client.put(&format!("/db/a?rev={first}"), "{\"n\":2}").rev();
    let third = client.put(&format!("/db/a?rev={second}"), "{\"n\":3}").rev();
    [first, second, third]
}

fn compact(client: &mut Client) {
    client.post("/db/_compact", "").expect_status(202);
    while client.get("/db").json()["compact_running"] == json!(true) {
        std::thread::yield_now();
    }
}

fn statuses(client: &mut Client, id: &str) -> Vec<String> {
    let info =
        client.get(&format!("/db/{id}?revs_info=true")).expect_status(200).json()["_revs_info"].clone();
    info.as_array().unwrap().iter().map(|entry| entry["status"].as_str().unwrap().to_owned()).collect()
}

fn encode(list: &Value) -> String {
    list.to_string().replace('"', "%22")
}

#[test]
fn a_replaced_revision_is_read() {
    let server = Server::start();
    let mut client = server.connect();
    let [first, second, third] = updated(&mut client);
    let old = client.get(&format!("/db/a?rev={first}")).expect_status(200);
    assert_eq!(old.json(), json!({"_id": "a", "_rev": first, "n": 1}));
    assert_eq!(old.header("etag"), Some(&*format!("\"{first}\"")));
    assert_eq!(client.head(&format!("/db/a?rev={first}")).status, 200);
    let tag = format!("\"{first}\"");
    client.send("GET", &format!("/db/a?rev={first}"), &[("If-None-Match", &tag)], b"").expect_status(304);
    // As in CouchDB, `latest` without `open_revs` returns the winner.
    assert_eq!(client.get(&format!("/db/a?rev={first}&latest=true")).rev_of_document(), third);

    let info = client.get("/db/a?meta=true").json()["_revs_info"].clone();
    let available = |rev: &str| json!({"rev": rev, "status": "available"});
    assert_eq!(info, json!([available(&third), available(&second), available(&first)]));
    let old = client.get(&format!("/db/a?rev={second}&revs=true&revs_info=true&conflicts=true")).json();
    assert_eq!(old["_revisions"], json!({"start": 2, "ids": [second[2..], first[2..]]}));
    assert_eq!(old["_revs_info"], json!([available(&second), available(&first)]));
    assert!(old.get("_conflicts").is_none());

    let path = format!("/db/a?revs=true&open_revs={}", encode(&json!([first, "1-none", third])));
    let found = client.send("GET", &path, &[("Accept", "application/json")], b"").expect_status(200).json();
    assert_eq!(found[0]["ok"]["n"], 1);
    assert_eq!(found[0]["ok"]["_revisions"], json!({"start": 1, "ids": [first[2..]]}));
    assert_eq!(found[1], json!({"missing": "1-none"}));
    assert_eq!(found[2]["ok"]["n"], 3);
    let parts = client.get(&path).expect_status(200);
    assert!(parts.text().contains("\"n\":1"), "{}", parts.text());
    let latest = format!("/db/a?latest=true&open_revs={}", encode(&json!([first])));
    let found = client.send("GET", &latest, &[("Accept", "application/json")], b"").json();
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert_eq!(found[0]["ok"]["_rev"], json!(third));

    let docs =
        json!({"docs": [{"id": "a", "rev": first}, {"id": "a", "rev": second}, {"id": "a"}]}).to_string();
    let results = client.post("/db/_bulk_get?revs=true", &docs).json()["results"].clone();
    assert_eq!(
        (&results[0]["docs"][0]["ok"]["n"], &results[1]["docs"][0]["ok"]["n"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(results[1]["docs"][0]["ok"]["_revisions"]["start"], 2);
    let headers = [("Content-Type", "application/json"), ("Accept", "multipart/mixed")];
    let parts = client.send("POST", "/db/_bulk_get", &headers, docs.as_bytes()).expect_status(200);
    assert!(parts.text().contains("\"n\":1") && !parts.text().contains("error"), "{}", parts.text());

    let copied = client.send("COPY", &format!("/db/a?rev={first}"), &[("Destination", "b")], b"");
    copied.expect_status(201);
    assert_eq!(client.get("/db/b").json()["n"], 1);
    // Nothing changes for edits and replication.
    let conflict = "Document update conflict.";
    client.put(&format!("/db/a?rev={first}"), "{}").expect_error(409, "conflict", conflict);
    client.put(&format!("/db/a/f?rev={first}"), "x").expect_error(409, "conflict", conflict);
    client.delete(&format!("/db/a?rev={first}")).expect_error(409, "conflict", conflict);
    let diff = client.post("/db/_revs_diff", &json!({"a": [first, second, third]}).to_string()).json();
    assert_eq!(diff, json!({}));
}

#[test]
fn a_compaction_and_a_purge_make_it_missing() {
    let server = Server::start();
    let mut client = server.connect();
    let [first, second, third] = updated(&mut client);
    compact(&mut client);
    for rev in [&first, &second] {
        client.get(&format!("/db/a?rev={rev}")).expect_error(404, "not_found", "missing");
    }
    assert_eq!(statuses(&mut client, "a"), ["available", "missing", "missing"]);
    // A leaf of that time is available when it is replaced.
    let fourth = client.put(&format!("/db/a?rev={third}"), "{\"n\":4}").rev();
    assert_eq!(client.get(&format!("/db/a?rev={third}")).expect_status(200).json()["n"], 3);
    assert_eq!(statuses(&mut client, "a"), ["available", "available", "missing", "missing"]);
    compact(&mut client);
    assert_eq!(statuses(&mut client, "a"), ["available", "missing", "missing", "missing"]);

    let fifth = client.put(&format!("/db/a?rev={fourth}"), "{\"n\":5}").rev();
    client.post("/db/_purge", &json!({"a": [fifth]}).to_string()).expect_status(201);
    client.get(&format!("/db/a?rev={fourth}")).expect_error(404, "not_found", "missing");
    // The same revisions with other bodies.
    let again = json!({"_id": "a", "n": "new", "_revisions": {"start": 5, "ids": [fifth[2..], fourth[2..]]}});
    let body = json!({"new_edits": false, "docs": [again]}).to_string();
    client.post("/db/_bulk_docs", &body).expect_status(201);
    assert_eq!(client.get("/db/a").json()["n"], "new");
    client.get(&format!("/db/a?rev={fourth}")).expect_error(404, "not_found", "missing");
    assert_eq!(statuses(&mut client, "a"), ["available", "missing"]);
}

#[test]
fn a_deletion_is_read_after_the_document_is_there_again() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let first = client.put("/db/a", "{}").rev();
    let second = client.put(&format!("/db/a?rev={first}"), "{\"_deleted\":true,\"why\":\"old\"}").rev();
    client.put("/db/a", "{\"n\":3}").expect_status(201);
    let deleted = client.get(&format!("/db/a?rev={second}")).expect_status(200).json();
    assert_eq!(deleted, json!({"_id": "a", "_rev": second, "_deleted": true, "why": "old"}));
    assert_eq!(statuses(&mut client, "a"), ["available", "deleted", "available"]);
}

#[test]
fn a_revision_is_available_as_long_as_its_content_is() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let first = client.put("/db/a/f.txt", "AAA").rev();
    let second = client.put(&format!("/db/a/g.txt?rev={first}"), "BBB").rev();
    assert_eq!(client.get(&format!("/db/a/f.txt?rev={first}")).expect_status(200).text(), "AAA");
    client.get(&format!("/db/a/g.txt?rev={first}")).expect_status(404);
    let path = format!("/db/a?attachments=true&rev={first}");
    let document =
        client.send("GET", &path, &[("Accept", "application/json")], b"").expect_status(200).json();
    assert_eq!(document["_attachments"]["f.txt"]["data"], "QUFB");
    // The content of an attachment is removed with the last leaf that has it.
    let third = client.delete(&format!("/db/a/f.txt?rev={second}")).expect_status(200).rev();
    assert_eq!(statuses(&mut client, "a"), ["available", "missing", "missing"]);
    client.get(&format!("/db/a/f.txt?rev={first}")).expect_error(404, "not_found", "missing");
    client.get(&format!("/db/a?rev={second}")).expect_error(404, "not_found", "missing");
    // So is a body that is stored in chunks.
    let kept = json!({"g.txt": {"stub": true}});
    let large = json!({"_rev": third, "text": "x".repeat(200_000), "_attachments": kept}).to_string();
    let ahead = [("X-Optimistic-Write", "true")];
    let fourth = client.send("PUT", "/db/a", &ahead, large.as_bytes()).expect_status(201).rev();
    client.put("/db/a", &json!({"_rev": fourth, "_attachments": kept}).to_string()).expect_status(201);
    assert_eq!(statuses(&mut client, "a"), ["available", "missing", "available", "missing", "missing"]);
    client.get(&format!("/db/a?rev={fourth}")).expect_error(404, "not_found", "missing");
}

#[test]
fn all_of_a_long_history_is_available() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let mut rev = client.put("/db/a", "{\"n\":0}").rev();
    let mut all = vec![rev.clone()];
    for number in 1..300 {
        let body = json!({"_rev": rev, "n": number}).to_string();
        rev = client.put("/db/a?durability=accepted", &body).rev();
        all.push(rev.clone());
    }
    client.post("/db/_ensure_full_commit", "").expect_status(201);
    assert_eq!(statuses(&mut client, "a"), vec!["available"; 300]);
    for (number, rev) in all.iter().enumerate().step_by(37) {
        assert_eq!(client.get(&format!("/db/a?rev={rev}")).expect_status(200).json()["n"], number);
    }
    client.put("/db/_revs_limit", "5").expect_status(200);
    assert_eq!(statuses(&mut client, "a"), vec!["available"; 5]);
    client.get(&format!("/db/a?rev={}", all[294])).expect_error(404, "not_found", "missing");
    assert_eq!(client.get(&format!("/db/a?rev={}", all[295])).expect_status(200).json()["n"], 295);
}
