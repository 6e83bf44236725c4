//! Goal: each table runs from end to end, in this process and over HTTP, and cleans up.
//! Method: small values of the same parameters that a full run has; nothing timed is asserted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use settee_bench::baseline::{self, Target};
use settee_bench::couch::{Couch, CouchError};
use settee_bench::documents::DocumentSize;
use settee_bench::fabric::{self, Place};
use settee_bench::http::Server;
use settee_bench::limits;
use settee_bench::report::Row;
use settee_doc::{Databases, Stage};
use settee_http::ServerOptions;
use settee_io::{Env, ThreadOptions};
use tokio::net::TcpListener;

/// Runs `test` beside a server with its data in a folder of its own; checks that no database is
/// left behind.
fn with_server<F: Future<Output = ()>>(test: impl FnOnce(Server) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
        let databases = Databases::open(env, folder.path()).await.unwrap();
        let (server, stop) = serve(&databases).await;
        test(server).await;
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

async fn floor() -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(limits::serve_floor(listener));
    Target { server, pid: None }
}

fn fabric_config(place: Place, size: DocumentSize, clients: u64, durability: Stage) -> fabric::Config {
    fabric::Config { place, size, documents: 25, batch: 10, clients, updates: 3, durability }
}

fn assert_fabric_rows(rows: &[Row]) {
    let operations: Vec<u64> = rows.iter().map(|row| row.operations).collect();
    assert_eq!(operations, [25, 25, 25, 25, 25, 3]);
    assert!(rows.iter().all(|row| row.rate > 0.0), "{rows:?}");
}

#[test]
fn the_fabric_table_runs_in_process() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (size, clients, durability) in [
        (DocumentSize::Small, 1, Stage::Persisted),
        (DocumentSize::Medium, 3, Stage::Written),
        (DocumentSize::Large, 1, Stage::Accepted),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::Process { folder: folder.path().to_owned() };
        let mut rows = Vec::new();
        let config = fabric_config(place, size, clients, durability);
        let run = fabric::run(&config, |row| rows.push(row));
        runtime.block_on(run).unwrap_or_else(|error| panic!("{size:?}: {error}"));
        assert_fabric_rows(&rows);
    }
}

#[test]
fn the_fabric_table_runs_over_http() {
    with_server(async |server: Server| {
        for (size, clients, durability) in
            [(DocumentSize::Small, 2, Stage::Persisted), (DocumentSize::Large, 1, Stage::Written)]
        {
            let place = Place::Server { server: server.clone(), pid: Some(std::process::id()) };
            let mut rows = Vec::new();
            let config = fabric_config(place, size, clients, durability);
            let run = fabric::run(&config, |row| rows.push(row));
            run.await.unwrap_or_else(|error| panic!("{size:?}: {error}"));
            assert_fabric_rows(&rows);
        }
    });
}

fn baseline_config(
    server: Server,
    floor: Option<Target>,
    folder: Option<&Path>,
    rows: &[&str],
) -> baseline::Config {
    baseline::Config {
        target: Target { server, pid: Some(std::process::id()) },
        floor,
        folder: folder.map(Path::to_owned),
        scale: 0.001,
        row_time: Duration::from_millis(10),
        durability: Stage::Persisted,
        rows: rows.iter().map(|&row| row.to_owned()).collect(),
    }
}

#[test]
fn every_row_of_the_baseline_runs_beside_the_limits() {
    let folder = tempfile::tempdir().unwrap();
    with_server(async |server: Server| {
        let config = baseline_config(server, Some(floor().await), Some(folder.path()), &[]);
        let mut rows = Vec::new();
        baseline::run(&config, |row| rows.push(row)).await.unwrap();
        // Writer and readers side by side are two rows.
        assert_eq!(rows.len(), baseline::row_names().count() + 1);
        assert!(rows.iter().all(|row| row.operations > 0 && row.rate > 0.0), "{rows:?}");
        let limited = rows.iter().filter(|row| row.limit_ratio.is_some()).count();
        assert_eq!(limited, 7, "six rows of gets and the lone put are held against a limit");
        let recorded = rows.iter().filter(|row| row.rate_ratio.is_some()).count();
        assert_eq!(recorded, rows.len() - 4, "all but the bare server's are held against a record");
    });
}

#[test]
fn a_read_row_alone_loads_what_it_reads() {
    with_server(async |server: Server| {
        let config = baseline_config(server, None, None, &["bulk-get-1"]);
        let mut rows = Vec::new();
        baseline::run(&config, |row| rows.push(row)).await.unwrap();
        assert_eq!(rows.len(), 2, "bulk-get-1 and bulk-get-10");
    });
}

#[test]
fn refusals_come_with_couchdbs_words() {
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
        let refused = couch.stream("GET", "/here/_all_docs").await.unwrap_err();
        assert!(matches!(refused, CouchError::Refused { status: 404, .. }), "{refused}");
    });
}
