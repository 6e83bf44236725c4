//! Goal: a `_bulk_docs` too large for memory is answered like any other, and stores nothing unless all of it
//! is valid.
//! Method: servers with little memory for bodies; their responses are compared with those of a server that
//! spools nothing.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use settee_http::ServerOptions;

use crate::client::{Client, Reply, Server};

const MIB: usize = 1 << 20;

/// A server that keeps at most a body of 1 MiB in memory.
fn spooling(directory: &Path) -> Server {
    let mut options = ServerOptions::default();
    options.limits.request_bytes_in_flight_max = 2 * MIB as u64;
    options.limits.request_bytes_max = 1 << 30;
    Server::start_in(directory, options)
}

/// A `_bulk_docs` body of `count` documents of about `bytes` each.
fn bulk(count: usize, bytes: usize) -> String {
    let text = "x".repeat(bytes);
    let documents: Vec<String> =
        (0..count).map(|n| format!("{{\"_id\":\"{n:06}\",\"a\":\"{text}\"}}")).collect();
    format!("{{\"docs\":[{}]}}", documents.join(","))
}

fn post(client: &mut Client, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let headers = [&[("Content-Type", "application/json")], headers].concat();
    client.send("POST", "/db/_bulk_docs", &headers, body)
}

fn spooled_bytes(client: &mut Client) -> String {
    let metrics = client.get("/_node/_local/_prometheus").expect_status(200);
    let line = metrics.text().lines().find(|line| line.starts_with("settee_httpd_spool_bytes "));
    line.expect("a gauge").to_owned()
}

/// Returns once a spool file exists.
fn await_spool(client: &mut Client) {
    while spooled_bytes(client).ends_with(" 0") {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until nothing is spooled and no spool file has a name.
#[track_caller]
fn expect_no_spool(client: &mut Client, directory: &Path) {
    // A request that ends early is dropped shortly after its client notices.
    for _ in 0..1_000 {
        if spooled_bytes(client).ends_with(" 0") {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(spooled_bytes(client).ends_with(" 0"));
    assert_eq!(std::fs::read_dir(directory.join("spool")).unwrap().count(), 0);
}

#[test]
fn a_bulk_that_memory_does_not_hold_is_stored_and_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let server = spooling(directory.path());
    let mut client = server.connect();
    client.create("db");
    let body = bulk(6_000, 1_000);
    let reply = post(&mut client, &[], body.as_bytes()).expect_status(201);
    let rows = reply.json();
    assert_eq!(rows.as_array().unwrap().len(), 6_000);
    let ids = rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned());
    assert!(ids.eq((0..6_000).map(|n| format!("{n:06}"))), "the rows are in order");
    assert_eq!(client.get("/db").json()["doc_count"], 6_000);
    expect_no_spool(&mut client, directory.path());
    // Chunked and compressed; each document is now a conflict.
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(body.as_bytes()).unwrap();
    let reply = post(&mut client, &[("Content-Encoding", "gzip")], &gzip.finish().unwrap());
    let rows = reply.expect_status(201).json();
    assert!(rows.as_array().unwrap().iter().all(|row| row["error"] == "conflict"));
    assert_eq!(rows.as_array().unwrap().len(), 6_000);
    client.write_head(
        "POST",
        "/db/_bulk_docs",
        &[("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")],
    );
    let body = body.replace("\"_id\":\"0", "\"_id\":\"1");
    client.write(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes());
    client.read("POST").expect_status(201);
    assert_eq!(client.get("/db").json()["doc_count"], 12_000);
}

#[test]
fn a_body_whose_last_byte_is_wrong_or_missing_stores_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = spooling(directory.path());
    let mut client = server.connect();
    client.create("db");
    let body = bulk(3_000, 1_000);
    let cut = &body[..body.len() - 1];
    let refused = "invalid UTF-8 JSON";
    post(&mut client, &[], cut.as_bytes()).expect_error(400, "bad_request", refused);
    post(&mut client, &[], format!("{cut}]").as_bytes()).expect_error(400, "bad_request", refused);
    post(&mut client, &[], format!("{body}x").as_bytes()).expect_error(400, "bad_request", refused);
    let other = body.replace("]}", ",{\"_id\":\"\"}]}");
    assert_eq!(post(&mut client, &[], other.as_bytes()).json()["error"], "illegal_docid");
    // A member after the documents decides how they are checked.
    let replicated = body.replace("]}", "],\"new_edits\":false}");
    assert_eq!(post(&mut client, &[], replicated.as_bytes()).json()["error"], "bad_request");
    // A client that disconnects.
    let mut gone = server.connect();
    let length = body.len().to_string();
    gone.write_head(
        "POST",
        "/db/_bulk_docs",
        &[("Content-Type", "application/json"), ("Content-Length", &length)],
    );
    gone.write(cut.as_bytes());
    await_spool(&mut client);
    drop(gone);
    expect_no_spool(&mut client, directory.path());
    assert_eq!(client.get("/db").json()["doc_count"], 0);
    assert_eq!(client.get("/db").json()["update_seq"].as_str().unwrap().split('-').next(), Some("0"));
}

#[test]
fn an_id_that_a_partitioned_database_does_not_take_refuses_all_of_a_spooled_bulk() {
    let directory = tempfile::tempdir().unwrap();
    let server = spooling(directory.path());
    let mut client = server.connect();
    client.put("/db?partitioned=true", "").expect_status(201);
    let good = bulk(3_000, 1_000).replace("\"_id\":\"", "\"_id\":\"partition:");
    let bad = good.replace("]}", ",{\"_id\":\"none\"}]}");
    let reply = post(&mut client, &[], bad.as_bytes()).expect_status(400);
    assert_eq!(reply.json()["error"], "illegal_docid", "{}", reply.text());
    assert_eq!(client.get("/db").json()["doc_count"], 0);
    post(&mut client, &[], good.as_bytes()).expect_status(201);
    assert_eq!(client.get("/db").json()["doc_count"], 3_000);
    // The same with an id of the server's making.
    let unnamed = good.replace("]}", ",{}]}");
    post(&mut client, &[], unnamed.as_bytes()).expect_status(400);
}

#[test]
fn spools_take_no_more_than_their_limit_and_other_bodies_no_more_than_memory() {
    let server = Server::with_limits(|limits| {
        limits.request_bytes_in_flight_max = 2 * MIB as u64;
        limits.request_bytes_max = 64 << 20;
        limits.spool_bytes_max = 4 * MIB as u64;
    });
    let mut client = server.connect();
    client.create("db");
    let large = bulk(5_000, 1_000);
    let reason = "the request entity is too large: at most 4194304 bytes are spooled";
    post(&mut client, &[], large.as_bytes()).expect_error(413, "too_large", reason);
    // A slow client that takes up all spool space.
    let mut slow = server.connect();
    let body = bulk(3_000, 1_000);
    let length = body.len().to_string();
    slow.write_head(
        "POST",
        "/db/_bulk_docs",
        &[("Content-Type", "application/json"), ("Content-Length", &length)],
    );
    let part = 5 * MIB / 2;
    slow.write(&body.as_bytes()[..part]);
    while !spooled_bytes(&mut client).ends_with(" 4194304") {
        std::thread::sleep(Duration::from_millis(5));
    }
    let reason = "Other spooled requests use up spool_bytes_max.";
    post(&mut client, &[], body.as_bytes()).expect_error(503, "service unavailable", reason);
    slow.write(&body.as_bytes()[part..]);
    slow.read("POST").expect_status(201);
    let exceeds = "the request entity exceeds the memory for request bodies: only attachments and the documents \
                   of _bulk_docs may";
    client.post("/db/_all_docs", &large).expect_error(413, "too_large", exceeds);
}

#[test]
fn unauthenticated_bodies_are_not_spooled() {
    let directory = tempfile::tempdir().unwrap();
    let admin = Some(settee_http::Admin::parse("ann:secret").unwrap());
    let mut options = ServerOptions { admin, ..ServerOptions::default() };
    options.limits.request_bytes_in_flight_max = 2 * MIB as u64;
    let server = Server::start_in(directory.path(), options);
    server.run(server.databases.create("db")).unwrap();
    let reply = post(&mut server.connect(), &[], bulk(3_000, 1_000).as_bytes());
    assert_eq!(reply.json()["error"], "unauthorized");
    assert!(!directory.path().join("spool").exists());
}

/// A seeded generator of numbers below a limit.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

#[test]
fn spooled_bulks_are_answered_as_those_in_memory() {
    /// More than fits in memory.
    const PADDING: usize = 21_000;
    // Groups of a few documents, and windows of 2,560 bytes.
    let spooling = Server::with_limits(|limits| limits.request_bytes_in_flight_max = 40 << 10);
    let holding = Server::with_limits(|limits| limits.spool_bytes_max = 0);
    let mut clients = [spooling.connect(), holding.connect()];
    for seed in 1..=40 {
        let mut numbers = Numbers(seed * 0x9e37_79b9);
        let documents: Vec<String> = (0..6 + numbers.below(40))
            .map(|n| {
                let text = ["a\\\"]}", "x\\\\", "ü,[{", "\\ud83d\\ude00"][numbers.below(4)];
                let text = text.repeat(1 + numbers.below(60));
                let id = if numbers.below(9) == 0 { "_local/" } else { "" };
                format!("{{\"_id\":\"{id}{seed}-{n}\", \"t\":[\"{text}\",{{\"n\":[]}}] }}")
            })
            .collect();
        let front = ["{\"docs\":[", " { \"x\":\"docs\",\"d\\u006fcs\" : [ "][numbers.below(2)];
        let back = ["]}", " ] ,\"w\":1,\"docs\":[{}]} ", "],\"new_edits\":true}"][numbers.below(3)];
        let mut body = format!("{front}{}{back}", documents.join(" ,")).into_bytes();
        body.splice(1..1, vec![b' '; PADDING]);
        if seed % 2 == 0 {
            let at = PADDING + numbers.below(body.len() - PADDING);
            match numbers.below(3) {
                0 => drop(body.remove(at)),
                1 => body[at] = b"\"\\,[]{}:\xff"[numbers.below(9)],
                _ => body.truncate(at),
            }
        }
        for client in &mut clients {
            client.create(&format!("db{seed}"));
        }
        let [spooled, held] = clients.each_mut().map(|client| {
            let headers = [("Content-Type", "application/json")];
            let reply = client.send("POST", &format!("/db{seed}/_bulk_docs"), &headers, &body);
            let count = client.get(&format!("/db{seed}")).json()["doc_count"].as_u64();
            (reply.status, if reply.status == 201 { reply.text().to_owned() } else { String::new() }, count)
        });
        assert_eq!(spooled, held, "seed={seed} {}", String::from_utf8_lossy(&body[PADDING..]));
    }
}

#[test]
fn a_bulk_of_too_many_small_documents_for_memory_is_spooled() {
    let directory = tempfile::tempdir().unwrap();
    let server = spooling(directory.path());
    let mut client = server.connect();
    client.create("db");
    // Less than a mebibyte of text, and several of edits.
    let bulk = bulk(8_000, 1);
    assert!(bulk.len() < MIB / 2);
    let rows = post(&mut client, &[], bulk.as_bytes()).expect_status(201).json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 8_000);
    for (number, row) in rows.iter().enumerate() {
        assert_eq!((row["id"].as_str(), &row["ok"]), (Some(&*format!("{number:06}")), &true.into()));
    }
    assert_eq!(client.get("/db").json()["doc_count"], 8_000);
    expect_no_spool(&mut client, directory.path());
    // Nothing is stored unless all of it is valid.
    let wrong = bulk.replace("007999", "_07999").replace("{\"_id\":\"0", "{\"_id\":\"x");
    post(&mut client, &[], wrong.as_bytes()).expect_status(400);
    assert_eq!(client.get("/db").json()["doc_count"], 8_000);
}
