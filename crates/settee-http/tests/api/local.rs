//! Local documents.

use serde_json::json;

use crate::client::{Server, ids};

#[test]
fn a_local_document_is_written_read_updated_and_deleted() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.get("/db/_local/x").expect_error(404, "not_found", "missing");
    let saved = client.put("/db/_local/x", "{\"n\":1}").expect_status(201);
    assert_eq!(saved.json(), json!({"ok": true, "id": "_local/x", "rev": "0-1"}));
    let read = client.get("/db/_local/x").expect_status(200);
    assert_eq!(read.text(), "{\"_id\":\"_local/x\",\"_rev\":\"0-1\",\"n\":1}\n");
    assert_eq!(client.head("/db/_local/x").status, 200);

    let body = json!({"_id": "_local/x", "_rev": "0-1", "n": 2}).to_string();
    assert_eq!(client.put("/db/_local/x", &body).expect_status(201).rev(), "0-2");
    assert_eq!(client.get("/db/_local%2Fx").expect_status(200).json()["n"], 2);

    let deleted = client.delete("/db/_local/x?rev=0-2").expect_status(200);
    assert_eq!(deleted.rev(), "0-0");
    client.get("/db/_local/x").expect_error(404, "not_found", "missing");
    client.delete("/db/_local/x").expect_error(404, "not_found", "missing");
}

#[test]
fn a_local_document_has_tags_by_which_it_is_not_sent_again() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    assert_eq!(client.put("/db/_local/x", "{}").header("etag"), Some("\"0-1\""));
    let tag = client.get("/db/_local/x").header("etag").unwrap().to_owned();
    assert_eq!(client.head("/db/_local/x").header("etag"), Some(tag.as_str()));
    let known = [("If-None-Match", tag.as_str())];
    let unchanged = client.send("GET", "/db/_local/x", &known, b"").expect_status(304);
    assert_eq!(unchanged.header("etag"), Some(tag.as_str()));
    assert_eq!(client.delete("/db/_local/x").header("etag"), Some("\"0-0\""));
    // The revision is the first one again, but the content differs.
    client.put("/db/_local/x", "{\"n\":1}").expect_status(201);
    assert_eq!(client.send("GET", "/db/_local/x", &known, b"").expect_status(200).json()["n"], 1);
}

#[test]
fn local_documents_are_in_no_listing_and_no_feed() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_local/x", "{}").expect_status(201);
    assert_eq!(ids(&client.get("/db/_all_docs"), "rows").len(), 0);
    assert_eq!(ids(&client.get("/db/_changes"), "results").len(), 0);
    assert_eq!(client.get("/db").json()["doc_count"], 0);
}

#[test]
fn bad_local_requests_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let invalid = "Invalid _local document id.";
    client.get("/db/_local").expect_error(400, "bad_request", invalid);
    client.get("/db/_local/").expect_error(400, "bad_request", invalid);
    client.get("/db/_local%2F").expect_error(400, "bad_request", invalid);
    let reason = "_local documents do not accept attachments.";
    client.get("/db/_local/x/y").expect_error(400, "bad_request", reason);
    client.put("/db/_local/x", "{\"_rev\":\"junk\"}").expect_error(400, "bad_request", "Invalid rev format");
    client.put("/db/_local/x?rev=1-x", "{}").expect_error(400, "bad_request", "Invalid rev format");
    client.put("/db/_local/x", "{\"_zing\":1}").expect_error(
        400,
        "doc_validation",
        "Bad special document member: _zing",
    );
    client.put("/db/_local/x", "[]").expect_error(400, "bad_request", "Document must be a JSON object");
    client.get("/db/_local/x").expect_status(404);
    client.put("/db/_local/kept", "{}").expect_status(201);
    for path in ["/db/_local%2Fkept/y", "/db/_local/kept/y"] {
        for method in ["GET", "PUT", "DELETE"] {
            let reason = "_local documents do not accept attachments.";
            client.send(method, path, &[], b"").expect_error(400, "bad_request", reason);
        }
    }
    client.get("/db/_local%2Fkept").expect_status(200);
}

#[test]
fn a_local_document_drops_its_attachments() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let text = json!({"n": 1, "_attachments": {"a": {"content_type": "text/plain", "data": "aGVsbG8="}}});
    client.put("/db/_local/x", &text.to_string()).expect_status(201);
    let read = client.get("/db/_local/x?attachments=true").expect_status(200);
    assert_eq!(read.json(), json!({"_id": "_local/x", "_rev": "0-1", "n": 1}));
    let rows = client.post(
        "/db/_bulk_docs",
        &json!({"docs": [{"_id": "_local/y", "_attachments": {
        "a": {"follows": true, "length": 5}, "b": {"stub": true}}}]})
        .to_string(),
    );
    assert_eq!(rows.json(), json!([{"ok": true, "id": "_local/y", "rev": "0-1"}]));
}

#[test]
fn a_local_document_is_written_with_the_revisions_that_were_read_of_it() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_local/x", "{\"_rev\":\"0-6\"}").expect_status(201);
    let read = client.get("/db/_local/x?revs=true").expect_status(200);
    assert_eq!(
        read.json(),
        json!({"_id": "_local/x", "_rev": "0-7", "_revisions": {"start": 0, "ids": ["7"]}})
    );
    assert_eq!(client.put("/db/_local/x", read.text()).expect_status(201).rev(), "0-8");
    // An invalid revision fails its own row and no other.
    for new_edits in [true, false] {
        let docs = json!({"new_edits": new_edits, "docs": [
            {"_id": "_local/a", "_revisions": {"start": 0, "ids": ["3"]}},
            {"_id": "_local/b", "_revisions": {"start": 0, "ids": ["abc"]}},
            {"_id": "_local/c", "_revisions": {"start": 2, "ids": ["abc", "def"]}},
            {"_id": "_local/d", "_revisions": {"start": 0, "ids": []}},
            {"_id": "_local/e", "_revisions": {"start": 0, "ids": ["1234567890123456"]}},
            {"_id": format!("d-{new_edits}"), "_rev": if new_edits { None } else { Some(format!("1-{}", "a".repeat(32))) }},
        ]});
        let docs = docs.to_string().replace(",\"_rev\":null", "");
        let rows = client.post("/db/_bulk_docs", &docs).expect_status(201).json();
        let failed: Vec<_> = rows.as_array().unwrap().iter().filter(|row| row["error"].is_string()).collect();
        let shown: Vec<_> = failed.iter().map(|row| (row["id"].as_str(), row["reason"].as_str())).collect();
        let bad = Some("Invalid rev format");
        assert_eq!(shown, [(Some("_local/b"), bad), (Some("_local/c"), bad)], "{rows}");
        assert_eq!(client.get("/db/_local/a").json()["_rev"], "0-4");
        assert_eq!(client.get("/db/_local/d").json()["_rev"], "0-1");
        assert_eq!(client.get("/db/_local/e").json()["_rev"], "0-1234567890123457");
        client.get(&format!("/db/d-{new_edits}")).expect_status(200);
    }
}

#[test]
fn revisions_of_a_local_document_can_not_be_asked_for() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_local/x", "{}").expect_status(201);
    for path in ["/db/_local/x?rev=0-1", "/db/_local/x?rev=1-a", "/db/_local/x?open_revs=all"] {
        client.get(path).expect_error(404, "not_found", "missing");
    }
    client.get("/db/_local/x?rev=x").expect_error(400, "bad_request", "Invalid rev format");
    let json = [("Accept", "application/json")];
    let found = client.send("GET", "/db/_local/x?open_revs=[%220-1%22]", &json, b"").expect_status(200);
    assert_eq!(found.json(), json!([{"missing": "0-1"}]));
    assert_eq!(client.get("/db/_local/x?rev=0-1&latest=true").expect_status(200).json()["_rev"], "0-1");
}
