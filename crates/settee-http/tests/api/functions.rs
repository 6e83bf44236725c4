//! Goal: filters, updates, shows, lists and rewrites answer as CouchDB 3.5.0 was seen to answer.
//! Method: a design document for each kind, requests that reach each outcome, statuses, headers and bodies.

use serde_json::{Value, json};

use crate::client::{Client, Server, ids, lines};

/// Creates `db` with a design document `d`.
fn with_design(client: &mut Client, design: Value) {
    client.create("db");
    client.put("/db/_design/d", &design.to_string()).expect_status(201);
}

#[test]
fn a_filter_passes_the_documents_for_which_it_is_truthy() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(
        &mut client,
        json!({"filters": {
            "n": "function(doc, req) { return doc.n % req.query.by == 0 && doc._revisions.start == 1 }",
            "gone": "function(doc) { return doc._deleted }",
            "body": "function(doc, req) { return doc._id == req.body.id }",
            "get": "function(doc, req) { return req.body === 'undefined' && doc._id == 'a' }",
            "throws": "function(doc) { if (doc._id == 'b') throw 'x'; return true }",
        }, "views": {"v": {"map": "function(doc) { if (doc.n == 2) emit(null) }"}}}),
    );
    let docs: Vec<Value> = (0..300).map(|n| json!({"_id": format!("n{n:03}"), "n": n})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    let expected: Vec<String> = (0..3).map(|n| format!("n{:03}", n * 100)).collect();
    assert_eq!(ids(&client.get("/db/_changes?filter=d/n&by=100"), "results"), expected);
    assert_eq!(ids(&client.get("/db/_changes?filter=d/n&by=100&limit=2"), "results"), expected[..2]);
    let descending = ids(&client.get("/db/_changes?filter=d/n&by=100&descending=true"), "results");
    assert_eq!(descending, expected.iter().rev().cloned().collect::<Vec<_>>());
    let continuous = client.get("/db/_changes?filter=d/n&by=100&feed=continuous&limit=3&include_docs=true");
    let rows = lines(&continuous.body);
    assert_eq!(rows.len(), 4, "three rows and the end");
    assert_eq!(rows[2]["doc"]["n"], 200);
    assert_eq!(ids(&client.get("/db/_changes?filter=_view&view=d/v"), "results"), ["n002"]);

    let rev = client.put("/db/a", "{}").expect_status(201).rev();
    client.put("/db/b", "{}").expect_status(201);
    assert_eq!(ids(&client.get("/db/_changes?filter=d/get"), "results"), ["a"]);
    client.delete(&format!("/db/a?rev={rev}")).expect_status(200);
    assert_eq!(ids(&client.get("/db/_changes?filter=d/gone"), "results"), ["a"]);
    assert_eq!(ids(&client.post("/db/_changes?filter=d/body", "{\"id\":\"b\"}"), "results"), ["b"]);
    let failed = client.get("/db/_changes?filter=d/throws").expect_status(500).json();
    assert!(failed["error"].is_string(), "{failed}");
}

#[test]
fn a_row_has_the_leaves_that_pass() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(&mut client, json!({"filters": {"x": "function(doc) { return doc.x }"}}));
    let leaf =
        |id: char, x: bool| json!({"_id": "a", "_rev": format!("1-{}", id.to_string().repeat(32)), "x": x});
    let docs = json!({"new_edits": false, "docs": [leaf('a', true), leaf('b', true), leaf('c', false)]});
    client.post("/db/_bulk_docs", &docs.to_string()).expect_status(201);
    let all = client.get("/db/_changes?filter=d/x&style=all_docs").json();
    let revs: Vec<&str> = all["results"][0]["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| &change["rev"].as_str().unwrap()[..3])
        .collect();
    assert_eq!(revs, ["1-b", "1-a"]);
    assert_eq!(client.get("/db/_changes?filter=d/x").json()["results"], json!([]), "the winner doesn't pass");
}

#[test]
fn filters_that_do_not_exist_are_404() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(&mut client, json!({"filters": {}, "views": {}}));
    client.get("/db/_changes?filter=d/f").expect_error(404, "not_found", "missing json key: f");
    client.get("/db/_changes?filter=_view&view=d/v").expect_error(404, "not_found", "missing json key: v");
    client.get("/db/_changes?filter=none/f").expect_error(404, "not_found", "missing");
    client.put("/db/_design/e", "{}").expect_status(201);
    client.get("/db/_changes?filter=e/f").expect_error(404, "not_found", "missing json key: filters");
}

#[test]
fn functions_get_the_whole_request() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let authorization = ("Authorization", "Basic YW5uOnNlY3JldA==");
    client.send("PUT", "/db", &[authorization], b"").expect_status(201);
    let show = "function(doc, req) { return {json: req} }";
    let design = json!({"shows": {"req": show}, "updates": {"req": "function(d, req) { return [null, {json: req}] }"}});
    client.send("PUT", "/db/_design/d", &[authorization], design.to_string().as_bytes()).expect_status(201);
    let path = "/db/_design/d/_show/req/a%2Fb?key=%5B1%5D&x=y+z";
    let headers = [authorization, ("Cookie", "c=1; d=2"), ("X-Own", "v")];
    let req = client.send("GET", path, &headers, b"").expect_status(200).json();
    let parts = json!(["db", "_design", "d", "_show", "req", "a/b"]);
    assert_eq!(req["info"]["db_name"], "db");
    assert_eq!(req["uuid"].as_str().unwrap().len(), 32);
    for (name, expected) in [
        ("id", json!("a/b")),
        ("method", json!("GET")),
        ("path", parts.clone()),
        ("requested_path", parts),
        ("raw_path", json!(path)),
        ("query", json!({"key": [1], "x": "y z"})),
        ("body", json!("undefined")),
        ("peer", json!("127.0.0.1")),
        ("form", json!({})),
        ("cookie", json!({"c": "1", "d": "2"})),
        ("userCtx", json!({"db": "db", "name": "ann", "roles": ["_admin"]})),
        ("secObj", json!({})),
    ] {
        assert_eq!(req[name], expected, "{name}");
    }
    assert_eq!(req["headers"]["X-Own"], "v");
    assert!(req["headers"]["Host"].is_string(), "{req}");
    let form = [authorization, ("Content-Type", "application/x-www-form-urlencoded")];
    let req = client.send("POST", "/db/_design/d/_update/req", &form, b"a=1&b=x+y").expect_status(200).json();
    assert_eq!((&req["form"], &req["id"]), (&json!({"a": "1", "b": "x y"}), &Value::Null));
    assert_eq!((&req["body"], &req["method"]), (&json!("a=1&b=x+y"), &json!("POST")));
    let bad = client.send("GET", "/db/_design/d/_show/req?key=x", &[authorization], b"");
    assert_eq!(bad.status, 400);
}

#[test]
fn an_update_function_stores_a_document_and_answers() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(
        &mut client,
        json!({"updates": {
            "put": "function(doc, req) { doc = doc || {_id: req.id || req.uuid}; doc.n = (doc.n || 0) + 1;
                return [doc, 'n is ' + doc.n] }",
            "code": "function(doc, req) { return [{_id: 'c'}, {code: 202, json: {a: 1}, headers: {'X-Own': 'v'}}] }",
            "nothing": "function(doc, req) { return [null, {base64: 'eA=='}] }",
            "throws": "function() { throw 'x' }",
            "named": "function() { throw ['error', 'my_error', 'mine'] }",
            "bad": "x y",
            "wrong": "function(doc, req) { return [{_id: 'w', _foo: 1}, 'x'] }",
        }}),
    );
    let at = |name: &str| format!("/db/_design/d/_update/{name}");
    let reply = client.put(&at("put/a"), "").expect_status(201);
    assert_eq!(reply.text(), "n is 1");
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(reply.header("content-security-policy"), Some("sandbox"));
    assert_eq!(reply.header("x-couch-id"), Some("a"));
    let document = client.get("/db/a").json();
    assert_eq!(reply.header("x-couch-update-newrev"), document["_rev"].as_str());
    let reply = client.post(&at("put/a"), "{}").expect_status(201);
    assert_eq!((reply.text(), &client.get("/db/a").json()["n"]), ("n is 2", &json!(2)));
    let made = client.post(&at("put"), "").expect_status(201);
    let id = made.header("x-couch-id").unwrap().to_owned();
    client.get(&format!("/db/{id}")).expect_status(200);
    let reply = client.post(&at("code"), "").expect_status(202);
    assert_eq!((reply.json(), reply.header("x-own")), (json!({"a": 1}), Some("v")));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("content-security-policy"), None);
    client.post(&at("code"), "").expect_error(409, "conflict", "Document update conflict.");
    let reply = client.post(&at("nothing"), "").expect_status(200);
    assert_eq!((reply.text(), reply.header("content-type")), ("x", Some("application/binary")));
    assert_eq!(reply.header("x-couch-id"), None);

    let reason = "Update functions do not allow GET";
    client.get(&at("put/a")).expect_error(405, "method_not_allowed", reason);
    assert_eq!(client.head(&at("put/a")).status, 405);
    client.post(&at("none"), "").expect_error(404, "not_found", "missing json key: none");
    client.post(&at(""), "").expect_error(404, "update_error", "Invalid path.");
    assert_eq!(client.post(&at("throws"), "").expect_status(500).json()["error"], "render_error");
    client.post(&at("named"), "").expect_error(500, "my_error", "mine");
    assert_eq!(client.post(&at("bad"), "").expect_status(500).json()["error"], "compilation_error");
    assert_eq!(client.post(&at("wrong"), "").expect_status(400).json()["error"], "doc_validation");
    client.post("/db/_design/none/_update/x", "").expect_error(404, "not_found", "missing");
}

#[test]
fn an_update_is_validated_as_any_other_write() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(
        &mut client,
        json!({"updates": {"put": "function(doc, req) { return [{_id: 'a'}, 'x'] }"},
            "validate_doc_update": "function() { throw {forbidden: 'no'} }"}),
    );
    client.post("/db/_design/d/_update/put", "").expect_error(403, "forbidden", "no");
}

#[test]
fn a_show_function_answers_with_a_tag() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(
        &mut client,
        json!({"shows": {
            "n": "function(doc, req) { return doc ? 'n is ' + doc.n : 'none' }",
            "types": "function(doc, req) { provides('json', function() { return toJSON(doc) });
                provides('html', function() { return '<p>' + doc.n }); }",
            "code": "function(doc, req) { return {code: 302, headers: {Location: '/x'}, body: req.method} }",
            "wrong": "function() { return {unknown: 1} }",
            "throws": "function(doc) { return doc.n.m.o }",
            "require": "function(doc) { return require('lib/m').x }",
        }, "lib": {"m": "exports.x = 'of m'"}}),
    );
    let at = |name: &str| format!("/db/_design/d/_show/{name}");
    let rev = client.put("/db/a", "{\"n\":1}").expect_status(201).rev();
    let reply = client.get(&at("n/a")).expect_status(200);
    assert_eq!((reply.text(), reply.header("vary")), ("n is 1", Some("Accept")));
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    let tag = reply.header("etag").unwrap().to_owned();
    let again = client.send("GET", &at("n/a"), &[("If-None-Match", &tag)], b"");
    assert_eq!((again.status, again.header("etag")), (304, Some(tag.as_str())));
    client.put("/db/a", &json!({"_rev": rev, "n": 2}).to_string()).expect_status(201);
    let again = client.send("GET", &at("n/a"), &[("If-None-Match", &tag)], b"").expect_status(200);
    assert_eq!(again.text(), "n is 2");
    assert_eq!(client.get(&at("n")).text(), "none");
    assert_eq!(client.get(&at("n/missing")).text(), "none");
    assert_eq!(client.get(&at("require")).text(), "of m");

    let typed =
        |client: &mut Client, accept: &str| client.send("GET", &at("types/a"), &[("Accept", accept)], b"");
    let html = typed(&mut client, "text/html");
    assert_eq!((html.text(), html.header("content-type")), ("<p>2", Some("text/html; charset=utf-8")));
    assert_eq!(typed(&mut client, "application/json").json()["n"], 2);
    assert_eq!(client.get(&at("types/a?format=json")).json()["n"], 2);
    assert_eq!(typed(&mut client, "image/png").expect_status(406).json()["error"], "not_acceptable");

    let moved = client.send("PUT", &at("code/a"), &[], b"body").expect_status(302);
    assert_eq!((moved.text(), moved.header("location")), ("PUT", Some("/x")));
    assert_eq!(client.head(&at("n/a")).status, 200);
    assert_eq!(client.get(&at("wrong/a")).expect_status(500).json()["error"], "external_response_error");
    assert_eq!(client.get(&at("throws/a")).expect_status(500).json()["error"], "render_error");
    client.get(&at("throws/missing")).expect_error(404, "not_found", "document not found");
    client.get(&at("none/a")).expect_error(404, "not_found", "missing json key: none");
    client.get(&at("")).expect_error(404, "show_error", "Invalid path.");
}

#[test]
fn a_list_function_makes_a_response_of_a_views_rows() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(
        &mut client,
        json!({"views": {"v": {"map": "function(doc) { emit(doc._id, doc.n) }", "reduce": "_sum"}}, "lists": {
            "keys": "function(head, req) { start({headers: {'Content-Type': 'text/plain'}});
                send(head.total_rows + ':'); var row; while (row = getRow()) send(row.key + '=' + row.value + ';');
                return 'end' }",
            "groups": "function(head, req) { var row, all = []; while (row = getRow()) all.push(row);
                send(toJSON([head, all])) }",
            "docs": "function() { var row; while (row = getRow()) send(row.doc._id) }",
            "first": "function() { send(getRow().key); return '' }",
            "early": "function() { throw 'x' }",
            "late": "function() { var row; while (row = getRow()) { send(row.key); if (row.key == 'n1500') throw 'x' } }",
            "body": "function(head, req) { return req.body }",
        }}),
    );
    client
        .put("/db/_design/other", "{\"views\":{\"w\":{\"map\":\"function(doc){emit(1,doc.n)}\"}}}")
        .expect_status(201);
    let docs: Vec<Value> = (0..2000).map(|n| json!({"_id": format!("n{n:04}"), "n": n})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    let at = |path: &str| format!("/db/_design/d/_list/{path}");
    let reply = client.get(&at("keys/v?reduce=false&limit=2")).expect_status(200);
    assert_eq!(reply.text(), "2000:n0000=0;n0001=1;end");
    assert_eq!(reply.header("content-type"), Some("text/plain"));
    assert_eq!((reply.header("etag"), reply.header("content-security-policy")), (None, Some("sandbox")));
    let all = client.get(&at("keys/v?reduce=false"));
    let expected: String = (0..2000).map(|n| format!("n{n:04}={n};")).collect();
    assert_eq!(all.text(), format!("2000:{expected}end"));
    let reply = client.get(&at("groups/v"));
    assert_eq!(reply.json(), json!([{}, [{"key": null, "value": 1_999_000}]]));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let keys = client.post(&at("keys/v?reduce=false"), "{\"keys\":[\"n0007\"]}");
    assert_eq!(keys.text(), "2000:n0007=7;end");
    assert_eq!(client.get(&at("keys/other/w?limit=1")).text(), "2000:1=0;end");
    assert_eq!(client.get(&at("docs/v?reduce=false&limit=2&include_docs=true")).text(), "n0000n0001");
    assert_eq!(client.get(&at("first/v?reduce=false")).text(), "n0000", "the rest isn't read");
    assert_eq!(client.post(&at("body/v?reduce=false"), "{\"limit\":0}").text(), "{\"limit\":0}");
    assert_eq!(client.head(&at("keys/v?reduce=false")).status, 200);

    assert_eq!(client.get(&at("early/v?reduce=false")).expect_status(500).json()["error"], "render_error");
    client.get(&at("none/v")).expect_error(404, "not_found", "missing json key: none");
    client.get(&at("keys/none")).expect_error(404, "not_found", "missing_named_view");
    client.get(&at("keys/none/v")).expect_error(404, "not_found", "missing");
    client.get(&at("keys")).expect_error(404, "list_error", "Invalid path.");
    client.put(&at("keys/v"), "").expect_error(405, "method_not_allowed", "Only GET,POST,HEAD allowed");
    client.send("POST", &at("keys/v"), &[], b"{}").expect_status(415);
    let bad = client.get(&at("keys/v?group=1")).expect_status(400).json();
    assert_eq!(bad["error"], "query_parse_error");
}

#[test]
fn a_list_function_that_never_ends_is_stopped() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(
        &mut client,
        json!({"views": {"v": {"map": "function(doc) { emit(1) }"}}, "lists": {"l": "function() { while (true) {} }"}}),
    );
    let reply = client.get("/db/_design/d/_list/l/v").expect_status(500).json();
    assert_eq!(reply["error"], "os_process_error");
    client.get("/db/_design/d/_view/v").expect_status(200);
}

#[test]
fn rewrite_rules_lead_to_other_requests() {
    let server = Server::start();
    let mut client = server.connect();
    with_design(
        &mut client,
        json!({"views": {"v": {"map": "function(doc) { emit(doc.n, doc._id) }"}},
            "shows": {"path": "function(doc, req) { return {json: [req.path, req.requested_path]} }"},
            "rewrites": [
            {"from": "doc/:id", "to": "../../:id"},
            {"from": "by/:n", "to": "_view/v", "query": {"key": ":n"}, "formats": {"n": "int"}},
            {"from": "api/*", "to": "../../*"},
            {"from": "post", "method": "POST", "to": "../../"},
            {"from": "path", "to": "_show/path"},
            {"from": "loop", "to": "_rewrite/loop"},
            {"from": "up", "to": "../../../x"},
        ]}),
    );
    client.put("/db/a", "{\"n\":1}").expect_status(201);
    client.put("/db/b", "{\"n\":2}").expect_status(201);
    let at = |path: &str| format!("/db/_design/d/_rewrite/{path}");
    // A rule with too many parents fails all requests.
    let failed = client.get(&at("doc/a")).expect_status(500).json();
    assert_eq!(failed, json!({"error": "insecure_rewrite_rule", "reason": "too many ../.. segments"}));
    let mut design = client.get("/db/_design/d").json();
    design["rewrites"].as_array_mut().unwrap().pop();
    client.put("/db/_design/d", &design.to_string()).expect_status(201);

    assert_eq!(client.get(&at("doc/a")).expect_status(200).json()["n"], 1);
    let rows = client.get(&at("by/2")).expect_status(200).json();
    assert_eq!(rows["rows"], json!([{"id": "b", "key": 2, "value": "b"}]));
    assert_eq!(client.get(&at("api/_all_docs?limit=1")).json()["rows"].as_array().unwrap().len(), 1);
    client.put(&at("api/c"), "{\"n\":3}").expect_status(201);
    assert_eq!(client.get("/db/c").json()["n"], 3);
    client.post(&at("post"), "{\"_id\":\"e\"}").expect_status(201);
    client.get("/db/e").expect_status(200);
    let paths = json!([["db", "_design", "d", "_show", "path"], ["db", "_design", "d", "_rewrite", "path"]]);
    assert_eq!(client.get(&at("path")).json(), paths);
    client.get(&at("none")).expect_error(404, "not_found", "missing");
    client.get(&at("post")).expect_error(404, "not_found", "missing");
    client.get(&at("loop")).expect_error(400, "bad_request", "Exceeded rewrite recursion limit");
    client.put("/db/_design/e", "{}").expect_status(201);
    client.get("/db/_design/e/_rewrite/x").expect_error(404, "rewrite_error", "Invalid path.");
}

#[test]
fn a_rewrite_function_makes_a_request_or_a_response() {
    let server = Server::start();
    let mut client = server.connect();
    let function = "function(req) { switch (req.path[4]) {
        case 'doc': return {path: '../../' + req.query.id, query: {}};
        case 'text': return '../../a';
        case 'code': return {code: 418, headers: {'X-Own': 'v'}, body: 'tea'};
        case 'put': return {path: '../../p', method: 'PUT', body: toJSON({n: req.body.length})};
        case 'none': return;
        case 'throws': throw 'x';
        case 'pathless': return {method: 'GET'};
    } }";
    with_design(&mut client, json!({"rewrites": function}));
    client.put("/db/a", "{\"n\":1}").expect_status(201);
    let at = |path: &str| format!("/db/_design/d/_rewrite/{path}");
    assert_eq!(client.get(&at("doc?id=a")).expect_status(200).json()["n"], 1);
    assert_eq!(client.get(&at("text")).expect_status(200).json()["n"], 1);
    let tea = client.get(&at("code")).expect_status(418);
    assert_eq!((tea.text(), tea.header("x-own")), ("tea", Some("v")));
    client.post(&at("put"), "{\"abc\":1}").expect_status(201);
    assert_eq!(client.get("/db/p").json()["n"], 9);
    client.get(&at("none")).expect_error(404, "rewrite_error", "Invalid path.");
    assert_eq!(client.get(&at("throws")).expect_status(500).json()["error"], "render_error");
    let reason = "Rewrite result must produce a new path.";
    client.get(&at("pathless")).expect_error(500, "rewrite_error", reason);
}
