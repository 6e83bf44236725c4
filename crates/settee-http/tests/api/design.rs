//! Goal: design documents are checked and compiled when they are stored, and their validation functions check all
//! other writes, as in CouchDB 3.5.0.
//! Method: each way of writing, each way of refusing, with the statuses, names and reasons that CouchDB was seen to
//! answer.

use std::time::Instant;

use serde_json::{Value, json};

use crate::client::{Client, Server};

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

/// A design document that validates with `function(doc, old, user, security) {BODY}`.
fn validating(body: &str) -> String {
    json!({"validate_doc_update": format!("function(doc, old, user, security) {{{body}}}")}).to_string()
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
fn the_functions_of_views_are_compiled_and_others_are_not() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let refused = |client: &mut Client, views: Value| {
        let reply = client.put("/db/_design/d", &json!({"views": views}).to_string());
        let json = reply.json();
        (
            reply.status,
            json["error"].as_str().unwrap().to_owned(),
            json["reason"].as_str().unwrap().to_owned(),
        )
    };
    let map = "function(doc){emit(1)}";
    for (views, begin) in [
        (json!({"a": {"map": "x y"}}), "Compilation of the map function in the 'a' view failed: "),
        (json!({"a": {"map": "1"}}), "Compilation of the map function in the 'a' view failed: "),
        (
            json!({"b": {"map": map, "reduce": "function("}}),
            "Compilation of the reduce function in the 'b' view failed: ",
        ),
    ] {
        let (status, error, reason) = refused(&mut client, views.clone());
        assert_eq!((status, error.as_str()), (400, "compilation_error"), "{views}");
        assert!(reason.starts_with(begin), "{views}: {reason}");
    }
    let missing = (404, "not_found".to_owned(), "missing function".to_owned());
    assert_eq!(refused(&mut client, json!({"a": {"map": ""}})), missing);

    let bad = json!({"a": {"map": "x y"}});
    let rows = bulk(&mut client, json!({"docs": [{"_id": "_design/d", "views": bad}, {"_id": "a"}]}));
    assert_eq!(outcomes(&rows), [("_design/d", Some("compilation_error")), ("a", None)]);
    let rows =
        bulk(&mut client, json!({"new_edits": false, "docs": [replica("_design/d", "views", bad.clone())]}));
    assert_eq!(outcomes(&rows), [("_design/d", Some("compilation_error"))]);
    client.get("/db/_design/d").expect_status(404);

    for sound in [
        json!({"language": "erlang", "views": bad}),
        json!({"views": {"lib": {"m": "x y"}, "a": {"map": map, "reduce": "_sum"}}}),
        json!({"filters": {"f": "x y"}, "shows": {"f": ""}, "updates": {"f": "x y"}, "rewrites": "x y"}),
    ] {
        let rev = client.put("/db/_design/d", &sound.to_string()).expect_status(201).rev();
        client.delete(&format!("/db/_design/d?rev={rev}")).expect_status(200);
    }
    let rev = client.put("/db/_design/d", "{}").expect_status(201).rev();
    // A conflict takes precedence, and a deletion isn't compiled.
    client.put("/db/_design/d", &json!({"views": bad}).to_string()).expect_status(409);
    let deletion = json!({"_rev": rev, "_deleted": true, "views": bad});
    client.put("/db/_design/d", &deletion.to_string()).expect_status(200);
}

#[test]
fn each_way_of_refusing_has_couchdbs_status_and_name() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let mut rev = String::new();
    for (body, status, error, reason) in [
        ("throw {forbidden: 'no'}", 403, "forbidden", json!("no")),
        ("throw {forbidden: {a: [1]}}", 403, "forbidden", json!({"a": [1]})),
        ("throw {unauthorized: 'who'}", 401, "unauthorized", json!("who")),
        ("throw 'text'", 500, "unknown_error", json!("text")),
        ("throw {x: 'm'}", 500, "unknown_error", json!("m")),
        ("nothing()", 500, "ReferenceError", json!("{[]}")),
    ] {
        let mut design: Value = serde_json::from_str(&validating(body)).unwrap();
        if !rev.is_empty() {
            design["_rev"] = json!(rev);
        }
        rev = client.put("/db/_design/d", &design.to_string()).expect_status(201).rev();
        let reply = client.put("/db/a", "{}");
        let expected = json!({"error": error, "reason": reason});
        assert_eq!((reply.status, reply.json()), (status, expected), "{body}");
        let rows = bulk(&mut client, json!({"docs": [{"_id": "a"}]}));
        assert_eq!(rows, json!([{"id": "a", "error": error, "reason": reason}]), "{body}");
    }
    let design = json!({"_rev": rev, "validate_doc_update": "x y"}).to_string();
    let rev = client.put("/db/_design/d", &design).expect_status(201).rev();
    let reply = client.put("/db/a", "{}").expect_status(500).json();
    assert_eq!(reply["error"], "compilation_error");
    client.put("/db/_design/e", "{}").expect_status(201);
    client.put("/db/_local/l", "{}").expect_status(201);
    client.delete(&format!("/db/_design/d?rev={rev}")).expect_status(200);
    client.put("/db/a", "{}").expect_status(201);
}

#[test]
fn every_way_of_writing_is_validated_but_of_local_and_design_documents() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{\"n\":1}").expect_status(201).rev();
    client.put("/db/_design/v", &validating("throw {forbidden: 'no'}")).expect_status(201);
    client.put("/db/b", "{}").expect_error(403, "forbidden", "no");
    client.post("/db", "{}").expect_error(403, "forbidden", "no");
    client.delete(&format!("/db/a?rev={rev}")).expect_error(403, "forbidden", "no");
    client.put(&format!("/db/a/file?rev={rev}"), "x").expect_error(403, "forbidden", "no");
    client.send("COPY", "/db/a", &[("Destination", "c")], b"").expect_error(403, "forbidden", "no");
    client.put("/db/a", "{}").expect_error(409, "conflict", "Document update conflict.");
    let one = replica("r", "n", json!(1));
    client.put("/db/r?new_edits=false", &one.to_string()).expect_error(403, "forbidden", "no");
    let rows =
        bulk(&mut client, json!({"new_edits": false, "docs": [one, replica("_design/w", "n", json!(1))]}));
    let rev_of_r = format!("1-{}", "a".repeat(32));
    assert_eq!(rows, json!([{"id": "r", "rev": rev_of_r, "error": "forbidden", "reason": "no"}]));
    client.get("/db/_design/w").expect_status(200);
    client.put("/db/_local/l", "{}").expect_status(201);
    assert_eq!(client.get("/db").json()["doc_count"], 3);
}

#[test]
fn functions_get_the_document_the_replaced_one_the_user_and_the_security_object() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let authorization = [("Authorization", "Basic YW5uOnNlY3JldA==")];
    let mut put = |path: &str, body: &str| client.send("PUT", path, &authorization, body.as_bytes());
    put("/db", "").expect_status(201);
    put("/db/_design/v", &validating("if (doc.ask) throw {forbidden: [doc, old, user, security]}"))
        .expect_status(201);
    let user = json!({"db": "db", "name": "ann", "roles": ["_admin"]});
    let asked = put("/db/new", "{\"ask\":1}").json()["reason"].clone();
    assert_eq!(asked, json!([{"_id": "new", "ask": 1}, null, user, {}]));

    let rev = put("/db/a", "{\"n\":1}").expect_status(201).rev();
    let id = rev.split_once('-').unwrap().1;
    let asked = put(
        "/db/a",
        &json!({"_rev": rev, "ask": 2, "_attachments": {
        "f": {"content_type": "text/plain", "data": "eA=="}}})
        .to_string(),
    );
    let asked = asked.json()["reason"].clone();
    let revisions = json!({"start": 1, "ids": [id]});
    assert_eq!(asked[0]["_rev"], rev);
    assert_eq!(asked[0]["_revisions"], revisions);
    assert_eq!(asked[0]["_attachments"]["f"]["stub"], true);
    assert_eq!(asked[1], json!({"_id": "a", "_rev": rev, "n": 1, "_revisions": revisions}));
    // A deletion, and what is created again.
    let asked = put("/db/a", &json!({"_rev": rev, "ask": 2, "_deleted": true}).to_string());
    assert_eq!(asked.json()["reason"][0]["_deleted"], true);
    put("/db/a", &json!({"_rev": rev, "_deleted": true}).to_string()).expect_status(200);
    let asked = put("/db/a", "{\"ask\":3}").json()["reason"].clone();
    assert_eq!(asked, json!([{"_id": "a", "ask": 3}, null, user, {}]));
    // A replica has its own revision and history.
    let (b, ids) = (put("/db/b", "{}").expect_status(201).rev(), "b".repeat(32));
    let path = json!({"start": 2, "ids": [ids, b.split_once('-').unwrap().1]});
    let replica = json!({"_revisions": path, "ask": 4}).to_string();
    let asked = put("/db/b?new_edits=false", &replica).json()["reason"].clone();
    assert_eq!(asked[0], json!({"_id": "b", "_rev": format!("2-{ids}"), "ask": 4, "_revisions": path}));
    assert_eq!(asked[1]["_rev"], b);
}

#[test]
fn all_functions_run_in_the_order_of_their_design_documents_as_they_are_now() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let only = |name: &str| validating(&format!("if (doc.{name}) throw {{forbidden: '{name}'}}"));
    client.put("/db/_design/b", &only("b")).expect_status(201);
    let rev = client.put("/db/_design/a", &only("a")).expect_status(201).rev();
    client.put("/db/x", "{\"b\":1}").expect_error(403, "forbidden", "b");
    client.put("/db/x", "{\"a\":1,\"b\":1}").expect_error(403, "forbidden", "a");
    client.put("/db/x", "{}").expect_status(201);
    // Those of the same request count for what follows them.
    let rows = bulk(
        &mut client,
        json!({"docs": [
            {"_id": "c", "a": 1}, {"_id": "_design/a", "_rev": rev, "_deleted": true}, {"_id": "d", "a": 1},
            {"_id": "_design/e", "validate_doc_update": "function(){throw {forbidden: 'e'}}"}, {"_id": "f"}]}),
    );
    let expected = [("c", Some("forbidden")), ("_design/a", None), ("d", None), ("_design/e", None)];
    assert_eq!(outcomes(&rows)[..4], expected);
    assert_eq!(rows[4], json!({"id": "f", "error": "forbidden", "reason": "e"}));
}

#[test]
fn a_validating_design_document_is_removed_by_a_purge_and_by_a_replica() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let refusing = validating("throw {forbidden: 'no'}");
    let purged = client.put("/db/_design/p", &refusing).expect_status(201).rev();
    let gone = client.put("/db/_design/r", &refusing).expect_status(201).rev();
    client.post("/db/_purge", &json!({"_design/p": [purged]}).to_string()).expect_status(201);
    client.put("/db/a", "{}").expect_status(403);
    let ids = ["b".repeat(32), gone.split_once('-').unwrap().1.to_owned()];
    let deletion = json!({"_id": "_design/r", "_deleted": true, "_revisions": {"start": 2, "ids": ids}});
    assert_eq!(bulk(&mut client, json!({"new_edits": false, "docs": [deletion]})), json!([]));
    client.put("/db/a", "{}").expect_status(201);
}

#[test]
fn a_validation_function_that_never_ends_refuses_writes_and_the_server_goes_on() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/_design/v", &validating("while (true) {}")).expect_status(201).rev();
    client.put("/db/a", "{}").expect_error(500, "os_process_error", "OS process timed out.");
    client.delete(&format!("/db/_design/v?rev={rev}")).expect_status(200);
    client.put("/db/a", "{}").expect_status(201);
}

#[test]
fn a_validation_function_that_never_ends_runs_once_for_a_bulk() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_design/v", &validating("while (doc.endless) {}")).expect_status(201);
    let begin = Instant::now();
    client.put("/db/a", "{\"endless\":1}").expect_error(500, "os_process_error", "OS process timed out.");
    let once = begin.elapsed();
    for new_edits in [true, false] {
        let doc = |n: u32| json!({"_id": format!("e{n}"), "_rev": format!("1-{:032x}", n), "endless": 1});
        let mut docs: Vec<Value> = (0..12).map(doc).collect();
        if new_edits {
            docs.iter_mut().for_each(|doc| drop(doc.as_object_mut().unwrap().remove("_rev")));
        }
        let body = json!({"new_edits": new_edits, "docs": docs}).to_string();
        let begin = Instant::now();
        let outcomes = client.post("/db/_bulk_docs", &body).expect_status(201).json();
        assert!(begin.elapsed() < 8 * once, "{:?} instead of {once:?}", begin.elapsed());
        let outcomes = outcomes.as_array().unwrap();
        assert_eq!(outcomes.len(), 12);
        assert!(outcomes.iter().all(|outcome| outcome["error"] == "os_process_error"), "{outcomes:?}");
    }
    client.put("/db/a", "{}").expect_status(201);
}
