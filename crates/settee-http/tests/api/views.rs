//! Goal: views answer as CouchDB's do: rows, groups, options and errors; and a faulty function harms only its view.
//! Method: requests over HTTP, compared with what CouchDB 3.5.0 was observed to answer.

use serde_json::{Value, json};

use crate::client::{Client, Reply, Server};

const BY_N: &str = "function (doc) { if (doc.n !== undefined) emit(doc.n, doc.t); }";

/// Stores a design document with these views.
fn design(client: &mut Client, views: Value) {
    client.put("/db/_design/d", &json!({"views": views}).to_string()).expect_status(201);
}

/// Stores documents `d0` to `d9` with `n` and `t`.
fn ten(client: &mut Client) {
    let docs: Vec<Value> =
        (0..10).map(|n| json!({"_id": format!("d{n}"), "n": n, "t": format!("t{}", n % 3)})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
}

fn start() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    (server, client)
}

/// A query of the view `a`, with a query string whose JSON is encoded here.
fn query(client: &mut Client, options: &str) -> Reply {
    client.get(&path("a", options))
}

fn path(view: &str, options: &str) -> String {
    let mut encoded = String::new();
    for byte in options.bytes() {
        match byte {
            b'"' | b'[' | b']' | b'{' | b'}' | b' ' | b'\\' => encoded.push_str(&format!("%{byte:02X}")),
            byte => encoded.push(char::from(byte)),
        }
    }
    format!("/db/_design/d/_view/{view}?{encoded}")
}

/// The keys of a result's rows.
fn keys(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["rows"].as_array().unwrap().iter().map(|row| row["key"].clone()).collect()
}

#[test]
fn rows_are_written_as_couchdb_writes_them() {
    let (_server, mut client) = start();
    design(&mut client, json!({"a": {"map": BY_N}}));
    assert_eq!(query(&mut client, "").text(), "{\"total_rows\":0,\"offset\":0,\"rows\":[\r\n\r\n]}\n");
    ten(&mut client);
    let expected = "{\"total_rows\":10,\"offset\":3,\"rows\":[\r\n\
                    {\"id\":\"d3\",\"key\":3,\"value\":\"t0\"},\r\n\
                    {\"id\":\"d4\",\"key\":4,\"value\":\"t1\"}\r\n]}\n";
    assert_eq!(query(&mut client, "startkey=3&endkey=4").text(), expected);
    assert_eq!(client.post("/db/_design/d/_view/a", "{\"start_key\":3,\"end_key\":4}").text(), expected);
    assert_eq!(client.head("/db/_design/d/_view/a").status, 200);
    assert_eq!(
        query(&mut client, "sorted=false&key=1").text(),
        "{\"rows\":[\r\n{\"id\":\"d1\",\"key\":1,\"value\":\"t1\"}\r\n]}\n"
    );
}

#[test]
fn options_select_rows() {
    let (_server, mut client) = start();
    design(&mut client, json!({"a": {"map": BY_N}}));
    ten(&mut client);
    let cases = [
        ("limit=2", vec![0, 1], 0),
        ("skip=8", vec![8, 9], 8),
        ("skip=20", vec![], 10),
        ("descending=true&limit=2", vec![9, 8], 0),
        ("descending=true&startkey=4&limit=2", vec![4, 3], 5),
        ("descending=TRUE&startkey=4&endkey=3&inclusive_end=false", vec![4], 5),
        ("startkey=8.5", vec![9], 9),
        ("endkey=1&inclusive_end=false", vec![0], 0),
        ("key=5", vec![5], 5),
        ("key=5&inclusive_end=false", vec![], 5),
        ("key=5.5", vec![], 6),
        ("keys=[7,3,7,100]", vec![7, 3, 7], 7),
        ("keys=[7,3,1]&skip=1&limit=1", vec![3], 8),
        ("keys=[7,3]&descending=true", vec![3, 7], 6),
        ("keys=[2]&key=1", vec![2], 2),
        ("keys=[]&startkey=3&endkey=1", vec![], 0),
        ("startkey=3&startkey_docid=d9&limit=1", vec![4], 4),
        ("startkey=3&endkey=3&endkey_docid=d2", vec![], 3),
        ("startkey=1&endkey=2&limit=0", vec![], 1),
        ("startkey=5&startkey=8&unknown=x", vec![8, 9], 8),
        ("limit=1&stable=true&update=true", vec![0], 0),
    ];
    for (options, expected, offset) in cases {
        let reply = query(&mut client, options);
        assert_eq!(
            keys(&reply),
            expected.iter().map(|key: &i32| json!(key)).collect::<Vec<_>>(),
            "{options}"
        );
        assert_eq!(
            (&reply.json()["total_rows"], &reply.json()["offset"]),
            (&json!(10), &json!(offset)),
            "{options}"
        );
    }
}

#[test]
fn bad_options_have_the_errors_of_couchdb() {
    let (_server, mut client) = start();
    let views = json!({"a": {"map": BY_N}, "r": {"map": BY_N, "reduce": "_count"}});
    design(&mut client, views);
    let parse_errors = [
        ("a", "limit=-1", "Invalid value for positive integer: \"-1\""),
        ("a", "skip=abc", "Invalid value for integer: \"abc\""),
        ("a", "limit=1.5", "Invalid value for integer: \"1.5\""),
        ("a", "descending=x", "Invalid boolean parameter: \"x\""),
        (
            "a",
            "startkey=3&endkey=1",
            "No rows can match your key range, reverse your start_key and end_key or set descending=true",
        ),
        (
            "a",
            "startkey=1&endkey=3&descending=true",
            "No rows can match your key range, reverse your start_key and end_key or set descending=false",
        ),
        ("a", "group=true", "Invalid use of grouping on a map view."),
        ("a", "group_level=1", "Invalid use of grouping on a map view."),
        ("r", "reduce=false&group=true", "Invalid use of grouping on a map view."),
        ("a", "reduce=true", "Reduce is invalid for map-only views."),
        ("r", "group=false&group_level=1", "Can't specify group=false and group_level>0 at the same time"),
        ("r", "include_docs=true", "`include_docs` is invalid for reduce"),
        ("r", "conflicts=true", "`conflicts` is invalid for reduce views."),
        ("a", "stale=x", "Invalid value for `stale`."),
        ("a", "update=x", "Invalid value for `update`."),
        ("a", "keys=[1,2]&key=1", "`keys` is incompatible with `key`, `start_key` and `end_key`"),
        ("a", "keys=1", "`keys` must be an array of strings."),
        ("r", "keys=[1,2]", "Multi-key fetches for reduce views must use `group=true`"),
        ("r", "keys=[]", "Multi-key fetches for reduce views must use `group=true`"),
    ];
    for (view, options, reason) in parse_errors {
        client.get(&path(view, options)).expect_error(400, "query_parse_error", reason);
    }
    query(&mut client, "key=x").expect_error(400, "bad_request", "invalid UTF-8 JSON");
    let post = |client: &mut Client, body: &str| client.post("/db/_design/d/_view/a", body);
    post(&mut client, "{\"keys\":1}").expect_error(400, "bad_request", "`keys` member must be an array.");
    for option in ["limit", "skip", "group_level"] {
        let (text, number) = (format!("{{\"{option}\":\"1\"}}"), format!("{{\"{option}\":0}}"));
        let reason = "Invalid value for integer: \"1\"";
        post(&mut client, &text).expect_error(400, "query_parse_error", reason);
        let queries = format!("{{\"queries\":[{text}]}}");
        let reply = client.post("/db/_design/d/_view/a/queries", &queries);
        reply.expect_error(400, "query_parse_error", reason);
        post(&mut client, &number).expect_status(200);
    }
    post(&mut client, "{\"descending\":\"TRUE\"}").expect_status(200);
    post(&mut client, "[]").expect_error(400, "bad_request", "Request body must be a JSON object");
    let reason = "The `queries` parameter is no longer supported at this endpoint";
    post(&mut client, "{\"queries\":[]}").expect_error(400, "bad_request", reason);
    let reply = client.send("POST", "/db/_design/d/_view/a", &[("Content-Type", "text/plain")], b"{}");
    assert_eq!(reply.status, 415);
    client.delete("/db/_design/d/_view/a").expect_error(
        405,
        "method_not_allowed",
        "Only GET,POST,HEAD allowed",
    );
    client.get("/db/_design/d/_view/none").expect_error(404, "not_found", "missing_named_view");
    client.get("/db/_design/none/_view/a").expect_error(404, "not_found", "missing");
}

#[test]
fn built_in_functions_reduce_ranges_and_groups() {
    let (_server, mut client) = start();
    let map = "function (doc) { emit([doc.n % 2, doc.n], doc.n); }";
    let reduces =
        ["_sum", "_count", "_stats", "_approx_count_distinct", "_top_2", "_bottom_2", "_first", "_last"];
    let mut views = json!({"js": {"map": map, "reduce": "function (k, v, r) { return sum(v); }"}});
    for reduce in reduces {
        views[&reduce[1..]] = json!({"map": map, "reduce": reduce});
    }
    views["texts"] = json!({"map": "function (doc) { emit(doc.t, doc.t); }", "reduce": "_sum"});
    views["bad_stats"] = json!({"map": "function (doc) { emit(doc.t, null); }", "reduce": "_stats"});
    design(&mut client, views);
    ten(&mut client);
    let value = |client: &mut Client, view: &str, options: &str| -> Value {
        let reply = client.get(&path(view, options)).expect_status(200).json();
        reply["rows"].as_array().unwrap().iter().map(|row| json!([row["key"], row["value"]])).collect()
    };
    let stats = json!({"sum": 45, "count": 10, "min": 0, "max": 9, "sumsqr": 285});
    for (view, all) in [
        ("sum", json!(45)),
        ("js", json!(45)),
        ("count", json!(10)),
        ("stats", stats),
        ("approx_count_distinct", json!(10)),
        ("top_2", json!([9, 8])),
        ("bottom_2", json!([0, 1])),
        ("first", json!(0)),
        ("last", json!(9)),
    ] {
        assert_eq!(value(&mut client, view, ""), json!([[null, all]]), "{view}");
    }
    assert_eq!(value(&mut client, "sum", "group_level=1"), json!([[[0], 20], [[1], 25]]));
    assert_eq!(value(&mut client, "js", "group_level=1&descending=true"), json!([[[1], 25], [[0], 20]]));
    assert_eq!(value(&mut client, "sum", "group=true&skip=1&limit=1"), json!([[[0, 2], 2]]));
    assert_eq!(value(&mut client, "sum", "group=true&group_level=0"), json!([[null, 45]]));
    assert_eq!(value(&mut client, "count", "startkey=[1]&endkey=[1,5]"), json!([[null, 3]]));
    assert_eq!(value(&mut client, "count", "startkey=[2]"), json!([]));
    assert_eq!(
        value(&mut client, "js", "group=true&keys=[[1,3],[0,2],[5]]"),
        json!([[[1, 3], 3], [[0, 2], 2]])
    );
    assert_eq!(keys(&client.get(&path("sum", "reduce=false&limit=1"))), [json!([0, 0])]);
    let texts = client.get(&path("texts", "")).expect_status(200).json();
    assert_eq!(texts["rows"][0]["value"]["error"], "builtin_reduce_error");
    let reason = "non-numeric _stats input: null";
    client.get(&path("bad_stats", "")).expect_error(500, "invalid_value", reason);
    assert_eq!(keys(&client.get(&path("bad_stats", "reduce=false&limit=1"))), [json!("t0")]);
}

#[test]
fn documents_are_included_also_linked_ones() {
    let (_server, mut client) = start();
    let map = "function (doc) { if (doc.link) emit(doc._id, doc.link); else if (doc.n) emit(doc._id, 1); }";
    design(&mut client, json!({"a": {"map": map}}));
    let rev = client.put("/db/x", "{\"n\":1}").expect_status(201).rev();
    client.put("/db/x", &json!({"n": 2, "_rev": rev}).to_string()).expect_status(201);
    for (id, link) in [
        ("l1", json!({"_id": "x"})),
        ("l2", json!({"_id": "x", "_rev": rev})),
        ("l3", json!({"_id": "none"})),
        ("l4", json!({"_id": 1})),
        ("l5", json!({"_rev": "junk"})),
        ("l6", json!({"other": 1})),
    ] {
        client.put(&format!("/db/{id}"), &json!({"link": link}).to_string()).expect_status(201);
    }
    let reply = query(&mut client, "include_docs=true").expect_status(200).json();
    let docs: Vec<Value> = reply["rows"].as_array().unwrap().iter().map(|row| row["doc"].clone()).collect();
    assert_eq!((&docs[0]["n"], &docs[1]["n"]), (&json!(2), &json!(1)));
    assert_eq!((&docs[2], &docs[3], &docs[4]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!((&docs[5]["_id"], &docs[6]["n"]), (&json!("l6"), &json!(2)));
}

#[test]
fn several_queries_are_answered_at_once() {
    let (_server, mut client) = start();
    design(&mut client, json!({"a": {"map": BY_N}}));
    ten(&mut client);
    let path = "/db/_design/d/_view/a/queries";
    let body = json!({"queries": [{"key": 1}, {"limit": 1, "descending": true}, {"keys": [2, 3]}]});
    let reply = client.post(path, &body.to_string()).expect_status(200).json();
    let results = reply["results"].as_array().unwrap();
    let found: Vec<Vec<&Value>> = results
        .iter()
        .map(|result| result["rows"].as_array().unwrap().iter().map(|row| &row["key"]).collect())
        .collect();
    assert_eq!(json!(found), json!([[1], [9], [2, 3]]));
    let bad = json!({"queries": [{"key": 1}, {"limit": -1}]});
    assert_eq!(client.post(path, &bad.to_string()).status, 400);
    client.post(path, "{}").expect_error(400, "bad_request", "POST body must include `queries` parameter.");
}

#[test]
fn a_faulty_function_stops_only_its_own_view() {
    let (_server, mut client) = start();
    let fatal = "function (doc) { if (doc.n == 2) throw 'fatal_error'; emit(doc.n); }";
    design(
        &mut client,
        json!({
            "good": {"map": BY_N},
            "throws": {"map": "function (doc) { emit(1); if (doc.n == 3) throw new Error('x'); }"},
            "fatal": {"map": fatal},
            "loops": {"map": "function (doc) { if (doc.n == 4) while (true) {} emit(doc.n); }"},
            "grows": {"map": "function (doc) { var a = []; while (doc.n == 5) a.push(new Array(1000)); emit(doc.n); }"},
            "many": {"map": "function (doc) { if (doc.n == 6) for (var i = 0; i < 100000; i++) emit(i); }"},
            "large": {"map": "function (doc) { if (doc.n == 7) emit(1, new Array(10000001).join('x')); }"},
        }),
    );
    ten(&mut client);
    assert_eq!(keys(&client.get(&path("good", ""))).len(), 10);
    assert_eq!(keys(&client.get(&path("throws", ""))).len(), 9);
    client.get(&path("fatal", "")).expect_error(500, "map_runtime_error", "function raised 'fatal_error'");
    client.get(&path("loops", "")).expect_error(500, "os_process_error", "OS process timed out.");
    assert_eq!(client.get(&path("grows", "")).status, 500);
    assert_eq!(client.get(&path("many", "limit=0")).expect_status(200).json()["total_rows"], 100_000);
    let large = client.get(&path("large", "")).expect_status(200).json();
    assert_eq!(large["rows"][0]["value"].as_str().unwrap().len(), 10_000_000);
    let info = client.get("/db/_design/d/_info").expect_status(200).json();
    let stopped: Vec<&String> = info["view_index"]["stopped"].as_object().unwrap().keys().collect();
    assert_eq!(stopped, ["fatal", "loops", "grows"]);
    // A changed function is another index.
    let rev = client.get("/db/_design/d").json()["_rev"].clone();
    let views = json!({"good": {"map": BY_N}, "fatal": {"map": BY_N}});
    client.put("/db/_design/d", &json!({"_rev": rev, "views": views}).to_string()).expect_status(201);
    assert_eq!(keys(&client.get(&path("fatal", ""))).len(), 10);
}

#[test]
fn a_view_may_be_read_as_it_was_built() {
    let (_server, mut client) = start();
    let map = "function (doc) { emit(doc.n); }";
    let body = json!({"autoupdate": false, "views": {"a": {"map": map}}});
    client.put("/db/_design/d", &body.to_string()).expect_status(201);
    ten(&mut client);
    assert_eq!(keys(&query(&mut client, "update=false")).len(), 0);
    assert_eq!(keys(&query(&mut client, "")).len(), 10);
    client.put("/db/e", "{\"n\":10}").expect_status(201);
    assert_eq!(keys(&query(&mut client, "stale=ok")).len(), 10);
    assert_eq!(keys(&query(&mut client, "update=lazy")).len(), 10);
    let begun = std::time::Instant::now();
    while keys(&query(&mut client, "update=false")).len() < 11 {
        assert!(begun.elapsed().as_secs() < 30, "it is built afterwards");
    }
    let info = client.get("/db/_design/d/_info").expect_status(200).json();
    assert_eq!(info["view_index"]["updates_pending"]["total"], 0);
    assert_eq!(info["view_index"]["language"], "javascript");
    assert!(info["view_index"]["runs"]["a"].as_str().unwrap().starts_with("plan: "), "{info}");
}

#[test]
fn indexes_go_with_their_design_documents_and_databases() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_in(directory.path(), settee_http::ServerOptions::default());
    let mut client = server.connect();
    client.create("db");
    let files = || -> usize {
        let indexes = std::fs::read_dir(directory.path().join("views")).into_iter().flatten();
        indexes.map(|entry| std::fs::read_dir(entry.unwrap().path()).unwrap().count()).sum()
    };
    design(&mut client, json!({"a": {"map": BY_N}, "b": {"map": "function (doc) {}"}}));
    ten(&mut client);
    query(&mut client, "").expect_status(200);
    assert_eq!(files(), 2);
    let rev = client.get("/db/_design/d").json()["_rev"].clone();
    let body = json!({"_rev": rev, "views": {"renamed": {"map": BY_N}}});
    client.put("/db/_design/d", &body.to_string()).expect_status(201);
    client.post("/db/_view_cleanup", "").expect_status(202);
    assert_eq!(files(), 1);
    assert_eq!(keys(&client.get(&path("renamed", "update=false"))).len(), 10, "nothing is built anew");
    client.delete("/db").expect_status(200);
    assert_eq!(files(), 0);
}

#[test]
fn a_view_of_a_partitioned_database_is_of_one_partition() {
    let server = Server::start();
    let mut client = server.connect();
    client.put("/db?partitioned=true", "").expect_status(201);
    design(
        &mut client,
        json!({"a": {"map": BY_N}, "r": {"map": "function (doc) { emit(1, doc.n); }", "reduce": "_sum"}}),
    );
    let global = json!({"options": {"partitioned": false}, "views": {"a": {"map": BY_N}}});
    client.put("/db/_design/g", &global.to_string()).expect_status(201);
    for (id, n) in [("p:1", 1), ("p:2", 2), ("q:1", 3)] {
        client.put(&format!("/db/{id}"), &json!({"n": n}).to_string()).expect_status(201);
    }
    let reply = client.get("/db/_partition/p/_design/d/_view/a").expect_status(200);
    assert_eq!(keys(&reply), [json!(1), json!(2)]);
    assert_eq!(reply.json()["total_rows"], 2);
    assert_eq!(client.get("/db/_partition/q/_design/d/_view/r").json()["rows"][0]["value"], 3);
    let reason = "`partition` parameter is mandatory for queries to this view.";
    query(&mut client, "").expect_error(400, "query_parse_error", reason);
    let reason = "`partition` parameter is not supported in this design doc";
    client.get("/db/_partition/p/_design/g/_view/a").expect_error(400, "query_parse_error", reason);
    assert_eq!(keys(&client.get("/db/_design/g/_view/a")).len(), 3);
}

#[test]
fn a_level_keeps_arrays_apart_that_are_shorter_than_it() {
    let (_server, mut client) = start();
    design(&mut client, json!({"a": {"map": "function (doc) { emit(doc.k, doc.n); }", "reduce": "_sum"}}));
    let keys =
        [json!([]), json!([2024]), json!([2024, 5]), json!([2024, 5, 1]), json!([2024, 6]), json!("x")];
    let docs: Vec<Value> =
        keys.iter().zip(0..).map(|(key, n)| json!({"k": key, "n": 10_u64.pow(n)})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    for (level, expected) in [
        (1, json!([["x", 100_000], [[], 1], [[2024], 11_110]])),
        (2, json!([["x", 100_000], [[], 1], [[2024], 10], [[2024, 5], 1_100], [[2024, 6], 10_000]])),
        (
            3,
            json!([
                ["x", 100_000],
                [[], 1],
                [[2024], 10],
                [[2024, 5], 100],
                [[2024, 5, 1], 1_000],
                [[2024, 6], 10_000]
            ]),
        ),
    ] {
        for descending in [false, true] {
            let reply = query(&mut client, &format!("group_level={level}&descending={descending}")).json();
            let mut expected = expected.as_array().unwrap().clone();
            if descending {
                expected.reverse();
            }
            let rows = reply["rows"].as_array().unwrap().iter();
            let found: Vec<Value> = rows.map(|row| json!([row["key"], row["value"]])).collect();
            assert_eq!(found, expected, "level {level}, descending {descending}");
        }
    }
}
