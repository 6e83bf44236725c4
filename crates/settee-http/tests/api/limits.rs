//! Limits: a request past a limit is refused with a reason, and the response is delivered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::client::{Client, Server, TIMEOUT};

#[test]
fn a_document_past_its_limit_is_413_and_named() {
    let server = Server::with_limits(|limits| limits.document_bytes_max = 1000);
    let mut client = server.connect();
    client.create("db");
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(1000));
    client.put("/db/big", &large).expect_error(413, "document_too_large", "big");
    let bulk = format!("{{\"docs\":[{{\"_id\":\"ok\"}},{{\"_id\":\"big\",{}]}}", &large[1..]);
    client.post("/db/_bulk_docs", &bulk).expect_error(413, "document_too_large", "big");
    client.get("/db/ok").expect_status(404);
    client.put("/db/fits", &format!("{{\"a\":\"{}\"}}", "x".repeat(900))).expect_status(201);
}

#[test]
fn a_body_past_its_limit_is_413_and_the_connection_usable_afterwards() {
    let server = Server::with_limits(|limits| limits.request_bytes_max = 10_000);
    let mut client = server.connect();
    client.create("db");
    let large = "x".repeat(3_000_000);
    for _ in 0..2 {
        let reply = client.put("/db/a", &large);
        reply.expect_error(413, "too_large", "the request entity is too large");
        let reply = client.post("/db/_bulk_docs", &large);
        reply.expect_error(413, "too_large", "the request entity is too large");
    }
    client.put("/db/a", "{}").expect_status(201);
}

#[test]
fn a_chunked_body_is_read_and_limited_like_any_other() {
    let server = Server::with_limits(|limits| limits.request_bytes_max = 10_000);
    let mut client = server.connect();
    client.create("db");
    let chunked = [("Transfer-Encoding", "chunked")];
    client.write_head("PUT", "/db/a", &chunked);
    client.write(b"7\r\n{\"a\":1,\r\n6\r\n\"b\":2}\r\n0\r\n\r\n");
    client.read("PUT").expect_status(201);
    client.write_head("PUT", "/db/b", &chunked);
    for _ in 0..20 {
        client.write(format!("3e8\r\n{}\r\n", "x".repeat(1000)).as_bytes());
    }
    client.write(b"0\r\n\r\n");
    client.read("PUT").expect_error(413, "too_large", "the request entity is too large");
    client.get("/db/a").expect_status(200);
}

#[test]
fn an_unread_body_does_not_cost_the_client_its_answer() {
    let server = Server::start();
    let mut client = server.connect();
    // Refused before the body is read, which is larger than the socket's buffers.
    let large = "x".repeat(8_000_000);
    client.put("/none/a", &large).expect_error(404, "not_found", "Database does not exist.");
    client.get("/").expect_status(200);
}

#[test]
fn what_is_endless_is_cut_off() {
    let server = Server::with_limits(|limits| {
        limits.request_bytes_max = 1000;
        limits.discard_bytes_max = 100_000;
    });
    let mut client = server.connect();
    client.create("db");
    client.write_head("PUT", "/db/a", &[("Content-Length", "1000000000000")]);
    let piece = vec![b'x'; 100_000];
    let cut_off = (0..10_000).any(|_| !client.try_write(&piece));
    assert!(cut_off, "a gigabyte was taken");
    server.connect().get("/db").expect_status(200);
}

#[test]
fn a_client_that_waits_for_leave_to_send_gets_the_refusal_instead() {
    let server = Server::with_limits(|limits| limits.request_bytes_max = 1000);
    let mut client = server.connect();
    client.create("db");
    client.write_head("PUT", "/db/a", &[("Content-Length", "5000"), ("Expect", "100-continue")]);
    client.read("PUT").expect_error(413, "too_large", "the request entity is too large");
}

#[test]
fn a_client_that_is_given_leave_sends_its_body() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.write_head("PUT", "/db/a", &[("Content-Length", "2"), ("Expect", "100-continue")]);
    assert_eq!(client.read_head().0, 100);
    client.write(b"{}");
    client.read("PUT").expect_status(201);
}

#[test]
fn a_client_that_pauses_within_a_body_gets_a_408() {
    let server = Server::with_limits(|limits| limits.body_timeout_ms = 50);
    let mut client = server.connect();
    client.create("db");
    client.write_head("PUT", "/db/a", &[("Content-Length", "10")]);
    client.write(b"{");
    client.read("PUT").expect_error(
        408,
        "timeout",
        "the request body paused for too long or came too slowly",
    );
    server.connect().get("/db/a").expect_status(404);
}

#[test]
fn a_client_that_never_ends_its_head_is_cut_off() {
    let server = Server::with_limits(|limits| limits.head_timeout_ms = 50);
    let mut client = server.connect();
    client.write(b"GET / HTTP/1.1\r\nHost: loc");
    assert!(client.is_closed());
}

#[test]
fn a_head_past_its_limit_is_431() {
    let server = Server::with_limits(|limits| limits.head_bytes_max = 10_000);
    let mut client = server.connect();
    client.write_head("GET", "/", &[("X-Large", &"x".repeat(20_000))]);
    assert_eq!(client.read_head().0, 431);
    // Exact to the byte, even if hyper's buffer holds more.
    let server = Server::with_limits(|limits| limits.head_bytes_max = 1_000);
    for (bytes, status) in [(1_000, 200), (1_001, 431)] {
        let mut client = server.connect();
        let front = format!("GET / HTTP/1.1\r\nHost: {}\r\nX: ", server.address);
        let fill = "x".repeat(bytes - front.len() - 4);
        client.write(format!("{front}{fill}\r\n\r\n").as_bytes());
        assert_eq!(client.read_head().0, status);
    }
    let mut client = server.connect();
    let many: Vec<_> = (0..200).map(|n| format!("X-{n}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "x")).collect();
    client.write_head("GET", "/", &many);
    assert_eq!(client.read_head().0, 431);
}

#[test]
fn connections_past_the_limit_wait_for_their_turn() {
    let server = Server::with_limits(|limits| limits.connections_max = 1);
    let mut first = server.connect();
    first.get("/").expect_status(200);
    let mut second = server.connect();
    second.write_head("GET", "/", &[]);
    drop(first);
    second.read("GET").expect_status(200);
}

#[test]
fn a_client_that_stops_reading_its_answer_is_cut_off() {
    let server = Server::with_limits(|limits| {
        limits.connections_max = 1;
        limits.send_timeout_ms = 50;
    });
    let mut client = server.connect();
    client.create("db");
    let document = format!("{{\"a\":\"{}\"}}", "x".repeat(7_000_000));
    for id in 0..6 {
        client.put(&format!("/db/{id}"), &document).expect_status(201);
    }
    // More than the sockets' buffers hold.
    client.write_head("GET", "/db/_all_docs?include_docs=true", &[]);
    assert_eq!(client.read_head().0, 200);
    // Served after the first connection was closed, although its client still holds it.
    server.connect().get("/db").expect_status(200);
    drop(client);
}

/// Documents whose listing is larger than what sockets and the server hold for a client.
fn write_documents(client: &mut Client, round: u32) {
    let text = "x".repeat(4_000);
    for batch in 0..20 {
        let document = |n: u32| {
            let id = format!("{:04}", batch * 200 + n);
            format!("{{\"_id\":\"{id}\",\"round\":{round},\"text\":\"{text}\"}}")
        };
        let docs: Vec<String> = (0..200).map(document).collect();
        let bulk = format!("{{\"new_edits\":true,\"docs\":[{}]}}", docs.join(","));
        client.post("/db/_bulk_docs", &bulk).expect_status(201);
    }
}

#[test]
fn a_feed_that_nobody_reads_is_cut_off() {
    for feed in ["continuous", "eventsource", "normal"] {
        let server = Server::with_limits(|limits| {
            limits.connections_max = 1;
            limits.send_timeout_ms = 50;
        });
        let mut client = server.connect();
        client.create("db");
        write_documents(&mut client, 1);
        client.write_head("GET", &format!("/db/_changes?feed={feed}&include_docs=true"), &[]);
        assert_eq!(client.read_head().0, 200);
        server.connect().get("/db").expect_status(200);
        drop(client);
    }
}

#[test]
fn a_feed_that_nobody_reads_holds_no_snapshot_and_misses_no_change_when_it_is_read() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    write_documents(&mut client, 1);
    let paths = [
        "/db/_changes?feed=continuous&include_docs=true&timeout=100",
        "/db/_changes?feed=continuous&timeout=100&filter=_selector&include_docs=true",
        "/db/_changes?include_docs=true",
    ];
    let mut readers = paths.map(|path| {
        let mut reader = server.connect();
        match path.contains("_selector") {
            false => reader.write_head("GET", path, &[]),
            true => {
                let selector = "{\"selector\":{\"round\":{\"$gt\":0}}}";
                let length = selector.len().to_string();
                let headers = [("Content-Type", "application/json"), ("Content-Length", length.as_str())];
                reader.write_head("POST", path, &headers);
                reader.write(selector.as_bytes());
            }
        }
        assert_eq!(reader.read_head().0, 200);
        reader
    });
    let snapshots = |client: &mut Client| {
        let reply = client.get("/_node/_local/_prometheus");
        let text = reply.text();
        let line = text.lines().find(|line| line.starts_with("settee_snapshots ")).expect("the metric");
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let until = Instant::now() + TIMEOUT;
    while snapshots(&mut client) > 0.0 {
        assert!(Instant::now() < until, "a feed that nobody reads holds a snapshot");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Two documents change while the feeds are unread.
    let changed = client.post("/db/_all_docs", "{\"keys\":[\"0000\",\"3999\"]}").json();
    for row in changed["rows"].as_array().unwrap() {
        let (id, rev) = (row["id"].as_str().unwrap(), row["value"]["rev"].as_str().unwrap());
        client.put(&format!("/db/{id}?rev={rev}"), "{\"round\":2}").expect_status(201);
    }
    for (path, reader) in paths.iter().zip(&mut readers) {
        let mut text = Vec::new();
        while let Some(chunk) = reader.read_chunk() {
            text.extend_from_slice(&chunk);
        }
        let text = String::from_utf8(text).unwrap();
        let mut newest = BTreeMap::new();
        let mut last = 0;
        for line in
            text.lines().map(|line| line.trim_end_matches(',')).filter(|line| line.contains("\"doc\":"))
        {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let number: u64 = row["seq"].as_str().unwrap().split('-').next().unwrap().parse().unwrap();
            assert!(number > last, "{path}: {number} after {last}");
            last = number;
            newest.insert(row["id"].as_str().unwrap().to_owned(), row["doc"]["round"].as_u64().unwrap());
        }
        assert_eq!(newest.len(), 4_000, "{path}");
        let rounds: Vec<_> = newest.values().filter(|round| **round == 2).collect();
        assert_eq!((rounds.len(), newest["0000"], newest["3999"]), (2, 2, 2), "{path}");
    }
}

#[test]
fn a_client_that_pipelines_and_reads_nothing_is_cut_off() {
    let server = Server::with_limits(|limits| {
        limits.connections_max = 1;
        limits.send_timeout_ms = 50;
    });
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", &format!("{{\"a\":\"{}\"}}", "x".repeat(200_000))).expect_status(201);
    // More responses than the sockets' buffers hold.
    for _ in 0..200 {
        client.write_head("GET", "/db/a", &[]);
    }
    server.connect().get("/db").expect_status(200);
    drop(client);
}

#[test]
fn a_client_that_pipelines_and_reads_late_gets_every_answer() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", &format!("{{\"a\":\"{}\"}}", "x".repeat(200_000))).expect_status(201);
    for _ in 0..100 {
        client.write_head("GET", "/db/a", &[]);
        client.write_head("HEAD", "/db/a", &[]);
    }
    for _ in 0..100 {
        assert!(client.read("GET").body.len() > 200_000);
        assert!(client.read("HEAD").body.is_empty());
    }
}

#[test]
fn a_text_of_many_small_things_is_refused_before_they_take_more_than_bodies_may() {
    let server = Server::with_limits(|limits| {
        limits.request_bytes_max = 1_000_000;
        limits.request_bytes_in_flight_max = 1_000_000;
        // Otherwise bulks are parsed in groups.
        limits.spool_bytes_max = 0;
    });
    let mut client = server.connect();
    client.create("db");
    let list = |item: &str, count: usize| vec![item; count].join(",");
    let many = |item: &str| list(item, 300_000 / (item.len() + 1));
    let requests = [
        ("_bulk_docs", format!("{{\"docs\":[{}]}}", many("{}"))),
        ("_bulk_get", format!("{{\"docs\":[{}]}}", many("{}"))),
        ("_all_docs", format!("{{\"keys\":[{}]}}", many("1"))),
        ("_all_docs/queries", format!("{{\"queries\":[{}]}}", many("{}"))),
        ("_all_docs/queries", format!("{{\"queries\":[{{\"keys\":[{}]}}]}}", many("1"))),
        ("_revs_diff", format!("{{{}}}", many("\"\":[]"))),
        ("_missing_revs", format!("{{\"a\":[{}]}}", many("\"1-x\""))),
    ];
    for (path, body) in &requests {
        let reply = client.post(&format!("/db/{path}"), body);
        reply.expect_error(413, "too_large", "the request entity is too large");
    }
    assert_eq!(client.get("/db").json()["doc_count"], 0);
    // Their memory is free again, and fewer but larger items of the same total length are accepted.
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(1_000));
    let body = format!("{{\"docs\":[{}]}}", list(&large, 300));
    client.post("/db/_bulk_docs", &body).expect_status(201);
    let keys = format!("{{\"keys\":[{}]}}", list("\"a\"", 3_000));
    assert_eq!(client.post("/db/_all_docs", &keys).expect_status(200).json()["rows"][2_999]["key"], "a");
    let revisions = format!("{{\"a\":[{}]}}", list("\"1-x\"", 3_000));
    client.post("/db/_revs_diff", &revisions).expect_status(200);
}

#[test]
fn uploads_acquire_body_memory_and_refused_requests_can_be_retried() {
    let server = Server::with_limits(|limits| {
        limits.request_bytes_max = 1_500_000;
        limits.request_bytes_in_flight_max = 1_500_000;
        limits.body_timeout_ms = 1_000;
    });
    let mut first = server.connect();
    first.create("db");
    // More than the sockets hold: some of it has arrived once this is written.
    let (sent, rest) = (vec![b'x'; 24_000_000], 1_000);
    let length = (sent.len() + rest).to_string();
    first.write_head("PUT", "/db/a/att", &[("Content-Length", &length)]);
    first.write(&sent);
    let document = format!("{{\"a\":\"{}\"}}", "x".repeat(600_000));
    let chunk = format!("{:x}\r\n{document}\r\n0\r\n\r\n", document.len());
    let mut second = server.connect();
    second.put("/db/small", "{}").expect_status(201);
    second.write_head("PUT", "/db/b", &[("Transfer-Encoding", "chunked")]);
    second.write(chunk.as_bytes());
    // Slow, but not so slow that it times out.
    for _ in 0..rest {
        if second.has_answer() {
            break;
        }
        first.write(b"x");
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = second.read("PUT");
    let reason = "The memory for request bodies is exhausted.";
    refused.expect_error(503, "service unavailable", reason);
    assert_eq!(refused.header("retry-after"), Some("1"));
    first.write(&vec![b'x'; rest]);
    first.read("PUT").expect_status(201);
    second.put("/db/b", &document).expect_status(201);
}
