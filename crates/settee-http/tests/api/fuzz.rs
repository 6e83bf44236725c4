//! Goal: every request gets a response that is valid HTTP and JSON, and never a 500; the server keeps
//! working, and other clients' data is unchanged.
//! Method: send real requests and mutations of them, generated from seeds (`settee_sim::fuzz`), to a server
//! over loopback. Declared lengths are correct, because framing is hyper's. `cargo xtask fuzz --target
//! requests` sends more.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;
use settee_http::{Limits, ServerOptions};
use settee_sim::fuzz::{Source, Target, check_json};

use crate::client::{Client, Server};

/// Number of requests in an ordinary test run.
const COUNT: u64 = 2_000;

/// Timeout of a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A response that is still being sent after this time is a feed without an end.
const FEED_TIME_MAX: Duration = Duration::from_millis(100);

/// Bytes of a response that are checked.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Paths on which the server's settings, its process or other directories depend aren't requested.
const LEFT_ALONE: [&str; 4] = ["_config", "backup", "_cluster_setup", "canary"];

/// The data of other clients, which must not change.
const CANARY: &str = "{\"_id\":\"bird\",\"_rev\":\"1-00ff102030405060708090a0b0c0d0e0\",\"sings\":true}\n";

const REQUESTS: Target = Target {
    name: "requests",
    check: request,
    corpus: &[
        b"GET /db/a?revs=true&revs_info=true&conflicts=true&deleted_conflicts=true&local_seq=true&meta=true\r\nIf-None-Match: \"1-x\", W/\"2-y\"\r\n\r\n",
        b"GET /db/a?open_revs=[\"1-00ff102030405060708090a0b0c0d0e0\",\"2-x\"]&latest=true\r\nAccept: multipart/mixed\r\n\r\n",
        b"GET /db/b?attachments=true&atts_since=[]\r\nAccept: multipart/related, application/json;q=0.5\r\n\r\n",
        b"GET /db/b/hello.txt\r\nRange: bytes=0-1, 3-, -2\r\nAccept-Encoding: gzip\r\n\r\n",
        b"PUT /db/new\r\nContent-Type: application/json\r\n\r\n{\"_id\":\"new\",\"v\":[1,2,{\"x\":null}]}",
        b"PUT /db/a?new_edits=false\r\nContent-Type: application/json\r\n\r\n{\"_id\":\"a\",\"_rev\":\"3-10ff102030405060708090a0b0c0d0e0\",\"_revisions\":{\"start\":3,\"ids\":[\"10ff102030405060708090a0b0c0d0e0\",\"20ff102030405060708090a0b0c0d0e0\"]}}",
        b"PUT /db/m\r\nContent-Type: multipart/related; boundary=\"bnd\"\r\n\r\n--bnd\r\nContent-Type: application/json\r\n\r\n{\"_attachments\":{\"f\":{\"follows\":true,\"length\":5,\"content_type\":\"text/plain\"}}}\r\n--bnd\r\n\r\nhello\r\n--bnd--",
        b"PUT /db/b/two.bin?rev=1-x\r\nContent-Type: application/octet-stream\r\nIf-Match: \"1-x\"\r\nContent-MD5: XUFAKrxLKna5cZ2REBfFkg==\r\n\r\nhello",
        b"DELETE /db/a?rev=1-00ff102030405060708090a0b0c0d0e0\r\nIf-Match: \"1-00ff102030405060708090a0b0c0d0e0\"\r\n\r\n",
        b"COPY /db/a\r\nDestination: c?rev=1-00ff102030405060708090a0b0c0d0e0\r\n\r\n",
        b"POST /db\r\nContent-Type: application/json\r\nX-HTTP-Method-Override: PUT\r\n\r\n{\"a\":1}",
        b"POST /db/_bulk_docs\r\nContent-Type: application/json\r\n\r\n{\"new_edits\":true,\"docs\":[{\"_id\":\"x\"},{\"_id\":\"_local/y\",\"_rev\":\"0-1\"},{\"_id\":\"z\",\"_deleted\":true}]}",
        b"POST /db/_bulk_get?revs=true&attachments=true\r\nContent-Type: application/json\r\nAccept: multipart/related\r\n\r\n{\"docs\":[{\"id\":\"a\"},{\"id\":\"b\",\"rev\":\"1-x\",\"atts_since\":[]},{}]}",
        b"POST /db/_all_docs?include_docs=true&conflicts=true\r\nContent-Type: application/json\r\n\r\n{\"keys\":[\"a\",\"nope\",1],\"skip\":0}",
        b"GET /db/_all_docs?start_key=\"a\"&endkey=\"z\"&inclusive_end=false&descending=true&limit=2&update_seq=true\r\n\r\n",
        b"POST /db/_all_docs/queries\r\nContent-Type: application/json\r\n\r\n{\"queries\":[{\"keys\":[]},{\"limit\":1}]}",
        b"GET /db/_changes?since=0&style=all_docs&include_docs=true&feed=longpoll&timeout=10&heartbeat=5\r\n\r\n",
        b"GET /db/_changes?feed=eventsource&timeout=5&filter=_design\r\nLast-Event-ID: 2-abc\r\n\r\n",
        b"POST /db/_changes?filter=_selector&seq_interval=2&descending=true\r\nContent-Type: application/json\r\n\r\n{\"selector\":{\"a\":{\"$gt\":1}},\"fields\":[\"_id\",\"a.b\"]}",
        b"POST /db/_changes?filter=_doc_ids\r\nContent-Type: application/json\r\n\r\n{\"doc_ids\":[\"a\",\"b\"]}",
        b"POST /db/_revs_diff\r\nContent-Type: application/json\r\n\r\n{\"a\":[\"1-00ff102030405060708090a0b0c0d0e0\",\"9-x\"],\"q\":[]}",
        b"POST /db/_missing_revs\r\nContent-Type: application/json\r\n\r\n{\"a\":[\"5-abc\"]}",
        b"POST /db/_purge\r\nContent-Type: application/json\r\n\r\n{\"x\":[\"1-00ff102030405060708090a0b0c0d0e0\"]}",
        b"PUT /db/_revs_limit\r\n\r\n100",
        b"PUT /db/_local/ckpt\r\nContent-Type: application/json\r\n\r\n{\"_rev\":\"0-1\",\"seq\":\"5-a\"}",
        b"GET /db/_local_docs?include_docs=true\r\n\r\n",
        b"GET /_uuids?count=3\r\n\r\n",
        b"POST /_dbs_info\r\nContent-Type: application/json\r\n\r\n{\"keys\":[\"db\",\"none\"]}",
        b"GET /_db_updates?since=0&feed=continuous&timeout=5\r\n\r\n",
        b"POST /_session\r\nContent-Type: application/x-www-form-urlencoded\r\nCookie: AuthSession=YW5uOjY=\r\n\r\nname=ann&password=x%20y",
        b"GET /\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n\r\n",
        b"HEAD /db/a\r\n\r\n",
        b"PUT /made?q=2&n=1&partitioned=true\r\n\r\n",
        b"GET /made/_partition/p/_all_docs?limit=1\r\n\r\n",
        b"POST /db/_compact\r\nContent-Type: application/json\r\n\r\n{}",
        b"GET /db\r\n\r\n",
        b"POST /db/b\r\nReferer: http://127.0.0.1/x\r\nContent-Type: multipart/form-data; boundary=bnd\r\n\r\n--bnd\r\nContent-Disposition: form-data; name=\"_attachments\"; filename=\"u.txt\"\r\nContent-Type: text/plain\r\n\r\nfile\r\n--bnd--",
    ],
    words: &[
        "GET ", "PUT ", "POST ", "DELETE ", "HEAD ", "COPY ", "/db", "/a", "/b", "/_design/", "/_local/", "?",
        "&", "=", "rev=", "open_revs=", "all", "feed=continuous", "feed=longpoll", "since=now", "limit=", "key=",
        "%22a%22", "true", "false", "\r\n", "Accept: multipart/mixed\r\n", "Content-Encoding: gzip\r\n",
        "Accept-Encoding: gzip\r\n", "If-Match: \"1-x\"\r\n", "\"_id\":", "\"_rev\":", "\"_attachments\":",
        "\"docs\":", "\"keys\":", "{", "}", "[", "]", "null", "1-00ff102030405060708090a0b0c0d0e0", "--bnd",
        "batch=ok", "%00", "%FF", "_bulk_docs", "_bulk_get", "_changes", "_all_docs", "_revs_diff",
    ],
    generate: |source: &mut Source<'_>| {
        let methods = ["GET", "PUT", "POST", "DELETE", "HEAD", "COPY", "PATCH", "OPTIONS"];
        let paths = [
            "/db/a", "/db/b", "/db/b/hello.txt", "/db", "/db/_bulk_docs", "/db/_bulk_get", "/db/_all_docs",
            "/db/_changes", "/db/_revs_diff", "/db/_purge", "/db/_local/x", "/db/_design/d", "/_all_dbs", "/_up",
        ];
        let mut text = format!("{} {}", source.pick(&methods), source.pick(&paths));
        for index in 0..source.below(4) {
            text.push(if index == 0 { '?' } else { '&' });
            text.push_str(source.word());
            text.push_str(&source.json());
        }
        text.push_str("\r\nContent-Type: application/json\r\n\r\n");
        text.push_str(&source.json_object());
        text.into_bytes()
    },
};

static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();

thread_local! {
    static CONNECTION: RefCell<Option<TcpStream>> = const { RefCell::new(None) };
}

#[test]
fn requests() {
    let limits = Limits { changes_timeout_ms: 20, body_timeout_ms: 2_000, ..Limits::default() };
    let server = Server::start_with(ServerOptions { limits, ..ServerOptions::default() });
    ADDRESS.set(server.address).expect("there is one such test");
    fill(&server);
    REQUESTS.run(COUNT);
    CONNECTION.take();
    assert_eq!(server.connect().get("/canary/bird").text(), CANARY);
}

fn fill(server: &Server) {
    let mut client = server.connect();
    for name in ["db", "canary"] {
        client.create(name);
    }
    let bird = CANARY.replace("\n", "");
    client.put("/canary/bird?new_edits=false", &bird).expect_status(201);
    refill(server.address);
}

/// Restores what requests refer to, as far as it is missing.
fn refill(address: SocketAddr) {
    let mut client = Client::connect(address);
    client.put("/db", "");
    let a = "{\"_rev\":\"1-00ff102030405060708090a0b0c0d0e0\",\"a\":{\"b\":1},\"v\":2}";
    client.put("/db/a?new_edits=false", a);
    client
        .put("/db/b", "{\"_attachments\":{\"hello.txt\":{\"content_type\":\"x/y\",\"data\":\"aGVsbG8=\"}}}");
    client.put("/db/_design/d", "{\"views\":{}}");
    client.put("/db/_local/x", "{\"seq\":1}");
}

/// Renders a request: its method and its bytes.
fn rendered(input: &[u8], address: SocketAddr) -> Option<(String, Vec<u8>)> {
    let end = input.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&input[..end]).ok()?, &input[end + 4..]);
    let mut lines = head.split("\r\n");
    let (method, target) = lines.next()?.split_once(' ')?;
    let decoded = percent_decode_str(target).decode_utf8_lossy().into_owned();
    let is_head = |byte: u8| byte.is_ascii_graphic() || byte >= 0x80;
    let sent = !method.is_empty() && target.starts_with('/') && target.bytes().all(is_head);
    if !sent || method == "CONNECT" || LEFT_ALONE.iter().any(|name| decoded.contains(name)) {
        return None;
    }
    // As most clients do: after a request with a body, quotes aren't accepted.
    let target = target.replace('"', "%22");
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\n").into_bytes();
    for line in lines {
        let (name, _) = line.split_once(':').unwrap_or((line, ""));
        let framing =
            ["content-length", "transfer-encoding", "connection", "host", "expect", "upgrade", "te"];
        if !framing.contains(&name.trim().to_ascii_lowercase().as_str()) && !line.is_empty() {
            request.extend_from_slice(line.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
    }
    request.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    request.extend_from_slice(body);
    Some((method.to_owned(), request))
}

/// Each request gets a response, with valid JSON if it is declared as such, and never a 500.
fn request(input: &[u8]) -> bool {
    let address = *ADDRESS.get().expect("the server runs");
    let Some((method, request)) = rendered(input, address) else { return false };
    let kept = CONNECTION.take();
    let was_kept = kept.is_some();
    let mut stream = kept.unwrap_or_else(|| connect(address));
    let mut response = exchange(&mut stream, &method, &request);
    if was_kept && response.is_none() {
        // The server may close a connection between two requests.
        stream = connect(address);
        response = exchange(&mut stream, &method, &request);
    }
    let response = response.expect("a request has a response");
    if response.is_whole && !response.closes {
        CONNECTION.set(Some(stream));
    }
    check(&method, &response);
    let is_deletion = (200..300).contains(&response.status) && input.windows(6).any(|six| six == b"DELETE");
    if is_deletion {
        refill(address);
    }
    response.status < 400
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

struct RawResponse {
    status: u16,
    head: String,
    body: Vec<u8>,
    /// Whether the response is complete.
    is_whole: bool,
    closes: bool,
}

/// The beginning of a response; None if the connection was closed before.
fn exchange(stream: &mut TcpStream, method: &str, request: &[u8]) -> Option<RawResponse> {
    // A refused request may break off while it is sent, and still gets a response.
    let _ = stream.write_all(request);
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (mut bytes, mut buffer, begun) = (Vec::new(), vec![0; 64 << 10], Instant::now());
    loop {
        let came = match stream.read(&mut buffer) {
            Ok(count) => Some(count),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(_) => Some(0),
        };
        bytes.extend_from_slice(&buffer[..came.unwrap_or(0)]);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else {
            assert!(begun.elapsed() < TIMEOUT, "no response");
            match came {
                Some(0) if bytes.is_empty() => return None,
                Some(0) => panic!("a response was cut: {}", bytes.escape_ascii()),
                _ => continue,
            }
        };
        let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is text").to_ascii_lowercase();
        let status: u16 = head.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status");
        let body = body(&head, method, status, &bytes[end + 4..]);
        let is_over = came == Some(0) || begun.elapsed() > FEED_TIME_MAX || bytes.len() > ANSWER_BYTES_MAX;
        if body.is_ok() || (is_over && (head.contains("chunked") || bytes.len() > ANSWER_BYTES_MAX)) {
            let closes = head.contains("connection: close") || came == Some(0);
            let is_whole = body.is_ok();
            let body = body.unwrap_or_else(|begun| begun);
            return Some(RawResponse { status, head, body, is_whole, closes });
        }
        assert!(came != Some(0), "a response was cut: {head}");
        assert!(begun.elapsed() < TIMEOUT, "an incomplete response: {head}");
    }
}

/// A response's body; as an error the part that arrived if it isn't complete.
fn body(head: &str, method: &str, status: u16, bytes: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    if method == "HEAD" || status == 304 || status == 204 {
        return Ok(Vec::new());
    }
    if !head.contains("transfer-encoding: chunked") {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|text| text.parse().ok()).expect("a length");
        return if bytes.len() >= length { Ok(bytes[..length].to_vec()) } else { Err(bytes.to_vec()) };
    }
    let (mut body, mut rest) = (Vec::new(), bytes);
    loop {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Err(body) };
        let size =
            std::str::from_utf8(&rest[..end]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let size = size.unwrap_or_else(|| panic!("no chunk's size: {}", rest.escape_ascii()));
        rest = &rest[end + 2..];
        if rest.len() < size + 2 {
            return Err(body);
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
        if size == 0 {
            return Ok(body);
        }
    }
}

fn check(method: &str, response: &RawResponse) {
    let RawResponse { status, head, body, is_whole, .. } = response;
    assert!(head.starts_with("http/1.1 "), "{head}");
    assert!((200..500).contains(status) || *status == 501, "{head}\n{}", body.escape_ascii());
    let is_json = head.contains("content-type: application/json") && !head.contains("content-encoding");
    if !is_json || !is_whole || body.is_empty() || method == "HEAD" {
        return;
    }
    // The body is one JSON text, or one per line in a feed.
    let is_good = check_json(body).is_some()
        || body
            .split(|byte| *byte == b'\n')
            .all(|line| line.trim_ascii().is_empty() || check_json(line).is_some());
    assert!(is_good, "no JSON: {head}\n{}", body.escape_ascii());
}
