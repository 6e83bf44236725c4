//! Goal: a client that follows a database costs a few KiB while nothing happens, hears of every
//! change, and holds no writer up.
//! Method: many continuous feeds over loopback, in process; the process's resident memory before and
//! after, divided by their number; then writes, one after another, each heard by all.

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

/// Followers at once, where the limit on open files allows it.
const FOLLOWERS: usize = 2_000;

/// Followers that are there before anything is measured: what is allocated once is then.
const FIRST_FOLLOWERS: usize = 100;

/// Followers that connect at the same time.
const CONNECTING: usize = 10;

/// Changes that all followers hear of.
const CHANGES: usize = 20;

/// What an idle follower may cost, its connection and its buffers included. hyper's two buffers are
/// 16 KiB of it.
const BYTES_PER_FOLLOWER_MAX: u64 = 24 << 10;

/// Past this a test that waits has failed.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    address: SocketAddr,
    _runtime: Runtime,
    _stop: oneshot::Sender<()>,
}

fn start(folder: &Path) -> Server {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let env =
        Env::with_engine(runtime.handle().clone(), Arc::new(ThreadEngine::new(ThreadOptions::default())));
    let databases = runtime.block_on(Databases::open(env, folder)).unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { max_connections: 2 * FOLLOWERS, ..Limits::default() };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let (stop, stopped) = oneshot::channel();
    let shutdown = async move { stopped.await.unwrap_or(()) };
    runtime.spawn(async move { settee_http::serve(listener, databases, options, shutdown).await.unwrap() });
    Server { address, _runtime: runtime, _stop: stop }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends a request without a body, and reads the whole answer, whose length is declared.
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

/// Reads on until `text` has come.
fn read_until(stream: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    let mut piece = [0; 512];
    while !seen.windows(text.len()).any(|window| window == text.as_bytes()) {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the feed ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..count]);
    }
}

/// Adds followers, some at a time: what many requests at once take would count as theirs.
fn follow(address: SocketAddr, count: usize, followers: &mut Vec<TcpStream>) {
    let most = followers.len() + count;
    while followers.len() < most {
        follow_some(address, CONNECTING.min(most - followers.len()), followers);
    }
}

fn follow_some(address: SocketAddr, count: usize, followers: &mut Vec<TcpStream>) {
    for _ in 0..count {
        let mut stream = connect(address);
        let request = "GET /db/_changes?feed=continuous&since=now&heartbeat=60000 HTTP/1.1\r\n\
                       Host: localhost:5984\r\nAccept: application/json\r\nUser-Agent: follower\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        followers.push(stream);
    }
    let first = followers.len() - count;
    // The empty line that says that the feed is heard.
    followers[first..].iter_mut().for_each(|stream| read_until(stream, "\r\n\r\n1\r\n\n\r\n"));
}

/// The process's resident memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// How many followers there may be: each has two descriptors here, its own and the server's.
fn follower_count() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let most = line.split_whitespace().next().and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    FOLLOWERS.min(most.saturating_sub(300) / 2)
}

#[test]
fn an_idle_follower_costs_a_few_kib_and_hears_of_every_change() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let mut writer = connect(server.address);
    let created = ask(&mut writer, "PUT", "/db");
    assert!(created.contains("201"), "{created}");
    let mut followers = Vec::new();
    follow(server.address, FIRST_FOLLOWERS, &mut followers);
    let before = resident_bytes();
    let count = follower_count() - FIRST_FOLLOWERS;
    follow(server.address, count, &mut followers);
    let idle = resident_bytes().saturating_sub(before) / count as u64;

    let (mut puts, mut heard) = (Vec::new(), Vec::new());
    for number in 0..CHANGES {
        let begun = Instant::now();
        assert!(ask(&mut writer, "PUT", &format!("/db/doc-{number}")).contains("201"));
        puts.push(begun.elapsed());
        let row = format!("\"id\":\"doc-{number}\"");
        followers.iter_mut().for_each(|stream| read_until(stream, &row));
        heard.push(begun.elapsed());
    }
    let after = resident_bytes().saturating_sub(before) / count as u64;
    puts.sort_unstable();
    heard.sort_unstable();
    println!(
        "{} followers: {idle} bytes each at first, {after} after {CHANGES} changes; \
         a put took {:?} (median) to {:?}, until the last follower had heard of it {:?} to {:?}",
        followers.len(),
        puts[CHANGES / 2],
        puts[CHANGES - 1],
        heard[CHANGES / 2],
        heard[CHANGES - 1]
    );
    assert!(idle <= BYTES_PER_FOLLOWER_MAX, "{idle} bytes a follower");
    assert!(after <= BYTES_PER_FOLLOWER_MAX, "{after} bytes a follower after changes");
}
