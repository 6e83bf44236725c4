//! Goal: `load`, `dump` and `bench` work with a running server, and their exit codes report failures.
//! Method: the built binary, with free ports and temporary directories.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A server on a free port with its own data directory.
struct Server {
    child: Child,
    url: String,
    data: tempfile::TempDir,
}

impl Server {
    fn start() -> Server {
        let data = tempfile::tempdir().unwrap();
        let mut child = settee(&["serve", "--no-admin", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
        Server { child, url: url.expect("the server prints its address"), data }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn settee(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_settee"));
    command.args(arguments).env_remove("SETTEE_DATA_DIR");
    command
}

/// Runs a command with `input` on its standard input.
fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = settee(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The write fails if the command refuses its arguments and exits.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The standard output of a command that succeeds.
fn ok(arguments: &[&str], input: &str) -> String {
    let output = run(arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// The error output of a command that fails with exit code 1.
fn fails(arguments: &[&str], input: &str) -> String {
    let output = run(arguments, input);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr).to_owned()
}

#[test]
fn documents_loaded_over_http_survive_a_dump_and_another_load() {
    let server = Server::start();
    let url = ["--url", server.url.as_str()];
    let input = "[{\"city\":\"Zürich\"},\n{\"city\":\"Zürich\"},\n{\"_id\":\"x/y é\",\"v\":[1.50]}]";
    let load = |db, more: &[&str], input| ok(&[&["load", "-", "--db", db], &url[..], more].concat(), input);
    assert!(
        load("cities", &["--create"], input)
            .starts_with("loaded 3 documents (0 already there, 0 errors) in ")
    );
    assert!(load("cities", &[], input).starts_with("loaded 0 documents (3 already there, 0 errors) in "));
    let dumped = ok(&[&["dump", "--db", "cities"], &url[..]].concat(), "");
    assert_eq!(dumped.lines().count(), 3);
    assert!(load("copy", &["--create"], &dumped).starts_with("loaded 3 documents"));
    assert_eq!(ok(&[&["dump", "--db", "copy"], &url[..]].concat(), ""), dumped);
    let plain = ok(&[&["dump", "--db", "copy", "--no-rev"], &url[..]].concat(), "");
    assert!(load("plain", &["--create", "--batch", "2"], &plain).starts_with("loaded 3 documents"));
    assert_eq!(ok(&[&["dump", "--db", "plain", "--no-rev"], &url[..]].concat(), ""), plain);
}

#[test]
fn refused_documents_are_reported_and_the_others_are_stored() {
    let server = Server::start();
    let mut lines: Vec<String> = (0..50).map(|number| format!("{{\"_id\":\"{number}\"}}")).collect();
    lines[33] = "{\"_id\":\"_nope\"}".to_owned();
    lines[40] = "{\"_id\":\"x\",\"_nope\":1}".to_owned();
    let load = ["load", "-", "--db", "some", "--create", "--skip-errors", "--url", server.url.as_str()];
    let errors = fails(&load, &lines.join("\n"));
    assert!(errors.contains("line 34: ") && errors.contains("line 41: "), "{errors}");
    assert!(errors.contains("2 documents were not loaded"), "{errors}");
    let dumped = ok(&["dump", "--db", "some", "--url", server.url.as_str()], "");
    assert_eq!(dumped.lines().count(), 48);
}

#[test]
fn error_messages_contain_a_hint() {
    let server = Server::start();
    let data = server.data.path().to_str().unwrap();
    assert!(fails(&["load", "-", "--db", "none", "--url", &server.url], "{}").contains("--create"));
    assert!(fails(&["dump", "--db", "none", "--url", &server.url], "").contains("no database none"));
    let in_use = fails(&["load", "-", "--db", "x", "--data-dir", data], "{}");
    assert!(in_use.contains(data) && in_use.contains("--url"), "{in_use}");
    assert!(
        fails(&["dump", "--db", "x", "--data-dir", "/nonexistent"], "")
            .contains("no data directory /nonexistent")
    );
    assert!(fails(&["load", "/nonexistent", "--db", "x"], "").contains("/nonexistent"));
}

/// Starts a server that sends, for each request, the text of the first entry that the request line contains,
/// and then closes the connection.
fn scripted_server(responses: &'static [(&'static str, &'static str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            respond(&mut stream.unwrap(), responses);
        }
    });
    url
}

fn respond(stream: &mut TcpStream, responses: &[(&str, &str)]) {
    let mut request = [0; 4096];
    let length = stream.read(&mut request).unwrap();
    let line = text(&request[..length]).lines().next().unwrap();
    let (_, response) = responses.iter().find(|(part, _)| line.contains(part)).expect("a scripted path");
    stream.write_all(response.as_bytes()).unwrap();
}

#[test]
fn a_truncated_dump_fails_and_leaves_no_file() {
    let database = ("GET /db ", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}");
    let cut_chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        4e\r\n{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n{\"id\":\"a\",\"key\":\"a\",\"doc\":{\"_id\":\"a\"}},\r\n\r\n";
    let fewer = "HTTP/1.1 200 OK\r\n\r\n{\"total_rows\":2,\"rows\":[{\"doc\":{\"_id\":\"a\"}}]}";
    let cases: [(&'static str, &str); 2] =
        [(cut_chunks, "closed the connection"), (fewer, "received 1 documents of 2")];
    for (listing, message) in cases {
        let url = scripted_server(Box::leak(Box::new([database, ("_all_docs", listing)])));
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out.jsonl");
        let error = fails(&["dump", "--db", "db", "--url", &url, "--out", out.to_str().unwrap()], "");
        assert!(error.contains(message), "{error}");
        assert_eq!(entries(directory.path()), 0, "{message}");
    }
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn the_benchmarks_run_and_leave_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let output = ["--data-dir", directory.path().to_str().unwrap(), "--json"];
    let fabric = ["bench", "--docs", "20", "--batch", "7", "--updates", "2"];
    let http = ["bench", "http", "--scale", "0.001", "--rows", "get-64,put-50,all-docs,followers"];
    let cases: [(Vec<&str>, usize); 2] = [
        ([&fabric[..], &output].concat(), 6),
        // get-64, put-50, all-docs with and without documents, followers paced and not.
        ([&http[..], &output].concat(), 6),
    ];
    for (arguments, count) in cases {
        let rows = ok(&arguments, "");
        let rows: Vec<serde_json::Value> =
            rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        assert_eq!(rows.len(), count, "{arguments:?}");
        assert!(rows.iter().all(|row| row["rate"].as_f64().unwrap() > 0.0), "{rows:?}");
        assert_eq!(entries(directory.path()), 0, "{arguments:?}");
    }
}

#[test]
fn a_benchmark_without_enough_disk_space_reports_the_needed_size() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let error = fails(&["bench", "--docs", "1000000000000", "--doc-size", "large", "--data-dir", data], "");
    assert!(error.contains("MB free and has"), "{error}");
}

#[test]
fn a_server_raises_its_descriptor_limit_to_the_hard_limit() {
    let data = tempfile::tempdir().unwrap();
    let script = "ulimit -Sn 64 && exec \"$0\" serve --listen 127.0.0.1:0 --data-dir \"$1\"";
    let child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_settee")])
        .arg(data.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut server = Server { child, url: String::new(), data };
    let mut line = String::new();
    BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("Settee"), "{line}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut counts = files.split_whitespace();
    let (soft, hard) = (counts.next(), counts.next());
    assert_eq!(soft, hard);
    assert_ne!(soft, Some("64"));
}
