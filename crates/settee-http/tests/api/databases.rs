//! Databases, and the server's information on itself.

use serde_json::json;

use crate::client::{Server, ids};

#[test]
fn a_browser_that_shows_a_document_gets_a_page_and_its_scripts_get_json() {
    let server = Server::start();
    let mut client = server.connect();
    let page = client.send("GET", "/", &[("Sec-Fetch-Dest", "document"), ("Accept", "*/*")], b"");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.status == 200 && page.text().contains("<h1>Settee"), "{page:?}");
    for headers in [&[][..], &[("Sec-Fetch-Dest", "empty")], &[("Accept", "text/html")]] {
        let reply = client.send("GET", "/", headers, b"").expect_status(200);
        assert_eq!(reply.json()["couchdb"], "Welcome");
        assert_eq!(reply.header("vary"), Some("Sec-Fetch-Dest"));
    }
}

#[test]
fn the_welcome_names_version_and_vendor() {
    let server = Server::start();
    let reply = server.connect().get("/").expect_status(200);
    let welcome = reply.json();
    assert_eq!(welcome["couchdb"], "Welcome");
    assert_eq!(welcome["version"], "3.5.0");
    assert_eq!(welcome["features"], json!(["partitioned"]));
    assert_eq!(welcome["vendor"]["name"], "Settee");
    assert_eq!(welcome["uuid"].as_str().map(str::len), Some(32));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("cache-control"), Some("must-revalidate"));
    assert!(reply.header("server").unwrap().starts_with("Settee/"));
    assert!(reply.header("server").unwrap().ends_with(" CouchDB/3.5.0"));
    assert!(reply.header("date").is_some());
}

#[test]
fn a_healthy_server_is_up() {
    let reply = Server::start().connect().get("/_up").expect_status(200);
    assert_eq!(reply.json(), json!({"status": "ok", "seeds": {}}));
}

#[test]
fn a_database_is_created_told_of_and_deleted() {
    let server = Server::start();
    let mut client = server.connect();
    client.get("/db").expect_error(404, "not_found", "Database does not exist.");
    assert_eq!(client.head("/db").status, 404);

    let created = client.put("/db", "").expect_status(201);
    assert_eq!(created.text(), "{\"ok\":true}\n");
    assert_eq!(created.header("location"), Some(&*format!("http://{}/db", server.address)));

    let info = client.get("/db").expect_status(200).json();
    assert_eq!(
        (&info["db_name"], &info["doc_count"], &info["doc_del_count"]),
        (&json!("db"), &json!(0), &json!(0))
    );
    assert!(info["update_seq"].as_str().unwrap().starts_with("0-"));
    assert!(info["purge_seq"].is_string() && info["instance_start_time"].is_string());
    assert!(info["sizes"]["file"].is_u64() && info["sizes"]["active"].is_u64());
    assert_eq!((&info["compact_running"], &info["props"]), (&json!(false), &json!({})));
    assert_eq!(client.head("/db").status, 200);

    let deleted = client.delete("/db").expect_status(200);
    assert_eq!(deleted.text(), "{\"ok\":true}\n");
    client.delete("/db").expect_error(404, "not_found", "Database does not exist.");
}

#[test]
fn a_database_made_anew_has_another_start_time() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let first = client.get("/db").json()["instance_start_time"].clone();
    assert_eq!(client.get("/db").json()["instance_start_time"], first);
    client.delete("/db").expect_status(200);
    client.create("db");
    assert_ne!(client.get("/db").json()["instance_start_time"], first);
}

#[test]
fn a_name_is_taken_once() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reason = "The database could not be created, the file already exists.";
    client.put("/db", "").expect_error(412, "file_exists", reason);
}

#[test]
fn illegal_names_are_refused_with_the_rule() {
    let server = Server::start();
    let mut client = server.connect();
    for name in ["Upper", "1st", "_private", "a.b", "a%20b", "caf%C3%A9"] {
        let reply = client.put(&format!("/{name}"), "").expect_status(400);
        let json = reply.json();
        assert_eq!(json["error"], "illegal_database_name", "{name}");
        assert!(json["reason"].as_str().unwrap().contains("Only lowercase characters (a-z)"), "{name}");
    }
}

#[test]
fn legal_names_hold_slashes_and_signs() {
    let server = Server::start();
    let mut client = server.connect();
    for path in ["a%2Fb", "a%2Bb", "a_$()-1", "_users", "_replicator"] {
        client.put(&format!("/{path}"), "").expect_status(201);
        client.get(&format!("/{path}/")).expect_status(200);
    }
    let names = client.get("/_all_dbs").json();
    assert_eq!(names, json!(["_replicator", "_users", "a+b", "a/b", "a_$()-1"]));
}

#[test]
fn no_password_and_no_replication_is_stored_where_nothing_acts_on_it() {
    let server = Server::start();
    let mut client = server.connect();
    let user = r#"{"_id":"org.couchdb.user:ann","name":"ann","password":"secret","roles":[],"type":"user"}"#;
    for name in ["_users", "_replicator", "a%2F_replicator"] {
        client.put(&format!("/{name}"), "").expect_status(201);
        client.put(&format!("/{name}/org.couchdb.user:ann"), user).expect_status(501);
        client.post(&format!("/{name}"), user).expect_status(501);
        client.post(&format!("/{name}/_bulk_docs"), &format!("{{\"docs\":[{user}]}}")).expect_status(501);
        assert_eq!(client.get(&format!("/{name}/_all_docs")).json()["total_rows"], 0);
        client.put(&format!("/{name}/_local/checkpoint"), "{}").expect_status(201);
        client.get(&format!("/{name}/org.couchdb.user:ann")).expect_status(404);
    }
}

#[test]
fn all_dbs_takes_a_range() {
    let server = Server::start();
    let mut client = server.connect();
    for name in ["a", "b", "c", "d"] {
        client.create(name);
    }
    let cases = [
        ("", json!(["a", "b", "c", "d"])),
        ("?startkey=\"b\"&endkey=\"c\"", json!(["b", "c"])),
        ("?start_key=\"b\"&inclusive_end=false&end_key=\"d\"", json!(["b", "c"])),
        ("?descending=true&startkey=\"c\"&endkey=\"b\"", json!(["c", "b"])),
        ("?limit=2&skip=1", json!(["b", "c"])),
        ("?key=\"c\"", json!(["c"])),
    ];
    for (query, names) in cases {
        let path = format!("/_all_dbs{}", query.replace('"', "%22"));
        assert_eq!(client.get(&path).expect_status(200).json(), names, "{query}");
    }
    let bad = client.get("/_all_dbs?limit=x");
    bad.expect_error(400, "query_parse_error", "Invalid value for integer: \"x\"");
}

#[test]
fn a_list_of_databases_that_is_known_is_not_sent_again() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let first = client.get("/_all_dbs").expect_status(200);
    let tag = first.header("etag").unwrap().to_owned();
    let again = [("If-None-Match", &*tag)];
    assert_eq!(client.send("GET", "/_all_dbs", &again, b"").status, 304);
    assert_eq!(client.head("/_all_dbs").header("etag"), Some(&*tag));
    client.create("other");
    assert_eq!(ids_of(&client.send("GET", "/_all_dbs", &again, b"").expect_status(200)), ["db", "other"]);
}

/// The names in a response that is a list of names.
fn ids_of(reply: &crate::client::Reply) -> Vec<String> {
    serde_json::from_slice(&reply.body).unwrap()
}

#[test]
fn uuids_are_as_many_as_asked_for_and_never_cached() {
    let server = Server::start();
    let mut client = server.connect();
    let reply = client.get("/_uuids?count=3").expect_status(200);
    assert_eq!(reply.json()["uuids"].as_array().unwrap().len(), 3);
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("pragma"), Some("no-cache"));
    assert_eq!(client.get("/_uuids").json()["uuids"].as_array().unwrap().len(), 1);
    assert_eq!(client.get("/_uuids?count=0").json()["uuids"], json!([]));
    client.get("/_uuids?count=1001").expect_error(400, "bad_request", "count parameter too large");
    for bad in ["-1", "x", "1.5"] {
        let reply = client.get(&format!("/_uuids?count={bad}"));
        reply.expect_error(400, "bad_request", "count must be a positive integer");
    }
}

#[test]
fn a_commit_barrier_tells_the_start_time() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a?batch=ok", "{}").expect_status(202);
    let reply = client.post("/db/_ensure_full_commit", "").expect_status(201);
    assert_eq!(reply.json()["ok"], true);
    assert_eq!(reply.json()["instance_start_time"], client.get("/db").json()["instance_start_time"]);
    // Writes accepted before are persisted, and so visible.
    client.get("/db/a").expect_status(200);
}

#[test]
fn a_posted_document_gets_an_id() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reply = client.post("/db", "{\"n\":1}").expect_status(201);
    let id = reply.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(id.len(), 32);
    assert_eq!(reply.header("location"), Some(&*format!("http://{}/db/{id}", server.address)));
    assert_eq!(client.get(&format!("/db/{id}")).json()["n"], 1);
    let named = client.post("/db", "{\"_id\":\"x/y\"}").expect_status(201);
    assert_eq!(named.json()["id"], "x/y");
    assert_eq!(ids(&client.get("/db/_all_docs"), "rows").len(), 2);
    client.post("/db", "{\"_id\":\"x/y\"}").expect_error(409, "conflict", "Document update conflict.");
}

#[test]
fn deleting_a_database_by_a_documents_revision_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reason =
        "You tried to DELETE a database with a ?=rev parameter. Did you mean to DELETE a document instead?";
    client.delete("/db?rev=1-abc").expect_error(400, "bad_request", reason);
    client.get("/db").expect_status(200);
}

#[test]
fn options_of_creation_are_checked() {
    let server = Server::start();
    let mut client = server.connect();
    client.put("/db?q=0", "").expect_error(400, "bad_request", "The `q` value should be a positive integer.");
    client.put("/db?n=x", "").expect_error(400, "bad_request", "The `n` value should be a positive integer.");
    client.put("/db?partitioned=x", "").expect_error(400, "bad_request", "Invalid `partitioned` parameter");
    client.put("/db?engine=x", "").expect_error(400, "bad_request", "invalid_engine_extension");
    let reason = "The `placement` value should be in a format `zone:n`.";
    for bad in ["", "moon", "moon:eagle", "az:1,co:moon", "az:0", ":1"] {
        client.put(&format!("/db?placement={bad}"), "").expect_error(400, "bad_request", reason);
    }
    client.put("/db?q=8&n=1&engine=couch&placement=az:1,co:3", "").expect_status(201);
}
