//! Requests with many documents.

use serde_json::{Value, json};

use crate::client::{Server, ids};

#[test]
fn each_document_of_a_bulk_is_decided_by_itself() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/b", "{}").expect_status(201);
    let body = json!({"docs": [{"_id": "a", "n": 1}, {"_id": "b"}, {"n": 3}, {"_id": "a"}]});
    let reply = client.post("/db/_bulk_docs", &body.to_string()).expect_status(201);
    let rows = reply.json();
    assert_eq!((&rows[0]["ok"], &rows[0]["id"]), (&json!(true), &json!("a")));
    assert!(rows[0]["rev"].as_str().unwrap().starts_with("1-"));
    let conflict = |id: &str| json!({"id": id, "error": "conflict", "reason": "Document update conflict."});
    assert_eq!(rows[1], conflict("b"));
    assert_eq!(rows[2]["id"].as_str().unwrap().len(), 32);
    assert_eq!(rows[3], conflict("a"));
    assert_eq!(client.get("/db").json()["doc_count"], 3);
}

#[test]
fn replicated_bulks_answer_with_failures_alone_and_keep_conflicts() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = |digit: &str| format!("1-{}", digit.repeat(32));
    let docs = json!([{"_id": "a", "_rev": rev("a")}, {"_id": "a", "_rev": rev("b")}]);
    let body = json!({"new_edits": false, "docs": docs});
    let reply = client.post("/db/_bulk_docs", &body.to_string()).expect_status(201);
    assert_eq!(reply.text(), "[]\n");
    let document = client.get("/db/a?conflicts=true").json();
    assert_eq!((&document["_rev"], &document["_conflicts"]), (&json!(rev("b")), &json!([rev("a")])));
    // The same request again changes nothing.
    let seq = client.get("/db").json()["update_seq"].clone();
    assert_eq!(client.post("/db/_bulk_docs", &body.to_string()).text(), "[]\n");
    assert_eq!(client.get("/db").json()["update_seq"], seq);
    let reason = "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
    let bare = client.post("/db/_bulk_docs", "{\"new_edits\":false,\"docs\":[{\"_id\":\"x\"}]}");
    bare.expect_error(400, "bad_request", reason);
}

#[test]
fn all_or_nothing_stores_nothing_and_says_so_row_by_row() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = format!("1-{}", "a".repeat(32));
    let docs = json!([{"_id": "a"}, {"_id": "b", "_rev": rev}, {}]);
    let body = json!({"all_or_nothing": true, "docs": docs});
    let rows = client.post("/db/_bulk_docs", &body.to_string()).expect_status(417).json();
    let reason = "all_or_nothing is not supported";
    let row =
        |id: &str, rev: &str| json!({"id": id, "rev": rev, "error": "not_implemented", "reason": reason});
    assert_eq!((&rows[0], &rows[1]), (&row("a", "0-"), &row("b", &rev)));
    assert_eq!(rows[2]["id"].as_str().unwrap().len(), 32);
    assert_eq!(client.get("/db").json()["doc_count"], 0);
    // Values other than `true` are ignored, and so is the option for replicated edits.
    let none = client.post("/db/_bulk_docs", "{\"all_or_nothing\":true,\"docs\":[]}").expect_status(201);
    assert_eq!(none.text(), "[]\n");
    let body = json!({"all_or_nothing": false, "docs": [{"_id": "a"}]});
    client.post("/db/_bulk_docs", &body.to_string()).expect_status(201);
    let body = json!({"all_or_nothing": true, "new_edits": false, "docs": [{"_id": "b", "_rev": rev}]});
    assert_eq!(client.post("/db/_bulk_docs", &body.to_string()).expect_status(201).text(), "[]\n");
    assert_eq!(client.get("/db").json()["doc_count"], 2);
}

#[test]
fn a_stub_of_nothing_keeps_no_other_document_out() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = format!("1-{}", "a".repeat(32));
    let stub = json!({"x": {"stub": true, "revpos": 1, "content_type": "text/plain"}});
    let docs = json!([{"_id": "a", "_rev": rev, "_attachments": stub}, {"_id": "b", "_rev": rev}]);
    let reason = "Invalid attachment stub in a for x";
    let mut row = json!({"id": "a", "error": "missing_stub", "reason": reason});
    let rows =
        client.post("/db/_bulk_docs", &json!({"docs": [{"_id": "a", "_attachments": stub}]}).to_string());
    assert_eq!(rows.expect_status(201).json(), json!([row]));
    row["rev"] = json!(rev);
    let rows = client.post("/db/_bulk_docs", &json!({"new_edits": false, "docs": docs}).to_string());
    assert_eq!(rows.expect_status(201).json(), json!([row]));
    client.get("/db/a").expect_status(404);
    client.get("/db/b").expect_status(200);
}

#[test]
fn one_bad_document_stores_none() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reason = "Bad special document member: _zing";
    let reply = client.post("/db/_bulk_docs", "{\"docs\":[{\"_id\":\"a\"},{\"_zing\":1}]}");
    reply.expect_error(400, "doc_validation", reason);
    client.get("/db/a").expect_status(404);
    assert_eq!(client.get("/db").json()["doc_count"], 0);
}

#[test]
fn bulks_of_another_form_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let cases = [
        ("{}", "POST body must include `docs` parameter."),
        ("{\"docs\":{}}", "`docs` parameter must be an array."),
        ("{\"docs\":[],\"new_edits\":1}", "`new_edits` parameter must be a boolean."),
        ("{\"docs\":[1]}", "Document must be a JSON object"),
        ("[]", "Request body must be a JSON object"),
        ("{\"docs\":[", "invalid UTF-8 JSON"),
        ("", "invalid UTF-8 JSON"),
    ];
    for (body, reason) in cases {
        client.post("/db/_bulk_docs", body).expect_error(400, "bad_request", reason);
    }
    assert_eq!(client.post("/db/_bulk_docs", "{\"docs\":[]}").expect_status(201).text(), "[]\n");
}

#[test]
fn a_bulk_that_is_not_persisted_yet_answers_202() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reply = client.post("/db/_bulk_docs?durability=accepted", "{\"docs\":[{\"_id\":\"a\"}]}");
    assert_eq!(reply.expect_status(202).json()[0]["id"], "a");
}

#[test]
fn local_documents_come_in_bulks_too() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let body = json!({"docs": [{"_id": "a"}, {"_id": "_local/x", "n": 1}, {"_id": "b"}]});
    let rows = client.post("/db/_bulk_docs", &body.to_string()).expect_status(201).json();
    let saved: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(saved, ["a", "_local/x", "b"]);
    assert_eq!(rows[1]["rev"], "0-1");
    assert_eq!(client.get("/db/_local/x").json()["n"], 1);
    assert_eq!(ids(&client.get("/db/_all_docs"), "rows"), ["a", "b"]);
}

#[test]
fn a_bulk_get_gives_revisions_leaves_and_errors() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{\"n\":1}").rev();
    let unknown = format!("9-{}", "9".repeat(32));
    let docs = json!([
        {"id": "a", "rev": rev}, {"id": "a"}, {"id": "none"}, {"id": "a", "rev": unknown},
        {"id": "_x"}, {"rev": rev}, {}, {"id": "a", "rev": "junk"},
    ]);
    let body = json!({"docs": docs}).to_string();
    let reply = client.post("/db/_bulk_get?revs=true", &body).expect_status(200).json();
    let results = reply["results"].as_array().unwrap();
    assert_eq!(results.len(), 8);
    for found in &results[..2] {
        assert_eq!((&found["id"], &found["docs"][0]["ok"]["n"]), (&json!("a"), &json!(1)));
        assert_eq!(found["docs"][0]["ok"]["_revisions"]["start"], 1);
    }
    let error = |id: Value, rev: Value, error: &str, reason: &str| json!({"id": id, "docs": [{"error": {"id": id, "rev": rev, "error": error, "reason": reason}}]});
    assert_eq!(results[2], error(json!("none"), json!("undefined"), "not_found", "missing"));
    assert_eq!(results[3], error(json!("a"), json!(unknown), "not_found", "missing"));
    let reserved = "Only reserved document ids may start with underscore.";
    assert_eq!(results[4], error(json!("_x"), Value::Null, "illegal_docid", reserved));
    assert_eq!(results[5], error(Value::Null, Value::Null, "bad_request", "document id missed"));
    assert_eq!(results[6], error(Value::Null, Value::Null, "bad_request", "document must be a JSON object"));
    assert_eq!(results[7], error(json!("a"), json!("junk"), "bad_request", "Invalid rev format"));

    client.post("/db/_bulk_get", "{}").expect_error(400, "bad_request", "Missing JSON list of 'docs'.");
    let refused = client.post("/db/_bulk_get?rev=1", "{\"docs\":[]}");
    refused.expect_error(400, "bad_request", "\"rev\" query parameter is not acceptable");
}

#[test]
fn deleted_leaves_are_in_a_bulk_get() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{}").rev();
    let gone = client.delete(&format!("/db/a?rev={rev}")).rev();
    let reply =
        client.post("/db/_bulk_get?latest=true", &json!({"docs": [{"id": "a", "rev": rev}]}).to_string());
    let document = reply.json()["results"][0]["docs"][0]["ok"].clone();
    assert_eq!(document, json!({"_id": "a", "_rev": gone, "_deleted": true}));
}

#[test]
fn revs_diff_names_possible_ancestors_of_unknown_revisions() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{}").rev();
    let last = "4294967295-x";
    let body = json!({"a": ["3-abc"], "b": ["2-x"]}).to_string();
    assert_eq!(
        client.post("/db/_revs_diff", &body).expect_status(200).json(),
        json!({"a": {"missing": ["3-abc"], "possible_ancestors": [rev]}, "b": {"missing": ["2-x"]}})
    );
    let body = json!({"a": ["1-abc", last]}).to_string();
    let diff = client.post("/db/_revs_diff", &body).expect_status(200).json();
    assert_eq!(diff, json!({"a": {"missing": ["1-abc", last], "possible_ancestors": [rev]}}));
    let diff = client.post("/db/_revs_diff", &json!({"a": ["1-abc", "0-x"]}).to_string()).json();
    assert_eq!(diff, json!({"a": {"missing": ["1-abc", "0-x"]}}), "no leaf is older");
}

#[test]
fn revs_diff_names_what_a_replica_lacks() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{}").rev();
    let newer = format!("2-{}", "2".repeat(32));
    let body = json!({"a": [rev, newer], "b": [newer], "c": []}).to_string();
    let diff = client.post("/db/_revs_diff", &body).expect_status(200).json();
    assert_eq!(
        diff,
        json!({"a": {"missing": [newer], "possible_ancestors": [rev]}, "b": {"missing": [newer]}})
    );
    let missing = client.post("/db/_missing_revs", &body).expect_status(200).json();
    assert_eq!(missing, json!({"missing_revs": {"a": [newer], "b": [newer]}}));
    assert_eq!(client.post("/db/_revs_diff", "{}").text(), "{}\n");
    client.post("/db/_revs_diff", "{\"a\":[\"x\"]}").expect_error(400, "bad_request", "Invalid rev format");
    client.post("/db/_revs_diff", "{\"a\":1}").expect_error(400, "bad_request", "Invalid list of revisions");
    client.post("/db/_revs_diff", "[]").expect_error(
        400,
        "bad_request",
        "Request body must be a JSON object",
    );
}

#[test]
fn local_documents_of_a_bulk_share_syncs_and_keep_their_order() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let mut docs: Vec<Value> = (0..100).map(|n| json!({"_id": format!("_local/{n}")})).collect();
    docs.push(json!({"_id": "_local/7", "_rev": "0-1", "last": true}));
    let database = server.run(server.databases.get("db")).unwrap();
    let before = database.log_stats().sync_count;
    let reply = client.post("/db/_bulk_docs", &json!({ "docs": docs }).to_string()).expect_status(201);
    let syncs = database.log_stats().sync_count - before;
    assert!((1..50).contains(&syncs), "{syncs} syncs for 101 local documents");
    let rows = reply.json();
    assert_eq!((&rows[7]["rev"], &rows[100]["rev"]), (&json!("0-1"), &json!("0-2")));
    assert_eq!(client.get("/db/_local/7").json()["last"], true);
}

#[test]
fn an_optimistic_write_makes_what_any_other_makes() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let headers = |value| [("x-optimistic-write", value), ("content-type", "application/json")];
    let document = |id: &str, n: usize| json!({"_id": id, "n": n, "large": "x".repeat(200_000 + n)});
    let rev = client.put("/db/plain", &document("plain", 1).to_string()).expect_status(201).rev();
    for (number, value) in ["true", "false"].into_iter().enumerate() {
        let [one, two, three, four] = ["one", "two", "three", "four"].map(|name| format!("{name}{number}"));
        let headers = headers(value);
        let text = document(&one, 1).to_string();
        let path = format!("/db/{one}");
        assert_eq!(client.send("PUT", &path, &headers, text.as_bytes()).expect_status(201).rev(), rev);
        client.send("PUT", &path, &headers, text.as_bytes()).expect_status(409);
        let text = document(&two, 1).to_string();
        assert_eq!(client.send("POST", "/db", &headers, text.as_bytes()).expect_status(201).rev(), rev);
        let body = json!({"docs": [document(&three, 1), {"_id": two}, document(&four, 2)]}).to_string();
        let rows = client.send("POST", "/db/_bulk_docs", &headers, body.as_bytes()).expect_status(201).json();
        assert_eq!((&rows[0]["rev"], &rows[1]["error"]), (&json!(rev), &json!("conflict")));
        for (id, n) in [(&one, 1), (&two, 1), (&three, 1), (&four, 2)] {
            let mut found = client.get(&format!("/db/{id}")).expect_status(200).json();
            found.as_object_mut().unwrap().remove("_rev");
            assert_eq!(found, document(id, n));
        }
    }
    let rows = client.get("/db/_all_docs?include_docs=true").expect_status(200).json();
    let read = |row: &Value| row["doc"]["large"].as_str().map_or(0, str::len);
    assert!(rows["rows"].as_array().unwrap().iter().all(|row| read(row) > 200_000));
    let reason = "X-Optimistic-Write must be true or false.";
    let refused = client.send("PUT", "/db/bad", &headers("maybe"), b"{}");
    refused.expect_error(400, "bad_request", reason);
    client.get("/db/bad").expect_status(404);
}
