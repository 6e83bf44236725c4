//! `_design_docs`, `_local_docs`, and several lists in one request.

use serde_json::json;

use crate::client::{Client, Server, ids};

fn create(client: &mut Client) {
    client.create("db");
    let mut docs: Vec<_> = (1..=5).map(|n| json!({"_id": format!("_design/d{n}"), "n": n})).collect();
    docs.extend(["A", "a", "b"].map(|id| json!({"_id": id})));
    docs.push(json!({"_id": "_local/x", "n": 1}));
    docs.push(json!({"_id": "_local/y", "n": 2}));
    docs.push(json!({"_id": "_local/shard-sync-a-b"}));
    docs.push(json!({"_id": "_local/purge-mrview-a"}));
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
}

#[test]
fn design_documents_are_listed_alone() {
    let server = Server::start();
    let mut client = server.connect();
    create(&mut client);
    let all = client.get("/db/_design_docs").expect_status(200);
    assert_eq!(ids(&all, "rows"), ["_design/d1", "_design/d2", "_design/d3", "_design/d4", "_design/d5"]);
    assert_eq!((&all.json()["total_rows"], &all.json()["offset"]), (&json!(5), &json!(0)));
    let mut rows = |query: &str| ids(&client.get(&format!("/db/_design_docs?{query}")), "rows");
    assert_eq!(rows("key=%22_design/d3%22"), ["_design/d3"]);
    assert_eq!(rows("keys=[%22_design/d2%22,%22a%22,%22_design/no%22]"), ["_design/d2", "-"]);
    assert_eq!(rows("descending=true&limit=1"), ["_design/d5"]);
    assert_eq!(rows("end_key=%22_design/d3%22&inclusive_end=false"), ["_design/d1", "_design/d2"]);
    let query = "end_key=%22_design/d3%22&inclusive_end=false&descending=true";
    assert_eq!(rows(query), ["_design/d5", "_design/d4"]);
    assert_eq!(rows("end_key=%22_design/d5%22&skip=2&limit=2"), ["_design/d3", "_design/d4"]);
    assert_eq!(rows("startkey=%22a%22"), [""; 0]);
    let body = json!({"keys": ["_design/d2", "_design/d3"], "limit": 2, "include_docs": true});
    let posted = client.post("/db/_design_docs?limit=1", &body.to_string()).expect_status(200);
    assert_eq!(ids(&posted, "rows"), ["_design/d2"]);
    assert_eq!(posted.json()["rows"][0]["doc"]["n"], 2);
    assert!(client.get("/db/_design_docs?update_seq=true").json()["update_seq"].is_string());
    let reply = client.put("/db/_design_docs", "{}");
    reply.expect_error(405, "method_not_allowed", "Only GET,HEAD,POST allowed");
    assert_eq!(client.head("/db/_design_docs").status, 200);
}

#[test]
fn local_documents_are_listed_alone() {
    let server = Server::start();
    let mut client = server.connect();
    create(&mut client);
    let all = client.get("/db/_local_docs").expect_status(200).json();
    let row = |id: &str| json!({"id": id, "key": id, "value": {"rev": "0-1"}});
    let expected = json!({"total_rows": null, "offset": null, "rows": [row("_local/x"), row("_local/y")]});
    assert_eq!(all, expected);
    let mut rows = |query: &str| ids(&client.get(&format!("/db/_local_docs?{query}")), "rows");
    let system = ["_local/purge-mrview-a", "_local/shard-sync-a-b", "_local/x", "_local/y"];
    assert_eq!(rows("include_system=true"), system);
    assert_eq!(rows("descending=true&limit=1"), ["_local/y"]);
    assert_eq!(rows("startkey=%22_local/y%22"), ["_local/y"]);
    assert_eq!(rows("endkey=%22_local/y%22&inclusive_end=false"), ["_local/x"]);
    assert_eq!(rows("startkey=%22A%22&skip=1"), ["_local/y"]);
    assert_eq!(rows("startkey=%22a%22"), [""; 0]);
    assert_eq!(rows("endkey=%22A%22"), [""; 0]);
    assert_eq!(rows("keys=[%22_local/y%22,%22a%22,%22_local/no%22]"), ["_local/y", "-"]);
    let docs = client.get("/db/_local_docs?include_docs=true&key=%22_local/y%22").json();
    assert_eq!(docs["rows"][0]["doc"], json!({"_id": "_local/y", "_rev": "0-1", "n": 2}));
    let body = json!({"keys": ["_local/x", "_local/y"]}).to_string();
    let posted = client.post("/db/_local_docs?limit=1&include_docs=true", &body).expect_status(200);
    assert_eq!(posted.json()["rows"][0]["doc"]["n"], 1);
    assert_eq!(ids(&posted, "rows"), ["_local/x"]);
}

#[test]
fn several_lists_come_in_one_answer() {
    let server = Server::start();
    let mut client = server.connect();
    create(&mut client);
    let body = json!({"queries": [
        {"keys": ["b", "none"]},
        {"startkey": "A", "endkey": "a", "limit": 2},
        {"limit": 1, "include_docs": true, "descending": true},
    ]});
    let reply = client.post("/db/_all_docs/queries", &body.to_string()).expect_status(200).json();
    let results = reply["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    assert_eq!(results[0]["rows"][1], json!({"key": "none", "error": "not_found"}));
    assert_eq!(results[1]["rows"].as_array().unwrap().len(), 2);
    assert_eq!(results[2]["rows"][0]["doc"]["_id"], "b");
    let body = json!({"queries": [{}, {"limit": 1}]}).to_string();
    let designs = client.post("/db/_design_docs/queries", &body).json()["results"].clone();
    assert_eq!(designs[0]["rows"].as_array().unwrap().len(), 5);
    assert_eq!(designs[1]["rows"].as_array().unwrap().len(), 1);
    let locals = client.post("/db/_local_docs/queries", &body).json()["results"].clone();
    assert_eq!(locals[0]["rows"].as_array().unwrap().len(), 2);
    assert_eq!(client.post("/db/_all_docs/queries", "{\"queries\":[]}").json(), json!({"results": []}));

    let reply = client.post("/db/_all_docs/queries", "{}");
    reply.expect_error(400, "bad_request", "POST body must include `queries` parameter.");
    let reply = client.post("/db/_all_docs/queries", "{\"queries\":1}");
    reply.expect_error(400, "bad_request", "`queries` member must be an array.");
    client.get("/db/_all_docs/queries").expect_error(405, "method_not_allowed", "Only POST allowed");
    let body = json!({"queries": [{"limit": "x"}]}).to_string();
    let reply = client.post("/db/_all_docs/queries", &body);
    reply.expect_error(400, "query_parse_error", "Invalid value for integer: \"x\"");
}
