//! Attachments in all forms: multipart requests and responses, compressed bodies, forms.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::client::{Client, Reply, Server};

const RELATED: [(&str, &str); 1] = [("Content-Type", "multipart/related;boundary=\"abc123\"")];
const JSON: [(&str, &str); 1] = [("Accept", "application/json")];

/// A multipart body whose first part is JSON.
fn related(document: &Value, parts: &[&[u8]]) -> Vec<u8> {
    let mut body = format!("--abc123\r\ncontent-type: application/json\r\n\r\n{document}").into_bytes();
    for part in parts {
        body.extend_from_slice(b"\r\n--abc123\r\n\r\n");
        body.extend_from_slice(part);
    }
    body.extend_from_slice(b"\r\n--abc123--epilogue");
    body
}

fn follows(kind: &str, length: usize) -> Value {
    json!({"follows": true, "content_type": kind, "length": length})
}

/// A part of a response: its head and its content.
#[derive(Debug)]
struct Part {
    head: String,
    body: Vec<u8>,
}

impl Part {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The nested parts.
    fn parts(&self) -> Vec<Part> {
        parts(self.header("Content-Type").unwrap(), &self.body)
    }
}

/// Splits a response into parts, without the server's own code.
fn parts(kind: &str, body: &[u8]) -> Vec<Part> {
    let boundary = kind.split_once("boundary=").unwrap_or_else(|| panic!("{kind}")).1.trim_matches('"');
    let body = [b"\r\n".as_slice(), body].concat();
    let delimiter = format!("\r\n--{boundary}");
    let mut rest = body.strip_prefix(delimiter.as_bytes()).expect("the boundary comes first");
    // The first line end is part of the delimiter already.
    let mut found = Vec::new();
    while !rest.starts_with(b"--") {
        rest = rest.strip_prefix(b"\r\n").expect("a line's end behind the boundary");
        let head_end = rest.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let body_end = rest.windows(delimiter.len()).position(|found| found == delimiter.as_bytes()).unwrap();
        let head = String::from_utf8(rest[..head_end].to_vec()).unwrap();
        found.push(Part { head, body: rest[head_end + 4..body_end].to_vec() });
        rest = &rest[body_end + delimiter.len()..];
    }
    found
}

fn parts_of(reply: &Reply) -> Vec<Part> {
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    // The line end of the first delimiter is optional.
    let body = reply.body.strip_prefix(b"\r\n").unwrap_or(&reply.body);
    parts(reply.header("content-type").unwrap(), body)
}

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A list of revisions for a query.
fn list(revisions: &[&str]) -> String {
    json!(revisions).to_string().replace('"', "%22")
}

fn started() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    (server, client)
}

fn doc_count(client: &mut Client) -> Value {
    client.get("/db").json()["doc_count"].clone()
}

#[test]
fn a_document_comes_and_goes_with_its_attachments_behind_it() {
    let (_server, mut client) = started();
    let document = json!({"body": "This is a body.", "_attachments": {
        "foo.txt": follows("application/test", 21),
        "bar.txt": follows("application/test", 20),
        "baz.txt": follows("text/plain", 19),
    }});
    let sent =
        related(&document, &[b"this is 21 chars long", b"this is 20 chars lon", b"this is 19 chars lo"]);
    let first = client.send("PUT", "/db/m", &RELATED, &sent).expect_status(201).rev();
    for (name, content) in
        [("foo", "this is 21 chars long"), ("bar", "this is 20 chars lon"), ("baz", "this is 19 chars lo")]
    {
        assert_eq!(client.get(&format!("/db/m/{name}.txt")).expect_status(200).text(), content);
    }
    let stubs = client.get("/db/m?att_encoding_info=true").json()["_attachments"].clone();
    assert_eq!((&stubs["foo.txt"]["stub"], &stubs["foo.txt"]["encoding"]), (&json!(true), &Value::Null));
    assert_eq!((&stubs["baz.txt"]["encoding"], &stubs["baz.txt"]["length"]), (&json!("gzip"), &json!(19)));

    let document = json!({"_rev": first, "body": "This is a body.", "_attachments": {
        "foo.txt": {"stub": true, "content_type": "application/test"},
        "bar.txt": follows("application/test", 18),
    }});
    client.send("PUT", "/db/m", &RELATED, &related(&document, &[b"this is 18 chars l"])).expect_status(201);
    client.get("/db/m/baz.txt").expect_error(404, "not_found", "Document is missing attachment");

    let accept = [("Accept", "multipart/related,*/*;")];
    let reply = client.send("GET", "/db/m?attachments=true", &accept, b"");
    assert_eq!(reply.header("content-length"), Some(&*reply.body.len().to_string()));
    let found = parts_of(&reply);
    assert_eq!(found.len(), 3);
    assert_eq!(found[0].head, "Content-Type: application/json");
    let inside = found[0].json()["_attachments"].clone();
    assert_eq!((&inside["foo.txt"]["follows"], &inside["bar.txt"]["follows"]), (&json!(true), &json!(true)));
    assert_eq!((&inside["foo.txt"]["length"], &inside["foo.txt"]["stub"]), (&json!(21), &Value::Null));
    let head = "Content-Disposition: attachment; filename=\"foo.txt\"\r\nContent-Type: application/test\r\nContent-Length: 21";
    assert_eq!(
        (found[1].head.as_str(), found[1].body.as_slice()),
        (head, b"this is 21 chars long".as_slice())
    );
    assert_eq!(found[2].body, b"this is 18 chars l");
    let head = client.send("HEAD", "/db/m?attachments=true", &accept, b"");
    assert_eq!((head.status, head.header("content-length")), (200, reply.header("content-length")));

    // Only attachments newer than a revision; an unknown revision doesn't count.
    for since in [list(&[&first]), list(&[&format!("1-{}", "0".repeat(32)), &first])] {
        let found = parts_of(&client.send("GET", &format!("/db/m?atts_since={since}"), &accept, b""));
        assert_eq!((found.len(), &found[1].body[..]), (2, b"this is 18 chars l".as_slice()));
        let inside = found[0].json()["_attachments"].clone();
        assert_eq!((&inside["foo.txt"]["stub"], &inside["bar.txt"]["follows"]), (&json!(true), &json!(true)));
    }
    // If no attachment is sent, the response is JSON.
    let newest = client.get("/db/m").rev_of_document();
    let path = format!("/db/m?atts_since={}", list(&[&newest]));
    let reply = client.send("GET", &path, &accept, b"").expect_status(200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.json()["_attachments"]["bar.txt"]["stub"], true);
}

#[test]
fn an_attachment_with_its_data_has_no_length_and_one_without_has() {
    let (_server, mut client) = started();
    let text = json!({"_attachments": {"a": {"content_type": "text/plain", "data": "aGVsbG8="}}});
    let rev = client.put("/db/d", &text.to_string()).expect_status(201).rev();
    let inside = |document: &Value| document["_attachments"]["a"].clone();
    let digest = inside(&client.get("/db/d").json())["digest"].clone();
    let inline = json!({"content_type": "text/plain", "revpos": 1, "digest": digest, "data": "aGVsbG8="});
    assert_eq!(inside(&client.send("GET", "/db/d?attachments=true", &JSON, b"").json()), inline);
    let all = client.get("/db/_all_docs?include_docs=true&attachments=true").json();
    assert_eq!(inside(&all["rows"][0]["doc"]), inline);
    let changes = client.get("/db/_changes?include_docs=true&attachments=true").json();
    assert_eq!(inside(&changes["results"][0]["doc"]), inline);
    let headers = [("Content-Type", "application/json"), JSON[0]];
    let asked = json!({"docs": [{"id": "d"}]}).to_string();
    let got = client.send("POST", "/db/_bulk_get?attachments=true", &headers, asked.as_bytes()).json();
    assert_eq!(inside(&got["results"][0]["docs"][0]["ok"]), inline);
    let since = format!("/db/d?atts_since={}", list(&[&rev]));
    for path in ["/db/d", &since] {
        let stub = inside(&client.send("GET", path, &JSON, b"").json());
        assert_eq!((&stub["length"], &stub["stub"]), (&json!(5), &json!(true)), "{path}");
    }
}

#[test]
fn an_attachment_of_a_replaced_revision_is_a_conflict() {
    let (_server, mut client) = started();
    let kind = ("Content-Type", "text/plain");
    let first = client.send("PUT", "/db/d/a", &[kind], b"x").expect_status(201).rev();
    let second = client.send("PUT", &format!("/db/d/a?rev={first}"), &[kind], b"y").expect_status(201).rev();
    let conflict = |reply: Reply| reply.expect_error(409, "conflict", "Document update conflict.");
    conflict(client.send("PUT", &format!("/db/d/a?rev={first}"), &[kind], b"z"));
    conflict(client.send("PUT", &format!("/db/d/new?rev={first}"), &[kind], b"z"));
    conflict(client.delete(&format!("/db/d/a?rev={first}")));
    conflict(client.send("DELETE", "/db/d/a", &[("If-Match", &first)], b""));
    let unknown = format!("1-{}", "0".repeat(32));
    client.delete(&format!("/db/d/a?rev={unknown}")).expect_error(409, "not_found", "missing_rev");
    assert_eq!(client.get("/db/d/a").text(), "y");
    client.delete(&format!("/db/d/a?rev={second}")).expect_status(200);
}

#[test]
fn what_does_not_fit_its_document_is_refused_and_leaves_nothing() {
    let (_server, mut client) = started();
    let one = |length: usize| json!({"_attachments": {"a": follows("image/png", length)}});
    let two = json!({"_attachments": {"a": follows("image/png", 3), "b": follows("image/png", 3)}});
    let (longer, shorter) = ("attachment longer than expected", "attachment shorter than expected");
    let cases: [(Vec<u8>, &str); 9] = [
        (related(&one(3), &[b"four"]), longer),
        (related(&one(5), &[b"four"]), shorter),
        (related(&two, &[b"abc"]), shorter),
        (related(&two, &[b"abcabc"]), longer),
        (related(&one(3), &[]), shorter),
        (related(&one(3), &[b"abc", b"abc"]), "more parts came than attachments follow"),
        (
            related(&json!({"_attachments": {"a": {"follows": true}}}), &[b""]),
            "Invalid attachment data for a",
        ),
        (related(&one(3), &[b"abc"])[..60].to_vec(), "expected more data"),
        (b"no boundary".to_vec(), "expected more data"),
    ];
    for (body, reason) in cases {
        let reply = client.send("PUT", "/db/a", &RELATED, &body);
        reply.expect_error(400, "bad_request", reason);
    }
    let digest = json!({"_attachments": {"a": {"follows": true, "length": 5, "digest": "md5-XUFAKrxLKna5cZ2REBfFkg=="}}});
    let reply = client.send("PUT", "/db/a", &RELATED, &related(&digest, &[b"hallo"]));
    reply.expect_error(400, "content_md5_mismatch", "Possible message corruption.");
    let no_boundary = [("Content-Type", "multipart/related")];
    let reply = client.send("PUT", "/db/a", &no_boundary, b"--abc123--");
    reply.expect_error(400, "bad_request", "Content-Type must have a boundary");
    let no_json = b"--abc123\r\nContent-Type: text/plain\r\n\r\n{}\r\n--abc123--";
    for body in [no_json.as_slice(), b"--abc123\r\n\r\n{}\r\n--abc123--"] {
        let reply = client.send("PUT", "/db/a", &RELATED, body);
        reply.expect_error(415, "bad_content_type", "Content-Type must be application/json");
    }
    let reply = client.send("PUT", "/db/a", &RELATED, &related(&json!([]), &[]));
    reply.expect_error(400, "bad_request", "Document must be a JSON object");
    client.send("PUT", "/db/a", &RELATED, b"--abc123--").expect_error(
        400,
        "bad_request",
        "Missing request body",
    );
    // Attachments can't follow without multipart.
    assert_eq!(client.put("/db/a", &one(3).to_string()).status, 400);
    assert_eq!(doc_count(&mut client), 0);
    client.send("PUT", "/db/a", &RELATED, &related(&digest, &[b"hello"])).expect_status(201);
}

#[test]
fn a_conflict_is_reported_before_attachments_are_read_and_too_large_ones_are_413() {
    let server = Server::with_limits(|limits| limits.attachment_bytes_max = 1000);
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);
    let large = bytes(900, 1);
    let document = json!({"_attachments": {"a": follows("image/png", 900)}});
    let reply = client.send("PUT", "/db/a", &RELATED, &related(&document, &[&large]));
    reply.expect_error(409, "conflict", "Document update conflict.");
    let document =
        json!({"_rev": format!("1-{}", "0".repeat(32)), "_attachments": {"a": follows("image/png", 900)}});
    let reply = client.send("PUT", "/db/a", &RELATED, &related(&document, &[&large]));
    reply.expect_error(409, "conflict", "Document update conflict.");
    let document = json!({"_attachments": {"big": follows("image/png", 1001)}});
    let reply = client.send("PUT", "/db/b", &RELATED, &related(&document, &[&bytes(1001, 1)]));
    reply.expect_error(413, "attachment_too_large", "big");
    let reply = client.send("PUT", "/db/b/big", &[("Content-Type", "image/png")], &bytes(1001, 1));
    reply.expect_error(413, "attachment_too_large", "big");
    assert_eq!(doc_count(&mut client), 1);
}

#[test]
fn a_replica_keeps_revisions_and_compressed_attachments_as_they_were() {
    let (_server, mut client) = started();
    let text = "all work and no play ".repeat(500);
    let packed = gzip(text.as_bytes());
    let rev = format!("2-{}", "b".repeat(32));
    let document = |length: usize| {
        json!({"_rev": rev, "_revisions": {"start": 2, "ids": ["b".repeat(32), "a".repeat(32)]}, "_attachments": {
            "t.txt": {"follows": true, "content_type": "text/plain", "revpos": 1, "length": length,
                "encoded_length": packed.len(), "encoding": "gzip"},
        }})
    };
    let garbled = bytes(packed.len(), 9);
    for bad in [garbled.as_slice(), &[&packed[..packed.len() - 1], b"x"].concat()] {
        let reply =
            client.send("PUT", "/db/a?new_edits=false", &RELATED, &related(&document(text.len()), &[bad]));
        reply.expect_error(400, "bad_request", "the attachment isn't gzip, as it says");
    }
    // Like CouchDB, the server reports the stored length of an attachment that came compressed.
    for (id, length) in [("a", text.len()), ("b", packed.len())] {
        let body = related(&document(length), &[&packed]);
        let saved =
            client.send("PUT", &format!("/db/{id}?new_edits=false"), &RELATED, &body).expect_status(201);
        assert_eq!(saved.rev(), rev);
        let stub =
            client.get(&format!("/db/{id}?att_encoding_info=true")).json()["_attachments"]["t.txt"].clone();
        assert_eq!((&stub["length"], &stub["encoded_length"]), (&json!(text.len()), &json!(packed.len())));
        assert_eq!((&stub["encoding"], &stub["revpos"]), (&json!("gzip"), &json!(1)));
        assert_eq!(client.get(&format!("/db/{id}/t.txt")).expect_status(200).text(), text);
        let gzipped = client.send("GET", &format!("/db/{id}/t.txt"), &[("Accept-Encoding", "gzip")], b"");
        assert_eq!((gzipped.header("content-encoding"), &gzipped.body), (Some("gzip"), &packed));
    }
    let body = related(&json!({"_attachments": {"t": follows("text/plain", 1)}}), &[b"x"]);
    let reply = client.send("PUT", "/db/c?new_edits=false", &RELATED, &body);
    let reason = "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
    reply.expect_error(400, "bad_request", reason);
}

#[test]
fn large_attachments_pass_in_frames_of_any_size() {
    let (_server, mut client) = started();
    let (large, small) = (bytes(5_000_000, 3), bytes(70_000, 4));
    let document = json!({"_attachments": {
        "large": follows("image/png", large.len()), "small": follows("image/png", small.len()),
        "empty": follows("image/png", 0),
    }});
    let body = related(&document, &[&large, &small, b""]);
    client.write_head("PUT", "/db/a", &[RELATED[0], ("Transfer-Encoding", "chunked")]);
    let mut size = 1;
    let mut rest = body.as_slice();
    while !rest.is_empty() {
        let (frame, next) = rest.split_at(size.min(rest.len()));
        client.write(format!("{:x}\r\n", frame.len()).as_bytes());
        client.write(frame);
        client.write(b"\r\n");
        rest = next;
        size = (size * 7 % 30_011).max(1);
    }
    client.write(b"0\r\n\r\n");
    client.read("PUT").expect_status(201);
    let reply = client.get("/db/a?attachments=true");
    let found = parts_of(&reply);
    assert_eq!(found.len(), 4);
    assert!(found[1].body == large && found[2].body == small && found[3].body.is_empty());
    let inline = client.send("GET", "/db/a?attachments=true", &JSON, b"").json();
    assert!(inline["_attachments"]["large"]["data"] == BASE64.encode(&large));
}

#[test]
fn who_takes_json_gets_attachments_inline_as_what_they_are() {
    let (_server, mut client) = started();
    let inline =
        json!({"_attachments": {"t": {"content_type": "text/plain", "data": BASE64.encode("text")}}});
    let rev = client.put("/db/a", &inline.to_string()).expect_status(201).rev();
    for query in ["attachments=true", "attachments=true&att_encoding_info=true"] {
        let found = client.send("GET", &format!("/db/a?{query}"), &JSON, b"").json();
        assert_eq!(found["_attachments"]["t"]["data"], BASE64.encode("text"), "{query}");
        // The inline form can be written again.
        let path = format!("/db/{}?new_edits=false", query.len());
        client.put(&path, &found.to_string()).expect_status(201);
        assert_eq!(client.get(&format!("/db/{}/t", query.len())).text(), "text", "{query}");
    }
    for accept in ["*/*", "application/json, text/plain, */*"] {
        let reply = client.send("GET", "/db/a?attachments=true", &[("Accept", accept)], b"");
        assert_eq!(parts_of(&reply).len(), 2, "{accept}");
    }
    let path = format!("/db/a?rev={rev}&attachments=true&revs=true");
    assert_eq!(client.send("GET", &path, &JSON, b"").json()["_revisions"]["start"], 1);
}

/// A document with two leaves, each with an attachment of its own and one from their root.
fn conflicted(client: &mut Client) -> (String, [String; 2]) {
    let root =
        client.put("/db/c", &json!({"_attachments": {"old": {"data": BASE64.encode("old")}}}).to_string());
    let root = root.expect_status(201).rev();
    let leaves = ["1", "2"].map(|digit| format!("2-{}", digit.repeat(32)));
    for leaf in &leaves {
        let document = json!({"_rev": leaf, "_revisions": {"start": 2, "ids": [leaf[2..], root[2..]]}, "_attachments": {
            "old": {"stub": true, "revpos": 1}, "new": follows("image/png", 5),
        }});
        let body = related(&document, &[format!("new {}", &leaf[2..3]).as_bytes()]);
        client.send("PUT", "/db/c?new_edits=false", &RELATED, &body).expect_status(201);
    }
    (root, leaves)
}

#[test]
fn open_revs_carry_attachments_in_parts_within_parts() {
    let (_server, mut client) = started();
    let (root, leaves) = conflicted(&mut client);
    let unknown = format!("9-{}", "9".repeat(32));
    let mixed = [("Accept", "multipart/mixed")];
    let revisions = list(&[&leaves[0], &unknown, &leaves[1]]);
    let reply =
        client.send("GET", &format!("/db/c?revs=true&latest=true&open_revs={revisions}"), &mixed, b"");
    assert!(reply.header("content-type").unwrap().starts_with("multipart/mixed; boundary=\""));
    let found = parts_of(&reply);
    assert_eq!(found.len(), 3);
    assert_eq!(found[1].head, "Content-Type: application/json; error=\"true\"");
    assert_eq!(found[1].json(), json!({"missing": unknown}));
    for (part, leaf) in [(&found[0], &leaves[0]), (&found[2], &leaves[1])] {
        let inside = part.parts();
        assert_eq!(inside.len(), 3);
        let document = inside[0].json();
        assert_eq!((&document["_rev"], &document["_revisions"]["start"]), (&json!(leaf), &json!(2)));
        let contents: Vec<&[u8]> = inside[1..].iter().map(|part| part.body.as_slice()).collect();
        let new = format!("new {}", &leaf[2..3]);
        assert!(contents.contains(&new.as_bytes()) && contents.contains(&b"old".as_slice()), "{inside:?}");
    }
    // Attachments that the replica has are sent as stubs.
    let path = format!("/db/c?open_revs={}&atts_since={}", list(&[&leaves[0]]), list(&[&root]));
    let found = parts_of(&client.send("GET", &path, &mixed, b""));
    let inside = found[0].parts();
    assert_eq!((inside.len(), &inside[0].json()["_attachments"]["old"]["stub"]), (2, &json!(true)));
    assert_eq!(inside[1].body, b"new 1");
    let path = format!("/db/c?open_revs=all&atts_since={}", list(&[&leaves[0], &leaves[1]]));
    let found = parts_of(&client.send("GET", &path, &mixed, b""));
    assert!(found.iter().all(|part| part.head == "Content-Type: application/json"), "{found:?}");

    let all = client.send("GET", "/db/c?open_revs=all&attachments=true", &JSON, b"").json();
    assert_eq!(all[0]["ok"]["_rev"], leaves[1]);
    assert_eq!(all[1]["ok"]["_attachments"]["new"]["data"], BASE64.encode("new 1"));
    let stubs = client.send("GET", "/db/c?open_revs=all", &JSON, b"").json();
    assert_eq!(stubs[0]["ok"]["_attachments"]["old"]["stub"], true);
}

#[test]
fn a_bulk_get_carries_attachments_inline_and_in_parts() {
    let (_server, mut client) = started();
    let (root, leaves) = conflicted(&mut client);
    let plain = client.put("/db/p", "{\"n\":1}").rev();
    let unknown = format!("9-{}", "9".repeat(32));
    let docs = json!({"docs": [
        {"id": "c", "rev": leaves[0], "atts_since": [root]}, {"id": "c", "rev": leaves[1], "atts_since": []},
        {"id": "p"}, {"id": "c", "rev": unknown}, {"id": "none"},
        {"id": "c", "rev": leaves[0], "atts_since": "x"}, {"id": "c", "rev": leaves[0], "atts_since": [root, "y"]},
    ]});
    let json = client.post("/db/_bulk_get?attachments=true", &docs.to_string()).expect_status(200).json();
    let found = |row: usize| json["results"][row]["docs"][0].clone();
    assert_eq!(found(0)["ok"]["_attachments"]["old"]["stub"], true);
    assert_eq!(found(0)["ok"]["_attachments"]["new"]["data"], BASE64.encode("new 1"));
    assert_eq!(found(1)["ok"]["_attachments"]["old"]["data"], BASE64.encode("old"));
    assert_eq!(found(2)["ok"]["_rev"], plain);
    let reasons = [
        (3, json!(unknown), "not_found", "missing"),
        (4, json!("undefined"), "not_found", "missing"),
        (5, json!("x"), "bad_request", "att_since value must be array of revs."),
        (6, json!("y"), "bad_request", "Invalid rev format"),
    ];
    for (row, rev, error, reason) in &reasons {
        let id = if *row == 4 { "none" } else { "c" };
        let expected = json!({"error": {"id": id, "rev": rev, "error": error, "reason": reason}});
        assert_eq!(found(*row), expected);
    }
    let stubs = client.post("/db/_bulk_get", "{\"docs\":[{\"id\":\"c\"}]}").json();
    assert_eq!(stubs["results"][0]["docs"].as_array().unwrap().len(), 2);
    assert_eq!(stubs["results"][0]["docs"][0]["ok"]["_attachments"]["new"]["stub"], true);

    for kind in ["multipart/mixed", "multipart/related"] {
        let headers = [("Content-Type", "application/json"), ("Accept", kind)];
        let reply = client.send("POST", "/db/_bulk_get", &headers, docs.to_string().as_bytes());
        assert!(reply.header("content-type").unwrap().starts_with(&format!("{kind}; boundary=\"--")));
        let found = parts_of(&reply);
        assert_eq!(found.len(), 7);
        assert_eq!(
            (found[0].header("X-Doc-Id"), found[0].header("X-Rev-Id")),
            (Some("c"), Some(&*leaves[0]))
        );
        assert_eq!((found[0].parts().len(), found[1].parts().len()), (2, 3));
        assert_eq!(found[2].head, "Content-Type: application/json");
        assert_eq!(found[2].json()["n"], 1);
        assert_eq!(found[3].head, "Content-Type: application/json; error=\"true\"");
        assert_eq!(found[3].json(), json!({"rev": unknown, "error": "not_found", "reason": "missing"}));
        for (row, rev, error, reason) in &reasons[1..] {
            let id = if *row == 4 { "none" } else { "c" };
            assert_eq!(found[*row].json(), json!({"id": id, "rev": rev, "error": error, "reason": reason}));
        }
        let empty = client.send("POST", "/db/_bulk_get", &headers, b"{\"docs\":[]}").expect_status(200);
        assert_eq!(empty.text(), "");
    }
}

#[test]
fn a_document_of_many_leaves_gives_each_of_them_once() {
    let (_server, mut client) = started();
    const LEAVES: usize = 300;
    let hash = |n: usize| format!("{n:032x}");
    let docs: Vec<Value> = (0..LEAVES)
        .map(|n| {
            let ids = [hash(n + 1000), hash(n / 100 + 10), hash(1)];
            json!({"_id": "a", "_revisions": {"start": 3, "ids": ids}, "n": n})
        })
        .collect();
    let body = json!({"new_edits": false, "docs": docs}).to_string();
    assert_eq!(client.post("/db/_bulk_docs", &body).expect_status(201).json(), json!([]));
    let all = client.send("GET", "/db/a?open_revs=all&revs=true", &JSON, b"").json();
    assert_eq!(all.as_array().unwrap().len(), LEAVES);
    let numbers = |list: &Value| -> Vec<u64> {
        let documents = list.as_array().unwrap().iter();
        let mut numbers: Vec<u64> = documents.filter_map(|item| item["ok"]["n"].as_u64()).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&all), (0..LEAVES as u64).collect::<Vec<_>>());
    assert!(all.as_array().unwrap().iter().all(|item| item["ok"]["_revisions"]["ids"][2] == json!(hash(1))));
    // The root matches all leaves, an inner revision its own; each leaf is sent once.
    let asked = |revisions: &[String], latest: bool| {
        let revisions: Vec<&str> = revisions.iter().map(String::as_str).collect();
        format!("/db/a?latest={latest}&open_revs={}", list(&revisions))
    };
    let (root, inner) = (format!("1-{}", hash(1)), format!("2-{}", hash(11)));
    let leaf = format!("3-{}", hash(1150));
    let path = asked(&[leaf.clone(), inner.clone(), inner.clone(), root.clone(), leaf.clone()], true);
    let found = client.send("GET", &path, &JSON, b"").json();
    assert_eq!((found[0]["ok"]["n"].as_u64(), numbers(&found).len()), (Some(150), LEAVES));
    let found = client.send("GET", &asked(&[inner.clone(), leaf], true), &JSON, b"").json();
    assert_eq!(numbers(&found), (100..200).collect::<Vec<_>>());
    let found = client.send("GET", &asked(&[inner.clone(), root], false), &JSON, b"").json();
    assert_eq!(found[0], json!({"missing": inner}));
    assert_eq!(found.as_array().unwrap().len(), 2);
}

#[test]
fn json_comes_compressed_anywhere() {
    let server = Server::with_limits(|limits| limits.request_bytes_max = 200_000);
    let mut client = server.connect();
    client.create("db");
    let encoding = ("Content-Encoding", "gzip");
    let kind = ("Content-Type", "application/json");
    let document = json!({"text": "x".repeat(100_000)}).to_string();
    client.send("PUT", "/db/a", &[encoding], &gzip(document.as_bytes())).expect_status(201);
    assert_eq!(client.get("/db/a").json()["text"].as_str().unwrap().len(), 100_000);
    let bulk = gzip(json!({"docs": [{"_id": "b"}, {"_id": "c"}]}).to_string().as_bytes());
    client.send("POST", "/db/_bulk_docs", &[encoding, kind], &bulk).expect_status(201);
    let keys = gzip(b"{\"keys\":[\"b\",\"c\"]}");
    let rows = client.send("POST", "/db/_all_docs", &[encoding, kind], &keys).expect_status(200).json();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 2);
    client.send("PUT", "/db/_local/x", &[("Content-Encoding", "GZIP")], &gzip(b"{}")).expect_status(201);

    let whole = gzip(b"{\"n\":1}");
    let cases = [b"{}".to_vec(), whole[..whole.len() - 3].to_vec(), [&whole[..], b"more"].concat()];
    for body in cases {
        let reply = client.send("PUT", "/db/d", &[encoding], &body);
        reply.expect_error(400, "bad_request", "Request body is not properly gzipped.");
    }
    // Few bytes that decompress to many.
    let bomb = gzip(&vec![b' '; 50_000_000]);
    assert!(bomb.len() < 100_000);
    let reply = client.send("PUT", "/db/d", &[encoding], &bomb);
    reply.expect_error(413, "too_large", "the request entity is too large");
    client.get("/db/d").expect_status(404);
}

#[test]
fn an_upload_is_checked_by_its_digest_and_kept_compressed_as_it_came() {
    let (_server, mut client) = started();
    let kind = ("Content-Type", "image/png");
    let right = ("Content-MD5", "XUFAKrxLKna5cZ2REBfFkg==");
    let reply = client.send("PUT", "/db/a/f", &[kind, right], b"hallo");
    reply.expect_error(400, "content_md5_mismatch", "Possible message corruption.");
    let reply = client.send("PUT", "/db/a/f", &[kind, ("Content-MD5", "junk")], b"hello");
    assert_eq!(reply.status, 400);
    assert_eq!(doc_count(&mut client), 0);
    let rev = client.send("PUT", "/db/a/f", &[kind, right], b"hello").expect_status(201).rev();
    let read = client.get("/db/a/f");
    assert_eq!((read.header("content-md5"), read.text()), (Some(right.1), "hello"));

    let packed = gzip(b"hello hello hello");
    let path = format!("/db/a/g?rev={rev}");
    let reply = client.send("PUT", &path, &[kind, ("Content-Encoding", "gzip")], b"hello");
    reply.expect_error(400, "bad_request", "the attachment isn't gzip, as it says");
    let rev =
        client.send("PUT", &path, &[kind, ("Content-Encoding", "gzip")], &packed).expect_status(201).rev();
    assert_eq!(client.get("/db/a/g").text(), "hello hello hello");
    assert_eq!(client.send("GET", "/db/a/g", &[("Accept-Encoding", "gzip")], b"").body, packed);
    let reply = client.send("PUT", &format!("/db/a/h?rev={rev}"), &[("Content-Encoding", "br")], b"x");
    reply.expect_error(415, "bad_content_type", "Only gzip and identity content-encodings are supported");

    client.delete(&format!("/db/a/none?rev={rev}")).expect_error(
        404,
        "not_found",
        "Document is missing attachment",
    );
    client.delete("/db/a/none").expect_error(404, "not_found", "Document is missing attachment");
    client.delete("/db/a/g").expect_error(409, "conflict", "Document update conflict.");
    client.delete("/db/none/g").expect_error(404, "not_found", "missing");
    let unknown = format!("4-{}", "4".repeat(32));
    client.delete(&format!("/db/a/g?rev={unknown}")).expect_error(409, "not_found", "missing_rev");
    let reply = client.send("PUT", &format!("/db/a/g?rev={unknown}"), &[kind], b"x");
    reply.expect_error(409, "not_found", "missing_rev");
    client.delete(&format!("/db/a/g?rev={rev}")).expect_status(200);
    client.get("/db/a/g").expect_error(404, "not_found", "Document is missing attachment");
}

#[test]
fn names_and_types_of_any_kind_stay_within_their_headers() {
    let (_server, mut client) = started();
    let names = ["a\"b", "back\\slash", "line\r\nX-Evil: 1", "Zürich 東京", "a/b"];
    let attachments: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), json!({"data": "", "content_type": "x/y\r\nX-Evil: 1"})))
        .collect();
    client.put("/db/a%0D%0Ab", &json!({"_attachments": attachments}).to_string()).expect_status(201);
    let headers = [("Content-Type", "application/json"), ("Accept", "multipart/mixed")];
    let reply = client.send("POST", "/db/_bulk_get", &headers, b"{\"docs\":[{\"id\":\"a\\r\\nb\"}]}");
    let found = parts_of(&reply);
    assert_eq!((found.len(), found[0].header("X-Doc-Id")), (1, None));
    let inside = found[0].parts();
    assert_eq!(inside.len(), 6);
    for part in &inside[1..] {
        assert!(part.header("X-Evil").is_none(), "{}", part.head);
        assert_eq!(part.header("Content-Type"), Some("application/octet-stream"));
    }
    assert_eq!(inside[1].header("Content-Disposition"), Some("attachment; filename=\"a\\\"b\""));
}

#[test]
fn ranges_are_cut_out_of_what_is_not_compressed() {
    let (_server, mut client) = started();
    let text = "This is a base64 encoded text";
    let kind = [("Content-Type", "application/octet-stream")];
    client.send("PUT", "/db/a/foo.txt", &kind, text.as_bytes()).expect_status(201);
    let mut get = |range: &str| client.send("GET", "/db/a/foo.txt", &[("Range", range)], b"");
    for (range, body, content_range) in [
        ("bytes=0-28", text, "bytes 0-28/29"),
        ("bytes=2-", &text[2..], "bytes 2-28/29"),
        ("bytes=0-3", "This", "bytes 0-3/29"),
        ("bytes=10-15", "base64", "bytes 10-15/29"),
        ("bytes=-3", "ext", "bytes 26-28/29"),
        ("bytes=-300", text, "bytes 0-28/29"),
        ("bytes=27", "xt", "bytes 27-28/29"),
        ("bytes=27-300", "xt", "bytes 27-28/29"),
    ] {
        let reply = get(range);
        assert_eq!(
            (reply.status, reply.text(), reply.header("content-range")),
            (206, body, Some(content_range))
        );
        assert_eq!(reply.header("content-length"), Some(&*body.len().to_string()));
    }
    let many = ["0-1"; 10].join(",");
    for range in
        ["bytes=0-", "bytes=0-,0-,0-", "bytes:0-", "bytes=x-1", "bytes=x", "bytes=", &format!("bytes={many}")]
    {
        let reply = get(range);
        assert_eq!((reply.status, reply.text(), reply.header("content-range")), (200, text, None), "{range}");
    }
    for range in ["bytes=5-3", "bytes=300-310", "bytes=29-", "bytes=-0", "bytes=0-1,40-50"] {
        get(range).expect_error(416, "requested_range_not_satisfiable", "Requested range not satisfiable");
    }
    let reply = get("bytes=0-3, 10-15,-4");
    assert_eq!(reply.status, 206);
    let found = parts(reply.header("content-type").unwrap(), &reply.body);
    let found: Vec<_> = found.iter().map(|part| (part.header("Content-Range"), &part.body[..])).collect();
    let expected = [("bytes 0-3/29", "This"), ("bytes 10-15/29", "base64"), ("bytes 25-28/29", "text")];
    assert_eq!(found, expected.map(|(range, body)| (Some(range), body.as_bytes())));
}

#[test]
fn a_stub_names_what_its_revision_has() {
    let (_server, mut client) = started();
    let rev = client.put("/db/a", "{\"_attachments\":{\"f\":{\"data\":\"eA==\"}}}").expect_status(201).rev();
    let stub = |rev: &str, stub: Value| json!({"_rev": rev, "_attachments": {"f": stub}}).to_string();
    let rev = client.put("/db/a", &stub(&rev, json!({"stub": true}))).expect_status(201).rev();
    let rev = client.put("/db/a", &stub(&rev, json!({"stub": true, "revpos": 1}))).expect_status(201).rev();
    let reply = client.put("/db/a", &stub(&rev, json!({"stub": true, "revpos": 10})));
    reply.expect_error(412, "missing_stub", "Invalid attachment stub in a for f");
    assert_eq!(client.get("/db/a/f").text(), "x");
}

#[test]
fn a_form_adds_files_to_a_revision() {
    let (server, mut client) = started();
    let rev = client
        .put(
            "/db/a",
            &json!({"n": 1, "_attachments": {"kept": {"data": "eA=="}, "old": {"data": "eA=="}}}).to_string(),
        )
        .rev();
    let form = |rev: &str| {
        format!(
            "--f\r\nContent-Disposition: form-data; name=\"_attachments\"; filename=\"old\"\r\nContent-Type: text/css\r\n\r\nnew\
             \r\n--f\r\nContent-Disposition: form-data; name=\"_attachments\"; filename=\"b c.bin\"\r\n\r\nbytes\
             \r\n--f\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nskipped\
             \r\n--f\r\nContent-Disposition: form-data; name=\"_rev\"\r\n\r\n{rev}\r\n--f--\r\n"
        )
    };
    let kind = ("Content-Type", "multipart/form-data; boundary=f");
    let referer = format!("http://{}/_utils/", server.address);
    let referer = ("Referer", referer.as_str());
    let post = |client: &mut Client, headers: &[(&str, &str)], body: &str| {
        client.send("POST", "/db/a", headers, body.as_bytes())
    };
    post(&mut client, &[kind], &form(&rev)).expect_error(400, "bad_request", "Referer header required.");
    let elsewhere = ("Referer", "http://elsewhere.example/");
    post(&mut client, &[kind, elsewhere], &form(&rev)).expect_error(
        400,
        "bad_request",
        "Referer header must match host.",
    );
    let urlencoded = ("Content-Type", "application/x-www-form-urlencoded");
    let reply = post(&mut client, &[urlencoded, referer], "a=b");
    reply.expect_error(415, "bad_content_type", "Content-Type must be multipart/form-data");
    post(&mut client, &[kind, referer], "--f--").expect_error(400, "bad_request", "Invalid rev format");
    let bad_name = form(&rev).replace("b c.bin", "_b");
    let reason = "Attachment name '_b' starts with prohibited character '_'";
    post(&mut client, &[kind, referer], &bad_name).expect_error(400, "bad_request", reason);

    let saved = post(&mut client, &[kind, referer], &form(&rev)).expect_status(201);
    assert_eq!(saved.header("etag"), Some(&*format!("\"{}\"", saved.rev())));
    let found = client.get("/db/a").json();
    assert_eq!((&found["_rev"], &found["n"]), (&json!(saved.rev()), &json!(1)));
    assert_eq!(found["_attachments"].as_object().unwrap().len(), 3);
    assert_eq!(client.get("/db/a/old").text(), "new");
    assert_eq!(found["_attachments"]["old"]["content_type"], "text/css");
    assert_eq!(client.get("/db/a/b%20c.bin").text(), "bytes");
    assert_eq!(client.get("/db/a/kept").text(), "x");
    let replaced = post(&mut client, &[kind, referer], &form(&rev));
    replaced.expect_error(409, "conflict", "Document update conflict.");

    let whole = format!(
        "--f\r\nContent-Disposition: form-data; name=\"_doc\"\r\n\r\n{}\r\n--f--",
        json!({"_rev": saved.rev(), "m": 2})
    );
    post(&mut client, &[kind, referer], &whole).expect_status(201);
    let found = client.get("/db/a").json();
    assert_eq!((&found["m"], &found["_attachments"]), (&json!(2), &Value::Null));
}

#[test]
fn an_attachment_of_the_latest_or_of_a_deleted_revision_is_found() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let first = client.put("/db/a/f", "one").expect_status(201).rev();
    let second = client.put(&format!("/db/a/f?rev={first}"), "two").expect_status(201).rev();
    client.get(&format!("/db/a/f?rev={first}")).expect_error(404, "not_found", "missing");
    assert_eq!(client.get(&format!("/db/a/f?rev={first}&latest=true")).expect_status(200).text(), "two");
    let stub = json!({"f": {"stub": true}});
    let gone = json!({"_rev": second, "_deleted": true, "_attachments": stub}).to_string();
    client.put("/db/a", &gone).expect_status(200);
    client.get("/db/a/f").expect_error(404, "not_found", "deleted");
    assert_eq!(client.get("/db/a/f?deleted=true").expect_status(200).text(), "two");
    client.get("/db/none/f?deleted=true").expect_error(404, "not_found", "missing");
}

#[test]
fn a_revision_that_was_accepted_just_now_can_be_edited() {
    let (_server, mut client) = started();
    let accepted = "durability=accepted";
    for n in 0..30 {
        let path = format!("/db/new{n}");
        let rev = client.put(&format!("{path}?{accepted}"), "{}").expect_status(202).rev();
        let rev = client.put(&format!("{path}/att?rev={rev}&{accepted}"), "text").expect_status(202).rev();
        let document = json!({"_rev": rev, "_attachments": {"b": follows("text/plain", 3)}});
        let rev = client.send("PUT", &format!("{path}?{accepted}"), &RELATED, &related(&document, &[b"abc"]));
        let rev = rev.expect_status(202).rev();
        let copied = [("Destination", format!("new{n}?rev={rev}"))];
        let copied: Vec<(&str, &str)> = copied.iter().map(|(name, value)| (*name, value.as_str())).collect();
        client.put("/db/source", "{}");
        let rev =
            client.send("COPY", &format!("/db/source?{accepted}"), &copied, b"").expect_status(202).rev();
        client.delete(&format!("{path}?rev={rev}&{accepted}")).expect_status(202);
        client.put(&format!("{path}/att?{accepted}"), "text").expect_status(202);
        // A revision that doesn't exist is a conflict as well.
        let other = "1-00000000000000000000000000000000";
        client.put(&format!("{path}/att?rev={other}"), "text").expect_status(409);
    }
}
