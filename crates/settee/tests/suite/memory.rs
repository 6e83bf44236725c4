//! Goal: parsed request bodies and unread responses take bounded memory. Method: the built binary, a new
//! server for each body; its peak memory is `VmHWM` in `/proc/PID/status`. `cargo test -p settee --test suite
//! memory -- --nocapture` prints the measurements. `SETTEE_MEMORY_MIB` sets the size of the bodies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use crate::support::{ADMIN, AUTHORIZATION, name, settee};

const MIB: u64 = 1 << 20;

/// Memory that a server needs independent of a body's size, in bytes: buffers, threads, the index.
const ALLOWANCE_BYTES: u64 = 12 * MIB;

/// A server with a database `db`.
struct Server {
    child: Child,
    address: String,
    /// Its memory after the start.
    base_bytes: u64,
    directory: tempfile::TempDir,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let data = name(directory.path());
        let mut command = settee(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data]);
        command.args(arguments).env("SETTEE_ADMIN", ADMIN).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.map(Result::unwrap).find_map(|line| {
            let (_, rest) = line.split_once("http://")?;
            Some(rest.trim_end_matches('/').to_owned())
        });
        let address = address.expect("the server prints its address");
        let mut server = Server { child, address, base_bytes: 0, directory };
        assert_eq!(server.send("PUT", "/db", b""), 201);
        server.base_bytes = server.bytes("VmRSS:");
        server
    }

    fn bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
    }

    /// Returns the peak memory in bytes, less the memory after the start.
    fn peak_bytes(&self) -> u64 {
        self.bytes("VmHWM:").saturating_sub(self.base_bytes)
    }

    /// Sends a request and reads the whole response. Returns the status.
    fn send(&self, method: &str, path: &str, body: &[u8]) -> u16 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Authorization: {AUTHORIZATION}\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        std::str::from_utf8(&response[9..12]).unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a body of about `bytes` bytes: `prefix`, repetitions of `element`, and `suffix`.
fn repeated(bytes: u64, prefix: &str, element: &str, suffix: &str) -> Vec<u8> {
    let count = usize::try_from(bytes).unwrap() / element.len();
    [prefix, &element.repeat(count), suffix].concat().into_bytes()
}

#[test]
fn a_body_of_many_small_elements_takes_at_most_four_times_its_size() {
    let mib = std::env::var("SETTEE_MEMORY_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let make = |prefix, element, suffix| repeated(mib * MIB, prefix, element, suffix);
    let bodies = [
        ("PUT", "/db/_revs_limit", make("[", "0,", "0]")),
        ("PUT", "/db/_purged_infos_limit", make("[", "[],", "0]")),
        ("PUT", "/db/document", make("{", "\"\":1,", "\"\":1}")),
        ("PUT", "/db/document", make("{\"_revisions\":{\"start\":4000000000,\"ids\":[", "\"\",", "\"\"]}}")),
        ("PUT", "/db/document", make("{\"a\":", "[", "")),
        ("POST", "/db/_bulk_docs", make("{\"docs\":[{", "\"\":1,", "\"\":1}]}")),
        ("POST", "/db/_revs_diff", make("{\"\":[", "0,", "0]}")),
        ("POST", "/_dbs_info", make("{\"keys\":[", "\"\",", "\"\"]}")),
        ("POST", "/_session", make("{", "\"\":1,", "\"\":1}")),
    ];
    let start = Server::start(&[]);
    for (method, path, body) in bodies {
        let server = Server::start(&[]);
        let status = server.send(method, path, &body);
        let (sent, peak) = (body.len() as u64, server.peak_bytes());
        let text = String::from_utf8_lossy(&body[..40]);
        println!("{method} {path} {text}…: {status}, {sent} bytes sent, {peak} bytes of memory at peak");
        assert!((400..500).contains(&status), "{path}: {status}");
        assert!(peak <= 4 * sent + ALLOWANCE_BYTES, "{path} {text}: {sent} bytes sent, {peak} of memory");
    }
    assert_eq!(start.send("GET", "/", b""), 200);
}

/// Returns a `_bulk_docs` body of `mib` MiB, with documents of about 1 KiB.
fn ordinary_bulk(mib: u64) -> Vec<u8> {
    let text = "x".repeat(1_000);
    let documents = (0..mib << 10).map(|n| format!("{{\"_id\":\"{n:09}\",\"a\":\"{text}\"}}"));
    format!("{{\"docs\":[{}]}}", documents.collect::<Vec<_>>().join(",")).into_bytes()
}

/// Flags that limit the memory for all bodies to 4 MiB, so that a body of more than 2 MiB is spooled.
const SMALL_MEMORY: [&str; 6] = [
    "--request-bytes-in-flight-max",
    "4194304",
    "--document-bytes-max",
    "1000000",
    "--request-bytes-max",
    "4294967296",
];

#[test]
fn a_spooled_bulk_takes_memory_for_one_group_of_documents_independent_of_its_size() {
    let server = Server::start(&SMALL_MEMORY);
    let body = ordinary_bulk(40);
    assert_eq!(server.send("POST", "/db/_bulk_docs", &body), 201);
    let peak = server.peak_bytes();
    println!("{} bytes sent, {peak} bytes of memory at peak", body.len());
    // Half of the bytes sent: apart from the 4 MiB it is mostly memory of the log and the index for the
    // writes.
    assert!(peak <= 20 * MIB, "{peak}");
    assert_eq!(server.send("HEAD", "/db/000040959", b""), 200);
}

#[test]
fn a_server_that_is_killed_while_spooling_leaves_no_file() {
    let mut server = Server::start(&SMALL_MEMORY);
    let body = ordinary_bulk(8);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST /db/_bulk_docs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Authorization: {AUTHORIZATION}\r\nContent-Length: {}\r\n\r\n",
        body.len() + 1
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    let descriptors = format!("/proc/{}/fd", server.child.id());
    let spool = server.directory.path().join("spool");
    let is_spool = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(entry.unwrap().path()).is_ok_and(|file| file.starts_with(&spool))
    };
    while !std::fs::read_dir(&descriptors).unwrap().any(is_spool) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert_eq!(std::fs::read_dir(&spool).unwrap().count(), 0);
}

/// Opens an HTTP/2 connection that requests a document many times and reads no response.
///
/// Source: RFC 9113, sections 3.4, 6.2 and 6.5; RFC 7541, section 6.
fn unread_requests(address: &str, path: &str, count: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0".to_vec();
    for number in 0..count {
        // GET, http, and the path, the authority and the authorization as literals.
        let mut block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
        block.extend_from_slice(path.as_bytes());
        block.extend_from_slice(b"\x01\x09localhost\x0f\x08");
        block.push(u8::try_from(AUTHORIZATION.len()).unwrap());
        block.extend_from_slice(AUTHORIZATION.as_bytes());
        sent.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 0x05]);
        sent.extend_from_slice(&(2 * number + 1).to_be_bytes());
        sent.extend_from_slice(&block);
    }
    stream.write_all(&sent).unwrap();
    stream
}

#[test]
fn unread_responses_take_bounded_memory_and_other_clients_are_served() {
    const LIMIT: u64 = 16 * MIB;
    let server = Server::start(&["--response-bytes-in-flight-max", &LIMIT.to_string()]);
    let document = repeated(MIB, "{\"a\":\"", "x", "\"}");
    assert_eq!(server.send("PUT", "/db/document", &document), 201);
    let attachment = vec![b'x'; 4 << 20];
    assert_eq!(server.send("PUT", "/db/other/attachment", &attachment), 201);
    let mut connections = Vec::new();
    for _ in 0..8 {
        for path in ["/db/document", "/db/other/attachment"] {
            connections.push(unread_requests(&server.address, path, 50));
            assert_eq!(server.send("GET", "/db/document", b""), 200);
        }
    }
    let peak = server.peak_bytes();
    println!("{peak} bytes of memory at peak, with a limit of {LIMIT}");
    // The memory of closed connections counts until the allocator returns it to the system.
    assert!(peak <= 8 * LIMIT, "{peak}");
}

#[test]
fn unread_large_documents_take_bounded_memory() {
    const LIMIT: u64 = 16 * MIB;
    const DOCUMENT: u64 = 32 * MIB;
    let limit = LIMIT.to_string();
    let arguments = ["--response-bytes-in-flight-max", &limit, "--document-bytes-max", "67108864"];
    let server = Server::start(&arguments);
    let document = repeated(DOCUMENT, "{\"a\":\"", "x", "\"}");
    assert_eq!(server.send("PUT", "/db/document", &document), 201);
    let written = server.peak_bytes();
    // The text, the body parsed from it, and the smaller buffers of the arriving text, which the allocator keeps.
    assert!(written <= 4 * DOCUMENT + ALLOWANCE_BYTES, "{written}");
    let mut connections = Vec::new();
    for _ in 0..8 {
        for path in ["/db/document", "/db/_all_docs?include_docs=true", "/db/_changes?include_docs=true"] {
            connections.push(unread_requests(&server.address, path, 10));
        }
        assert_eq!(server.send("GET", "/db/document", b""), 200);
    }
    let peak = server.peak_bytes();
    println!("{written} bytes of memory at peak for a write of {DOCUMENT}, {peak} with unread responses");
    // As above. The unread documents have 7 GiB together.
    assert!(peak <= written + 8 * LIMIT, "{peak}");
}
