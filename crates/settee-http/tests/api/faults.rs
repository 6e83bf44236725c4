//! Goal: when the disk fails, no acknowledged write is lost, nothing that wasn't persisted is shown, writers
//! get the reason, and readers aren't affected.
//! Method: a server whose engine fails on demand.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use settee_http::ServerOptions;
use settee_io::{Engine, Operation, Outcome, Request, ThreadEngine, ThreadOptions};

use crate::client::{Client, Reply, Server, ids};

/// The operating system's errors of a failing medium and of a full one.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The fault of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Syncs fail.
    Syncs,
    /// Writes fail.
    Writes,
    /// There is no space left.
    Full,
}

/// Runs operations on the system, except those that the fault makes fail.
struct FaultyEngine {
    system: ThreadEngine,
    fault: Mutex<Option<Fault>>,
}

impl FaultyEngine {
    fn new() -> Arc<FaultyEngine> {
        let system = ThreadEngine::new(ThreadOptions::default());
        Arc::new(FaultyEngine { system, fault: Mutex::new(None) })
    }

    fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap() = fault;
    }

    fn error(&self, operation: &Operation) -> Option<io::Error> {
        let code = match ((*self.fault.lock().unwrap())?, operation) {
            (Fault::Syncs, Operation::Sync { .. } | Operation::Write { sync: true, .. }) => EIO,
            (Fault::Writes, Operation::Write { .. }) => EIO,
            (Fault::Full, Operation::Allocate { .. }) => ENOSPC,
            _ => return None,
        };
        Some(io::Error::from_raw_os_error(code))
    }
}

impl Engine for FaultyEngine {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn submit(&self, request: Request) {
        match self.error(&request.operation) {
            Some(error) => request.completion.complete(Err(error)),
            None => self.system.submit(request),
        }
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        self.error(&operation).map_or_else(|| self.system.run(operation), Err)
    }
}

fn start(engine: &Arc<FaultyEngine>, directory: &Path) -> Server {
    Server::start_on(engine.clone(), directory, ServerOptions::default())
}

/// The reason of the 503 for a stopped log.
#[track_caller]
fn stopped_reason(reply: &Reply) -> String {
    let json = reply.json();
    assert_eq!((reply.status, json["error"].as_str()), (503, Some("service unavailable")), "{json}");
    let reason = json["reason"].as_str().unwrap();
    assert!(reason.ends_with("failed: the database takes no writes until it is opened again"), "{reason}");
    reason.to_owned()
}

/// All kinds of writes to the database `db`, none of which can become durable.
fn writes(client: &mut Client, revision: &str) -> Vec<Reply> {
    let replicated =
        format!("{{\"new_edits\":false,\"docs\":[{{\"_id\":\"late\",\"_rev\":\"1-{:032x}\"}}]}}", 1);
    vec![
        client.put("/db/late", "{}"),
        client.put("/db/late?batch=ok", "{}"),
        client.put("/db/late?durability=written", "{}"),
        client.put("/db/_local/late", "{}"),
        client.post("/db", "{\"_id\":\"late\"}"),
        client.post("/db/_bulk_docs", "{\"docs\":[{\"_id\":\"late\"}]}"),
        client.post("/db/_bulk_docs", &replicated),
        client.delete(&format!("/db/a?rev={revision}")),
        client.post("/db/_ensure_full_commit", ""),
    ]
}

#[test]
fn a_failed_sync_stops_the_writes_of_its_database_alone_and_reads_go_on() {
    stops_its_database_alone(Fault::Syncs);
}

#[test]
fn a_failed_write_stops_the_writes_of_its_database_alone_and_reads_go_on() {
    stops_its_database_alone(Fault::Writes);
}

fn stops_its_database_alone(fault: Fault) {
    let directory = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::new();
    let mut server = start(&engine, directory.path());
    let mut client = server.connect();
    for name in ["db", "other"] {
        client.create(name);
    }
    let revision = client.put("/db/a", "{\"n\":1}").expect_status(201).rev();
    client.put("/other/a", "{\"n\":1}").expect_status(201);
    client.get("/_up").expect_status(200);

    engine.set(Some(fault));
    let reason = stopped_reason(&client.put("/db/lost", "{\"n\":2}"));
    // The disk recovers, but the log stays stopped.
    engine.set(None);
    for reply in writes(&mut client, &revision) {
        assert_eq!(stopped_reason(&reply), reason, "every write says what failed first");
    }
    let up = client.get("/_up").expect_status(503).json();
    assert_eq!((up["status"].as_str(), up["reason"].as_str()), (Some("stopped"), Some(reason.as_str())));
    let metrics = client.get("/_node/_local/_prometheus").expect_status(200);
    assert!(metrics.text().contains("\nsettee_stopped_logs 1\n"), "{}", metrics.text());

    assert_eq!(client.get("/db/a").expect_status(200).json()["n"], 1);
    client.get("/db/lost").expect_error(404, "not_found", "missing");
    assert_eq!(ids(&client.get("/db/_all_docs").expect_status(200), "rows"), ["a"]);
    assert_eq!(ids(&client.get("/db/_changes").expect_status(200), "results"), ["a"]);
    client.put("/other/b", "{}").expect_status(201);
    client.create("third");
    client.put("/third/a", "{}").expect_status(201);

    server.logs_stopped = true;
    drop(server);
    let again = start(&engine, directory.path());
    let mut client = again.connect();
    client.get("/_up").expect_status(200);
    assert_eq!(client.get("/db/a").expect_status(200).json()["n"], 1);
    // The refused write may have reached the disk; if so, then completely.
    let lost = client.get("/db/lost");
    assert!(lost.status == 404 || lost.json()["n"] == 2, "{}", lost.text());
    client.put("/db/late", "{}").expect_status(201);
}

#[test]
fn a_failed_sync_of_the_catalogue_keeps_databases_from_being_made_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::new();
    let mut server = start(&engine, directory.path());
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);

    engine.set(Some(Fault::Syncs));
    stopped_reason(&client.put("/new", ""));
    engine.set(None);
    stopped_reason(&client.put("/newer", ""));
    client.get("/new").expect_error(404, "not_found", "Database does not exist.");
    assert_eq!(client.get("/_all_dbs").expect_status(200).json(), serde_json::json!(["db"]));
    client.get("/_up").expect_status(503);
    client.put("/db/b", "{}").expect_status(201);
    assert_eq!(ids(&client.get("/db/_all_docs").expect_status(200), "rows"), ["a", "b"]);

    server.logs_stopped = true;
    drop(server);
    let again = start(&engine, directory.path());
    let mut client = again.connect();
    assert_eq!(ids(&client.get("/db/_all_docs").expect_status(200), "rows"), ["a", "b"]);
    client.create("newest");
}

#[test]
fn a_disk_that_fills_within_a_bulk_loses_nothing_and_takes_the_rest_when_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::new();
    let mut server = start(&engine, directory.path());
    let mut client = server.connect();
    client.create("db");
    client.put("/db/first", "{}").expect_status(201);
    // More than the reserved segment holds, so the disk fills up within the request.
    let value = "v".repeat(10_000);
    let docs: Vec<String> = (100..200).map(|n| format!("{{\"_id\":\"d{n}\",\"v\":\"{value}\"}}")).collect();
    let bulk = format!("{{\"docs\":[{}]}}", docs.join(","));
    engine.set(Some(Fault::Full));
    let refused = client.post("/db/_bulk_docs", &bulk);
    refused.expect_error(507, "insufficent_storage", "No space left on the disk.");
    // Refused, but nothing stopped.
    let up = client.get("/_up").expect_status(200).json();
    assert_eq!(up["status"], "no_space", "{up}");
    client.get("/db/first").expect_status(200);
    let stored = ids(&client.get("/db/_all_docs").expect_status(200), "rows");
    let expected: Vec<String> = (100..200).map(|n| format!("d{n}")).take(stored.len() - 1).collect();
    assert!(expected.len() < 100 && stored[..expected.len()] == expected, "the front of them: {stored:?}");
    for id in &expected {
        assert_eq!(client.get(&format!("/db/{id}")).expect_status(200).json()["v"], value);
    }

    engine.set(None);
    let rows = client.post("/db/_bulk_docs", &bulk).expect_status(201).json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.iter().filter(|row| row["ok"] == true).count(), 100 - expected.len());
    assert_eq!(rows.iter().filter(|row| row["error"] == "conflict").count(), expected.len());
    assert_eq!(client.get("/_up").expect_status(200).json()["status"], "ok");
    drop(server);
    server = start(&engine, directory.path());
    assert_eq!(ids(&server.connect().get("/db/_all_docs"), "rows").len(), 101);
}

#[test]
fn a_disk_that_is_full_refuses_a_spooled_body_and_nothing_of_it_is_stored() {
    let engine = FaultyEngine::new();
    let directory = tempfile::tempdir().unwrap();
    let mut options = ServerOptions::default();
    options.limits.request_bytes_in_flight_max = 1 << 20;
    let server = Server::start_on(engine.clone(), directory.path(), options);
    let mut client = server.connect();
    client.create("db");
    let document = format!("{{\"a\":\"{}\"}}", "x".repeat(10_000));
    let body = format!("{{\"docs\":[{}]}}", vec![document; 100].join(","));
    engine.set(Some(Fault::Full));
    let refused = client.post("/db/_bulk_docs", &body);
    assert_eq!((refused.status, &refused.json()["error"]), (507, &"insufficent_storage".into()));
    engine.set(None);
    assert_eq!(client.get("/db").json()["doc_count"], 0);
    client.post("/db/_bulk_docs", &body).expect_status(201);
    assert_eq!(client.get("/db").json()["doc_count"], 100);
}
