//! Goal: invalid input gets CouchDB's status and reason, stores nothing, and leaves the connection usable.

use crate::client::{Client, Server};

/// Asserts that the connection is in step and the database unchanged.
#[track_caller]
fn expect_untouched(client: &mut Client) {
    let info = client.get("/db").expect_status(200).json();
    assert_eq!(
        (info["doc_count"].as_u64(), info["update_seq"].as_str().unwrap().starts_with("0-")),
        (Some(0), true)
    );
}

#[test]
fn a_body_that_is_no_document_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let cases: &[(&[u8], &str, &str)] = &[
        (b"", "bad_request", "invalid UTF-8 JSON"),
        (b"{", "bad_request", "invalid UTF-8 JSON"),
        (b"{\"a\":1}{", "bad_request", "invalid UTF-8 JSON"),
        (b"{'a':1}", "bad_request", "invalid UTF-8 JSON"),
        (b"{\"a\":\"\xff\"}", "bad_request", "invalid UTF-8 JSON"),
        (b"\xef\xbb\xbf{}", "bad_request", "invalid UTF-8 JSON"),
        (b"{\"a\":\"\\ud800\"}", "bad_request", "invalid UTF-8 JSON"),
        (b"{\"a\":01}", "bad_request", "invalid UTF-8 JSON"),
        (b"[]", "bad_request", "Document must be a JSON object"),
        (b"\"x\"", "bad_request", "Document must be a JSON object"),
        (b"{\"_zing\":1}", "doc_validation", "Bad special document member: _zing"),
        (b"{\"\\u005fzing\":1}", "doc_validation", "Bad special document member: _zing"),
        (b"{\"_rev\":\"x\"}", "bad_request", "Invalid rev format"),
        (b"{\"_rev\":1}", "bad_request", "Invalid rev format"),
        (b"{\"_id\":1}", "illegal_docid", "Document id must be a string"),
        (b"{\"_id\":\"\"}", "illegal_docid", "Document id must not be empty"),
    ];
    for (body, error, reason) in cases {
        let reply = client.send("PUT", "/db/a", &[], body);
        reply.expect_error(400, error, reason);
        expect_untouched(&mut client);
    }
}

#[test]
fn numbers_that_no_double_holds_are_refused_wherever_json_is_taken() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let long = "1".repeat(400);
    for number in ["1e400", "-1e999", long.as_str()] {
        for (method, path, body) in [
            ("PUT", "/db/a", r#"{"n":N}"#),
            ("PUT", "/db/a?new_edits=false", r#"{"_rev":"1-00112233445566778899aabbccddeeff","n":[N]}"#),
            ("PUT", "/db/_local/a", r#"{"n":N}"#),
            ("POST", "/db", r#"{"n":N}"#),
            ("POST", "/db/_bulk_docs", r#"{"docs":[{"n":{"m":N}}]}"#),
            ("POST", "/db/_bulk_docs", r#"{"new_edits":false,"docs":[{"_id":"a","_rev":"1-a","n":N}]}"#),
            ("POST", "/db/_bulk_docs", r#"{"docs":[{}],"x":N}"#),
            ("POST", "/db/_bulk_docs", r#"{"x":[N],"docs":[{}]}"#),
            ("POST", "/db/_bulk_get", r#"{"docs":[{"id":"a","x":N}]}"#),
            ("POST", "/db/_revs_diff", r#"{"a":["1-a",N]}"#),
            ("POST", "/db/_all_docs", r#"{"keys":["a",N]}"#),
            ("POST", "/db/_changes?filter=_selector", r#"{"selector":{"n":N}}"#),
            ("POST", "/_dbs_info", r#"{"keys":["db"],"x":N}"#),
        ] {
            let headers = [("Content-Type", "application/json")];
            let reply = client.send(method, path, &headers, body.replace('N', number).as_bytes());
            assert_eq!(reply.status, 400, "{method} {path} {body}: {}", reply.text());
        }
        client.get(&format!("/db/_all_docs?startkey={number}")).expect_status(400);
        expect_untouched(&mut client);
    }
    client.put("/db/a", "{\"n\":1e-400,\"m\":123456789012345678901234567890}").expect_status(201);
    let text = client.get("/db/a").text().to_owned();
    assert!(text.contains("\"n\":1e-400,\"m\":123456789012345678901234567890"), "{text}");
}

#[test]
fn a_missing_body_is_told_from_an_empty_one() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.write_head("PUT", "/db/a", &[]);
    client.read("PUT").expect_error(400, "bad_request", "Missing request body");
    client.write_head("POST", "/db/_bulk_docs", &[("Content-Type", "application/json")]);
    client.read("POST").expect_error(400, "bad_request", "Missing request body");
    expect_untouched(&mut client);
}

#[test]
fn bad_ids_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reserved = "Only reserved document ids may start with underscore.";
    let cases = [
        ("PUT", "/db/_bad", reserved),
        ("PUT", "/db/_design%2F", "Illegal document id `_design/`"),
        ("PUT", "/db/%ff", "Document id must be valid UTF-8"),
    ];
    for (method, path, reason) in cases {
        client.send(method, path, &[], b"{}").expect_error(400, "illegal_docid", reason);
    }
    client.post("/db", "{\"_id\":\"_bad\"}").expect_error(400, "illegal_docid", reserved);
    client.get("/db/_bad").expect_error(404, "not_found", "missing");
    expect_untouched(&mut client);
}

#[test]
fn bad_revisions_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);
    for path in ["/db/a?rev=x", "/db/a?rev=1", "/db/a?rev=-1-x", "/db/a?rev="] {
        client.get(path).expect_error(400, "bad_request", "Invalid rev format");
        client.delete(path).expect_error(400, "bad_request", "Invalid rev format");
    }
    let reply = client.send("PUT", "/db/a", &[("If-Match", "x")], b"{}");
    reply.expect_error(400, "bad_request", "Invalid rev format");
    client.get("/db/a").expect_status(200);
}

#[test]
fn a_bad_encoding_of_the_address_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for path in ["/%", "/db/%2", "/db/a?x=%zz"] {
        client.get(path).expect_error(400, "bad_request", "invalid_url_encoding");
    }
    expect_untouched(&mut client);
}

#[test]
fn posts_must_be_declared_as_json() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let paths = [
        "",
        "/_bulk_docs",
        "/_bulk_get",
        "/_all_docs",
        "/_changes",
        "/_revs_diff",
        "/_missing_revs",
        "/_ensure_full_commit",
    ];
    for path in paths {
        for headers in [&[][..], &[("Content-Type", "text/plain")][..]] {
            let reply = client.send("POST", &format!("/db{path}"), headers, b"{\"docs\":[{}]}");
            reply.expect_error(415, "bad_content_type", "Content-Type must be application/json");
        }
    }
    expect_untouched(&mut client);
    // A parameter doesn't change the type, and a PUT needs no declaration.
    let with_charset = [("Content-Type", "application/json; charset=utf-8")];
    client.send("POST", "/db/_bulk_docs", &with_charset, b"{\"docs\":[]}").expect_status(201);
    client.send("PUT", "/db/a", &[("Content-Type", "text/plain")], b"{}").expect_status(201);
}

#[test]
fn bodies_of_an_unknown_encoding_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reply = client.send("PUT", "/db/a", &[("Content-Encoding", "br")], b"\x1f\x8b");
    reply.expect_error(415, "bad_content_type", "br is not a supported content encoding.");
    client.send("PUT", "/db/a", &[("Content-Encoding", "identity")], b"{}").expect_status(201);
}

#[test]
fn requests_to_unknown_databases_are_404() {
    let server = Server::start();
    let mut client = server.connect();
    for path in ["", "/a", "/_all_docs", "/_changes", "/_find", "/_local/x", "/_design/x", "/Upper"] {
        client.get(&format!("/none{path}")).expect_error(404, "not_found", "Database does not exist.");
    }
    for path in ["", "/_bulk_docs", "/_find", "/_revs_diff", "/_ensure_full_commit"] {
        let reply = client.post(&format!("/none{path}"), "{}");
        reply.expect_error(404, "not_found", "Database does not exist.");
    }
    client.put("/none/a", "{}").expect_error(404, "not_found", "Database does not exist.");
}
