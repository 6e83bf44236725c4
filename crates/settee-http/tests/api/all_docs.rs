//! `_all_docs`

use serde_json::json;

use crate::client::{Client, Server, ids};

/// Creates `a` to `e`; `c` is deleted.
fn five(client: &mut Client) -> String {
    client.create("db");
    for id in ["a", "b", "c", "d", "e"] {
        client.put(&format!("/db/{id}"), &json!({"is": id}).to_string()).expect_status(201);
    }
    let rev = client.get("/db/c").rev_of_document();
    client.delete(&format!("/db/c?rev={rev}")).expect_status(200).rev()
}

fn path(query: &str) -> String {
    format!(
        "/db/_all_docs?{}",
        query
            .replace('"', "%22")
            .replace('[', "%5B")
            .replace(']', "%5D")
            .replace('{', "%7B")
            .replace('}', "%7D")
    )
}

#[test]
fn rows_are_written_as_couchdb_writes_them() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    assert_eq!(client.get("/db/_all_docs").text(), "{\"total_rows\":0,\"offset\":0,\"rows\":[\r\n\r\n]}\n");
    let one = client.put("/db/a", "{}").rev();
    let two = client.put("/db/b", "{}").rev();
    let expected = format!(
        "{{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n\
         {{\"id\":\"a\",\"key\":\"a\",\"value\":{{\"rev\":\"{one}\"}}}},\r\n\
         {{\"id\":\"b\",\"key\":\"b\",\"value\":{{\"rev\":\"{two}\"}}}}\r\n]}}\n"
    );
    assert_eq!(client.get("/db/_all_docs").text(), expected);
}

#[test]
fn options_for_views_are_checked_and_change_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    five(&mut client);
    let all = client.get("/db/_all_docs").json();
    for good in [
        "stale=ok",
        "stale=update_after",
        "stable=true",
        "update=lazy",
        "sorted=true",
        "reduce=false",
        "group=false",
        "group_level=0",
        "startkey_docid=d",
        "end_key_doc_id=a",
        "callback=x",
        "any=thing",
    ] {
        assert_eq!(client.get(&path(good)).expect_status(200).json(), all, "{good}");
    }
    let group = "Invalid use of grouping on a map view.";
    let bad = [
        ("stale=no", "Invalid value for `stale`."),
        ("stable=1", "Invalid value for `stable`."),
        ("update=later", "Invalid value for `update`."),
        ("sorted=x", "Invalid boolean parameter: \"x\""),
        ("reduce=true", "Reduce is invalid for map-only views."),
        ("reduce=x", "Invalid boolean parameter: \"x\""),
        ("group=true", group),
        ("group_level=1", group),
        ("group_level=-1", "Invalid value for positive integer: \"-1\""),
        ("group=false&group_level=1", "Can't specify group=false and group_level>0 at the same time"),
    ];
    for (query, reason) in bad {
        client.get(&path(query)).expect_error(400, "query_parse_error", reason);
    }
    let reply = client.post("/db/_all_docs/queries", "{\"queries\":[{\"reduce\":true}]}");
    reply.expect_error(400, "query_parse_error", "Reduce is invalid for map-only views.");
}

#[test]
fn keys_in_the_query_go_before_those_in_the_body() {
    let server = Server::start();
    let mut client = server.connect();
    five(&mut client);
    let reply = client.post(&path("keys=[\"b\"]"), "{\"keys\":[\"a\"]}");
    assert_eq!(ids(&reply, "rows"), ["b"]);
    let reply = client.post(&path("keys={}"), "{}");
    reply.expect_error(400, "query_parse_error", "`keys` must be an array of strings.");
    let reply = client.get(&path("keys={}"));
    reply.expect_error(400, "bad_request", "`keys` parameter must be an array.");
}

#[test]
fn ranges_and_directions_select_rows() {
    let server = Server::start();
    let mut client = server.connect();
    five(&mut client);
    let cases: &[(&str, &[&str], u64)] = &[
        ("", &["a", "b", "d", "e"], 0),
        ("startkey=\"b\"", &["b", "d", "e"], 1),
        ("start_key=\"bb\"&end_key=\"d\"", &["d"], 2),
        ("endkey=\"d\"&inclusive_end=false", &["a", "b"], 0),
        ("descending=true", &["e", "d", "b", "a"], 0),
        ("descending=true&startkey=\"d\"&endkey=\"b\"", &["d", "b"], 1),
        ("descending=true&startkey=\"d\"&endkey=\"b\"&inclusive_end=false", &["d"], 1),
        ("limit=2&skip=1", &["b", "d"], 1),
        ("limit=0", &[], 0),
        ("skip=9", &[], 4),
        ("key=\"d\"", &["d"], 2),
        ("key=\"c\"", &[], 2),
        ("startkey=\"d\"&endkey=\"b\"", &[], 0),
        ("startkey=1", &["a", "b", "d", "e"], 0),
        ("endkey={}", &[], 0),
    ];
    for (query, expected, offset) in cases {
        let reply = client.get(&path(query)).expect_status(200);
        assert_eq!(ids(&reply, "rows"), *expected, "{query}");
        assert_eq!(reply.json()["total_rows"], 4, "{query}");
        assert_eq!(reply.json()["offset"], *offset, "{query}");
    }
}

#[test]
fn keys_get_rows_for_absent_and_deleted_documents_too() {
    let server = Server::start();
    let mut client = server.connect();
    let gone = five(&mut client);
    let expected = |reply: crate::client::Reply| {
        let json = reply.expect_status(200).json();
        assert_eq!(json["offset"], json!(null));
        assert_eq!(json["rows"][0]["id"], "e");
        assert_eq!(json["rows"][1], json!({"key": "none", "error": "not_found"}));
        let deleted = json!({"id": "c", "key": "c", "value": {"rev": gone, "deleted": true}, "doc": null});
        assert_eq!(json["rows"][2], deleted);
        assert_eq!(json["rows"][3]["doc"]["is"], "a");
        assert_eq!(json["rows"][4], json!({"key": 1, "error": "not_found"}));
    };
    let keys = "[\"e\",\"none\",\"c\",\"a\",1]";
    expected(client.get(&path(&format!("include_docs=true&keys={keys}"))));
    expected(client.post("/db/_all_docs?include_docs=true", &format!("{{\"keys\":{keys}}}")));
    let some =
        client.post("/db/_all_docs?descending=true&skip=1&limit=2", "{\"keys\":[\"a\",\"b\",\"d\",\"e\"]}");
    assert_eq!(ids(&some, "rows"), ["d", "b"]);
}

#[test]
fn a_posted_body_holds_the_same_options() {
    let server = Server::start();
    let mut client = server.connect();
    five(&mut client);
    let body =
        json!({"startkey": "b", "endkey": "e", "inclusive_end": false, "include_docs": true, "limit": 5});
    let reply = client.post("/db/_all_docs", &body.to_string()).expect_status(200);
    assert_eq!(ids(&reply, "rows"), ["b", "d"]);
    assert_eq!(reply.json()["rows"][1]["doc"]["is"], "d");
    // The query overrides the body.
    assert_eq!(ids(&client.post("/db/_all_docs?limit=1", &body.to_string()), "rows"), ["b"]);
    assert_eq!(ids(&client.post("/db/_all_docs", "{}"), "rows").len(), 4);
}

#[test]
fn conflicts_and_the_update_number_are_shown_when_asked_for() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = |digit: &str| format!("1-{}", digit.repeat(32));
    for digit in ["a", "b"] {
        client.put("/db/x?new_edits=false", &json!({"_rev": rev(digit)}).to_string()).expect_status(201);
    }
    let json = client.get(&path("include_docs=true&conflicts=true&update_seq=true")).json();
    assert_eq!(json["rows"][0]["doc"]["_conflicts"], json!([rev("a")]));
    assert_eq!(json["update_seq"], client.get("/db").json()["update_seq"]);
}

#[test]
fn bad_options_are_named() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let cases = [
        ("limit=-1", "query_parse_error", "Invalid value for positive integer: \"-1\""),
        ("skip=x", "query_parse_error", "Invalid value for integer: \"x\""),
        ("descending=maybe", "query_parse_error", "Invalid boolean parameter: \"maybe\""),
        ("startkey=a", "bad_request", "invalid UTF-8 JSON"),
        ("keys=1", "bad_request", "`keys` parameter must be an array."),
        (
            "keys=[]&key=\"a\"",
            "query_parse_error",
            "`keys` is incompatible with `key`, `start_key` and `end_key`",
        ),
    ];
    for (query, error, reason) in cases {
        client.get(&path(query)).expect_error(400, error, reason);
    }
    let reply = client.post("/db/_all_docs", "{\"keys\":{}}");
    reply.expect_error(400, "bad_request", "`keys` body member must be an array.");
}

#[test]
fn ids_are_ordered_by_their_bytes() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for id in ["a", "B", "_design%2Fx", "%C3%A9", "z", "10", "9"] {
        client.put(&format!("/db/{id}"), "{}").expect_status(201);
    }
    assert_eq!(ids(&client.get("/db/_all_docs"), "rows"), ["10", "9", "B", "_design/x", "a", "z", "é"]);
}

#[test]
fn an_answer_of_many_chunks_arrives_whole() {
    let server = Server::with_limits(|limits| limits.stream_chunk_bytes = 1000);
    let mut client = server.connect();
    client.create("db");
    let docs: Vec<_> = (0..500).map(|n| json!({"_id": format!("{n:04}"), "text": "x".repeat(100)})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    let reply = client.get("/db/_all_docs?include_docs=true").expect_status(200);
    assert_eq!(reply.header("transfer-encoding"), Some("chunked"));
    let rows = reply.json()["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 500);
    assert!(rows.iter().enumerate().all(|(n, row)| row["doc"]["_id"] == format!("{n:04}")));
    // The connection is still usable.
    assert_eq!(client.head("/db/_all_docs").status, 200);
    client.get("/db/0001").expect_status(200);
}

#[test]
fn quotes_in_a_query_may_stand_as_people_type_them() {
    let server = Server::start();
    let mut client = server.connect();
    five(&mut client);
    // The quotes belong to a request that follows one without a body.
    let mut client = server.connect();
    for _ in 0..2 {
        let reply = client.get("/db/_all_docs?startkey=\"b\"&endkey=\"d\"");
        assert_eq!(ids(&reply.expect_status(200), "rows"), ["b", "d"]);
    }
}

#[test]
fn documents_come_with_their_attachments_where_these_are_asked_for() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let attached = json!({"text.txt": {"content_type": "text/plain", "data": "aGVsbG8="}});
    client.put("/db/a", &json!({"_attachments": attached}).to_string()).expect_status(201);
    let shown = |client: &mut Client, query: &str| {
        let reply = client.get(&format!("/db/_all_docs?include_docs=true{query}")).expect_status(200).json();
        reply["rows"][0]["doc"]["_attachments"]["text.txt"].clone()
    };
    assert_eq!(shown(&mut client, "")["stub"], true);
    assert_eq!(shown(&mut client, "&attachments=true")["data"], "aGVsbG8=");
    assert_eq!(shown(&mut client, "&attachments=true&keys=[%22a%22]")["data"], "aGVsbG8=");
    assert_eq!(shown(&mut client, "&att_encoding_info=true")["encoding"], "gzip");
    client.get("/db/_all_docs?attachments=maybe").expect_status(400);
}
