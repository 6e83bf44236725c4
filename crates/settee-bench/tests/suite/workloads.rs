//! Goal: each table runs from end to end, in this process and over HTTP, and deletes its databases.
//! Method: small values of a full run's parameters; no timing is asserted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_bench::api::{self, Setup};
use settee_bench::documents::DocumentSize;
use settee_bench::drive::{Durability, Target};
use settee_bench::fabric;
use settee_bench::footprint;
use settee_bench::hostile::{self, Victim};
use settee_bench::limits;
use settee_bench::report::Row;
use settee_bench::views::{self, Part};
use settee_client::{Couch, CouchError, Server};
use settee_doc::Databases;
use settee_http::ServerOptions;
use settee_io::{Env, ThreadOptions};
use tokio::net::TcpListener;

/// Runs `test` with a server on a temporary directory, and checks that it leaves no database.
fn with_server<F: Future<Output = ()>>(test: impl FnOnce(Server) -> F) {
    with_server_in(|server, _| test(server));
}

/// As [`with_server`], with the server's data directory.
fn with_server_in<F: Future<Output = ()>>(test: impl FnOnce(Server, PathBuf) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
        let databases = Databases::open(env, directory.path()).await.unwrap();
        let (server, stop) = serve(&databases).await;
        test(server, directory.path().to_owned()).await;
        assert_eq!(databases.names(), [""; 0], "databases are left behind");
        stop.send(()).unwrap();
        databases.close().await.unwrap();
    });
}

async fn serve(databases: &Arc<Databases>) -> (Server, tokio::sync::oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let options = ServerOptions { admin: None, uuid: settee_http::new_uuid(), ..ServerOptions::default() };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let databases = databases.clone();
    tokio::spawn(async move {
        let stopped = async { stopped.await.unwrap_or_default() };
        settee_http::serve(listener, databases, options, stopped).await.unwrap();
    });
    (server, stop)
}

async fn bare_server() -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(limits::serve_bare(listener));
    Target { server, pid: None }
}

#[test]
fn the_footprint_is_sampled_while_documents_are_overwritten_and_after() {
    with_server_in(async |server: Server, data: PathBuf| {
        for random in [false, true] {
            let config = footprint::Config {
                documents: 40,
                rounds: 3,
                clients: 2,
                batch: 7,
                random,
                idle_seconds: 0.2,
                sample_seconds: 0.05,
            };
            let (target, mut rows) = (Target { server: server.clone(), pid: None }, Vec::<Row>::new());
            let each = &mut |row| rows.push(row);
            footprint::run(&config, &target, &data, Durability::Persisted, each).await.unwrap();
            let (total, samples) = rows.split_last().unwrap();
            assert_eq!((total.operations, total.aims().count()), (160, 2), "{total:?}");
            let last = samples.last().unwrap();
            assert!(last.workload.ends_with("idle") && last.rate > Some(0.04), "{last:?}");
            assert!(last.compared[0].figure > Some(1.0), "{last:?}");
        }
    });
}

#[test]
fn the_fabric_table_runs_over_http() {
    with_server(async |server: Server| {
        for (doc_size, clients, durability) in [
            (DocumentSize::Small, 2, Durability::Persisted),
            (DocumentSize::Medium, 3, Durability::Accepted),
            (DocumentSize::Large, 1, Durability::Written),
        ] {
            let target = Target { server: server.clone(), pid: Some(std::process::id()) };
            let config = fabric::Config { docs: Some(25), doc_size, batch: 10, clients, updates: 3 };
            let mut rows = Vec::new();
            let run = fabric::run(&config, &target, durability, &mut |row| rows.push(row)).await;
            run.unwrap_or_else(|error| panic!("{doc_size:?}: {error}"));
            let operations: Vec<u64> = rows.iter().map(|row: &Row| row.operations).collect();
            assert_eq!(operations, [25, 25, 25, 25, 25, 3]);
            assert!(rows.iter().all(|row| row.rate > Some(0.0)), "{rows:?}");
        }
    });
}

/// Runs the table with small values. Returns the measured rows and the failed ones.
async fn run_api(
    server: Server,
    bare: Option<Target>,
    directory: Option<&Path>,
    rows: &[&str],
) -> (Vec<Row>, Vec<Row>) {
    let rows = rows.iter().map(|&row| row.to_owned()).collect();
    let config = api::Config { rows, scale: 0.001, seconds: Some(0.04) };
    let target = Target { server, pid: Some(std::process::id()) };
    let (directory, durability) = (directory.map(Path::to_owned), Durability::Persisted);
    let mut rows = Vec::new();
    let setup = Setup { target, bare, directory, durability };
    let count = api::run(&config, &setup, &mut |row| rows.push(row)).await.unwrap();
    let (failed, rows): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.missing.is_some());
    assert_eq!(count, failed.len() as u64);
    assert!(failed.iter().all(|row| row.missing.as_ref().unwrap().starts_with("FAILED: ")), "{failed:?}");
    (rows, failed)
}

/// The number of rows with a figure to compare that contains `text`.
fn compared_with(rows: &[Row], text: &str) -> usize {
    let has = |row: &&Row| row.compared.iter().any(|one| one.what.contains(text) && one.figure.is_some());
    rows.iter().filter(has).count()
}

#[test]
fn every_row_of_the_api_runs_beside_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    with_server(async |server: Server| {
        let bare = Some(bare_server().await);
        let (rows, failed) = run_api(server, bare, Some(directory.path()), &[]).await;
        assert!(failed.is_empty(), "{failed:?}");
        // Writer and readers are four rows, followers two, and bulk updates two.
        assert_eq!(rows.len(), api::row_names().count() + 5);
        assert!(rows.iter().all(|row| row.operations > 0 && row.rate > Some(0.0)), "{rows:?}");
        let limited = compared_with(&rows, "bare");
        assert_eq!(limited, 18, "gets, listings, bulk gets, attachments, and writes of one client");
        let recorded = compared_with(&rows, "CouchDB's");
        assert_eq!(
            recorded,
            rows.len() - 10,
            "all but the history, bulk updates, the followers and the cold rows"
        );
    });
}

#[test]
fn a_read_row_alone_loads_what_it_reads_and_needs_no_limit() {
    with_server(async |server: Server| {
        let (rows, failed) = run_api(server, None, None, &["bulk-get", "put-1"]).await;
        assert!(failed.is_empty(), "{failed:?}");
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        // "put-1" also selects the rows of attachments.
        assert_eq!(names, ["put-1", "bulk-get-1", "bulk-get-10", "attachment-put-1", "attachment-put-10"]);
        assert_eq!(compared_with(&rows, "bare"), 0, "{rows:?}");
    });
}

fn views_config(parts: &[Part]) -> views::Config {
    views::Config { parts: parts.to_vec(), documents: 300, seconds: 0.03, follow_seconds: 0.4 }
}

#[test]
fn every_row_of_the_views_table_has_figures_that_agree_with_the_documents() {
    with_server(async |server: Server| {
        let (config, mut rows) = (views_config(&[]), Vec::<Row>::new());
        let target = Target { server, pid: Some(std::process::id()) };
        let each = &mut |row| rows.push(row);
        let failed = views::run(&config, &target, Durability::Persisted, each).await.unwrap();
        assert_eq!(failed, 0, "{rows:?}");
        let counts = |start: &str| rows.iter().filter(|row| row.workload.starts_with(start)).count();
        let parts = [
            "mail: ",
            "all values",
            "build, ",
            "full read",
            "range of",
            "_index",
            "_find",
            "batches",
            "three",
        ];
        assert_eq!(parts.map(counts), [11, 1, 2, 1, 3, 1, 3, 2, 1]);
        assert_eq!(rows.len(), 25);
        for row in &rows {
            assert!(row.operations > 0 && row.rate.is_some_and(|rate| rate >= 0.0), "{row:?}");
            assert!(row.rate > Some(0.0) || row.workload.starts_with("three"), "{row:?}");
            assert!(row.aims().all(|aim| aim.met.is_some()), "an aim is judged: {row:?}");
        }
        let operations = |part: &str| {
            let row = rows.iter().find(|row| row.workload.contains(part));
            row.unwrap_or_else(|| panic!("a row of {part}")).operations
        };
        // A build counts each document once, an update one in a hundred; full reads and scans count all.
        for build in ["mail: build", "build, one emit:", "build, one emit and", "_index", "all values"] {
            assert_eq!(operations(build), 300, "{build}");
        }
        let runs: Vec<&str> = rows
            .iter()
            .filter(|row| row.workload.contains("one emit"))
            .flat_map(|row| &row.notes)
            .map(String::as_str)
            .collect();
        assert!(runs.len() == 2 && runs[0].contains("plan") && runs[1].contains("engine"), "{runs:?}");
        assert_eq!(operations("update of 1 %"), 3);
        for all in ["mail: full read", "full read, small", "_find without"] {
            assert_eq!(operations(all) % 300, 0, "{all}");
        }
        assert_eq!(operations("batches of 100 by 10 clients, no views") % 100, 0);
        assert_eq!(compared_with(&rows, "CouchDB's recorded"), 4, "builds, a full read and ranges");
        assert_eq!(rows.iter().map(|row| row.aims().count()).sum::<usize>(), 14, "{rows:?}");
    });
}

#[test]
fn a_part_of_the_views_table_alone_builds_what_it_reads() {
    with_server(async |server: Server| {
        let (config, mut rows) = (views_config(&[Part::Read, Part::Mango]), Vec::<Row>::new());
        let target = Target { server, pid: None };
        let each = &mut |row| rows.push(row);
        let failed = views::run(&config, &target, Durability::Accepted, each).await.unwrap();
        assert_eq!((failed, rows.len()), (0, 8), "{rows:?}");
    });
}

/// A server that responds to every request with 200 and the same few bytes of JSON.
async fn wrong_server() -> Server {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 20];
                while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"doc_count\":200}";
                    if stream.write_all(&answer[..]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    server
}

#[test]
fn a_row_with_wrong_responses_fails_and_has_no_figure() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let names = ["get-1", "load-sequential", "put-50", "update-1", "all-docs", "bulk-get-1", "followers"];
        let (rows, failed) = run_api(wrong_server().await, None, None, &names).await;
        assert!(rows.is_empty(), "{rows:?}");
        let failed: Vec<&str> = failed.iter().map(|row| row.name).collect();
        for name in names {
            assert!(failed.contains(&name), "{name} of {failed:?}");
        }
    });
}

#[test]
fn a_part_of_the_views_table_with_wrong_responses_fails() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (config, mut rows) = (views_config(&[]), Vec::<Row>::new());
        let target = Target { server: wrong_server().await, pid: None };
        let each = &mut |row| rows.push(row);
        let failed = views::run(&config, &target, Durability::Persisted, each).await.unwrap();
        assert_eq!((failed, rows.len()), (5, 5), "{rows:?}");
        assert!(rows.iter().all(|row| row.missing.as_ref().is_some_and(|why| why.starts_with("FAILED: "))));
    });
}

#[test]
fn refusals_have_couchdbs_status_and_error_name() {
    with_server(async |server: Server| {
        let mut couch = Couch::new(server);
        let refused = couch.call("GET", "/nowhere", None).await.unwrap_err();
        assert!(
            matches!(&refused, CouchError::Refused { status: 404, error, .. } if error == "not_found"),
            "{refused}"
        );
        assert!(couch.create_database("here").await.unwrap());
        assert!(!couch.create_database("here").await.unwrap());
        couch.delete_database("here").await.unwrap();
        let refused = couch.stream("/here/_all_docs").await.unwrap_err();
        assert!(matches!(refused, CouchError::Refused { status: 404, .. }), "{refused}");
    });
}

#[test]
fn every_attack_runs_and_other_clients_are_served_meanwhile() {
    with_server(|server| async move {
        let config = hostile::Config { attacks: Vec::new(), scale: 0.001, seconds: 0.1 };
        let victim = Victim { anonymous: server.clone(), admin: server, pid: None };
        let mut rows = Vec::new();
        hostile::run(&config, &victim, &mut |row| rows.push(row)).await.unwrap();
        // Without an attack, to compare with, and beside each of eleven.
        assert_eq!(rows.len(), 2 * 12);
        for (index, row) in rows.iter().enumerate() {
            assert_eq!(row.workload.starts_with("no attack"), index < 2, "{row:?}");
            assert!(row.operations > 0 && row.aims().count() == 1, "{row:?}");
            if index % 2 == 0 {
                assert_eq!(row.notes[1].starts_with("0 connections"), index == 0, "{row:?}");
            }
        }
    });
}
