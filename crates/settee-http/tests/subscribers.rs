//! Goal: an idle subscriber of a database's changes costs a few KiB, receives every change, and doesn't delay
//! writers.
//! Method: many continuous feeds over loopback, in process. Compare the process's resident memory before and
//! after, per subscriber; then write documents one by one and wait until all subscribers have received each.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests parse as they like")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use settee_doc::Databases;
use settee_http::{Limits, ServerOptions};
use settee_io::{Env, ThreadEngine, ThreadOptions};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// Number of subscribers, unless the limit on open files is lower.
const SUBSCRIBERS: usize = 2_000;

/// Subscribers that connect before the first measurement, so that one-time allocations don't count.
const FIRST_SUBSCRIBERS: usize = 100;

/// Subscribers that connect concurrently.
const CONNECTING: usize = 10;

/// Number of changes that all subscribers receive.
const CHANGES: usize = 20;

/// Maximum cost of an idle subscriber in bytes, with its connection and buffers. hyper's two buffers take 16
/// KiB of it.
const BYTES_PER_SUBSCRIBER_MAX: u64 = 24 << 10;

/// Timeout of a waiting test.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Server {
    address: SocketAddr,
    _runtime: Runtime,
    _stop: oneshot::Sender<()>,
}

fn start(directory: &Path) -> Server {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let env =
        Env::with_engine(runtime.handle().clone(), Arc::new(ThreadEngine::new(ThreadOptions::default())));
    let databases = runtime.block_on(Databases::open(env, directory)).unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { connections_max: 2 * SUBSCRIBERS, ..Limits::default() };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let (stop, stopped) = oneshot::channel();
    let shutdown = async move { stopped.await.unwrap_or(()) };
    runtime.spawn(async move { settee_http::serve(listener, databases, options, shutdown).await.unwrap() });
    Server { address, _runtime: runtime, _stop: stop }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends a request without a body, and reads the whole response, which declares its length.
fn ask(stream: &mut TcpStream, method: &str, path: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    first
}

/// Reads until `text` has arrived.
fn read_until(stream: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    let mut piece = [0; 512];
    while !seen.windows(text.len()).any(|window| window == text.as_bytes()) {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the feed ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..count]);
    }
}

/// Adds subscribers in small groups, because the memory of many concurrent requests would count as theirs.
fn subscribe(address: SocketAddr, count: usize, subscribers: &mut Vec<TcpStream>) {
    let target_count = subscribers.len() + count;
    while subscribers.len() < target_count {
        subscribe_group(address, CONNECTING.min(target_count - subscribers.len()), subscribers);
    }
}

fn subscribe_group(address: SocketAddr, count: usize, subscribers: &mut Vec<TcpStream>) {
    for _ in 0..count {
        let mut stream = connect(address);
        let request = "GET /db/_changes?feed=continuous&since=now&heartbeat=60000 HTTP/1.1\r\n\
                       Host: localhost:5984\r\nAccept: application/json\r\nUser-Agent: subscriber\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        subscribers.push(stream);
    }
    let first = subscribers.len() - count;
    // The empty line that shows that the feed has begun.
    subscribers[first..].iter_mut().for_each(|stream| read_until(stream, "\r\n\r\n1\r\n\n\r\n"));
}

/// The process's resident memory in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Possible number of subscribers: each takes two descriptors here, its own and the server's.
fn subscriber_count() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let descriptors_max =
        line.split_whitespace().next().and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    SUBSCRIBERS.min(descriptors_max.saturating_sub(300) / 2)
}

#[test]
fn an_idle_subscriber_costs_a_few_kib_and_receives_every_change() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    let mut writer = connect(server.address);
    let created = ask(&mut writer, "PUT", "/db");
    assert!(created.contains("201"), "{created}");
    let mut subscribers = Vec::new();
    subscribe(server.address, FIRST_SUBSCRIBERS, &mut subscribers);
    // What the server itself takes isn't a subscriber's cost: its threads, and those that keep views up, which begin
    // a second after a write.
    for number in 0..CHANGES {
        assert!(ask(&mut writer, "PUT", &format!("/db/first-{number}")).contains("201"));
        let row = format!("\"id\":\"first-{number}\"");
        subscribers.iter_mut().for_each(|stream| read_until(stream, &row));
    }
    std::thread::sleep(Duration::from_millis(1_500));
    let before = resident_bytes();
    let count = subscriber_count() - FIRST_SUBSCRIBERS;
    subscribe(server.address, count, &mut subscribers);
    let idle = resident_bytes().saturating_sub(before) / count as u64;

    let (mut puts, mut heard) = (Vec::new(), Vec::new());
    for number in 0..CHANGES {
        let begun = Instant::now();
        assert!(ask(&mut writer, "PUT", &format!("/db/doc-{number}")).contains("201"));
        puts.push(begun.elapsed());
        let row = format!("\"id\":\"doc-{number}\"");
        subscribers.iter_mut().for_each(|stream| read_until(stream, &row));
        heard.push(begun.elapsed());
    }
    let after = resident_bytes().saturating_sub(before) / count as u64;
    puts.sort_unstable();
    heard.sort_unstable();
    println!(
        "{} subscribers: {idle} bytes each at first, {after} after {CHANGES} changes; \
         a put took {:?} (median) to {:?}, until the last subscriber had received it {:?} to {:?}",
        subscribers.len(),
        puts[CHANGES / 2],
        puts[CHANGES - 1],
        heard[CHANGES / 2],
        heard[CHANGES - 1]
    );
    assert!(idle <= BYTES_PER_SUBSCRIBER_MAX, "{idle} bytes per subscriber");
    assert!(after <= BYTES_PER_SUBSCRIBER_MAX, "{after} bytes per subscriber after changes");
}
