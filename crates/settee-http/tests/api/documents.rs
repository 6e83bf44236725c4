//! Requests for one document.

use serde_json::json;

use crate::client::{Client, Server};

fn rev(digit: char, generation: u32) -> String {
    format!("{generation}-{}", digit.to_string().repeat(32))
}

/// Creates a document with two leaves: `2-a…` lost to `2-b…`.
fn conflicted(client: &mut Client) -> (String, String, String) {
    let (root, lost, won) = (rev('1', 1), rev('a', 2), rev('b', 2));
    for (leaf, n) in [(&lost, 1), (&won, 2)] {
        let ids = json!([leaf[2..], root[2..]]);
        let body = json!({"_id": "c", "_rev": leaf, "_revisions": {"start": 2, "ids": ids}, "n": n});
        client.put("/db/c?new_edits=false", &body.to_string()).expect_status(201);
    }
    (root, lost, won)
}

#[test]
fn a_document_is_written_read_updated_and_deleted() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let first = client.put("/db/a", "{\"n\" : 1}").expect_status(201);
    let rev1 = first.rev();
    assert_eq!(first.json(), json!({"ok": true, "id": "a", "rev": rev1}));
    assert!(rev1.starts_with("1-") && rev1.len() == 34);
    assert_eq!(first.header("etag"), Some(&*format!("\"{rev1}\"")));
    assert_eq!(first.header("location"), Some(&*format!("http://{}/db/a", server.address)));

    let read = client.get("/db/a").expect_status(200);
    assert_eq!(read.text(), format!("{{\"_id\":\"a\",\"_rev\":\"{rev1}\",\"n\":1}}\n"));
    assert_eq!(read.header("etag"), Some(&*format!("\"{rev1}\"")));

    let rev2 = client.put("/db/a", &json!({"_rev": rev1, "n": 2}).to_string()).expect_status(201).rev();
    assert!(rev2.starts_with("2-"));
    client.put("/db/a", "{}").expect_error(409, "conflict", "Document update conflict.");
    client.delete("/db/a").expect_error(409, "conflict", "Document update conflict.");

    let deleted = client.delete(&format!("/db/a?rev={rev2}")).expect_status(200);
    assert!(deleted.rev().starts_with("3-"));
    client.get("/db/a").expect_error(404, "not_found", "deleted");
    client.get("/db/b").expect_error(404, "not_found", "missing");
    client.delete("/db/a").expect_error(404, "not_found", "deleted");
    client.delete("/db/b").expect_error(404, "not_found", "missing");
    let info = client.get("/db").json();
    assert_eq!((&info["doc_count"], &info["doc_del_count"]), (&json!(0), &json!(1)));
    let gone = client.get(&format!("/db/a?rev={}", deleted.rev())).expect_status(200);
    assert_eq!(gone.json(), json!({"_id": "a", "_rev": deleted.rev(), "_deleted": true}));
}

#[test]
fn a_put_that_deletes_answers_200() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{}").rev();
    let body = json!({"_rev": rev, "_deleted": true, "why": "gone"});
    client.put("/db/a", &body.to_string()).expect_status(200);
    let reply = client.get("/db/a?deleted=true").expect_status(200);
    assert_eq!((&reply.json()["why"], &reply.json()["_deleted"]), (&json!("gone"), &json!(true)));
    client.put("/db/a", "{}").expect_status(201);
}

#[test]
fn the_id_in_the_path_counts() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    assert_eq!(client.put("/db/a", "{\"_id\":\"b\"}").expect_status(201).json()["id"], "a");
    client.get("/db/b").expect_status(404);
}

#[test]
fn revisions_in_body_query_and_header_must_agree() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let good = client.put("/db/a", "{}").rev();
    let other = rev('0', 1);
    let body = json!({"_rev": good}).to_string();
    let reply = client.put(&format!("/db/a?rev={other}"), &body);
    let reason = "Document rev from request body and query string have different values";
    reply.expect_error(400, "bad_request", reason);
    let tag = format!("\"{other}\"");
    let reply = client.send("PUT", "/db/a", &[("If-Match", &tag)], body.as_bytes());
    reply.expect_error(400, "bad_request", "Document rev and etag have different values");

    let tag = format!("\"{good}\"");
    let next = client.send("PUT", "/db/a", &[("If-Match", &tag)], b"{}").expect_status(201).rev();
    let last = client.put(&format!("/db/a?rev={next}"), "{}").expect_status(201).rev();
    client.send("DELETE", "/db/a", &[("If-Match", &last)], b"").expect_status(200);
}

#[test]
fn a_cached_document_is_not_sent_again() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{}").rev();
    let tag = format!("\"{rev}\"");
    for sent in [tag.clone(), format!("W/{tag}"), format!("\"1-x\", {tag}")] {
        let reply = client.send("GET", "/db/a", &[("If-None-Match", &sent)], b"").expect_status(304);
        assert_eq!((reply.header("etag"), reply.body.len()), (Some(&*tag), 0));
    }
    client.send("GET", "/db/a", &[("If-None-Match", "\"1-x\"")], b"").expect_status(200);
    client.send("HEAD", "/db/a", &[("If-None-Match", &tag)], b"").expect_status(304);
}

#[test]
fn head_tells_the_revision_without_a_body() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{}").rev();
    let head = client.head("/db/a").expect_status(200);
    assert_eq!(head.header("etag"), Some(&*format!("\"{rev}\"")));
    assert_eq!(client.head("/db/b").status, 404);
    // The connection is in step: the next bytes are the next response.
    client.get("/db/a").expect_status(200);
}

#[test]
fn design_documents_are_documents_in_both_spellings() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let saved = client.put("/db/_design/x", "{\"views\":{}}").expect_status(201);
    assert_eq!(saved.json()["id"], "_design/x");
    assert_eq!(saved.header("location"), Some(&*format!("http://{}/db/_design%2Fx", server.address)));
    assert_eq!(client.get("/db/_design%2Fx").expect_status(200).json()["_id"], "_design/x");
    let rev = client.get("/db/_design/x").rev_of_document();
    client.delete(&format!("/db/_design%2Fx?rev={rev}")).expect_status(200);
}

#[test]
fn a_location_is_where_the_client_reaches_us() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let ann = ("Authorization", "Basic YW5uOnNlY3JldA==");
    client.send("PUT", "/db", &[ann], b"").expect_status(201);
    let cases: [(&[(&str, &str)], &str); 3] = [
        (&[("X-Forwarded-Host", "db.example")], "http://db.example/db/0"),
        (&[("X-Forwarded-Host", "db.example"), ("X-Forwarded-Proto", "https")], "https://db.example/db/1"),
        (&[("X-Forwarded-Host", "db.example"), ("X-Forwarded-Ssl", "on")], "https://db.example/db/2"),
    ];
    for (number, (headers, location)) in cases.into_iter().enumerate() {
        let headers = [headers, &[ann]].concat();
        let reply = client.send("PUT", &format!("/db/{number}"), &headers, b"{}").expect_status(201);
        assert_eq!(reply.header("location"), Some(location));
    }
}

#[test]
fn ids_are_decoded_from_the_path() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for (path, id) in
        [("a%2Fb", "a/b"), ("a+b", "a b"), ("c%2Bd", "c+d"), ("%C3%BC", "ü"), ("a.b~c!", "a.b~c!")]
    {
        let saved = client.put(&format!("/db/{path}"), "{}").expect_status(201);
        assert_eq!(saved.json()["id"], id);
        assert_eq!(client.get(&format!("/db/{path}")).json()["_id"], id);
    }
}

#[test]
fn conflicts_and_histories_are_shown_when_asked_for() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let (root, lost, won) = conflicted(&mut client);

    let plain = client.get("/db/c").expect_status(200);
    assert_eq!(plain.json(), json!({"_id": "c", "_rev": won, "n": 2}));
    let shown = client.get("/db/c?conflicts=true&revs=true").expect_status(200);
    assert_eq!(shown.json()["_conflicts"], json!([lost]));
    assert_eq!(shown.json()["_revisions"], json!({"start": 2, "ids": [won[2..], root[2..]]}));
    // A response that depends on other leaves has no ETag.
    assert_eq!(shown.header("etag"), None);
    assert!(client.get("/db/c?revs=true").header("etag").is_some());

    let info = client.get("/db/c?revs_info=true").json()["_revs_info"].clone();
    let expected = json!([{"rev": won, "status": "available"}, {"rev": root, "status": "missing"}]);
    assert_eq!(info, expected);
    let loser = client.get(&format!("/db/c?rev={lost}")).expect_status(200);
    assert_eq!(loser.json()["n"], 1);
    client.get(&format!("/db/c?rev={root}")).expect_error(404, "not_found", "missing");

    client.delete(&format!("/db/c?rev={lost}")).expect_status(200);
    let meta = client.get("/db/c?meta=true").json();
    assert!(meta.get("_conflicts").is_none());
    assert_eq!(meta["_deleted_conflicts"].as_array().unwrap().len(), 1);
    assert!(client.get("/db/c?local_seq=true").json()["_local_seq"].is_u64());
}

#[test]
fn open_revs_gives_leaves_and_says_what_is_missing() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let (root, lost, won) = conflicted(&mut client);

    let accept = [("Accept", "application/json")];
    let all = client.send("GET", "/db/c?open_revs=all", &accept, b"").expect_status(200).json();
    let revs: Vec<_> = all.as_array().unwrap().iter().map(|item| item["ok"]["_rev"].clone()).collect();
    assert_eq!(revs, [json!(won), json!(lost)]);

    let unknown = rev('9', 5);
    let list = json!([lost, unknown]).to_string().replace('"', "%22");
    let path = format!("/db/c?open_revs={list}");
    let some = client.send("GET", &path, &accept, b"").expect_status(200).json();
    assert_eq!(some[0]["ok"]["n"], 1);
    assert_eq!(some[1], json!({"missing": unknown}));

    let list = json!([root]).to_string().replace('"', "%22");
    let path = format!("/db/c?open_revs={list}&latest=true&revs=true");
    let latest = client.send("GET", &path, &accept, b"").json();
    assert_eq!(latest.as_array().unwrap().len(), 2);
    assert!(latest[0]["ok"]["_revisions"]["ids"].is_array());

    assert_eq!(client.get("/db/c?open_revs=[]").json()["_rev"], json!(won), "none is no revision");
    client.get("/db/none?open_revs=all").expect_error(404, "not_found", "missing");
    client.get("/db/c?open_revs=%7B%7D").expect_error(400, "bad_request", "Invalid list of revisions");
    client.get("/db/c?open_revs=%5B%22x%22%5D").expect_error(400, "bad_request", "Invalid rev format");
    client.get("/db/c?open_revs=junk").expect_error(400, "bad_request", "invalid UTF-8 JSON");
}

#[test]
fn open_revs_is_multipart_for_who_takes_that() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    conflicted(&mut client);
    let accept = [("Accept", "multipart/mixed")];
    let reply = client.send("GET", "/db/c?open_revs=all", &accept, b"").expect_status(200);
    let kind = reply.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/mixed; boundary=\"").unwrap().trim_end_matches('"');
    let delimiter = format!("--{boundary}");
    let parts: Vec<_> = reply.text().split(&*delimiter).collect();
    assert_eq!((parts[0], parts.len(), *parts.last().unwrap()), ("", 4, "--"));
    let (head, body) = parts[1].split_once("\r\n\r\n").unwrap();
    assert_eq!(head, "\r\nContent-Type: application/json");
    assert_eq!(serde_json::from_str::<serde_json::Value>(body.trim_end()).unwrap()["n"], 2);
}

#[test]
fn a_replicated_put_needs_a_revision_and_keeps_it() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reason = "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
    client.put("/db/a?new_edits=false", "{}").expect_error(400, "bad_request", reason);
    let body = json!({"_rev": rev('a', 7)}).to_string();
    assert_eq!(client.put("/db/a?new_edits=false", &body).expect_status(201).rev(), rev('a', 7));
    assert_eq!(client.get("/db/a").rev_of_document(), rev('a', 7));
}

#[test]
fn what_is_not_persisted_yet_answers_202_with_its_revision() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for (index, query) in ["batch=ok", "durability=accepted", "durability=written"].iter().enumerate() {
        let reply = client.put(&format!("/db/{index}?{query}"), "{}").expect_status(202);
        assert!(reply.rev().starts_with("1-"), "{query}");
    }
    client.put("/db/p?durability=persisted", "{}").expect_status(201);
    // A conflict is reported, not ignored.
    client.put("/db/p?batch=ok", "{}").expect_error(409, "conflict", "Document update conflict.");
    let bad = client.put("/db/q?durability=someday", "{}");
    bad.expect_error(400, "bad_request", "`durability` must be one of accepted, written and persisted.");
}

#[test]
fn numbers_and_strings_are_kept_as_they_came() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let body = "\"big\":123456789012345678901234567890.10,\"text\":\"\\u00fc ü \\n\",\"nested\":{\"a\":[1,null,true]}";
    client.put("/db/a", &format!("{{{body}}}")).expect_status(201);
    assert!(client.get("/db/a").text().ends_with(&format!(",{body}}}\n")));
}

impl crate::client::Reply {
    /// The `_rev` of a document that was read.
    pub(crate) fn rev_of_document(&self) -> String {
        self.json()["_rev"].as_str().unwrap_or_else(|| panic!("no _rev: {}", self.text())).to_owned()
    }
}
