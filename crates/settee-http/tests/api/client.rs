//! A server in a temporary directory, and a client that sends exactly the given bytes.

use std::future::Future;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use settee_doc::Databases;
use settee_http::{Admin, Limits, ServeError, ServerOptions};
use settee_io::{Engine, Env, ThreadEngine, ThreadOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Timeout of a response in a test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A server under test. It stops when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) databases: Arc<Databases>,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<Result<(), ServeError>>>,
    /// Whether a log is expected to have stopped when the databases are closed.
    pub(crate) logs_stopped: bool,
    _directory: Option<TempDir>,
}

impl Server {
    /// A server without an administrator, with the default limits.
    pub(crate) fn start() -> Server {
        Server::start_with(ServerOptions::default())
    }

    /// A server with other limits.
    pub(crate) fn with_limits(change: impl FnOnce(&mut Limits)) -> Server {
        let mut options = ServerOptions::default();
        change(&mut options.limits);
        Server::start_with(options)
    }

    /// A server whose administrator is `ann` with the password `secret`.
    pub(crate) fn with_admin() -> Server {
        let admin = Some(Admin::parse("ann:secret").unwrap());
        Server::start_with(ServerOptions { admin, ..ServerOptions::default() })
    }

    pub(crate) fn start_with(options: ServerOptions) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Server::start_in(directory.path(), options);
        server._directory = Some(directory);
        server
    }

    pub(crate) fn start_in(directory: &Path, options: ServerOptions) -> Server {
        Server::start_on(Arc::new(ThreadEngine::new(ThreadOptions::default())), directory, options)
    }

    /// A server whose files go through `engine`.
    pub(crate) fn start_on(engine: Arc<dyn Engine>, directory: &Path, options: ServerOptions) -> Server {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let env = Env::with_engine(runtime.handle().clone(), engine);
        let databases = runtime.block_on(Databases::open(env, directory)).unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move { stopped.await.unwrap_or(()) };
        let served = settee_http::serve(listener, databases.clone(), options, shutdown);
        let served = Some(runtime.spawn(served));
        let stop = Some(stop);
        Server { address, databases, runtime, stop, served, logs_stopped: false, _directory: None }
    }

    /// Opens a new connection.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Runs a future on the server's runtime.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Tells the server to stop, without waiting for its end.
    pub(crate) fn begin_stop(&mut self) {
        self.stop.take().expect("it was not stopped yet").send(()).ok();
    }

    /// Waits until a stopped server has ended, and closes its databases.
    pub(crate) fn finish_stop(&mut self) -> Result<(), ServeError> {
        let served = self.served.take().expect("it has not ended yet");
        let result = self.runtime.block_on(served).unwrap();
        let closed = self.runtime.block_on(self.databases.close());
        // A second panic would hide the first.
        if !std::thread::panicking() {
            assert_eq!(closed.is_err(), self.logs_stopped, "{closed:?}");
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stop.is_some() {
            self.begin_stop();
            // A test that has failed already reports enough.
            self.finish_stop().ok();
        }
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The revision in the response to a write.
    #[track_caller]
    pub(crate) fn rev(&self) -> String {
        self.json()["rev"].as_str().unwrap_or_else(|| panic!("no rev: {}", self.text())).to_owned()
    }

    /// Asserts status, error and reason.
    #[track_caller]
    pub(crate) fn expect_error(&self, status: u16, error: &str, reason: &str) {
        let json = self.json();
        let found = (self.status, json["error"].as_str(), json["reason"].as_str());
        assert_eq!(found, (status, Some(error), Some(reason)));
        assert!(self.body.ends_with(b"}\n"), "an error ends its line");
    }

    #[track_caller]
    pub(crate) fn expect_status(self, status: u16) -> Reply {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

/// A kept-alive connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream: BufReader::new(stream), address }
    }

    pub(crate) fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn head(&mut self, path: &str) -> Reply {
        self.send("HEAD", path, &[], b"")
    }

    pub(crate) fn put(&mut self, path: &str, body: &str) -> Reply {
        self.send("PUT", path, &[], body.as_bytes())
    }

    pub(crate) fn post(&mut self, path: &str, body: &str) -> Reply {
        self.send("POST", path, &[("Content-Type", "application/json")], body.as_bytes())
    }

    pub(crate) fn delete(&mut self, path: &str) -> Reply {
        self.send("DELETE", path, &[], b"")
    }

    /// Creates a database.
    #[track_caller]
    pub(crate) fn create(&mut self, name: &str) {
        self.put(&format!("/{name}"), "").expect_status(201);
    }

    /// Sends a request and reads its response. Declares the length of a body, also of an empty one if the
    /// method usually has a body.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut all = headers.to_vec();
        let length = body.len().to_string();
        if !body.is_empty() || method == "POST" || method == "PUT" {
            all.push(("Content-Length", &length));
        }
        self.write_head(method, path, &all);
        self.write(body);
        self.read(method)
    }

    /// Sends only a request's head. `Host` is the server's unless given.
    pub(crate) fn write_head(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.write(head.as_bytes());
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Writes as much as the server accepts.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    /// Reads a whole response.
    pub(crate) fn read(&mut self, method: &str) -> Reply {
        let (status, headers) = self.read_head();
        let mut reply = Reply { status, headers, body: Vec::new() };
        if method == "HEAD" || status == 204 || status == 304 {
            return reply;
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.read_chunk() {
                reply.body.extend_from_slice(&chunk);
            }
        } else {
            let length = reply.header("content-length").unwrap_or_else(|| panic!("no length: {reply:?}"));
            reply.body = vec![0; length.parse().unwrap()];
            self.stream.read_exact(&mut reply.body).unwrap();
        }
        reply
    }

    /// Reads a response's status and headers, with names in lower case.
    pub(crate) fn read_head(&mut self) -> (u16, Vec<(String, String)>) {
        let first = self.read_line();
        let status = first.split(' ').nth(1).unwrap_or_else(|| panic!("no status: {first:?}"));
        let status = status.parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.read_line();
            match line.split_once(": ") {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
                None => return (status, headers),
            }
        }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the connection ended within {line:?}");
        line.trim_end().to_owned()
    }

    /// The next chunk of a chunked body; None after the last.
    pub(crate) fn read_chunk(&mut self) -> Option<Vec<u8>> {
        let size = self.read_line();
        let size = usize::from_str_radix(&size, 16).unwrap_or_else(|_| panic!("no chunk size: {size:?}"));
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    /// Whether a GET gets a 200, and not the end of the connection.
    pub(crate) fn try_get(&mut self, path: &str) -> bool {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        let is_open =
            self.try_write(head.as_bytes()) && self.stream.fill_buf().is_ok_and(|read| !read.is_empty());
        is_open && self.read("GET").status == 200
    }

    /// Whether part of a response has arrived.
    pub(crate) fn has_answer(&mut self) -> bool {
        let stream = self.stream.get_mut();
        stream.set_nonblocking(true).unwrap();
        let has = stream.peek(&mut [0]).is_ok();
        stream.set_nonblocking(false).unwrap();
        has
    }

    /// Whether the server has closed the connection, after all it sent was read.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => {
                !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
            }
        }
    }
}

/// Parses the nonempty lines of a continuous feed.
pub(crate) fn lines(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The ids in the rows or results of a response.
pub(crate) fn ids(reply: &Reply, list: &str) -> Vec<String> {
    let json = reply.json();
    let rows = json[list].as_array().unwrap_or_else(|| panic!("no {list}: {json}"));
    rows.iter().map(|row| row["id"].as_str().unwrap_or("-").to_owned()).collect()
}
