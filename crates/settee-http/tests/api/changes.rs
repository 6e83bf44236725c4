//! `_changes`

use serde_json::{Value, json};

use crate::client::{Client, Server, ids, lines};

fn three(client: &mut Client) {
    client.create("db");
    for id in ["a", "b", "c"] {
        client.put(&format!("/db/{id}"), "{}").expect_status(201);
    }
}

fn seq(reply: &Value) -> String {
    reply.as_str().unwrap_or_else(|| panic!("no seq: {reply}")).to_owned()
}

#[test]
fn changes_are_in_order_each_document_once() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let rev = client.get("/db/a").rev_of_document();
    let gone = client.delete(&format!("/db/a?rev={rev}")).rev();
    let reply = client.get("/db/_changes").expect_status(200);
    assert_eq!(ids(&reply, "results"), ["b", "c", "a"]);
    let json = reply.json();
    assert_eq!(json["results"][2]["changes"], json!([{"rev": gone}]));
    assert_eq!(json["results"][2]["deleted"], true);
    assert!(json["results"][0].get("deleted").is_none());
    assert_eq!((&json["last_seq"], &json["pending"]), (&json["results"][2]["seq"], &json!(0)));
    assert_eq!(json["last_seq"], client.get("/db").json()["update_seq"]);
    let last = seq(&json["last_seq"]);
    let end = format!("\n],\n\"last_seq\":\"{last}\",\"pending\":0}}\n");
    assert!(reply.text().starts_with("{\"results\":[\n{\"seq\":\"") && reply.text().ends_with(&end));
}

#[test]
fn an_empty_feed_is_written_as_couchdb_writes_it() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reply = client.get("/db/_changes");
    let last = seq(&reply.json()["last_seq"]);
    assert_eq!(reply.text(), format!("{{\"results\":[\n\n],\n\"last_seq\":\"{last}\",\"pending\":0}}\n"));
}

#[test]
fn since_and_limit_page_through_the_changes() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let first = client.get("/db/_changes?limit=1");
    assert_eq!((ids(&first, "results"), &first.json()["pending"]), (vec!["a".to_owned()], &json!(2)));
    let last = seq(&first.json()["last_seq"]);
    let rest = client.get(&format!("/db/_changes?since={last}"));
    assert_eq!(
        (ids(&rest, "results"), &rest.json()["pending"]),
        (vec!["b".to_owned(), "c".to_owned()], &json!(0))
    );
    let quoted = client.get(&format!("/db/_changes?since=%22{last}%22&limit=1"));
    assert_eq!(ids(&quoted, "results"), ["b"]);
    assert_eq!(ids(&client.get("/db/_changes?since=0"), "results").len(), 3);
    let now = client.get("/db/_changes?since=now");
    assert_eq!((ids(&now, "results").len(), now.json()["pending"].clone()), (0, json!(0)));
}

#[test]
fn a_limit_of_zero_gives_no_row_and_stays_where_it_is() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let reply = client.get("/db/_changes?limit=0");
    assert_eq!((ids(&reply, "results").len(), reply.json()["pending"].clone()), (0, json!(3)));
    assert!(seq(&reply.json()["last_seq"]).starts_with("0-"));
}

#[test]
fn descending_gives_the_newest_first() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    assert_eq!(ids(&client.get("/db/_changes?descending=true"), "results"), ["c", "b", "a"]);
    let newest = client.get("/db/_changes?descending=true&limit=1");
    assert_eq!((ids(&newest, "results"), newest.json()["pending"].clone()), (vec!["c".to_owned()], json!(2)));
}

#[test]
fn documents_conflicts_and_all_leaves_are_shown_when_asked_for() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = |digit: &str| format!("1-{}", digit.repeat(32));
    for digit in ["a", "b"] {
        let body = json!({"_rev": rev(digit), "is": digit});
        client.put("/db/x?new_edits=false", &body.to_string()).expect_status(201);
    }
    let main = client.get("/db/_changes?include_docs=true&conflicts=true").json();
    assert_eq!(main["results"][0]["changes"], json!([{"rev": rev("b")}]));
    assert_eq!(main["results"][0]["doc"]["is"], "b");
    assert_eq!(main["results"][0]["doc"]["_conflicts"], json!([rev("a")]));
    let all = client.get("/db/_changes?style=all_docs").json();
    assert_eq!(all["results"][0]["changes"], json!([{"rev": rev("b")}, {"rev": rev("a")}]));
}

#[test]
fn a_deleted_document_is_shown_as_such() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = client.put("/db/a", "{}").rev();
    let gone = client.delete(&format!("/db/a?rev={rev}")).rev();
    let doc = client.get("/db/_changes?include_docs=true").json()["results"][0]["doc"].clone();
    assert_eq!(doc, json!({"_id": "a", "_rev": gone, "_deleted": true}));
}

#[test]
fn filters_by_id_and_by_design_are_there_and_others_are_not_yet() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    client.put("/db/_design/d", "{}").expect_status(201);
    let posted = client.post("/db/_changes?filter=_doc_ids", "{\"doc_ids\":[\"c\",\"a\",\"none\"]}");
    assert_eq!(ids(&posted, "results"), ["a", "c"]);
    let got = client.get("/db/_changes?filter=_doc_ids&doc_ids=%5B%22b%22%5D");
    assert_eq!(ids(&got, "results"), ["b"]);
    assert_eq!(got.json()["last_seq"], client.get("/db").json()["update_seq"]);
    assert_eq!(ids(&client.get("/db/_changes?filter=_design"), "results"), ["_design/d"]);
    let no_list = client.post("/db/_changes?filter=_doc_ids", "{}");
    no_list.expect_error(400, "bad_request", "`doc_ids` filter parameter is not a list of doc ids.");
    client.get("/db/_changes?filter=_zing").expect_error(400, "bad_request", "unknown builtin filter name");
    for later in ["_selector", "_view", "design/name"] {
        assert_eq!(client.get(&format!("/db/_changes?filter={later}")).status, 501, "{later}");
    }
    assert_eq!(ids(&client.post("/db/_changes", "{}"), "results").len(), 4);
    assert_eq!(ids(&client.post("/db/_changes", ""), "results").len(), 4);
}

#[test]
fn bad_options_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for bad in
        ["feed=x", "since=junk", "style=x", "limit=x", "limit=-1", "heartbeat=0", "heartbeat=x", "timeout=x"]
    {
        assert_eq!(client.get(&format!("/db/_changes?{bad}")).status, 400, "{bad}");
    }
    client.get("/none/_changes").expect_error(404, "not_found", "Database does not exist.");
}

#[test]
fn a_position_of_an_earlier_database_of_that_name_means_the_start() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let old = seq(&client.get("/db").json()["update_seq"]);
    client.delete("/db").expect_status(200);
    client.create("db");
    client.put("/db/new", "{}").expect_status(201);
    assert_eq!(ids(&client.get(&format!("/db/_changes?since={old}")), "results"), ["new"]);
}

#[test]
fn a_longpoll_waits_for_the_next_change() {
    let server = Server::start();
    let (mut writer, mut reader) = (server.connect(), server.connect());
    three(&mut writer);
    // With changes to tell it does not wait.
    assert_eq!(ids(&reader.get("/db/_changes?feed=longpoll"), "results").len(), 3);
    reader.write_head("GET", "/db/_changes?feed=longpoll&since=now", &[]);
    assert_eq!(reader.read_head().0, 200);
    let mut text = reader.read_chunk().unwrap();
    writer.put("/db/d", "{}").expect_status(201);
    while let Some(chunk) = reader.read_chunk() {
        text.extend_from_slice(&chunk);
    }
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["results"][0]["id"], "d");
    assert_eq!(json["last_seq"], json["results"][0]["seq"]);
}

#[test]
fn a_longpoll_ends_after_its_timeout() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let json = client.get("/db/_changes?feed=longpoll&timeout=1").expect_status(200).json();
    assert_eq!((&json["results"], &json["pending"]), (&json!([]), &json!(0)));
}

#[test]
fn a_filtered_longpoll_sleeps_through_what_does_not_pass() {
    let server = Server::start();
    let (mut writer, mut reader) = (server.connect(), server.connect());
    writer.create("db");
    reader.write_head("GET", "/db/_changes?feed=longpoll&filter=_doc_ids&doc_ids=%5B%22yes%22%5D", &[]);
    assert_eq!(reader.read_head().0, 200);
    let mut text = reader.read_chunk().unwrap();
    writer.put("/db/no", "{}").expect_status(201);
    writer.put("/db/yes", "{}").expect_status(201);
    while let Some(chunk) = reader.read_chunk() {
        text.extend_from_slice(&chunk);
    }
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["results"].as_array().unwrap().len(), 1);
    assert_eq!(json["results"][0]["id"], "yes");
}

#[test]
fn a_continuous_feed_tells_each_change_as_it_comes() {
    let server = Server::start();
    let (mut writer, mut reader) = (server.connect(), server.connect());
    three(&mut writer);
    reader.write_head("GET", "/db/_changes?feed=continuous&heartbeat=60000&since=0&limit=5", &[]);
    assert_eq!(reader.read_head().0, 200);
    let mut text = Vec::new();
    while lines(&text).len() < 3 {
        text.extend_from_slice(&reader.read_chunk().unwrap());
    }
    writer.put("/db/d", "{}").expect_status(201);
    while lines(&text).len() < 4 {
        text.extend_from_slice(&reader.read_chunk().unwrap());
    }
    writer.put("/db/e", "{}").expect_status(201);
    while let Some(chunk) = reader.read_chunk() {
        text.extend_from_slice(&chunk);
    }
    let rows = lines(&text);
    let found: Vec<_> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(found, ["a", "b", "c", "d", "e"]);
    assert_eq!(rows[5], json!({"last_seq": rows[4]["seq"], "pending": 0}));
}

#[test]
fn heartbeats_break_the_silence() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.write_head("GET", "/db/_changes?feed=continuous&heartbeat=5", &[]);
    assert_eq!(client.read_head().0, 200);
    for _ in 0..4 {
        assert_eq!(client.read_chunk().unwrap(), b"\n");
    }
}

#[test]
fn a_continuous_feed_without_a_heartbeat_ends_after_its_timeout() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let reply = client.get("/db/_changes?feed=continuous&timeout=1");
    let rows = lines(&reply.body);
    assert_eq!((rows.len(), &rows[3]["pending"]), (4, &json!(0)));
}

#[test]
fn server_sent_events_carry_their_position() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let reply = client.get("/db/_changes?feed=eventsource&limit=2");
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    let events: Vec<_> = reply.text().split_terminator("\n\n").collect();
    assert_eq!(events.len(), 2);
    let (data, id) = events[1].split_once("\nid: ").unwrap();
    let row: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!((&row["id"], row["seq"].to_string()), (&json!("b"), id.to_owned()));
    // A browser that connects again goes on from there.
    let again = [("Last-Event-ID", id)];
    let reply = client.send("GET", "/db/_changes?feed=eventsource&limit=1", &again, b"");
    assert!(reply.text().contains("\"id\":\"c\""));
    let reply = client.get(&format!("/db/_changes?last-event-id={}&limit=1", id.trim_matches('"')));
    assert_eq!(ids(&reply, "results"), ["c"]);
}

#[test]
fn feeds_end_when_their_database_is_deleted() {
    let server = Server::start();
    let (mut writer, mut reader) = (server.connect(), server.connect());
    writer.create("db");
    reader.write_head("GET", "/db/_changes?feed=continuous&heartbeat=60000", &[]);
    assert_eq!(reader.read_head().0, 200);
    assert_eq!(reader.read_chunk().unwrap(), b"\n");
    writer.delete("/db").expect_status(200);
    let mut text = Vec::new();
    while let Some(chunk) = reader.read_chunk() {
        text.extend_from_slice(&chunk);
    }
    assert!(lines(&text)[0]["last_seq"].is_string());
}

#[test]
fn a_feed_of_many_chunks_arrives_whole() {
    let server = Server::with_limits(|limits| limits.stream_chunk_bytes = 500);
    let mut client = server.connect();
    client.create("db");
    let docs: Vec<_> = (0..300).map(|n| json!({"_id": n.to_string(), "n": n})).collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    let reply = client.get("/db/_changes?include_docs=true");
    assert_eq!(reply.header("transfer-encoding"), Some("chunked"));
    let results = reply.json()["results"].as_array().unwrap().clone();
    assert!(results.iter().enumerate().all(|(n, row)| row["doc"]["n"] == n), "{} rows", results.len());
    assert_eq!(results.len(), 300);
}
