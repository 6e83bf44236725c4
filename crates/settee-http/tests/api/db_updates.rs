//! `_db_updates`: database events, in each kind of feed.

use serde_json::Value;
use settee_http::ServerOptions;

use crate::client::{Client, Reply, Server, lines};

/// The event and the database of each row.
fn rows(list: &[Value]) -> Vec<String> {
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_else(|| panic!("{row}")).to_owned();
    list.iter().map(|row| format!("{}:{}", text(row, "type"), text(row, "db_name"))).collect()
}

fn results(reply: &Reply) -> Vec<String> {
    rows(reply.json()["results"].as_array().unwrap())
}

fn last_seq(reply: &Reply) -> String {
    reply.json()["last_seq"].as_str().unwrap().to_owned()
}

fn begin_feed(server: &Server, query: &str) -> Client {
    let mut feed = server.connect();
    feed.write_head("GET", &format!("/_db_updates?{query}"), &[]);
    assert_eq!(feed.read_head().0, 200);
    feed
}

/// Reads chunks until `count` rows have arrived.
fn read_rows(feed: &mut Client, count: usize) -> Vec<Value> {
    let mut text = Vec::new();
    while lines(&text).len() < count {
        text.extend(feed.read_chunk().expect("the feed goes on"));
    }
    lines(&text)
}

#[test]
fn each_event_is_sent_once_in_the_order_of_its_latest_position() {
    let server = Server::start();
    let mut client = server.connect();
    let empty = client.get("/_db_updates").expect_status(200);
    assert_eq!(results(&empty), [""; 0]);
    client.create("a");
    client.create("b");
    client.put("/a/x", "{}").expect_status(201);
    client.put("/a/y", "{}").expect_status(201);
    let found = client.get("/_db_updates");
    assert_eq!(results(&found), ["created:a", "created:b", "updated:a"]);
    assert!(found.text().starts_with("{\"results\":[\n{\"db_name\":\"a\",\"type\":\"created\",\"seq\":\""));
    let seq = last_seq(&found);
    client.delete("/b").expect_status(200);
    client.post("/a/_bulk_docs", "{\"docs\":[{}]}").expect_status(201);
    let later = client.get(&format!("/_db_updates?since={seq}"));
    assert_eq!(results(&later), ["deleted:b", "updated:a"]);
    let all = client.get("/_db_updates");
    assert_eq!(results(&all), ["created:a", "created:b", "deleted:b", "updated:a"]);
    let first = client.get("/_db_updates?limit=2");
    assert_eq!(results(&first), ["created:a", "created:b"]);
    let rest = client.get(&format!("/_db_updates?since={}", last_seq(&first)));
    assert_eq!(results(&rest), ["deleted:b", "updated:a"]);
    let backwards = client.get("/_db_updates?descending=true&limit=3");
    assert_eq!(results(&backwards), ["updated:a", "deleted:b", "created:b"]);
    assert_eq!(results(&client.get("/_db_updates?limit=0")), [""; 0]);
    assert_eq!(results(&client.get("/_db_updates?since=now")), [""; 0]);
}

#[test]
fn local_documents_and_refused_writes_are_no_updates() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("a");
    client.put("/a/_local/x", "{}").expect_status(201);
    client.get("/a/x").expect_status(404);
    assert_eq!(results(&client.get("/_db_updates")), ["created:a"]);
}

#[test]
fn a_longpoll_waits_for_an_event_and_ends_with_it() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("a");
    let at_once = client.get("/_db_updates?feed=longpoll");
    assert_eq!(results(&at_once), ["created:a"]);
    let mut feed = begin_feed(&server, "feed=longpoll&since=now");
    client.put("/a/x", "{}").expect_status(201);
    let mut text = Vec::new();
    while let Some(chunk) = feed.read_chunk() {
        text.extend(chunk);
    }
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(rows(json["results"].as_array().unwrap()), ["updated:a"]);
    let silent = client.get("/_db_updates?feed=longpoll&since=now&timeout=20");
    assert_eq!(results(&silent), [""; 0]);
}

#[test]
fn a_continuous_feed_sends_events_at_once() {
    let server = Server::start();
    let mut client = server.connect();
    let mut feed = begin_feed(&server, "feed=continuous&heartbeat=20");
    for _ in 0..3 {
        assert_eq!(feed.read_chunk().unwrap(), b"\n", "a sign of life");
    }
    client.create("a");
    assert_eq!(rows(&read_rows(&mut feed, 1)), ["created:a"]);
    client.put("/a/x", "{}").expect_status(201);
    assert_eq!(rows(&read_rows(&mut feed, 1)), ["updated:a"]);
    client.delete("/a").expect_status(200);
    assert_eq!(rows(&read_rows(&mut feed, 1)), ["deleted:a"]);
    let limited = lines(&client.get("/_db_updates?feed=continuous&limit=1").body);
    assert_eq!((rows(&limited[..1]), limited.len()), (vec!["created:a".to_owned()], 2));
    assert!(limited[1]["last_seq"].is_string());
}

#[test]
fn events_of_a_busy_database_are_combined() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("a");
    let mut feed = begin_feed(&server, "feed=continuous&since=now&timeout=400");
    for n in 0..200 {
        client.put(&format!("/a/{n}?batch=ok"), "{}").expect_status(202);
    }
    let mut text = Vec::new();
    while let Some(chunk) = feed.read_chunk() {
        text.extend(chunk);
    }
    let events = lines(&text);
    let updates = events.len() - 1;
    assert!((1..=100).contains(&updates), "{updates} rows for 200 writes");
    assert!(rows(&events[..updates]).iter().all(|row| row == "updated:a"));
}

#[test]
fn an_eventsource_goes_on_where_it_was() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("a");
    client.create("b");
    let mut feed = server.connect();
    let seq = client.get("/_db_updates?limit=1").json()["last_seq"].to_string();
    feed.write_head("GET", "/_db_updates?feed=eventsource&heartbeat=20", &[("Last-Event-ID", &seq)]);
    let (status, headers) = feed.read_head();
    assert_eq!(status, 200);
    let content_type = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| &**value);
    assert_eq!(content_type, Some("text/event-stream"));
    let chunk = String::from_utf8(feed.read_chunk().unwrap()).unwrap();
    assert!(chunk.starts_with("data: {\"db_name\":\"b\",\"type\":\"created\",\"seq\":\""), "{chunk}");
    assert!(chunk.contains("\nid: \"") && chunk.ends_with("\"\n\n"), "{chunk}");
    assert_eq!(feed.read_chunk().unwrap(), b"event: heartbeat\ndata: \n\n");
}

#[test]
fn after_a_restart_a_feed_begins_with_the_existing_databases() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_in(directory.path(), ServerOptions::default());
    let mut client = server.connect();
    for name in ["a", "b", "c"] {
        client.create(name);
    }
    let before = last_seq(&client.get("/_db_updates"));
    drop((client, server));
    let server = Server::start_in(directory.path(), ServerOptions::default());
    let mut client = server.connect();
    client.create("d");
    client.put("/a/x", "{}").expect_status(201);
    client.delete("/b").expect_status(200);
    let all = ["created:a", "created:c", "created:d", "updated:a", "deleted:b"];
    for since in ["0", &before] {
        assert_eq!(results(&client.get(&format!("/_db_updates?since={since}"))), all, "since {since}");
    }
    let some = client.get("/_db_updates?limit=1");
    assert_eq!(results(&some), ["created:a"]);
    // A client that breaks off during these rows gets them again.
    assert_eq!(results(&client.get(&format!("/_db_updates?since={}", last_seq(&some)))), all);
    let now = client.get("/_db_updates?since=now");
    assert_eq!(results(&now), [""; 0]);
    assert_eq!(last_seq(&now), last_seq(&client.get("/_db_updates")));
}

#[test]
fn invalid_options_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    for (query, reason) in [
        ("feed=pigeon", "Supported `feed` types: normal, continuous, longpoll, eventsource"),
        ("limit=-1", "invalid_integer"),
        ("limit=x", "invalid_integer"),
        ("timeout=", "invalid_integer"),
        ("heartbeat=soon", "invalid_integer"),
        ("since=x", "Malformed sequence supplied in 'since' parameter: x"),
    ] {
        client.get(&format!("/_db_updates?{query}")).expect_error(400, "bad_request", reason);
    }
    client.post("/_db_updates", "{}").expect_error(405, "method_not_allowed", "Only GET allowed");
    assert_eq!(client.head("/_db_updates").status, 200);
}
