//! Goal: revisions whose hashes have a foreign form are handled. CouchDB accepts any form; no document here
//! has one.
//! Method: reading such a revision finds nothing, editing one is a conflict, and replicating one is refused
//! for that revision alone.

use serde_json::json;

use crate::client::{Client, Server};

const FOREIGN: &str = "1-abc";

fn rev(digit: &str, generation: u32) -> String {
    format!("{generation}-{}", digit.repeat(32))
}

/// Creates a database with the document `a`; returns its revision.
fn one(client: &mut Client) -> String {
    client.create("db");
    client.put("/db/a", "{\"n\":1}").rev()
}

#[test]
fn a_revision_of_another_form_is_missing() {
    let server = Server::start();
    let mut client = server.connect();
    let ours = one(&mut client);
    client.get("/db/a?rev=1-abc").expect_error(404, "not_found", "missing");
    client.get("/db/a/x?rev=1-abc").expect_error(404, "not_found", "missing");
    client.get("/db/a?rev=junk").expect_error(400, "bad_request", "Invalid rev format");
    // `atts_since` with a foreign revision returns all attachments.
    client.get("/db/a?atts_since=%5B%221-abc%22%5D").expect_status(200);

    let list = json!([FOREIGN, ours]).to_string().replace('"', "%22");
    let path = format!("/db/a?open_revs={list}");
    let found = client.send("GET", &path, &[("Accept", "application/json")], b"").expect_status(200).json();
    assert_eq!(found[0]["ok"]["_rev"], json!(ours));
    assert_eq!(found[1], json!({"missing": FOREIGN}));
    let parts = client.get(&path).expect_status(200);
    let missing = "\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{\"missing\":\"1-abc\"}\r\n--";
    assert!(parts.text().contains(missing), "{}", parts.text());

    let body = json!({"docs": [{"id": "a", "rev": FOREIGN}, {"id": "a", "rev": ours}]}).to_string();
    let found = client.post("/db/_bulk_get", &body).expect_status(200).json();
    let error = json!({"id": "a", "rev": FOREIGN, "error": "not_found", "reason": "missing"});
    assert_eq!(found["results"][0], json!({"id": "a", "docs": [{"error": error}]}));
    assert_eq!(found["results"][1]["docs"][0]["ok"]["n"], 1);
}

#[test]
fn revs_diff_reports_it_as_missing() {
    let server = Server::start();
    let mut client = server.connect();
    let ours = one(&mut client);
    let body = json!({"a": [FOREIGN, ours, "2-\"x"], "b": [FOREIGN, rev("b", 1)], "c": [ours]}).to_string();
    let diff = client.post("/db/_revs_diff", &body).expect_status(200).json();
    let b = json!([rev("b", 1), FOREIGN]);
    let expected = json!({
        "a": {"missing": [FOREIGN, "2-\"x"], "possible_ancestors": [ours]},
        "b": {"missing": b},
        "c": {"missing": [ours]},
    });
    assert_eq!(diff, expected);
    let missing = client.post("/db/_missing_revs", &body).expect_status(200).json();
    assert_eq!(missing["missing_revs"]["b"], b);
    client.post("/db/_revs_diff", "{\"a\":[\"x\"]}").expect_error(400, "bad_request", "Invalid rev format");

    let purged = client.post("/db/_purge", &json!({"a": [FOREIGN]}).to_string()).expect_status(201).json();
    assert_eq!(purged["purged"], json!({"a": []}));
}

#[test]
fn an_edit_of_it_is_a_conflict() {
    let server = Server::start();
    let mut client = server.connect();
    let ours = one(&mut client);
    let conflict = "Document update conflict.";
    let body = json!({"_rev": FOREIGN}).to_string();
    client.put("/db/a", &body).expect_error(409, "conflict", conflict);
    client.put("/db/new", &body).expect_error(409, "conflict", conflict);
    client.put("/db/a?rev=1-abc", "{}").expect_error(409, "conflict", conflict);
    client.delete("/db/a?rev=1-abc").expect_error(409, "conflict", conflict);
    let tag = [("If-Match", "\"1-abc\"")];
    client.send("PUT", "/db/a", &tag, b"{}").expect_error(409, "conflict", conflict);
    client.send("DELETE", "/db/a", &tag, b"").expect_error(409, "conflict", conflict);
    client.put("/db/a/x.txt?rev=1-abc", "x").expect_error(409, "not_found", "missing_rev");
    client.send("COPY", "/db/a?rev=1-abc", &[("Destination", "b")], b"").expect_status(404);
    let to_conflict = [("Destination", "a?rev=1-abc")];
    client.send("COPY", "/db/a", &to_conflict, b"").expect_error(409, "conflict", conflict);
    let rows = client.post("/db/_bulk_docs", &json!({"docs": [{"_id": "a", "_rev": FOREIGN}]}).to_string());
    assert_eq!(rows.expect_status(201).json()[0]["error"], "conflict");
    let reason = "Document rev from request body and query string have different values";
    client.put(&format!("/db/a?rev={ours}"), &body).expect_error(400, "bad_request", reason);
    assert_eq!(client.get("/db/a").rev_of_document(), ours);
}

#[test]
fn its_digits_may_be_capitals() {
    let server = Server::start();
    let mut client = server.connect();
    let ours = one(&mut client);
    let capitals = ours.to_uppercase();
    assert_eq!(client.get(&format!("/db/a?rev={capitals}")).expect_status(200).json()["_rev"], json!(ours));
    let next = client.put("/db/a", &json!({"_rev": capitals}).to_string()).expect_status(201).rev();
    let history = client.get("/db/a?revs=true").json()["_revisions"].clone();
    assert_eq!(history, json!({"start": 2, "ids": [next[2..], ours[2..]]}));
    let upper = json!({"_rev": rev("B", 1)}).to_string();
    assert_eq!(client.put("/db/b?new_edits=false", &upper).expect_status(201).rev(), rev("b", 1));
}

#[test]
fn replicated_ones_are_refused_and_those_beside_them_taken() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reason = "Revisions have 32 hexadecimal digits here.";
    let body = json!({"_rev": FOREIGN}).to_string();
    client.put("/db/a?new_edits=false", &body).expect_error(403, "forbidden", reason);
    let good = rev("b", 2);
    let docs = json!([
        {"_id": "a", "_rev": FOREIGN},
        {"_id": "b", "_revisions": {"start": 2, "ids": [good[2..], rev("a", 1)[2..]]}},
        {"_id": "c", "_revisions": {"start": 2, "ids": [good[2..], "a"]}},
        {"_id": "_local/l"},
    ]);
    let body = json!({"new_edits": false, "docs": docs}).to_string();
    let rows = client.post("/db/_bulk_docs", &body).expect_status(201).json();
    let refused = |id: &str, rev: &str| json!({"id": id, "rev": rev, "error": "forbidden", "reason": reason});
    assert_eq!(rows, json!([refused("a", FOREIGN), refused("c", &good)]));
    client.get("/db/a").expect_status(404);
    client.get("/db/c").expect_status(404);
    assert_eq!(client.get("/db/b").rev_of_document(), good);
    client.get("/db/_local/l").expect_status(200);
    let no_hex = json!({"_revisions": {"start": 1, "ids": ["z".repeat(32)]}}).to_string();
    let reply = client.put("/db/d?new_edits=false", &no_hex);
    reply.expect_error(400, "doc_validation", "RevId isn't a valid hexadecimal");
}
