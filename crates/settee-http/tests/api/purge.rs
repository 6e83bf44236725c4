//! Purges, and the limits on purge records and revision histories.

use serde_json::{Value, json};

use crate::client::{Client, Server, ids};

fn purge(client: &mut Client, what: &Value) -> Value {
    let reply = client.post("/db/_purge", &what.to_string()).expect_status(201).json();
    assert_eq!(reply["purge_seq"], Value::Null);
    reply["purged"].clone()
}

#[test]
fn what_is_purged_is_missing_and_in_no_list_and_no_feed() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let a = client.put("/db/a", "{}").rev();
    let b = client.put("/db/b", "{}").rev();
    let before = client.get("/db").json();
    assert!(before["purge_seq"].as_str().unwrap().starts_with("0-"));
    let purged = purge(&mut client, &json!({"a": [a], "b": ["1-00000000000000000000000000000000"], "c": []}));
    assert_eq!(purged, json!({"a": [a], "b": [], "c": []}));
    client.get("/db/a").expect_error(404, "not_found", "missing");
    client.get(&format!("/db/a?rev={a}")).expect_error(404, "not_found", "missing");
    client.get(&format!("/db/b?rev={b}")).expect_status(200);
    assert_eq!(ids(&client.get("/db/_all_docs"), "rows"), ["b"]);
    assert_eq!(ids(&client.get("/db/_changes"), "results"), ["b"]);
    let after = client.get("/db").json();
    assert!(after["purge_seq"].as_str().unwrap().starts_with("3-"));
    assert_eq!((&after["doc_count"], &after["doc_del_count"]), (&json!(1), &json!(0)));
    let missing = client.post("/db/_revs_diff", &json!({"a": [a]}).to_string()).json();
    assert_eq!(missing, json!({"a": {"missing": [a]}}));
    client.put("/db/a?new_edits=false", &json!({"_rev": a}).to_string()).expect_status(201);
    client.post("/db/_compact", "{}").expect_status(202);
    assert_eq!(client.get("/db").json()["purge_seq"], after["purge_seq"]);
}

#[test]
fn a_purged_conflict_leaves_the_winner() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let [lost, won] = ["a", "b"].map(|digit| format!("1-{}", digit.repeat(32)));
    for rev in [&lost, &won] {
        client.put("/db/c?new_edits=false", &json!({"_rev": rev}).to_string()).expect_status(201);
    }
    assert_eq!(purge(&mut client, &json!({"c": [won]})), json!({"c": [won]}));
    let left = client.get("/db/c?conflicts=true").expect_status(200).json();
    assert_eq!(left, json!({"_id": "c", "_rev": lost}));
}

#[test]
fn a_purge_whose_client_went_away_counts() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{}").rev();
    for number in 1..=20 {
        let mut gone = server.connect();
        let body = json!({"a": [rev]}).to_string();
        let length = body.len().to_string();
        let headers = [("Content-Type", "application/json"), ("Content-Length", &*length)];
        gone.write_head("POST", "/db/_purge", &headers);
        gone.write(body.as_bytes());
        drop(gone);
        // The request may not have been read before the client disconnected; a recorded purge is counted.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut noted = 0;
        let counted = (0..500).any(|_| {
            let notes = client.get("/db/_purged_infos").json();
            noted = notes["purged_infos"].as_array().unwrap().len();
            let seq = client.get("/db").json()["purge_seq"].as_str().unwrap().to_owned();
            let is_counted = seq.starts_with(&format!("{noted}-"));
            std::thread::sleep(std::time::Duration::from_millis(if is_counted { 0 } else { 10 }));
            is_counted
        });
        assert!(counted, "of {noted} purges after {number} requests");
    }
}

#[test]
fn bad_purges_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_purge", "{}").expect_error(405, "method_not_allowed", "Only POST allowed");
    client.send("POST", "/db/_purge", &[], b"{}").expect_status(415);
    client.post("/db/_purge", "[]").expect_error(400, "bad_request", "Request body must be a JSON object");
    client.post("/db/_purge", "{").expect_error(400, "bad_request", "invalid UTF-8 JSON");
    let reply = client.post("/db/_purge", "{\"a\":1}");
    reply.expect_error(400, "bad_request", "Invalid list of revisions");
    client.post("/db/_purge", "{\"a\":[\"x\"]}").expect_error(400, "bad_request", "Invalid rev format");
    client.post("/db/_purge", "{\"a\":[1]}").expect_error(400, "bad_request", "Invalid rev format");
    let many = vec![format!("1-{}", "0".repeat(32)); 10_001];
    let reply = client.post("/db/_purge", &json!({"a": many}).to_string());
    reply.expect_error(400, "bad_request", "Exceeded maximum number of revisions.");
    assert_eq!(client.post("/db/_purge", "{}").expect_status(201).json()["purged"], json!({}));
}

#[test]
fn purge_records_are_listed_up_to_their_limit() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    assert_eq!(client.get("/db/_purged_infos").expect_status(200).json(), json!({"purged_infos": []}));
    let revs: Vec<String> = (0..3).map(|n| client.put(&format!("/db/doc{n}"), "{}").rev()).collect();
    for (n, rev) in revs.iter().enumerate() {
        let id = format!("doc{n}");
        purge(&mut client, &json!({id: [rev]}));
    }
    let notes = client.get("/db/_purged_infos").json()["purged_infos"].clone();
    assert_eq!(notes.as_array().unwrap().len(), 3);
    assert_eq!(client.get("/db/_purged_infos_limit").expect_status(200).text(), "1000\n");
    assert_eq!(client.put("/db/_purged_infos_limit", "2").expect_status(200).text(), "{\"ok\":true}\n");
    assert_eq!(client.get("/db/_purged_infos_limit").text(), "2\n");
    let left = client.get("/db/_purged_infos").json()["purged_infos"].clone();
    assert_eq!(left, json!([{"id": "doc1", "revs": [revs[1]]}, {"id": "doc2", "revs": [revs[2]]}]));

    for bad in ["0", "-1", "1.5", "\"2\"", "{}", "null"] {
        let reply = client.put("/db/_purged_infos_limit", bad);
        reply.expect_error(400, "bad_request", "`purged_infos_limit` must be positive integer");
    }
    client.put("/db/_purged_infos_limit", "x").expect_error(400, "bad_request", "invalid UTF-8 JSON");
    let reply = client.post("/db/_purged_infos_limit", "2");
    reply.expect_error(405, "method_not_allowed", "Only GET,PUT allowed");
    client.post("/db/_purged_infos", "").expect_error(405, "method_not_allowed", "Only GET allowed");
    assert_eq!(client.head("/db/_purged_infos_limit").status, 200);
}

#[test]
fn a_history_is_as_long_as_the_limit() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    assert_eq!(client.get("/db/_revs_limit").expect_status(200).text(), "1000\n");
    let mut rev = client.put("/db/a", "{}").rev();
    for _ in 0..40 {
        rev = client.put(&format!("/db/a?rev={rev}"), "{}").rev();
    }
    let path = "/db/a?revs=true&revs_info=true";
    assert_eq!(client.get(path).json()["_revisions"]["ids"].as_array().unwrap().len(), 41);
    assert_eq!(client.put("/db/_revs_limit", "5").expect_status(200).text(), "{\"ok\":true}\n");
    assert_eq!(client.get("/db/_revs_limit").text(), "5\n");
    rev = client.put(&format!("/db/a?rev={rev}"), "{}").rev();
    let shown = client.get(path).json();
    assert_eq!(shown["_revisions"]["ids"].as_array().unwrap().len(), 5);
    assert_eq!(shown["_revisions"]["start"], 42);
    assert_eq!(shown["_revs_info"].as_array().unwrap().len(), 5);
    assert_eq!(shown["_rev"], json!(rev));
    for bad in ["0", "-1", "\"5\"", "[]"] {
        let reply = client.put("/db/_revs_limit", bad);
        reply.expect_error(400, "bad_request", "`revs_limit` must be positive integer");
    }
    // A body that sets one value is small: a longer one isn't read.
    let padded = |bytes: usize| format!("{}7", " ".repeat(bytes - 1));
    client.put("/db/_revs_limit", &padded((1 << 20) + 1)).expect_status(413);
    let mut client = server.connect();
    assert_eq!(client.get("/db/_revs_limit").text(), "5\n");
    client.put("/db/_revs_limit", &padded(1 << 20)).expect_status(200);
    client.post("/db/_revs_limit", "5").expect_error(405, "method_not_allowed", "Only PUT,GET allowed");
    client.delete("/db/_revs_limit").expect_status(405);
}
