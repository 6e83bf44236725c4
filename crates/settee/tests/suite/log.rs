//! Goal: a failing or blocked log delays no request, and each line of the log is one event. Method: the built
//! server with a full, closed or unread stderr and with log files, and requests that log a line each.

use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a server may take to start, respond or stop.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running server, whose administrator is ann:secret.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts a server on a free port, chosen here since its log may be unreadable.
    fn start(data: &Path, arguments: &[&str], stderr: impl Into<Stdio>) -> Server {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_settee"));
        command.args(["serve", "--listen", &address, "--admin", "ann:secret", "--data-dir"]).arg(data);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("SETTEE_")) {
                command.env_remove(name);
            }
        }
        let server = Server { child: command.spawn().unwrap(), address };
        let begun = Instant::now();
        while TcpStream::connect(&server.address).is_err() {
            assert!(begun.elapsed() < TIMEOUT, "the server doesn't start");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// Sends a request as the administrator. Returns the response's status and body.
    fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.connect().send(method, path, body)
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Client(BufReader::new(stream))
    }

    /// Returns the number of log lines that the server has dropped.
    fn dropped_count(&self) -> u64 {
        let (_, metrics) = self.send("GET", "/_node/_local/_prometheus", "");
        let count =
            metrics.lines().find_map(|line| line.strip_prefix("settee_server_log_dropped_lines_total "));
        count.unwrap().parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < TIMEOUT, "the server doesn't end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        // ann:secret
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.get_mut().write_all((head + body).as_bytes()).unwrap();
        let (mut status, mut length) = (String::new(), 0);
        self.0.read_line(&mut status).expect("a response");
        assert!(!status.is_empty(), "closed without a response");
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap();
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status[9..12].parse().unwrap(), String::from_utf8(body).unwrap())
    }

    /// Sends a login that fails, which logs a line.
    fn fail_to_log_in(&mut self, name: &str) {
        let body = serde_json::json!({ "name": name, "password": "wrong" }).to_string();
        assert_eq!(self.send("POST", "/_session", &body).0, 401);
    }
}

/// Sends a server 300 requests that log a line each, waits until it has counted `dropped_count` dropped
/// lines, stores 50 documents with `batch=ok`, stops the server, and checks that the documents are stored.
fn check_service_and_shutdown(stderr: impl Into<Stdio>, dropped_count: u64) {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[], stderr);
    assert_eq!(server.send("PUT", "/db", "").0, 201);
    let mut client = server.connect();
    (0..300).for_each(|number| client.fail_to_log_in(&format!("{number:0200}")));
    let begun = Instant::now();
    while server.dropped_count() < dropped_count {
        assert!(begun.elapsed() < TIMEOUT, "{} lines of the log are counted", server.dropped_count());
        std::thread::sleep(Duration::from_millis(5));
    }
    for number in 0..50 {
        assert_eq!(client.send("PUT", &format!("/db/{number}?batch=ok"), "{}").0, 202);
    }
    server.stop();
    let output = Command::new(env!("CARGO_BIN_EXE_settee"))
        .args(["dump", "--db", "db", "--data-dir"])
        .arg(data.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 50);
}

#[test]
fn a_log_on_a_full_disk_delays_nothing_and_counts_its_lines() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    check_service_and_shutdown(full, 300);
}

#[test]
fn a_log_to_a_closed_pipe_delays_nothing_and_counts_its_lines() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    check_service_and_shutdown(writer, 300);
}

#[test]
fn a_log_to_an_unread_pipe_delays_nothing() {
    for is_nonblocking in [false, true] {
        let (_reader, mut writer) = io::pipe().unwrap();
        fill(&mut writer);
        if !is_nonblocking {
            rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
        }
        check_service_and_shutdown(writer, 0);
    }
}

/// Returns once `condition` holds.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes a pipe non-blocking and fills it.
fn fill(writer: &mut io::PipeWriter) {
    rustix::fs::fcntl_setfl(&*writer, rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'\n'; 4096]).is_ok() {}
}

/// Returns the log of a server that is started, runs `act`, and is stopped.
fn logged(arguments: &[&str], act: impl FnOnce(&Server)) -> String {
    let home = tempfile::tempdir().unwrap();
    let (mut reader, writer): (PipeReader, _) = io::pipe().unwrap();
    // The server creates the data directory with private permissions, so it logs no warning about them.
    let server = Server::start(&home.path().join("data"), arguments, writer);
    act(&server);
    server.stop();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn each_start_logs_one_line_with_the_address_and_logs_settings_only_at_debug() {
    for level in ["info", "error", "off"] {
        let mut address = String::new();
        let text = logged(&["--log-level", level], |server| address = server.address.clone());
        let at_start: Vec<&str> = text.lines().filter(|line| !line.contains("stop")).collect();
        let line = format!("listening on http://{address}/ version={}", env!("CARGO_PKG_VERSION"));
        assert!(at_start.len() == 1 && at_start[0].contains(&line), "{level}: {text}");
    }
    let text = logged(&["--log-level", "settee=debug"], |_| {});
    assert!(text.contains("settings in force") && text.contains("stop_timeout_ms=8000"), "{text}");
}

#[test]
fn the_settings_file_sets_the_logs_level_and_file_and_sighup_reopens_it() {
    let directory = tempfile::tempdir().unwrap();
    let [log, aside, settings] = ["log", "log.1", "settee.toml"].map(|name| directory.path().join(name));
    std::fs::write(&settings, format!("log_file = {log:?}\nlog_level = \"info\"\n")).unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let text = logged(&["--config", settings.to_str().unwrap()], |server| {
        server.connect().fail_to_log_in("first");
        // The request is answered before its line is written: the line belongs in the first file
        // only when it is there before the rename.
        wait_until("the first line is written", || read(&log).contains("name=\"first\""));
        std::fs::rename(&log, &aside).unwrap();
        server.signal("HUP");
        wait_until("the log is reopened", || log.exists());
        server.connect().fail_to_log_in("second");
    });
    assert_eq!(text, "", "stderr has lines of the log");
    let (before, after) = (read(&aside), read(&log));
    assert!(before.contains("listening on ") && before.contains("name=\"first\""), "{before}");
    assert!(after.contains("name=\"second\"") && after.contains("stopped"), "{after}");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&log).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

/// Starts a server with a disposition of SIGHUP, given as an option of env(1).
fn start_with_hangup(option: &str, data: &Path) -> Server {
    let mut command = Command::new("env");
    command.args([option, env!("CARGO_BIN_EXE_settee"), "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--admin", "ann:secret", "--data-dir"]).arg(data);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.find_map(|line| {
        let (_, url) = line.split_once("listening on http://")?;
        Some(url.split_once('/')?.0.to_owned())
    });
    Server { child, address: address.unwrap() }
}

#[test]
fn without_a_log_file_sighup_stops_the_server_unless_it_was_ignored_at_start() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start_with_hangup("--default-signal=HUP", data.path());
    server.signal("HUP");
    assert_eq!(server.wait().code(), Some(0));

    let server = start_with_hangup("--ignore-signal=HUP", data.path());
    server.signal("HUP");
    assert_eq!(server.send("GET", "/_up", "").0, 200);
    server.stop();
}

/// A name that would begin a new line of the log and clear a terminal if it weren't escaped.
const FORGED: &str = "ann\n2026-01-01T00:00:00Z  INFO settee: forged\u{1b}[2J\u{9b}2J";

#[test]
fn names_from_requests_are_escaped_and_truncated_in_both_formats() {
    for format in ["text", "json"] {
        let text = logged(&["--log-format", format, "--access-log", "true"], |server| {
            let mut client = server.connect();
            client.fail_to_log_in(FORGED);
            client.fail_to_log_in(&"long".repeat(1000));
            let key = "k".repeat(200);
            let set = client.send("PUT", &format!("/_node/_local/_config/my/{key}"), "\"v\"");
            assert_eq!(set.0, 200);
            assert_eq!(client.send("GET", &format!("/%0A{}", "p".repeat(3000)), "").0, 404);
        });
        let is_plain = |char: char| char == '\n' || !char.is_control();
        assert!(text.chars().all(is_plain), "{format}: {text}");
        let with = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((with("INFO settee: forged"), with("a login failed")), (1, 2), "{format}: {text}");
        assert!(text.contains("ann\\\\n2026"), "{format}: {text}");
        assert!(text.contains(&("long".repeat(32) + "…")) && !text.contains(&"long".repeat(33)), "{format}");
        assert!(text.contains(&("k".repeat(128) + "…\"")), "{format}: {text}");
        assert!(text.contains("/%0App") && !text.contains(&"p".repeat(1025)), "{format}: {text}");
        assert!(text.lines().all(|line| line.len() < 2000), "{format}: {text}");
    }
}

#[test]
fn the_access_log_has_a_line_for_each_request_and_is_off_by_default() {
    let act = |server: &Server| {
        let mut client = server.connect();
        assert_eq!(client.send("PUT", "/db", "").0, 201);
        assert_eq!(client.send("GET", "/db/none?rev=1", "").0, 400);
        let anonymous = TcpStream::connect(&server.address).unwrap();
        (&anonymous).write_all(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        (&anonymous).read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    };
    assert!(!logged(&[], act).contains("/db"));
    let text = logged(&["--access-log", "true", "--log-level", "error", "--log-format", "json"], act);
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let entries: Vec<_> = lines.filter(|line| line["target"] == "settee_http::access").collect();
    let shown = |field: &str| entries.iter().map(|entry| entry["fields"][field].clone()).collect::<Vec<_>>();
    assert_eq!(shown("method"), ["PUT", "GET", "HEAD"]);
    assert_eq!(shown("path"), ["/db", "/db/none?rev=1", "/"]);
    assert_eq!(shown("status"), [201, 400, 200]);
    assert_eq!(shown("user"), ["ann", "ann", "-"]);
    assert_eq!(shown("bytes")[0], "{\"ok\":true}\n".len());
    assert_eq!(shown("bytes")[2], 0);
    assert!(shown("address").iter().all(|address| address.as_str().unwrap().starts_with("127.0.0.1:")));
    assert!(shown("us").iter().all(|us| us.as_u64().is_some()));
}

#[test]
fn once_the_log_is_writable_again_a_line_reports_the_number_of_dropped_lines() {
    let data = tempfile::tempdir().unwrap();
    let (mut reader, writer) = io::pipe().unwrap();
    let server = Server::start(data.path(), &["--access-log", "true"], writer);
    // Exceeds the capacity of the queue and the pipe.
    let path = format!("/none/{}", "x".repeat(1500));
    let mut client = server.connect();
    let mut request_count = 0;
    while server.dropped_count() == 0 {
        (0..100).for_each(|_| assert_eq!(client.send("GET", &path, "").0, 404));
        request_count += 100;
        assert!(request_count < 10_000, "nothing was dropped");
    }
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() < TIMEOUT);
    let text = reading.join().unwrap();
    let dropped: usize = text
        .lines()
        .filter_map(|line| line.split_once("lines of the log were dropped count=")?.1.parse::<usize>().ok())
        .sum();
    let written = text.lines().filter(|line| line.contains("path=\"/none/")).count();
    assert!(dropped > 0 && written + dropped >= request_count, "{written} {dropped} {request_count}");
}
