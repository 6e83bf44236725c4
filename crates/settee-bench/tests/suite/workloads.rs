//! Goal: each table runs from end to end, in this process and over HTTP, and deletes its databases.
//! Method: small values of a full run's parameters; no timing is asserted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use settee_bench::api::{self, Target};
use settee_bench::couch::{Couch, CouchError};
use settee_bench::documents::DocumentSize;
use settee_bench::fabric::{self, Backend};
use settee_bench::hostile::{self, Attack};
use settee_bench::http::Server;
use settee_bench::limits;
use settee_bench::report::{Failed, Reported, Row};
use settee_doc::{Databases, Stage};
use settee_http::ServerOptions;
use settee_io::{Env, ThreadOptions};
use tokio::net::TcpListener;

/// Runs `test` with a server on a temporary directory, and checks that it leaves no database.
fn with_server<F: Future<Output = ()>>(test: impl FnOnce(Server) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
        let databases = Databases::open(env, directory.path()).await.unwrap();
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

async fn bare_server() -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(limits::serve_bare(listener));
    Target { server, pid: None }
}

fn fabric_config(backend: Backend, size: DocumentSize, clients: u64, durability: Stage) -> fabric::Config {
    fabric::Config { backend, size, documents: 25, batch: 10, clients, updates: 3, durability }
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
        let directory = tempfile::tempdir().unwrap();
        let backend = Backend::Process { directory: directory.path().to_owned() };
        let mut rows = Vec::new();
        let config = fabric_config(backend, size, clients, durability);
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
            let backend = Backend::Server { server: server.clone(), pid: Some(std::process::id()) };
            let mut rows = Vec::new();
            let config = fabric_config(backend, size, clients, durability);
            let run = fabric::run(&config, |row| rows.push(row));
            run.await.unwrap_or_else(|error| panic!("{size:?}: {error}"));
            assert_fabric_rows(&rows);
        }
    });
}

fn api_config(server: Server, bare: Option<Target>, directory: Option<&Path>, rows: &[&str]) -> api::Config {
    api::Config {
        target: Target { server, pid: Some(std::process::id()) },
        bare,
        directory: directory.map(Path::to_owned),
        scale: 0.001,
        row_time: Duration::from_millis(40),
        durability: Stage::Persisted,
        rows: rows.iter().map(|&row| row.to_owned()).collect(),
    }
}

/// Runs the table. Returns the measured rows and the failed ones.
async fn run_api(config: &api::Config) -> (Vec<Row>, Vec<Failed>) {
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    let count = api::run(config, |reported| match reported {
        Reported::Measured(row) => rows.push(*row),
        Reported::Failed(row) => failed.push(row),
    });
    assert_eq!(count.await.unwrap(), failed.len() as u64);
    (rows, failed)
}

#[test]
fn every_row_of_the_api_runs_beside_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    with_server(async |server: Server| {
        let config = api_config(server, Some(bare_server().await), Some(directory.path()), &[]);
        let (rows, failed) = run_api(&config).await;
        assert!(failed.is_empty(), "{failed:?}");
        // Writer and readers are four rows, followers two.
        assert_eq!(rows.len(), api::row_names().count() + 4);
        assert!(rows.iter().all(|row| row.operations > 0 && row.rate > 0.0), "{rows:?}");
        let limited = rows.iter().filter(|row| row.limit.is_some()).count();
        assert_eq!(limited, 18, "gets, listings, bulk gets, attachments, and writes of one client");
        let recorded = rows.iter().filter(|row| row.rate_ratio.is_some()).count();
        assert_eq!(recorded, rows.len() - 3, "all but the history and the followers");
    });
}

#[test]
fn a_read_row_alone_loads_what_it_reads_and_needs_no_limit() {
    with_server(async |server: Server| {
        let config = api_config(server, None, None, &["bulk-get", "put-1"]);
        let (rows, failed) = run_api(&config).await;
        assert!(failed.is_empty(), "{failed:?}");
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        // "put-1" also selects the rows of attachments.
        assert_eq!(names, ["put-1", "bulk-get-1", "bulk-get-10", "attachment-put-1", "attachment-put-10"]);
        assert!(rows.iter().all(|row| row.limit.is_none()), "{rows:?}");
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
        let config = api_config(wrong_server().await, None, None, &names);
        let (rows, failed) = run_api(&config).await;
        assert!(rows.is_empty(), "{rows:?}");
        let failed: Vec<&str> = failed.iter().map(|row| row.name).collect();
        for name in names {
            assert!(failed.contains(&name), "{name} of {failed:?}");
        }
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
        let refused = couch.stream("GET", "/here/_all_docs").await.unwrap_err();
        assert!(matches!(refused, CouchError::Refused { status: 404, .. }), "{refused}");
    });
}

#[test]
fn every_attack_runs_and_other_clients_are_served_meanwhile() {
    with_server(|server| async move {
        let (time, scale) = (Duration::from_millis(100), 0.001);
        let config = hostile::Config { anonymous: server.clone(), admin: server, pid: None, time, scale };
        let mut reports = Vec::new();
        hostile::run(&config, &Attack::ALL, |report| reports.push(report.clone())).await.unwrap();
        let attacks: Vec<Option<Attack>> = reports.iter().map(|report| report.attack).collect();
        assert_eq!(attacks[0], None, "the first one is to compare with");
        assert_eq!(attacks[1..], Attack::ALL.map(Some));
        for report in &reports {
            assert_eq!(report.begun > 0, report.attack.is_some(), "{report:?}");
            assert!(report.up.count > 0 && report.writes.count > 0, "{report:?}");
        }
    });
}
