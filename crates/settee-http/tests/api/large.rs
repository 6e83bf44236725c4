//! Goal: documents of more than 8 MB, which are stored in chunks, are written and read in every way like others;
//! reading them takes no memory of their size, and where it does, that is counted.
//! Method: a server whose `document_bytes_max` is raised; texts without white space come back byte by byte.

use serde_json::{Value, json};
use settee_http::Limits;

use crate::client::{Client, Reply, Server, lines};

const MIB: usize = 1 << 20;

/// The largest body of a document without attachments that isn't stored in chunks.
const RECORD_BYTES_MAX: usize = 8_355_840;

fn server_with(change: impl FnOnce(&mut Limits)) -> Server {
    Server::with_limits(|limits| {
        limits.document_bytes_max = 64 * MIB;
        change(limits);
    })
}

/// Members whose text has `bytes` bytes, different for each `name`: their positions, so that no two chunks are
/// alike.
fn members(name: &str, bytes: usize) -> String {
    let mut text = format!("\"name\":\"{name}\",\"filler\":\"");
    while text.len() + 10 < bytes {
        text.push_str(&format!("{:09} ", text.len()));
    }
    let left = bytes - 1 - text.len();
    text + &"x".repeat(left) + "\""
}

fn put(client: &mut Client, id: &str, members: &str) -> String {
    client.put(&format!("/db/{id}"), &format!("{{{members}}}")).expect_status(201).rev()
}

/// A document as it is sent.
fn document(id: &str, rev: &str, members: &str) -> String {
    format!("{{\"_id\":\"{id}\",\"_rev\":\"{rev}\",{members}}}")
}

/// Compares without printing mebibytes.
#[track_caller]
fn expect_text(found: &[u8], expected: &str) {
    let expected = expected.as_bytes();
    let same = found.iter().zip(expected).take_while(|(one, other)| one == other).count();
    assert!(found == expected, "{} and {} bytes, equal up to {same}", found.len(), expected.len());
}

fn post(client: &mut Client, path: &str, body: &Value) -> Reply {
    client.post(path, &body.to_string()).expect_status(200)
}

#[test]
fn a_document_of_60_mib_comes_back_byte_by_byte() {
    let server = server_with(|_| ());
    let mut client = server.connect();
    client.create("db");
    let large = members("large", 60 * MIB);
    let rev = put(&mut client, "large", &large);
    let reply = client.get("/db/large").expect_status(200);
    assert_eq!(reply.header("etag"), Some(&*format!("\"{rev}\"")));
    expect_text(&reply.body, &(document("large", &rev, &large) + "\n"));
    drop(reply);
    client.head("/db/large").expect_status(200);

    // A conflict changes nothing, and neither does a document past the limit.
    client.put("/db/large", &format!("{{{large}}}")).expect_error(
        409,
        "conflict",
        "Document update conflict.",
    );
    let over = members("over", 64 * MIB + 1);
    client.put("/db/over", &format!("{{{over}}}")).expect_error(413, "document_too_large", "over");
    let bulk = format!("{{\"docs\":[{{\"_id\":\"over\",{over}}}]}}");
    client.post("/db/_bulk_docs", &bulk).expect_error(413, "document_too_large", "over");
    client.get("/db/over").expect_status(404);
    let local = members("local", RECORD_BYTES_MAX + 1);
    client.put("/db/_local/a", &format!("{{{local}}}")).expect_error(413, "document_too_large", "_local/a");
    assert_eq!(client.get("/db").json()["doc_count"], 1);

    let reply = client.delete(&format!("/db/large?rev={rev}")).expect_status(200);
    assert!(reply.rev().starts_with("2-"));
    client.get("/db/large").expect_status(404);
}

#[test]
fn a_document_past_the_limit_of_the_configuration_is_413() {
    let server = Server::with_limits(|limits| limits.document_bytes_max = 10 * MIB);
    let mut client = server.connect();
    client.create("db");
    put(&mut client, "fits", &members("fits", 10 * MIB));
    let over = members("over", 10 * MIB + 1);
    client.put("/db/over", &format!("{{{over}}}")).expect_error(413, "document_too_large", "over");
}

#[test]
fn large_documents_are_in_bulks_lists_and_feeds() {
    let server = server_with(|_| ());
    let mut client = server.connect();
    client.create("db");
    let texts = ["a", "b"].map(|name| members(name, 20 * MIB));
    let docs = ["a", "b"].iter().zip(&texts).map(|(id, text)| format!("{{\"_id\":\"{id}\",{text}}}"));
    let bulk = format!("{{\"docs\":[{}]}}", docs.collect::<Vec<_>>().join(","));
    let rows = client.post("/db/_bulk_docs", &bulk).expect_status(201).json();
    let revs = [0, 1].map(|index| rows[index]["rev"].as_str().unwrap().to_owned());
    let expected = [0, 1].map(|index| document(["a", "b"][index], &revs[index], &texts[index]));
    let [a, b] = &expected;

    let asked = json!({"docs": [{"id": "a"}, {"id": "b", "rev": revs[1]}]});
    let reply = post(&mut client, "/db/_bulk_get", &asked);
    let result = |id, document: &str| format!("{{\"id\":\"{id}\",\"docs\":[{{\"ok\":{document}}}]}}");
    expect_text(&reply.body, &format!("{{\"results\":[{},{}]}}\n", result("a", a), result("b", b)));

    let reply = client.get("/db/_all_docs?include_docs=true").expect_status(200);
    let row = |index: usize, id| {
        let (rev, document) = (&revs[index], &expected[index]);
        format!("{{\"id\":\"{id}\",\"key\":\"{id}\",\"value\":{{\"rev\":\"{rev}\"}},\"doc\":{document}}}")
    };
    let head = "{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n";
    expect_text(&reply.body, &format!("{head}{},\r\n{}\r\n]}}\n", row(0, "a"), row(1, "b")));

    let changes = client.get("/db/_changes?include_docs=true").expect_status(200).json();
    for (index, id) in ["a", "b"].iter().enumerate() {
        let row = &changes["results"][index];
        assert_eq!((&row["id"], row["doc"]["name"].as_str()), (&json!(id), Some(*id)));
        assert!(row["doc"] == serde_json::from_str::<Value>(&expected[index]).unwrap());
    }
    let feed = client.get("/db/_changes?feed=continuous&timeout=1&include_docs=true").expect_status(200);
    let rows = lines(&feed.body);
    assert!(rows[0]["doc"] == changes["results"][0]["doc"] && rows[1]["doc"] == changes["results"][1]["doc"]);

    let selector = json!({"selector": {"name": "b"}});
    let path = "/db/_changes?filter=_selector&include_docs=true";
    let matched = post(&mut client, path, &selector).json();
    assert_eq!(matched["results"].as_array().unwrap().len(), 1);
    assert!(matched["results"][0]["doc"] == changes["results"][1]["doc"]);
    let fields = json!({"selector": {"name": "b"}, "fields": ["_id", "name"]});
    let shown = post(&mut client, path, &fields).json();
    assert_eq!(shown["results"][0]["doc"], json!({"_id": "b", "name": "b"}));
}

#[test]
fn large_documents_have_conflicts_attachments_and_copies() {
    let server = server_with(|_| ());
    let mut client = server.connect();
    client.create("db");
    let texts = ["1", "2", "3"].map(|name| members(name, RECORD_BYTES_MAX + 1 + name.len()));
    let hashes = ["a", "b", "c"].map(|digit| digit.repeat(32));
    for (text, hash) in texts.iter().zip(&hashes) {
        let replica =
            format!("{{\"docs\":[{{\"_id\":\"x\",\"_rev\":\"1-{hash}\",{text}}}],\"new_edits\":false}}");
        client.post("/db/_bulk_docs", &replica).expect_status(201);
    }
    // The winner is the greatest; each is read by itself and with the others.
    let expected: Vec<String> =
        hashes.iter().zip(&texts).map(|(hash, text)| document("x", &format!("1-{hash}"), text)).collect();
    for (hash, document) in hashes.iter().zip(&expected) {
        let reply = client.get(&format!("/db/x?rev=1-{hash}")).expect_status(200);
        expect_text(&reply.body, &format!("{document}\n"));
    }
    let all = client.send("GET", "/db/x?open_revs=all", &[("Accept", "application/json")], b"");
    let ok: Vec<String> = expected.iter().rev().map(|document| format!("{{\"ok\":{document}}}")).collect();
    expect_text(&all.expect_status(200).body, &format!("[{}]\n", ok.join(",")));
    let parts = client.send("GET", "/db/x?open_revs=all", &[("Accept", "multipart/mixed")], b"");
    let text = String::from_utf8(parts.expect_status(200).body).unwrap();
    assert!(expected.iter().all(|document| text.contains(document.as_str())));

    // An attachment beside the body, sent in each form.
    let winner = format!("1-{}", hashes[2]);
    let kind = [("Content-Type", "application/octet-stream")];
    let attached =
        client.send("PUT", &format!("/db/x/file?rev={winner}"), &kind, b"content").expect_status(201).rev();
    let reply = client.get("/db/x").expect_status(200);
    assert!(reply.text().contains(texts[2].as_str()));
    assert_eq!(reply.json()["_attachments"]["file"]["stub"], true);
    let reply = client.send("GET", "/db/x?attachments=true", &[("Accept", "application/json")], b"");
    assert!(reply.text().contains(texts[2].as_str()));
    assert_eq!(reply.json()["_attachments"]["file"]["data"], "Y29udGVudA==");
    let related = client.send("GET", "/db/x?attachments=true", &[("Accept", "multipart/related")], b"");
    assert!(related.header("content-length").is_some(), "its length is known");
    assert!(related.text().contains(texts[2].as_str()) && related.text().contains("\r\n\r\ncontent\r\n--"));
    assert_eq!(client.get("/db/x/file").body, b"content");

    client.send("COPY", "/db/x", &[("Destination", "y")], b"").expect_status(201);
    let copy = client.get("/db/y").expect_status(200);
    assert!(copy.text().contains(texts[2].as_str()));
    assert_eq!(client.get("/db/y/file").body, b"content");
    client.send("COPY", "/db/x", &[("Destination", "_local/y")], b"").expect_status(413);
    let detached = client.delete(&format!("/db/x/file?rev={attached}")).expect_status(200).rev();
    expect_text(&client.get("/db/x").body, &(document("x", &detached, &texts[2]) + "\n"));
    // A deletion with a body.
    let deleted = client.put("/db/x", &format!("{{\"_rev\":\"{detached}\",\"_deleted\":true,{}}}", texts[0]));
    let deleted = deleted.expect_status(200).rev();
    let reply = client.get(&format!("/db/x?rev={deleted}")).expect_status(200);
    let members = format!("\"_deleted\":true,{}", texts[0]);
    expect_text(&reply.body, &(document("x", &deleted, &members) + "\n"));
}

#[test]
fn a_large_document_is_read_as_a_whole_only_within_the_memory_for_bodies() {
    let server = server_with(|limits| {
        limits.request_bytes_in_flight_max = 40 * MIB as u64;
        limits.spool_bytes_max = 0;
    });
    let mut client = server.connect();
    client.create("db");
    let text = members("a", 10 * MIB);
    let rev = put(&mut client, "a", &text);
    // Another client takes most of the memory.
    let mut other = server.connect();
    other.write_head("PUT", "/db/b", &[("Content-Length", &(39 * MIB).to_string())]);
    other.write(format!("{{{}", members("b", 38 * MIB)).as_bytes());
    let copied = client.send("COPY", "/db/a", &[("Destination", "c")], b"");
    copied.expect_error(503, "service unavailable", "The memory for request bodies is exhausted.");
    // Reading needs none of it.
    expect_text(&client.get("/db/a").body, &(document("a", &rev, &text) + "\n"));
    drop(other);
    let is_copied =
        (0..1000).any(|_| client.send("COPY", "/db/a", &[("Destination", "c")], b"").status == 201);
    assert!(is_copied, "the memory isn't released");
}
