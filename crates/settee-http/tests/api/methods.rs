//! Unsupported methods, and features that aren't implemented yet.

use crate::client::Server;

#[test]
fn a_method_that_is_not_there_is_405_with_those_that_are() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let cases = [
        ("POST", "/", "GET,HEAD"),
        ("PUT", "/_up", "GET,HEAD"),
        ("POST", "/_all_dbs", "GET,HEAD"),
        ("POST", "/_uuids", "GET"),
        ("PUT", "/_session", "GET,HEAD,POST,DELETE"),
        ("PATCH", "/db", "DELETE,GET,HEAD,POST"),
        ("GET", "/db/_bulk_docs", "POST"),
        ("GET", "/db/_bulk_get", "POST"),
        ("PUT", "/db/_all_docs", "GET,HEAD,POST"),
        ("PUT", "/db/_changes", "GET,POST,HEAD"),
        ("GET", "/db/_revs_diff", "POST"),
        ("GET", "/db/_missing_revs", "POST"),
        ("GET", "/db/_ensure_full_commit", "POST"),
        ("PATCH", "/db/doc", "DELETE,GET,HEAD,POST,PUT,COPY"),
        ("PATCH", "/db/_local/x", "DELETE,GET,HEAD,POST,PUT,COPY"),
        ("PATCH", "/db/doc/file.txt", "DELETE,GET,HEAD,PUT"),
        ("POST", "/db/_design/x/file.txt", "DELETE,GET,HEAD,PUT"),
        ("OPTIONS", "/", "GET,HEAD"),
    ];
    for (method, path, allowed) in cases {
        let reply = client.send(method, path, &[], b"");
        reply.expect_error(405, "method_not_allowed", &format!("Only {allowed} allowed"));
        assert_eq!(reply.header("allow"), Some(allowed), "{method} {path}");
    }
}

#[test]
fn what_couchdb_has_and_we_do_not_is_501_with_a_reason() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let cases = [
        ("POST", "/_replicate"),
        ("GET", "/_scheduler/jobs"),
        ("GET", "/_utils/"),
        ("GET", "/db/_security"),
        ("PUT", "/db/_security"),
        ("GET", "/db/_design/x/_search/y"),
    ];
    for (method, path) in cases {
        let reply = client.send(method, path, &[("Content-Type", "application/json")], b"{}");
        assert_eq!(
            (reply.status, &reply.json()["error"]),
            (501, &"not_implemented".into()),
            "{method} {path}"
        );
        assert!(reply.json()["reason"].as_str().unwrap().contains("not implemented yet"), "{method} {path}");
    }
}

#[test]
fn what_couchdb_gave_up_is_gone_here_too() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for method in ["GET", "POST"] {
        let reply = client.send(method, "/db/_temp_view", &[], b"");
        reply.expect_error(410, "gone", "Temporary views are not supported in CouchDB");
    }
}

#[test]
fn what_is_no_function_of_a_design_document_is_an_attachment_of_it() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_design/x", "{}").expect_status(201);
    client.get("/db/_design/x/_foo").expect_error(404, "not_found", "Document is missing attachment");
    let reason = "Attachment name '_foo' starts with prohibited character '_'";
    client.put("/db/_design/x/_foo", "x").expect_error(400, "bad_request", reason);
    client.get("/db/_design/none/_foo").expect_error(404, "not_found", "missing");
}

#[test]
fn slashes_more_or_fewer_make_no_difference() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_design/x", "{}").expect_status(201);
    client.put("/db/a%2Fb", "{}").expect_status(201);
    for path in
        ["//db", "/db/", "/db//a%2Fb", "/db/a%2fb/", "/db/_design//x/", "/db/_design%2Fx", "/db//_all_docs/"]
    {
        client.get(path).expect_status(200);
    }
    client.get("/db%2Fa").expect_error(404, "not_found", "Database does not exist.");
    client.get("/db/a/b").expect_error(404, "not_found", "missing");
}

#[test]
fn a_head_never_tells_a_length_that_a_get_has_not() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{\"n\":1}").expect_status(201);
    client.put("/db/b/file", "abc").expect_status(201);
    client.put("/db/_local/l", "{}").expect_status(201);
    let paths = [
        "/",
        "/db",
        "/db/a",
        "/db/a?revs=true",
        "/db/none",
        "/db/b",
        "/db/b/file",
        "/db/_local/l",
        "/db/_all_docs",
        "/db/_changes",
        "/_all_dbs",
        "/db/b?attachments=true",
    ];
    for path in paths {
        let length = client.get(path).body.len().to_string();
        let declared = client.head(path).header("content-length").map(str::to_owned);
        assert!(
            declared.as_ref().is_none_or(|declared| *declared == length),
            "{path}: {declared:?} for {length}"
        );
    }
}

#[test]
fn every_get_has_a_head_without_a_body() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);
    client.put("/db/_local/l", "{}").expect_status(201);
    let paths = [
        "/",
        "/_up",
        "/_all_dbs",
        "/_uuids",
        "/_session",
        "/_active_tasks",
        "/_cluster_setup",
        "/_db_updates",
        "/_dbs_info",
        "/_membership",
        "/_node/_local",
        "/_node/_local/_config",
        "/_node/_local/_stats",
        "/_node/_local/_system",
        "/_node/_local/_versions",
        "/_node/_local/_prometheus",
        "/favicon.ico",
        "/db",
        "/db/a",
        "/db/_all_docs",
        "/db/_changes",
        "/db/_design_docs",
        "/db/_local_docs",
        "/db/_purged_infos",
        "/db/_purged_infos_limit",
        "/db/_revs_limit",
        "/db/_shards",
        "/db/_shards/a",
        "/db/_local/l",
        "/db/a?open_revs=all",
    ];
    for path in paths {
        assert_eq!(client.head(path).status, 200, "{path}");
    }
    for path in ["/none", "/db/none", "/db/_local/none"] {
        assert_eq!(client.head(path).status, 404, "{path}");
    }
    assert_eq!(client.head("/").header("content-length"), Some(&*client.get("/").body.len().to_string()));
}
