//! Partitioned databases, and the shards that databases report.

use serde_json::{Value, json};
use settee_http::ServerOptions;

use crate::client::{Client, Server, ids};

fn create(client: &mut Client) {
    client.put("/db?partitioned=true", "").expect_status(201);
    let mut docs = Vec::new();
    for n in 0..20 {
        docs.push(json!({"_id": format!("{}:{n:02}", if n % 2 == 0 { "foo" } else { "bar" }), "n": n}));
    }
    docs.push(json!({"_id": "foo2:1"}));
    docs.push(json!({"_id": "_design/d"}));
    let reply = client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    assert!(reply.json().as_array().unwrap().iter().all(|row| row["ok"] == true));
}

#[test]
fn a_partitioned_database_says_so_and_stays_so() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let server = Server::start_in(directory.path(), Default::default());
        let mut client = server.connect();
        if round == 0 {
            client.put("/db?partitioned=true", "").expect_status(201);
            client.put("/plain?partitioned=false", "").expect_status(201);
        }
        assert_eq!(client.get("/db").json()["props"], json!({"partitioned": true}));
        assert_eq!(client.get("/plain").json()["props"], json!({}));
        client.put("/db/no-colon", "{}").expect_status(400);
        client.put("/plain/no-colon?batch=ok", "{}");
    }
    let server = Server::start();
    let mut client = server.connect();
    for name in ["_replicator", "_users", "a%2F_users"] {
        let reply = client.put(&format!("/{name}?partitioned=true"), "");
        reply.expect_error(400, "bad_request", "Cannot partition a system database");
    }
    client.put("/_replicator", "").expect_status(201);
}

#[test]
fn ids_must_name_a_partition() {
    let server = Server::start();
    let mut client = server.connect();
    client.put("/db?partitioned=true", "").expect_status(201);
    let form = "Doc id must be of form partition:id";
    let cases = [
        ("no-partition", "illegal_docid", form),
        ("_bad:partition", "illegal_docid", "Only reserved document ids may start with underscore."),
        ("bad:", "illegal_docid", "Document id must not be empty"),
        ("bad:_x", "illegal_docid", "Only reserved document ids may start with underscore."),
        (":x", "illegal_partition", "Partition must not be empty"),
    ];
    for (id, error, reason) in cases {
        client.put(&format!("/db/{id}"), "{}").expect_error(400, error, reason);
        let doc = json!({"_id": id});
        client.post("/db", &doc.to_string()).expect_error(400, error, reason);
        let docs = json!({"docs": [{"_id": "good:1"}, doc]});
        client.post("/db/_bulk_docs", &docs.to_string()).expect_error(400, error, reason);
    }
    client.post("/db", "{}").expect_error(400, "illegal_docid", form);
    client.get("/db/good:1").expect_status(404);
    client.get("/db/no-partition").expect_error(400, "illegal_docid", form);
    let got = client.post("/db/_bulk_get", "{\"docs\":[{\"id\":\"bad\"}]}").expect_status(200).json();
    let error = json!({"id": "bad", "rev": null, "error": "illegal_docid", "reason": form});
    assert_eq!(got, json!({"results": [{"id": "bad", "docs": [{"error": error}]}]}));
    let copied = client.put("/db/good:1", "{}").expect_status(201);
    let reply = client.send("COPY", "/db/good:1", &[("Destination", "bad")], b"");
    reply.expect_error(400, "illegal_docid", form);
    let rev = copied.rev();
    client.post("/db/_purge", &json!({"bad": [rev]}).to_string()).expect_error(400, "illegal_docid", form);
    client.put("/db/_design/d", "{}").expect_status(201);
    client.put("/db/_local/l", "{}").expect_status(201);
    client.put("/db/a:b:c", "{}").expect_status(201);
}

#[test]
fn a_partition_is_listed_alone() {
    let server = Server::start();
    let mut client = server.connect();
    create(&mut client);
    let list = "/db/_partition/foo/_all_docs";
    let all = client.get(list).expect_status(200);
    let expected: Vec<String> = (0..20).step_by(2).map(|n| format!("foo:{n:02}")).collect();
    assert_eq!(ids(&all, "rows"), expected);
    assert_eq!((&all.json()["total_rows"], &all.json()["offset"]), (&json!(10), &json!(0)));
    let mut rows = |query: &str| ids(&client.get(&format!("{list}?{query}")).expect_status(200), "rows");
    assert_eq!(rows("descending=true&limit=2"), ["foo:18", "foo:16"]);
    assert_eq!(rows("skip=8"), ["foo:16", "foo:18"]);
    assert_eq!(rows("startkey=%22a%22&endkey=%22foo:02%22"), ["foo:00", "foo:02"]);
    assert_eq!(rows("startkey=%22foo:16%22&endkey=%22zoo%22"), ["foo:16", "foo:18"]);
    assert_eq!(rows("startkey=%22zoo%22&descending=true&limit=1"), ["foo:18"]);
    assert_eq!(rows("endkey=%22zoo%22&startkey=%22zzz%22&descending=true"), [""; 0]);
    assert_eq!(rows("endkey=%22a%22"), [""; 0]);
    assert_eq!(rows("startkey=%22zoo%22"), [""; 0]);
    assert_eq!(rows("key=%22foo:04%22"), ["foo:04"]);
    assert_eq!(rows("key=%22bar:01%22"), [""; 0]);
    let offset = client.get(&format!("{list}?startkey=%22foo:10%22")).json()["offset"].clone();
    assert_eq!(offset, 5);
    let keys = json!({"keys": ["foo:02", "foo:04"]}).to_string();
    assert_eq!(ids(&client.post(list, &keys).expect_status(200), "rows"), ["foo:02", "foo:04"]);
    let by_option = client.get("/db/_all_docs?partition=foo&limit=1").expect_status(200);
    assert_eq!(ids(&by_option, "rows"), ["foo:00"]);
    assert_eq!(ids(&client.get("/db/_partition/none/_all_docs"), "rows").len(), 0);
}

#[test]
fn a_partition_tells_its_size() {
    let server = Server::start();
    let mut client = server.connect();
    create(&mut client);
    let info = client.get("/db/_partition/foo").expect_status(200).json();
    assert_eq!((&info["db_name"], &info["partition"]), (&json!("db"), &json!("foo")));
    assert_eq!((&info["doc_count"], &info["doc_del_count"]), (&json!(10), &json!(0)));
    let size = |info: &Value| info["sizes"]["active"].as_u64().unwrap();
    let (foo, all) = (size(&info), size(&client.get("/db").json()));
    assert!(foo > 0 && foo < all && info["sizes"]["external"].as_u64() > Some(0));
    let rev = client.get("/db/foo:00").rev_of_document();
    client.delete(&format!("/db/foo:00?rev={rev}")).expect_status(200);
    let after = client.get("/db/_partition/foo").json();
    assert_eq!((&after["doc_count"], &after["doc_del_count"]), (&json!(9), &json!(1)));
    let bar = client.get("/db/_partition/bar").json();
    assert_eq!((&bar["doc_count"], &bar["doc_del_count"]), (&json!(10), &json!(0)));
    let none = client.get("/db/_partition/none").expect_status(200).json();
    assert_eq!((&none["doc_count"], size(&none)), (&json!(0), 0));
    assert_eq!(client.head("/db/_partition/foo").status, 200);
}

#[test]
fn bad_requests_for_partitions_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    create(&mut client);
    client.create("plain");
    client.get("/db/_partition").expect_error(400, "bad_request", "invalid_partition_req");
    let reason = "Partition must not start with an underscore";
    client.get("/db/_partition/_foo").expect_error(400, "illegal_partition", reason);
    client.get("/db/_partition/_foo/_all_docs").expect_error(400, "illegal_partition", reason);
    client.get("/db/_partition//_all_docs").expect_error(400, "illegal_partition", reason);
    let colon = "Partition must not contain a colon";
    client.get("/db/_partition/a:b").expect_error(400, "illegal_partition", colon);
    client.put("/db/_partition/foo", "").expect_error(405, "method_not_allowed", "Only GET allowed");
    client.get("/db/_partition/foo/_nothing").expect_error(404, "not_found", "missing");
    let conflict = "Conflicting value for `partition` in query string";
    client.get("/db/_partition/foo/_all_docs?partition=bar").expect_error(400, "bad_request", conflict);
    for path in ["foo", "foo/_all_docs"] {
        let reply = client.get(&format!("/plain/_partition/{path}"));
        reply.expect_error(400, "bad_request", "database is not partitioned");
    }
    let reason = "`partition` parameter is not supported on this db";
    client.get("/plain/_all_docs?partition=foo").expect_error(400, "query_parse_error", reason);
}

#[test]
fn there_is_one_shard() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let shards = client.get("/db/_shards").expect_status(200).json();
    let nodes = &shards["shards"]["00000000-ffffffff"];
    assert_eq!(nodes.as_array().map(Vec::len), Some(1));
    assert_eq!(*nodes, client.get("/_membership").json()["all_nodes"]);
    let shard = client.get("/db/_shards/any%2Fid").expect_status(200).json();
    assert_eq!(shard, json!({"range": "00000000-ffffffff", "nodes": nodes}));
    client.post("/db/_shards", "").expect_error(405, "method_not_allowed", "Only GET allowed");
    assert_eq!(client.post("/db/_sync_shards", "").expect_status(202).text(), "{\"ok\":true}\n");
    client.get("/db/_sync_shards").expect_error(405, "method_not_allowed", "Only POST allowed");
}

#[test]
fn the_shards_that_were_asked_for_are_reported_and_outlive_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_in(directory.path(), ServerOptions::default());
    let mut client = server.connect();
    client.put("/two?q=2&n=1", "").expect_status(201);
    client.put("/three?q=3&partitioned=true", "").expect_status(201);
    let reason = "The `q` value should be at most 1024.";
    client.put("/many?q=1025", "").expect_error(400, "bad_request", reason);
    client.get("/many").expect_status(404);
    drop((client, server));

    let server = Server::start_in(directory.path(), ServerOptions::default());
    let mut client = server.connect();
    for (name, ranges) in [
        ("two", &["00000000-7fffffff", "80000000-ffffffff"][..]),
        ("three", &["00000000-55555554", "55555555-aaaaaaa9", "aaaaaaaa-ffffffff"][..]),
    ] {
        let info = client.get(&format!("/{name}")).json();
        assert_eq!(info["cluster"], json!({"q": ranges.len(), "n": 1, "w": 1, "r": 1}));
        let shards = client.get(&format!("/{name}/_shards")).expect_status(200).json();
        let shards = shards["shards"].as_object().unwrap();
        assert_eq!(shards.keys().collect::<Vec<_>>(), ranges);
    }
    // By the CRC-32 of the id, or of the partition: a e8b7be43, b 71beeff9, p 82079eb1.
    for (path, range) in [
        ("/two/_shards/a", "80000000-ffffffff"),
        ("/two/_shards/b", "00000000-7fffffff"),
        ("/three/_shards/p:1", "55555555-aaaaaaa9"),
        ("/three/_shards/p:2", "55555555-aaaaaaa9"),
    ] {
        assert_eq!(client.get(path).expect_status(200).json()["range"], range, "{path}");
    }
}

#[test]
fn views_are_cleaned_up_and_compacted_where_their_document_is_there() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.post("/db/_view_cleanup", "").expect_status(202);
    client.send("POST", "/db/_view_cleanup", &[], b"").expect_status(415);
    client.get("/db/_view_cleanup").expect_error(405, "method_not_allowed", "Only POST allowed");
    client.post("/db/_compact/d", "").expect_error(404, "not_found", "missing");
    client.put("/db/_design/d", "{}").expect_status(201);
    assert_eq!(client.post("/db/_compact/d", "").expect_status(202).text(), "{\"ok\":true}\n");
    client.get("/db/_compact/d").expect_error(405, "method_not_allowed", "Only POST allowed");
    client.send("POST", "/db/_compact/d", &[], b"").expect_status(415);
}

#[test]
fn a_full_partition_takes_nothing_that_makes_it_larger() {
    let server = Server::start();
    let mut client = server.connect();
    client.put("/db?partitioned=true", "").expect_status(201);
    client.create("plain");
    const KEY: &str = "/_node/_local/_config/couchdb/max_partition_size";
    assert_eq!(client.get(KEY).expect_status(200).json(), "10737418240");
    client.put(KEY, "\"5000\"").expect_status(200);
    let large = json!({"text": "x".repeat(6000)}).to_string();
    let rev = client.put("/db/foo:a", "{\"n\":1}").expect_status(201).rev();
    // The write that exceeds the limit is accepted.
    client.put("/db/foo:b", &large).expect_status(201);
    let reason = "Partition limit exceeded due to update on 'foo:c'";
    client.put("/db/foo:c", "{\"n\":1}").expect_error(403, "partition_overflow", reason);
    let docs = json!({"docs": [{"_id": "foo:c", "n": 1}, {"_id": "bar:c"}, {"_id": "foo:a", "_rev": rev, "n": "more"}]});
    let rows = client.post("/db/_bulk_docs", &docs.to_string()).expect_status(201).json();
    let errors: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["error"].as_str()).collect();
    assert_eq!(errors, [Some("partition_overflow"), None, Some("partition_overflow")]);
    // Writes that don't enlarge the partition, design documents and replicas are accepted; so is every write
    // to a partition below the limit.
    client.put(&format!("/db/foo:a?rev={rev}"), "{\"m\":2}").expect_status(201);
    client.put("/db/_design/d", "{\"language\":\"x\"}").expect_status(201);
    let replica = json!({"_rev": format!("1-{}", "a".repeat(32)), "n": 1}).to_string();
    client.put("/db/foo:d?new_edits=false", &replica).expect_status(201);
    client.put("/plain/foo:a", &large).expect_status(201);
    client.put("/plain/foo:b", &large).expect_status(201);
    client.put("/db/foo:e/file", &large).expect_status(403);
    let rev = client.get("/db/foo:b").json()["_rev"].as_str().unwrap().to_owned();
    client.delete(&format!("/db/foo:b?rev={rev}")).expect_status(200);
    client.put("/db/foo:c", "{\"n\":1}").expect_status(201);
    client.put(KEY, "\"0\"").expect_status(200);
    client.put("/db/foo:f", &large).expect_status(201);
    client.put("/db/foo:g", "{}").expect_status(201);
}
