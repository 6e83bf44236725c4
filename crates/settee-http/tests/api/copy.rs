//! COPY.

use serde_json::json;

use crate::client::{Client, Reply, Server};

fn copy(client: &mut Client, from: &str, to: &str) -> Reply {
    client.send("COPY", from, &[("Destination", to)], b"")
}

#[test]
fn a_document_is_copied_and_an_older_one_replaced() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{\"v\":1}").expect_status(201);
    let copied = copy(&mut client, "/db/a", "b").expect_status(201);
    assert_eq!(copied.json(), json!({"ok": true, "id": "b", "rev": copied.rev()}));
    assert_eq!(copied.header("etag"), Some(&*format!("\"{}\"", copied.rev())));
    assert_eq!(copied.header("location"), Some(&*format!("http://{}/db/b", server.address)));
    assert_eq!(client.get("/db/b").json(), json!({"_id": "b", "_rev": copied.rev(), "v": 1}));

    copy(&mut client, "/db/a", "b").expect_error(409, "conflict", "Document update conflict.");
    let rev = copied.rev();
    client.put("/db/c", "{\"v\":3}").expect_status(201);
    let replaced = copy(&mut client, "/db/c", &format!("b?rev={rev}")).expect_status(201);
    assert!(replaced.rev().starts_with("2-"));
    assert_eq!(client.get("/db/b").json()["v"], 3);
    copy(&mut client, "/db/c", &format!("b?rev={rev}")).expect_status(409);
    copy(&mut client, "/db/c", &format!("new?rev={rev}")).expect_status(409);
}

#[test]
fn the_destination_is_decoded_and_must_be_relative() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);
    assert_eq!(copy(&mut client, "/db/a", "x%2Fy%20z").expect_status(201).json()["id"], "x/y z");
    client.get("/db/x%2Fy%20z").expect_status(200);
    assert_eq!(copy(&mut client, "/db/a", "_design%2Fd").expect_status(201).json()["id"], "_design/d");
    assert_eq!(copy(&mut client, "/db/a", "\u{fc}").expect_status(201).json()["id"], "\u{fc}");

    let missing = client.send("COPY", "/db/a", &[], b"");
    missing.expect_error(400, "bad_request", "Destination header is mandatory for COPY.");
    for absolute in ["http://localhost/db/b", "https://localhost/db/b"] {
        let reply = copy(&mut client, "/db/a", absolute);
        reply.expect_error(400, "bad_request", "Destination URL must be relative.");
    }
    copy(&mut client, "/db/a", "%2").expect_error(400, "bad_request", "invalid_url_encoding");
    copy(&mut client, "/db/a", "%ff").expect_error(400, "illegal_docid", "Document id must be valid UTF-8");
    copy(&mut client, "/db/a", "b?rev=x").expect_error(400, "bad_request", "Invalid rev format");
    copy(&mut client, "/db/a", "b?rev").expect_error(400, "bad_request", "Invalid rev format");
    let reserved = "Only reserved document ids may start with underscore.";
    copy(&mut client, "/db/a", "_b").expect_error(400, "illegal_docid", reserved);
    copy(&mut client, "/db/none", "b").expect_error(404, "not_found", "missing");
    client.get("/db/b").expect_status(404);
}

#[test]
fn a_revision_can_be_named_in_the_query_or_as_a_tag() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let (lost, won) = (format!("1-{}", "a".repeat(32)), format!("1-{}", "b".repeat(32)));
    for (rev, n) in [(&lost, 1), (&won, 2)] {
        client.put("/db/a?new_edits=false", &json!({"_rev": rev, "n": n}).to_string()).expect_status(201);
    }
    copy(&mut client, &format!("/db/a?rev={lost}"), "b").expect_status(201);
    assert_eq!(client.get("/db/b").json()["n"], 1);
    let headers = [("Destination", "c"), ("If-Match", &*format!("\"{lost}\""))];
    client.send("COPY", "/db/a", &headers, b"").expect_status(201);
    assert_eq!(client.get("/db/c").json()["n"], 1);
    copy(&mut client, "/db/a", "d").expect_status(201);
    assert_eq!(client.get("/db/d").json()["n"], 2);
    let unknown = format!("9-{}", "9".repeat(32));
    copy(&mut client, &format!("/db/a?rev={unknown}"), "e").expect_error(404, "not_found", "missing");
    client.delete(&format!("/db/d?rev={}", client_rev(&mut server.connect(), "/db/d"))).expect_status(200);
    copy(&mut client, "/db/d", "e").expect_error(404, "not_found", "deleted");
}

fn client_rev(client: &mut Client, path: &str) -> String {
    client.get(path).json()["_rev"].as_str().unwrap().to_owned()
}

#[test]
fn attachments_are_copied_with_their_digests_and_outlive_the_source() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let text = "a line of text\n".repeat(50_000);
    let bytes: Vec<u8> = (0..2_300_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let kind = |kind| [("Content-Type", kind)];
    let rev =
        client.send("PUT", "/db/a/text.txt", &kind("text/plain"), text.as_bytes()).expect_status(201).rev();
    let path = format!("/db/a/raw?rev={rev}");
    let rev = client.send("PUT", &path, &kind("application/octet-stream"), &bytes).expect_status(201).rev();
    let source = client.get("/db/a").json()["_attachments"].clone();
    copy(&mut client, "/db/a", "b").expect_status(201);
    let copied = client.get("/db/b").json()["_attachments"].clone();
    for name in ["text.txt", "raw"] {
        for member in ["digest", "length", "content_type"] {
            assert_eq!(copied[name][member], source[name][member], "{name} {member}");
        }
        assert_eq!(copied[name]["revpos"], 1);
    }
    client.delete(&format!("/db/a?rev={rev}")).expect_status(200);
    assert!(client.get("/db/b/text.txt").expect_status(200).body == text.as_bytes());
    assert!(client.get("/db/b/raw").expect_status(200).body == bytes);
}

#[test]
fn local_documents_are_copied_from_and_to() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_local/x", "{\"n\":1}").expect_status(201);
    copy(&mut client, "/db/_local/x", "a").expect_status(201);
    assert_eq!(client.get("/db/a").json()["n"], 1);
    let local = copy(&mut client, "/db/a", "_local/y").expect_status(201);
    assert_eq!(local.json(), json!({"ok": true, "id": "_local/y", "rev": "0-1"}));
    assert_eq!(copy(&mut client, "/db/a", "_local/y?rev=0-1").expect_status(201).rev(), "0-2");
    assert_eq!(client.get("/db/_local/y").json()["n"], 1);
    copy(&mut client, "/db/_local/none", "b").expect_error(404, "not_found", "missing");
}
