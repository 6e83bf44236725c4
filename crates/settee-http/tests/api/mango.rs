//! `_find`, `_explain` and `_index`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, Reply, Server};

const NO_INDEX: &str = "No matching index found, create an index to optimize query time.";

fn find(client: &mut Client, body: &Value) -> Reply {
    client.post("/db/_find", &body.to_string())
}

#[track_caller]
fn found(client: &mut Client, body: &Value) -> Value {
    find(client, body).expect_status(200).json()
}

fn ids(found: &Value) -> Vec<&str> {
    found["docs"].as_array().unwrap().iter().map(|doc| doc["_id"].as_str().unwrap()).collect()
}

/// Documents `a` to `e` with `n` from 1 to 5, and a design document.
fn fill(client: &mut Client) {
    client.create("db");
    let docs: Vec<Value> = ["a", "b", "c", "d", "e"]
        .iter()
        .zip(1..)
        .map(|(id, n)| json!({"_id": id, "n": n, "o": {"p": [n]}}))
        .chain([json!({"_id": "_design/d", "n": 1})])
        .collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
}

#[test]
fn documents_that_match_are_found_and_design_documents_never() {
    let server = Server::start();
    let mut client = server.connect();
    fill(&mut client);
    let reply = find(&mut client, &json!({"selector": {"n": {"$gt": 1, "$lt": 4}}})).expect_status(200);
    assert!(reply.text().starts_with("{\"docs\":[\r\n{\"_id\":\"b\",\"_rev\":\"1-"), "{}", reply.text());
    let all = reply.json();
    assert_eq!(ids(&all), ["b", "c"]);
    assert_eq!(all["docs"][0]["o"], json!({"p": [2]}));
    assert_eq!(all["warning"], NO_INDEX);
    assert!(all.get("execution_stats").is_none());
    assert_eq!(ids(&found(&mut client, &json!({"selector": {}}))), ["a", "b", "c", "d", "e"]);
    assert_eq!(ids(&found(&mut client, &json!({"selector": {"$text": "x"}}))).len(), 5);
    let none = found(&mut client, &json!({"selector": {"n": 9}}));
    assert_eq!((&none["docs"], &none["bookmark"]), (&json!([]), &json!("nil")));
}

#[test]
fn contradictions_have_no_results_and_no_bookmark() {
    let server = Server::start();
    let mut client = server.connect();
    fill(&mut client);
    for selector in [json!({"$or": []}), json!({"$nor": []}), json!({"_id": {"$gt": "b", "$lt": "a"}})] {
        assert_eq!(found(&mut client, &json!({"selector": selector})), json!({"docs": []}), "{selector}");
    }
    assert_eq!(ids(&found(&mut client, &json!({"selector": {"n": 1, "$or": []}}))), ["a"]);
}

#[test]
fn ids_narrow_what_is_read_and_can_be_sorted_by() {
    let server = Server::start();
    let mut client = server.connect();
    fill(&mut client);
    let stats = |found: &Value| found["execution_stats"]["total_docs_examined"].as_u64().unwrap();
    let query = json!({"selector": {"_id": {"$in": ["d", "b", "z"]}}, "execution_stats": true});
    let some = found(&mut client, &query);
    assert_eq!((ids(&some), stats(&some)), (vec!["b", "d"], 2));
    let query =
        json!({"selector": {"_id": {"$gt": "b"}}, "sort": [{"_id": "desc"}], "execution_stats": true});
    let some = found(&mut client, &query);
    assert_eq!((ids(&some), stats(&some)), (vec!["e", "d", "c"], 4));
    let reply = find(&mut client, &json!({"selector": {}, "sort": ["n"]}));
    let reason = "No index exists for this sort, try indexing by the sort fields.";
    reply.expect_error(400, "no_usable_index", reason);
}

#[test]
fn pages_follow_each_other_and_an_empty_one_repeats_the_bookmark() {
    let server = Server::start();
    let mut client = server.connect();
    fill(&mut client);
    for (sort, expected) in [("asc", "abcde"), ("desc", "edcba")] {
        let mut query = json!({"selector": {"_id": {"$gt": null}}, "sort": [{"_id": sort}], "limit": 2});
        let mut all = String::new();
        loop {
            let page = found(&mut client, &query);
            let bookmark = page["bookmark"].clone();
            if ids(&page).is_empty() {
                assert_eq!(bookmark, query["bookmark"]);
                break;
            }
            all.extend(ids(&page));
            query["bookmark"] = bookmark;
        }
        assert_eq!(all, expected);
        query["skip"] = json!(1);
        query["bookmark"] = json!("");
        assert_eq!(ids(&found(&mut client, &query)).concat(), expected[1..3]);
        // A document that is gone doesn't matter.
        query["skip"] = json!(0);
        let first = found(&mut client, &query)["bookmark"].clone();
        let rev = client.get("/db/b").json()["_rev"].as_str().unwrap().to_owned();
        client.delete(&format!("/db/b?rev={rev}")).expect_status(200);
        query["bookmark"] = first;
        let next = found(&mut client, &query);
        assert_eq!(ids(&next).concat(), if sort == "asc" { "cd" } else { "ca" });
        client.put("/db/b", "{\"n\":2}").expect_status(201);
    }
    let mut query = json!({"selector": {}, "limit": 0});
    assert_eq!(found(&mut client, &query)["bookmark"], "nil");
    query["bookmark"] = json!("nil");
    find(&mut client, &query).expect_error(400, "invalid_bookmark", "Invalid bookmark value: \"nil\"");
    let other = found(&mut client, &json!({"selector": {"n": 1}}))["bookmark"].clone();
    query["bookmark"] = other;
    assert_eq!(find(&mut client, &query).expect_status(400).json()["error"], "invalid_bookmark");
}

#[test]
fn fields_conflicts_and_statistics_are_shown_on_request() {
    let server = Server::start();
    let mut client = server.connect();
    fill(&mut client);
    let replicated = json!({"new_edits": false, "docs": [{"_id": "a", "_rev": "1-0", "n": 7}]});
    client.post("/db/_bulk_docs", &replicated.to_string()).expect_status(201);
    let query = json!({"selector": {"_id": "a"}, "fields": ["_id", "o.p.0", "none"]});
    assert_eq!(found(&mut client, &query)["docs"], json!([{"_id": "a", "o": {"p": {"0": 1}}}]));
    let query = json!({"selector": {"_id": "a"}, "conflicts": true, "fields": ["_conflicts"]});
    assert_eq!(found(&mut client, &query)["docs"], json!([{"_conflicts": ["1-0"]}]));
    let query = json!({"selector": {"_id": "a"}, "fields": []});
    assert!(found(&mut client, &query)["docs"][0].get("_conflicts").is_none());
    for (copies, docs, quorum) in [(1, 5, 0), (2, 0, 5)] {
        let query = json!({"selector": {"n": {"$gt": 3}}, "execution_stats": true, "r": copies});
        let stats = found(&mut client, &query)["execution_stats"].clone();
        assert_eq!(stats["total_keys_examined"], 5);
        assert_eq!(stats["total_docs_examined"], docs);
        assert_eq!(stats["total_quorum_docs_examined"], quorum);
        assert_eq!(stats["results_returned"], 2);
        assert!(stats["execution_time_ms"].is_f64());
    }
}

#[test]
fn a_search_that_examines_much_for_little_says_so() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let docs: Vec<Value> = (0..11).map(|n| json!({"_id": format!("{n:02}"), "n": n})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    let warning = |client: &mut Client, least: u32| {
        let query = json!({"selector": {"n": {"$gte": least}}, "use_index": "none"});
        found(client, &query)["warning"].as_str().unwrap().lines().map(String::from).collect::<Vec<_>>()
    };
    let unused = "_design/none was not used because it does not contain a valid index for this query.";
    assert_eq!(warning(&mut client, 9), [unused, NO_INDEX]);
    let high = "The number of documents examined is high in proportion to the number of results returned. \
                Consider adding a more specific index to improve this.";
    assert_eq!(warning(&mut client, 10), [unused, NO_INDEX, high]);
}

#[test]
fn requests_are_checked_before_anything_is_read() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for path in ["/db/_find", "/db/_explain"] {
        client.get(path).expect_error(405, "method_not_allowed", "Only POST allowed");
        client.send("POST", path, &[], b"{}").expect_status(415);
        client.post(path, "[]").expect_error(400, "bad_request", "Request body must be a JSON object");
        client.post(path, "{").expect_error(400, "bad_request", "invalid UTF-8 JSON");
        client.post(path, "{}").expect_error(400, "missing_required_key", "Missing required key: selector");
        let body = "{\"selector\":{},\"x\":1}";
        client.post(path, body).expect_error(400, "invalid_key", "Invalid key x for this request.");
        let body = "{\"selector\":{\"a\":{\"$x\":1}}}";
        client.post(path, body).expect_error(400, "invalid_operator", "Invalid operator: $x");
        let body = "{\"selector\":{},\"partition\":\"p\"}";
        let reason = "`partition` parameter is not supported on this db";
        client.post(path, body).expect_error(400, "query_parse_error", reason);
    }
    client.put("/db/_index", "").expect_error(405, "method_not_allowed", "Only GET,POST allowed");
    client.get("/db/_index/_bulk_delete").expect_error(405, "method_not_allowed", "Only POST allowed");
    client.get("/db/_index/d/json/n").expect_error(405, "method_not_allowed", "Only DELETE allowed");
}

#[test]
fn a_large_document_is_matched_and_shown_in_part() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let large = json!({"big": "x".repeat(200_000), "n": 1});
    client.put("/db/large", &large.to_string()).expect_status(201);
    client.put("/db/small", "{\"n\":1}").expect_status(201);
    let query = json!({"selector": {"big": {"$exists": true}}, "fields": ["n"]});
    assert_eq!(found(&mut client, &query)["docs"], json!([{"n": 1}]));
    let query = json!({"selector": {"n": 1}});
    let docs = found(&mut client, &query)["docs"].clone();
    assert_eq!(docs[0]["big"], large["big"]);
    assert_eq!(docs.as_array().unwrap().len(), 2);
}

#[test]
fn an_index_too_many_is_refused_before_searches_fail() {
    const INDEXES_MAX: usize = settee_view::mango::limits::INDEXES_MAX;
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let view = |name: &str| {
        json!({"map": {"fields": {name: "asc"}, "partial_filter_selector": {}}, "reduce": "_count",
            "options": {"def": {"fields": [name]}}})
    };
    let views: serde_json::Map<_, _> =
        (0..INDEXES_MAX).map(|n| (format!("v{n}"), view(&format!("n{n}")))).collect();
    let design = json!({"language": "query", "views": views, "autoupdate": false});
    client.put("/db/_design/d", &design.to_string()).expect_status(201);
    let mut create = |name: &str, field: &str| {
        let index = json!({"index": {"fields": [field]}, "ddoc": "d", "name": name});
        client.post("/db/_index", &index.to_string())
    };
    let reason = format!("A database has at most {INDEXES_MAX} indexes.");
    create("new", "a").expect_error(400, "too_many_indexes", &reason);
    assert_eq!(create("v0", "a").expect_status(200).json()["result"], "created", "it replaces one");
    create("v1", &"long".repeat(1 << 18)).expect_status(413);
    client.post("/db/_find", "{\"selector\":{\"a\":1}}").expect_status(200);
}

#[test]
fn slow_regular_expressions_do_not_delay_other_requests() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    // Each byte leads to a state of the automaton that its state cache doesn't have.
    let mut random = 1_u64;
    let text: String = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if random >> 63 == 0 { 'a' } else { 'b' }
    })
    .take(60_000)
    .collect();
    client.put("/db/a", &json!({"a": text}).to_string()).expect_status(201);
    let slow = json!({"$or": vec![json!({"a": {"$regex": "(a|b)*a(a|b){12}z"}}); 40]});
    let requests = [
        ("/db/_find", json!({"selector": slow})),
        ("/db/_changes?filter=_selector", json!({"selector": slow})),
    ];
    for (path, body) in requests {
        // One for each thread of the server.
        let mut searches = [server.connect(), server.connect()];
        let (begin, body) = (Instant::now(), body.to_string());
        for search in &mut searches {
            let length = body.len().to_string();
            let headers = [("Content-Type", "application/json"), ("Content-Length", length.as_str())];
            search.write_head("POST", path, &headers);
            search.write(body.as_bytes());
        }
        std::thread::sleep(Duration::from_millis(50));
        let other = Instant::now();
        client.get("/").expect_status(200);
        let other = other.elapsed();
        for search in &mut searches {
            let reply = search.read("POST").expect_status(200).json();
            let list = if path.contains("_find") { "docs" } else { "results" };
            assert_eq!(reply[list], json!([]));
        }
        let whole = begin.elapsed();
        assert!(other * 3 < whole, "{path}: another request took {other:?} of {whole:?}");
    }
}

#[test]
fn indexes_are_created_listed_and_deleted() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let create = |client: &mut Client, body: &Value| client.post("/db/_index", &body.to_string());
    let index = json!({"index": {"fields": ["n"]}, "ddoc": "d", "name": "i"});
    let made = create(&mut client, &index).expect_status(200).json();
    assert_eq!(made, json!({"result": "created", "id": "_design/d", "name": "i"}));
    assert_eq!(create(&mut client, &index).json()["result"], "exists");
    let stored = client.get("/db/_design/d").json();
    assert_eq!(stored["language"], "query");
    let view = json!({
        "map": {"fields": {"n": "asc"}, "partial_filter_selector": {}},
        "reduce": "_count",
        "options": {"def": {"fields": ["n"]}},
    });
    assert_eq!(stored["views"], json!({"i": view}));
    let other = json!({"index": {"fields": [{"m": "desc"}]}, "ddoc": "_design/d", "name": "i"});
    assert_eq!(create(&mut client, &other).json()["result"], "created");
    let unnamed = create(&mut client, &json!({"index": {"fields": ["x"]}})).json();
    let name = unnamed["name"].as_str().unwrap();
    assert_eq!((name.len(), unnamed["id"].clone()), (40, json!(format!("_design/{name}"))));
    let list = client.get("/db/_index").json();
    assert_eq!(list["total_rows"], 3);
    let all_docs =
        json!({"ddoc": null, "name": "_all_docs", "type": "special", "def": {"fields": [{"_id": "asc"}]}});
    assert_eq!(list["indexes"][0], all_docs);
    let rows = list["indexes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "i").unwrap();
    let expected = json!({"ddoc": "_design/d", "name": "i", "type": "json", "partitioned": false,
        "def": {"fields": [{"m": "desc"}]}});
    assert_eq!(*row, expected);
    assert_eq!(client.get("/db/_index?limit=1&skip=0").json()["indexes"], json!([all_docs]));
    assert_eq!(client.get("/db/_index?limit=0").status, 500);
    client.delete("/db/_index/d/json/none").expect_error(404, "not_found", "missing");
    client.delete("/db/_index/d/text/i").expect_error(404, "not_found", "missing");
    assert_eq!(client.delete("/db/_index/_design/d/json/i").expect_status(200).json(), json!({"ok": true}));
    client.get("/db/_design/d").expect_error(404, "not_found", "deleted");
    let body = json!({"docids": [name, "none"]}).to_string();
    let bulk = client.post("/db/_index/_bulk_delete", &body).expect_status(200).json();
    let id = format!("_design/{name}");
    let fail = json!([{"id": "_design/none", "error": "not_found"}]);
    assert_eq!(bulk, json!({"success": [{"id": id, "ok": true}], "fail": fail}));
    assert_eq!(client.get("/db/_index").json()["total_rows"], 1);
    assert_eq!(create(&mut client, &index).json()["result"], "created", "over the deleted one");
}

#[test]
fn indexes_do_not_disturb_other_members_of_their_design_document() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_design/js", "{\"views\":{}}").expect_status(201);
    let body = json!({"index": {"fields": ["n"]}, "ddoc": "js"}).to_string();
    let reason = "Existing design doc has an invalid language: null";
    client.post("/db/_index", &body).expect_error(400, "invalid_ddoc_lang", reason);
    let design = json!({"language": "query", "more": [1], "_attachments": {"a": {"data": "eA=="}}});
    client.put("/db/_design/q", &design.to_string()).expect_status(201);
    let body = json!({"index": {"fields": ["n"]}, "ddoc": "q", "name": "i"}).to_string();
    client.post("/db/_index", &body).expect_status(200);
    client.delete("/db/_index/q/json/i").expect_status(200);
    let left = client.get("/db/_design/q").json();
    assert_eq!((&left["more"], &left["views"]), (&json!([1]), &Value::Null));
    assert_eq!(client.get("/db/_design/q/a").text(), "x");
    let body = json!({"index": {"fields": []}, "type": "text"}).to_string();
    client.post("/db/_index", &body).expect_error(503, "required index service unavailable", "text");
}

#[test]
fn a_search_reads_a_json_index_and_is_explained() {
    let server = Server::start();
    let mut client = server.connect();
    fill(&mut client);
    let body = json!({"index": {"fields": ["n"]}, "ddoc": "i", "name": "n"}).to_string();
    client.post("/db/_index", &body).expect_status(200);
    let query = json!({"selector": {"n": 1}});
    let scanned = found(
        &mut client,
        &json!({"selector": {"$and": [{"n": 1}, {"_id": {"$gt": null}}]}, "use_index": "_all_docs"}),
    );
    let mut with_stats = query.clone();
    with_stats["execution_stats"] = json!(true);
    let indexed = found(&mut client, &with_stats);
    assert_eq!(ids(&indexed), ids(&scanned));
    assert_eq!(indexed["execution_stats"]["total_keys_examined"], ids(&scanned).len());
    let explained = client.post("/db/_explain", &query.to_string()).expect_status(200).json();
    assert_eq!((&explained["dbname"], &explained["index"]["name"]), (&json!("db"), &json!("n")));
    assert_eq!(explained["mrargs"]["end_key"], json!([1, "<MAX>"]));
    assert_eq!(explained["index_candidates"][0]["analysis"]["reasons"], json!([{"name": "unfavored_type"}]));
    let names: Vec<&String> = explained.as_object().unwrap().keys().collect();
    let expected = "dbname index partitioned selector opts limit skip fields index_candidates selector_hints \
                    mrargs covering";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    assert_eq!(ids(&found(&mut client, &json!({"selector": {"o.p.0": 2}}))), ["b"], "no index fits");
    let query = json!({"selector": {"n": {"$gt": 5, "$lt": 3}}});
    assert_eq!(found(&mut client, &query), json!({"docs": []}));
}

#[test]
fn an_index_that_is_redefined_during_a_search_never_shows_other_fields() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for id in ["x", "y"] {
        client.put(&format!("/db/{id}"), &json!({"a": 1, "b": 2}).to_string()).expect_status(201);
    }
    let define = |client: &mut Client, column: &str| {
        let body = json!({"index": {"fields": [column]}, "ddoc": "i", "name": "n"});
        client.post("/db/_index", &body.to_string()).expect_status(200);
    };
    define(&mut client, "a");
    let is_over = AtomicBool::new(false);
    let query = json!({"selector": {"a": {"$gt": 0}}, "fields": ["_id", "a"]}).to_string();
    let expected = json!([{"_id": "x", "a": 1}, {"_id": "y", "a": 1}]);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = server.connect();
                let mut read_count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let reply = client.post("/db/_find", &query);
                    // A search may meet too many definitions.
                    if reply.status != 503 {
                        assert_eq!(reply.expect_status(200).json()["docs"], expected);
                        read_count += 1;
                    }
                }
                assert!(read_count > 0);
            });
        }
        for turn in 0..300 {
            define(&mut client, if turn % 2 == 0 { "b" } else { "a" });
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_partition_is_searched_by_path_or_body() {
    let server = Server::start();
    let mut client = server.connect();
    client.put("/db?partitioned=true", "").expect_status(201);
    let docs: Vec<Value> = ["p:1", "p:2", "q:1"].iter().map(|id| json!({"_id": id, "n": 1})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    let query = json!({"selector": {"n": 1}, "limit": 1});
    let page = client.post("/db/_partition/p/_find", &query.to_string()).expect_status(200).json();
    assert_eq!(ids(&page), ["p:1"]);
    let query = json!({"selector": {"n": 1}, "bookmark": page["bookmark"], "partition": "p"});
    let page = client.post("/db/_partition/p/_find", &query.to_string()).expect_status(200).json();
    assert_eq!(ids(&page), ["p:2"]);
    assert_eq!(ids(&found(&mut client, &json!({"selector": {}, "partition": "q"}))), ["q:1"]);
    assert_eq!(ids(&found(&mut client, &json!({"selector": {}}))).len(), 3);
    client.post("/db/_partition/q/_find", &query.to_string()).expect_status(400);
    let body = json!({"index": {"fields": ["n"]}, "name": "i"}).to_string();
    client.post("/db/_index", &body).expect_status(200);
    assert_eq!(client.get("/db/_partition/p/_index").json()["indexes"][1]["partitioned"], true);
    let body = "{\"selector\":{\"n\":1}}";
    let explained = client.post("/db/_partition/p/_explain", body).expect_status(200).json();
    assert_eq!((&explained["index"]["name"], &explained["mrargs"]["partition"]), (&json!("i"), &json!("p")));
    let explained = client.post("/db/_explain", body).expect_status(200).json();
    assert_eq!(explained["index"]["name"], "_all_docs");
    assert_eq!(explained["index_candidates"][0]["analysis"]["reasons"][0]["name"], "scope_mismatch");
}

#[test]
fn large_selectors_are_planned_and_larger_ones_refused() {
    let server = Server::start();
    let mut client = server.connect();
    fill(&mut client);
    let body = json!({"index": {"fields": ["f7"]}, "ddoc": "i", "name": "f7"}).to_string();
    client.post("/db/_index", &body).expect_status(200);
    let selector = |count: usize| -> Value {
        let conditions: Vec<Value> = (0..count).map(|n| json!({format!("f{n}"): {"$gt": n}})).collect();
        json!({"$and": conditions})
    };
    let body = json!({"selector": selector(4000)}).to_string();
    let explained = client.post("/db/_explain", &body).expect_status(200).json();
    assert_eq!((&explained["index"]["name"], &explained["mrargs"]["start_key"]), (&json!("f7"), &json!([7])));
    let body = json!({"selector": selector(4000), "use_index": "none"});
    assert_eq!(ids(&found(&mut client, &body)), [""; 0]);
    let reply = find(&mut client, &json!({"selector": selector(10_001)}));
    assert_eq!(reply.expect_status(400).json()["error"], "invalid_selector");
    let alternatives: Vec<Value> = (0..1500).map(|n| json!({"n": {"$eq": n}})).collect();
    assert_eq!(ids(&found(&mut client, &json!({"selector": {"$or": alternatives}}))).len(), 5);
}

#[test]
fn an_index_finds_what_a_search_without_one_finds_however_long_the_strings_are() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let texts: Vec<String> = [1, 2_000, 4_070, 4_080, 5_000]
        .iter()
        .flat_map(|length| ["a", "b", "c"].map(|end| "x".repeat(*length) + end))
        .collect();
    let docs: Vec<Value> = texts.iter().zip(0..).map(|(n, m)| json!({"n": n, "m": m % 3})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    let conditions = |text: &String| {
        [
            json!({"n": text}),
            json!({"n": {"$gt": text}}),
            json!({"n": {"$lte": text}}),
            json!({"n": {"$in": [text, texts[13], texts[14]]}}),
            json!({"n": text, "m": {"$gte": 1}}),
        ]
    };
    let selectors: Vec<Value> = texts.iter().flat_map(conditions).collect();
    let mut all = |fields: &[&str]| -> Vec<Vec<String>> {
        if !fields.is_empty() {
            let index = json!({"index": {"fields": fields}, "name": "i"});
            client.post("/db/_index", &index.to_string()).expect_status(200);
        }
        let mut found_by = |selector: &Value| {
            let found = found(&mut client, &json!({"selector": selector, "limit": 100}));
            assert_eq!(found.get("warning").is_none(), !fields.is_empty(), "{fields:?}");
            let mut ids: Vec<String> = ids(&found).into_iter().map(str::to_owned).collect();
            ids.sort_unstable();
            ids
        };
        selectors.iter().map(&mut found_by).collect()
    };
    let expected = all(&[]);
    assert_eq!(expected[0].len(), 1);
    assert_eq!(all(&["n"]), expected);
    assert_eq!(all(&["n", "m"]), expected);
}
