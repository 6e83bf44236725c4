//! Design documents: what is stored, and the effect of functions that would validate writes.

use serde_json::{Value, json};

use crate::client::{Client, Server};

const CHECKED: &str = "{\"validate_doc_update\":\"function(){}\"}";

/// The id and the error of each row of `_bulk_docs`.
fn outcomes(rows: &Value) -> Vec<(&str, Option<&str>)> {
    let rows = rows.as_array().unwrap_or_else(|| panic!("{rows}"));
    rows.iter().map(|row| (row["id"].as_str().unwrap(), row["error"].as_str())).collect()
}

fn bulk(client: &mut Client, docs: Value) -> Value {
    client.post("/db/_bulk_docs", &docs.to_string()).expect_status(201).json()
}

fn replica(id: &str, member: &str, value: Value) -> Value {
    json!({"_id": id, "_rev": format!("1-{}", "a".repeat(32)), member: value})
}

#[test]
fn a_design_document_whose_members_are_of_other_types_is_refused_by_itself() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reason = "`views` field must have object type";
    client.put("/db/_design/d", "{\"views\":\"x\"}").expect_error(400, "invalid_design_doc", reason);
    client.post("/db", "{\"_id\":\"_design/d\",\"views\":\"x\"}").expect_error(
        400,
        "invalid_design_doc",
        reason,
    );
    let docs = json!({"docs": [{"_id": "_design/d", "views": "x"}, {"_id": "a", "views": "x"}]});
    let rows = bulk(&mut client, docs);
    assert_eq!(outcomes(&rows), [("_design/d", Some("invalid_design_doc")), ("a", None)]);
    assert_eq!(rows[0]["reason"], reason);
    let docs = json!({"new_edits": false, "docs": [
        replica("_design/d", "filters", json!({"f": 1})), replica("b", "views", json!("x"))]});
    let rows = bulk(&mut client, docs);
    assert_eq!(outcomes(&rows), [("_design/d", Some("invalid_design_doc"))]);
    client.get("/db/_design/d").expect_status(404);
    client.get("/db/b").expect_status(200);
    // A conflict takes precedence.
    client.put("/db/_design/d", "{}").expect_status(201);
    client.put("/db/_design/d", "{\"views\":\"x\"}").expect_status(409);
}

#[test]
fn a_design_document_that_would_check_writes_is_not_stored_and_others_are() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let refused = client.put("/db/_design/d", CHECKED).expect_status(501).json();
    assert_eq!(refused["error"], "not_implemented");
    assert!(refused["reason"].as_str().unwrap().contains("validate_doc_update"), "{refused}");
    let docs =
        json!({"docs": [{"_id": "a"}, {"_id": "_design/d", "validate_doc_update": "f"}, {"_id": "b"}]});
    let rows = bulk(&mut client, docs);
    assert_eq!(outcomes(&rows), [("a", None), ("_design/d", Some("not_implemented")), ("b", None)]);
    let docs = json!({"new_edits": false, "docs": [
        replica("_design/d", "validate_doc_update", json!("f")), replica("c", "n", json!(1))]});
    let rows = bulk(&mut client, docs);
    assert_eq!(outcomes(&rows), [("_design/d", Some("not_implemented"))]);
    assert!(rows[0]["reason"].is_string(), "{rows}");
    let one = replica("_design/d", "validate_doc_update", json!("f")).to_string();
    client.put("/db/_design/d?new_edits=false", &one).expect_status(501);
    client.get("/db/_design/d").expect_status(404);
    assert_eq!(client.get("/db").json()["doc_count"], 3);
    client.put("/db/d", "{\"validate_doc_update\":\"f\"}").expect_status(201);
}

#[test]
fn where_a_stored_function_would_check_writes_documents_are_read_and_purged_and_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let ignoring = Server::start_ignoring_validation(directory.path());
    let mut client = ignoring.connect();
    client.create("db");
    let rev = client.put("/db/a", "{\"n\":1}").expect_status(201).rev();
    client.put("/db/_design/other", "{}").expect_status(201);
    let checks = client.put("/db/_design/d", CHECKED).expect_status(201).rev();
    client.put("/db/b", "{}").expect_status(201);
    drop(ignoring);

    let server = Server::start_in(directory.path(), Default::default());
    let mut client = server.connect();
    let refused = client.put("/db/c", "{}").expect_status(501).json();
    assert_eq!(refused["error"], "not_implemented");
    assert!(
        refused["reason"].as_str().unwrap().starts_with("_design/d has a validate_doc_update"),
        "{refused}"
    );
    client.post("/db", "{}").expect_status(501);
    client.delete(&format!("/db/a?rev={rev}")).expect_status(501);
    client.put(&format!("/db/a/file?rev={rev}"), "x").expect_status(501);
    client.put("/db/a", "{}").expect_error(409, "conflict", "Document update conflict.");
    let rows = bulk(&mut client, json!({"docs": [{"_id": "c"}, {"_id": "_design/new", "n": 1}]}));
    assert_eq!(outcomes(&rows), [("c", Some("not_implemented")), ("_design/new", None)]);
    let rows = bulk(&mut client, json!({"new_edits": false, "docs": [replica("r", "n", json!(1))]}));
    assert_eq!(outcomes(&rows), [("r", Some("not_implemented"))]);

    assert_eq!(client.get("/db/a").expect_status(200).json()["n"], 1);
    client.get("/db/_all_docs?include_docs=true").expect_status(200);
    client.put("/db/_local/l", "{}").expect_status(201);
    let rev_of_b = client.get("/db/b").json()["_rev"].clone();
    client.post("/db/_purge", &json!({"b": [rev_of_b]}).to_string()).expect_status(201);
    client.get("/db/b").expect_status(404);

    // The documents that a request removes count for the rest of it.
    let rows = bulk(
        &mut client,
        json!({"docs": [
        {"_id": "c"}, {"_id": "_design/d", "_rev": checks, "_deleted": true}, {"_id": "e"}]}),
    );
    assert_eq!(outcomes(&rows), [("c", Some("not_implemented")), ("_design/d", None), ("e", None)]);
    client.put("/db/c", "{}").expect_status(201);
    drop(server);
    let server = Server::start_in(directory.path(), Default::default());
    server.connect().put("/db/f", "{}").expect_status(201);
}

#[test]
fn a_design_document_that_checks_writes_is_removed_by_a_purge_and_by_a_replica() {
    let directory = tempfile::tempdir().unwrap();
    let ignoring = Server::start_ignoring_validation(directory.path());
    let mut client = ignoring.connect();
    client.create("db");
    let purged = client.put("/db/_design/p", CHECKED).expect_status(201).rev();
    let gone = client.put("/db/_design/r", CHECKED).expect_status(201).rev();
    drop(ignoring);
    let server = Server::start_in(directory.path(), Default::default());
    let mut client = server.connect();
    client.post("/db/_purge", &json!({"_design/p": [purged]}).to_string()).expect_status(201);
    client.put("/db/a", "{}").expect_status(501);
    let ids = ["b".repeat(32), gone.split_once('-').unwrap().1.to_owned()];
    let deletion = json!({"_id": "_design/r", "_deleted": true, "_revisions": {"start": 2, "ids": ids}});
    assert_eq!(bulk(&mut client, json!({"new_edits": false, "docs": [deletion]})), json!([]));
    client.put("/db/a", "{}").expect_status(201);
}
