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
fn filters_select_by_id_and_by_design_and_have_their_names() {
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
    let no_view = client.get("/db/_changes?filter=_view");
    no_view.expect_error(400, "bad_request", "`view` filter parameter is not provided.");
    let no_view = client.get("/db/_changes?filter=_view&view=x");
    no_view.expect_error(400, "bad_request", "`view` must be of the form `designname/viewname`");
    let no_name = client.get("/db/_changes?filter=x");
    no_name.expect_error(400, "bad_request", "`filter` must be of the form `designname/filtername`");
    assert_eq!(ids(&client.post("/db/_changes", "{}"), "results").len(), 4);
    // A filter is selected by its exact name.
    assert_eq!(ids(&client.post("/db/_changes", "{\"doc_ids\":[\"a\"]}"), "results").len(), 4);
    assert_eq!(ids(&client.post("/db/_changes", ""), "results").len(), 4);
}

#[test]
fn bad_options_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for bad in
        ["feed=x", "since=junk", "style=x", "limit=x", "limit=", "heartbeat=0", "heartbeat=x", "timeout=x"]
    {
        assert_eq!(client.get(&format!("/db/_changes?{bad}")).status, 400, "{bad}");
    }
    client.get("/none/_changes").expect_error(404, "not_found", "Database does not exist.");
}

#[test]
fn a_limit_below_zero_is_none() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let all = client.get("/db/_changes").json();
    for limit in ["-1", "-99999999999999999999"] {
        assert_eq!(client.get(&format!("/db/_changes?limit={limit}")).expect_status(200).json(), all);
    }
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
    // If there are changes already, it doesn't wait.
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
fn a_continuous_feed_sends_each_change_at_once() {
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
    // A reconnecting browser continues from there.
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

/// Documents with a number each; returns their revisions.
fn numbered(client: &mut Client, count: usize) -> Vec<String> {
    client.create("db");
    let docs: Vec<_> = (0..count).map(|n| json!({"_id": format!("d{n:03}"), "n": n})).collect();
    let reply = client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    let rows = reply.json().as_array().unwrap().clone();
    rows.iter().map(|row| row["rev"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_selector_passes_the_documents_that_match() {
    let server = Server::start();
    let mut client = server.connect();
    numbered(&mut client, 600);
    let mut select = |query: &str, body: Value| {
        client.post(&format!("/db/_changes?filter=_selector{query}"), &body.to_string()).expect_status(200)
    };
    let few = select("", json!({"selector": {"n": {"$gte": 597}}}));
    assert_eq!(ids(&few, "results"), ["d597", "d598", "d599"]);
    assert_eq!(few.json()["pending"], 0);
    assert!(few.json()["results"][0].get("doc").is_none());
    let by_id = select("", json!({"selector": {"_id": "d007"}}));
    assert_eq!(ids(&by_id, "results"), ["d007"]);
    let limited = select("&limit=2&include_docs=true", json!({"selector": {"n": {"$mod": [100, 50]}}}));
    assert_eq!(ids(&limited, "results"), ["d050", "d150"]);
    assert_eq!(
        (&limited.json()["pending"], &limited.json()["results"][1]["doc"]["n"]),
        (&json!(449), &json!(150))
    );
    let last = seq(&limited.json()["last_seq"]);
    let rest = select(&format!("&since={last}"), json!({"selector": {"n": {"$mod": [100, 50]}}}));
    assert_eq!(ids(&rest, "results"), ["d250", "d350", "d450", "d550"]);
    let backwards = select("&descending=true&limit=1", json!({"selector": {"n": {"$lt": 300}}}));
    assert_eq!(
        (ids(&backwards, "results"), &backwards.json()["pending"]),
        (vec!["d299".to_owned()], &json!(299))
    );
    let shown = select("&include_docs=true", json!({"selector": {"_id": "d001"}, "fields": ["n", "none"]}));
    assert_eq!(shown.json()["results"][0]["doc"], json!({"n": 1}));
    assert_eq!(ids(&select("", json!({"selector": {}, "fields": []})), "results").len(), 600);
}

#[test]
fn a_selector_is_refused_with_its_reason() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let in_query = client.get("/db/_changes?filter=_selector");
    in_query.expect_error(400, "bad_request", "Selector must be specified in POST payload");
    for (body, reason) in [
        ("", "Selector error: expected a JSON object"),
        ("{}", "Selector error: expected a JSON object"),
        ("{\"selector\":[]}", "Selector error: expected a JSON object"),
        ("{\"selector\":{\"a\":{\"$x\":1}}}", "Invalid operator: $x"),
        ("{\"selector\":{\"a\":{\"$in\":1}}}", "Bad argument for operator $in: 1"),
        ("{\"selector\":{},\"fields\":1}", "Selector error: fields must be JSON array"),
    ] {
        let reply = client.post("/db/_changes?filter=_selector", body);
        reply.expect_error(400, "bad_request", reason);
    }
    let reply = client.send("POST", "/db/_changes", &[("Content-Type", "text/plain")], b"{}");
    assert_eq!(reply.status, 415);
}

#[test]
fn a_selector_with_all_leaves_shows_those_that_match() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = |digit: &str| format!("1-{}", digit.repeat(32));
    for (digit, kind) in [("a", "old"), ("b", "new"), ("c", "new")] {
        let body = json!({"_rev": rev(digit), "kind": kind});
        client.put("/db/x?new_edits=false", &body.to_string()).expect_status(201);
    }
    let mut select = |style: &str, selector: Value| {
        let path = format!("/db/_changes?filter=_selector&style={style}");
        client.post(&path, &json!({"selector": selector}).to_string()).json()["results"].clone()
    };
    assert_eq!(select("main_only", json!({"kind": "old"})), json!([]));
    let all = select("all_docs", json!({"kind": "old"}));
    assert_eq!(all[0]["changes"], json!([{"rev": rev("a")}]));
    let all = select("all_docs", json!({"kind": "new"}));
    assert_eq!(all[0]["changes"], json!([{"rev": rev("c")}, {"rev": rev("b")}]));
    let in_conflict = select("main_only", json!({"_conflicts": {"$size": 2}}));
    assert_eq!(in_conflict[0]["changes"], json!([{"rev": rev("c")}]));
}

#[test]
fn a_selector_sees_deletions_and_a_feed_with_one_goes_on() {
    let server = Server::start();
    let (mut writer, mut reader) = (server.connect(), server.connect());
    let revs = numbered(&mut writer, 3);
    let body = "{\"selector\":{\"$or\":[{\"_deleted\":true},{\"wanted\":true}]}}";
    let path = "/db/_changes?feed=continuous&filter=_selector&limit=2&heartbeat=60000";
    let length = body.len().to_string();
    reader.write_head("POST", path, &[("Content-Type", "application/json"), ("Content-Length", &length)]);
    reader.write(body.as_bytes());
    assert_eq!(reader.read_head().0, 200);
    let mut text = reader.read_chunk().unwrap();
    writer.put("/db/no", "{\"wanted\":1}").expect_status(201);
    writer.put("/db/yes", "{\"wanted\":true}").expect_status(201);
    writer.delete(&format!("/db/d001?rev={}", revs[1])).expect_status(200);
    while let Some(chunk) = reader.read_chunk() {
        text.extend_from_slice(&chunk);
    }
    let rows = lines(&text);
    assert_eq!((&rows[0]["id"], &rows[1]["id"]), (&json!("yes"), &json!("d001")));
    assert_eq!(rows[1]["deleted"], true);
}

#[test]
fn ids_that_are_looked_up_give_what_a_scan_gives() {
    let server = Server::start();
    let mut client = server.connect();
    let revs = numbered(&mut client, 300);
    client.put(&format!("/db/d002?rev={}", revs[2]), "{\"n\":\"new\"}").expect_status(201);
    client.delete(&format!("/db/d250?rev={}", revs[250])).expect_status(200);
    let few = ["d250", "d100", "d002", "none"];
    // With this many ids the feed is scanned. Most of the ids don't exist.
    let many: Vec<_> =
        few.iter().map(|id| (*id).to_owned()).chain((0..100).map(|n| format!("x{n}"))).collect();
    let since = seq(&client.get("/db/_changes?limit=50").json()["last_seq"]);
    for query in [
        "",
        "&include_docs=true",
        "&descending=true",
        "&descending=true&limit=2",
        "&limit=1&include_docs=true",
    ] {
        for since in ["0", &since] {
            let mut ask = |ids: Value| {
                let path = format!("/db/_changes?filter=_doc_ids{query}&since={since}");
                client.post(&path, &json!({"doc_ids": ids}).to_string()).expect_status(200).json()
            };
            let (looked_up, scanned) = (ask(json!(few)), ask(json!(many)));
            assert_eq!(looked_up, scanned, "{query} {since}");
            assert!(!looked_up["results"].as_array().unwrap().is_empty());
        }
    }
    let all = client.post("/db/_changes?filter=_doc_ids", &json!({"doc_ids": few}).to_string());
    assert_eq!(ids(&all, "results"), ["d100", "d002", "d250"]);
}

#[test]
fn documents_come_with_their_attachments_when_asked_for() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let text = "a text that is long enough to be compressed, compressed, compressed and compressed";
    let rev = client.put("/db/x", "{\"a\":1}").rev();
    let path = format!("/db/x/note?rev={rev}");
    client.send("PUT", &path, &[("Content-Type", "text/plain")], text.as_bytes()).expect_status(201);
    let mut note = |query: &str| {
        let json = client.get(&format!("/db/_changes?include_docs=true{query}")).expect_status(200).json();
        json["results"][0]["doc"]["_attachments"]["note"].clone()
    };
    assert_eq!((&note("")["stub"], note("").get("data")), (&json!(true), None));
    let whole = note("&attachments=true");
    assert_eq!((whole.get("stub"), &whole["content_type"]), (None, &json!("text/plain")));
    assert!(whole["data"].as_str().unwrap().starts_with("YSB0ZXh0IHRoYXQ"), "{whole}");
    let encoded = note("&att_encoding_info=true");
    assert_eq!((&encoded["encoding"], &encoded["stub"]), (&json!("gzip"), &json!(true)));
    assert!(encoded["encoded_length"].is_u64() && note("").get("encoding").is_none());
}

#[test]
fn seqs_are_sent_at_intervals() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    // CouchDB counts down from 10^15, so the second of three has its `seq`.
    let json = client.get("/db/_changes?seq_interval=3").json();
    let given: Vec<_> = (0..3).map(|row| json["results"][row]["seq"].is_string()).collect();
    assert_eq!(given, [false, true, false]);
    assert_eq!(json["results"][0]["seq"], Value::Null);
    assert!(json["last_seq"].is_string());
    let failed = client.get("/db/_changes?seq_interval=0");
    failed.expect_error(400, "bad_request", "invalid_seq_interval");
}

#[test]
fn a_normal_feed_is_tagged_by_the_state_of_its_database() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let tag = client.get("/db/_changes").header("etag").unwrap().to_owned();
    let again = client.send("GET", "/db/_changes", &[("If-None-Match", &tag)], b"");
    assert_eq!((again.status, again.header("etag")), (304, Some(tag.as_str())));
    client.put("/db/d", "{}").expect_status(201);
    let changed = client.send("GET", "/db/_changes", &[("If-None-Match", &tag)], b"").expect_status(200);
    assert!(changed.header("etag").is_some_and(|new| new != tag));
    assert_eq!(client.get("/db/_changes?feed=longpoll").header("etag"), None);
}

#[test]
fn a_limit_of_zero_backwards_stays_at_the_end() {
    let server = Server::start();
    let mut client = server.connect();
    three(&mut client);
    let json = client.get("/db/_changes?limit=0&descending=true").json();
    assert_eq!((&json["results"], &json["last_seq"]), (&json!([]), &client.get("/db").json()["update_seq"]));
    let json = client.get("/db/_changes?limit=0&feed=continuous").json();
    assert_eq!(json["pending"], 3);
    assert!(seq(&json["last_seq"]).starts_with("0-"));
}

#[test]
fn heartbeats_of_an_event_source_are_events() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.write_head("GET", "/db/_changes?feed=eventsource&heartbeat=5", &[]);
    assert_eq!(client.read_head().0, 200);
    assert_eq!(client.read_chunk().unwrap(), b"\n");
    for _ in 0..3 {
        assert_eq!(client.read_chunk().unwrap(), b"event: heartbeat\ndata: \n\n");
    }
}

#[test]
fn a_heartbeat_wins_over_a_timeout() {
    let server = Server::start();
    let (mut writer, mut client) = (server.connect(), server.connect());
    writer.create("db");
    client.write_head("GET", "/db/_changes?feed=longpoll&timeout=1&heartbeat=20", &[]);
    assert_eq!(client.read_head().0, 200);
    let mut text = client.read_chunk().unwrap();
    for _ in 0..3 {
        assert_eq!(client.read_chunk().unwrap(), b"\n");
    }
    writer.put("/db/a", "{}").expect_status(201);
    while let Some(chunk) = client.read_chunk() {
        text.extend_from_slice(&chunk);
    }
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["results"][0]["id"], "a");
}

#[test]
fn all_leaves_and_the_winners_document_come_together() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let rev = |digit: &str| format!("1-{}", digit.repeat(32));
    for digit in ["a", "b"] {
        let body = json!({"_rev": rev(digit), "is": digit});
        client.put("/db/x?new_edits=false", &body.to_string()).expect_status(201);
    }
    let json = client.post("/db/_changes?style=all_docs&include_docs=true&attachments=true", "{}").json();
    assert_eq!(json["results"][0]["changes"], json!([{"rev": rev("b")}, {"rev": rev("a")}]));
    assert_eq!(json["results"][0]["doc"], json!({"_id": "x", "_rev": rev("b"), "is": "b"}));
}

#[test]
fn large_and_small_documents_come_in_order_through_windows() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    // The first windows end by their bytes, the last ones by their rows.
    let sizes: Vec<usize> = (0..40).map(|n| if n % 7 == 0 { 700_000 } else { 10 }).chain([10; 700]).collect();
    let docs: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(n, size)| json!({"_id": format!("{n:04}"), "text": "x".repeat(*size)}))
        .collect();
    client.post("/db/_bulk_docs", &json!({"docs": docs}).to_string()).expect_status(201);
    for query in ["", "&descending=true"] {
        let reply = client.get(&format!("/db/_changes?include_docs=true{query}"));
        let results = reply.json()["results"].as_array().unwrap().clone();
        assert_eq!(results.len(), sizes.len());
        for (index, row) in results.iter().enumerate() {
            let place = if query.is_empty() { index } else { sizes.len() - 1 - index };
            assert_eq!(row["doc"]["_id"], format!("{place:04}"));
            assert_eq!(row["doc"]["text"].as_str().unwrap().len(), sizes[place], "{place}");
        }
    }
}

#[test]
fn a_scan_that_finds_nothing_for_long_sends_heartbeats_and_stays_json() {
    let server = Server::start();
    let mut client = server.connect();
    numbered(&mut client, 5_000);
    let body = "{\"selector\":{\"n\":{\"$gt\":4998}}}";
    let reply = client.post("/db/_changes?filter=_selector&heartbeat=1", body).expect_status(200);
    assert_eq!(ids(&reply, "results"), ["d4999"]);
}

#[test]
fn a_selector_is_asked_of_large_documents_and_of_small_ones_alike() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let list = |from: usize| (from..from + 100_000).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    for (id, body) in [("a", list(0)), ("b", list(7)), ("c", "3".to_owned()), ("d", "7".to_owned())] {
        client.put(&format!("/db/{id}"), &format!("{{\"n\":[{body}]}}")).expect_status(201);
    }
    let wanted: Vec<String> = (0..7).chain(1_000_000..1_010_000).map(|n| n.to_string()).collect();
    let selector = format!("{{\"selector\":{{\"n\":{{\"$in\":[{}]}}}}}}", wanted.join(","));
    let found = client.post("/db/_changes?filter=_selector", &selector).expect_status(200);
    assert_eq!(ids(&found, "results"), ["a", "c"]);
}
