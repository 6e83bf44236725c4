//! Limits of the machine, with which a server is compared.
//!
//! - The bare server reads a request's body and responds with the number of random bytes in the request's
//!   path (`/bytes/1024`): HTTP alone, on hyper, without a database. It runs in a separate process, so that
//!   its processor time is measured like that of any server.
//! - A raw file is written to, and each write synced: the disk alone.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use settee_client::{Answer, JSON, Request};
use tokio::net::TcpListener;

use crate::documents::binary_pool;
use crate::drive::{Client, Target};
use crate::error::{Error, Result};

/// Bytes of a server's response to a write: `{"ok":true,"id":…,"rev":…}`.
pub(crate) const WRITE_RESPONSE_BYTES: u64 = 80;

/// Prefix of a path of the bare server; the number of bytes follows.
const BYTES_PATH: &str = "/bytes/";

/// Longest response in bytes that the bare server sends with its length and in one piece. Longer ones are
/// chunked, as listings are.
const WHOLE_BYTES_MAX: u64 = 2 << 20;

/// Size in bytes of the chunks of longer responses.
const CHUNK_BYTES: u64 = 64 << 10;

/// Alignment of frames in bytes, that of a log's synced groups.
const FRAME_STRIDE: u64 = 4096;

/// Size of the file that is synced. After its end, frames are written from its start again.
pub(crate) const RAW_FILE_BYTES: u64 = 32 << 20;

/// Runs the bare server on `listener`. Returns only on an error; cancelled by dropping the future.
///
/// # Errors
/// The system's error if accepting a connection fails.
pub async fn serve_bare(listener: TcpListener) -> io::Result<()> {
    let pool = Bytes::from_static(binary_pool());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let pool = pool.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| respond(request, pool.clone()));
            // An error ends only this connection: its client has disconnected.
            let _ = hyper::server::conn::http1::Builder::new()
                .pipeline_flush(true)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn respond(request: hyper::Request<Incoming>, pool: Bytes) -> Result<Response<BareBody>, Infallible> {
    let bytes = request.uri().path().strip_prefix(BYTES_PATH).and_then(|count| count.parse().ok());
    let mut body = request.into_body();
    let mut is_broken = false;
    // The body is read and dropped, a frame at a time.
    while let Some(frame) = body.frame().await {
        is_broken |= frame.is_err();
    }
    let (status, left) = match bytes {
        Some(bytes) if !is_broken => (StatusCode::OK, bytes),
        _ => (StatusCode::BAD_REQUEST, 0),
    };
    let mut response = Response::new(BareBody { pool, left, is_whole: left <= WHOLE_BYTES_MAX });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// A body of random bytes, with a content length or chunked.
struct BareBody {
    pool: Bytes,
    left: u64,
    /// Whether the body is sent in one piece, with its length.
    is_whole: bool,
}

impl Body for BareBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let length = if self.is_whole { self.left } else { self.left.min(CHUNK_BYTES) };
        // Different offsets, so that the bytes are read from memory, as a listing's are.
        let start = if self.is_whole { 0 } else { self.left % (self.pool.len() as u64 - length) };
        self.left -= length;
        Poll::Ready(Some(Ok(Frame::data(self.pool.slice(start as usize..(start + length) as usize)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_whole { SizeHint::with_exact(self.left) } else { SizeHint::default() }
    }
}

/// The bare server's path for a response of `bytes`.
pub(crate) fn bare_target(bytes: u64) -> String {
    format!("{BYTES_PATH}{bytes}")
}

/// The bare server in a separate process, killed on drop.
#[derive(Debug)]
pub struct BareServer {
    child: Child,
    target: Target,
}

impl BareServer {
    /// Starts `program bench bare-server`.
    ///
    /// # Errors
    /// [`Error::Server`]; no process is left running.
    pub fn start(program: &Path) -> Result<BareServer> {
        let mut command = Command::new(program);
        // It exits when its input ends, so also when this process is killed.
        command.args(["bench", "bare-server"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Error::Server(error.to_string()))?;
        let mut url = String::new();
        let stdout = child.stdout.take().expect("its output is a pipe");
        let read = BufReader::new(stdout).read_line(&mut url).map(|_| url.trim().parse());
        let pid = Some(child.id());
        match read {
            Ok(Ok(server)) => Ok(BareServer { child, target: Target { server, pid } }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Error::Server("the bare server named no address".to_owned()))
            }
        }
    }

    /// The server and its process.
    pub fn target(&self) -> &Target {
        &self.target
    }
}

impl Drop for BareServer {
    fn drop(&mut self) {
        // Errors are ignored: nothing else can stop the process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of the bare server. It sends and receives as much as a client of the measured server.
#[derive(Debug, Clone)]
pub(crate) struct BareClient {
    method: &'static str,
    target: String,
    body: Vec<u8>,
    answer_bytes: u64,
    /// Number of operations that a response counts for.
    operations: u64,
}

impl BareClient {
    /// A client that sends `body` and gets responses of `answer_bytes`, which count for `operations`.
    pub(crate) fn new(method: &'static str, body: Vec<u8>, answer_bytes: u64, operations: u64) -> BareClient {
        BareClient { method, target: bare_target(answer_bytes), body, answer_bytes, operations }
    }

    /// A client that gets responses of `answer_bytes`.
    pub(crate) fn get(answer_bytes: u64) -> BareClient {
        BareClient::new("GET", Vec::new(), answer_bytes, 1)
    }

    /// A client that sends `body` and gets responses of the size of those to a write.
    pub(crate) fn put(body: Vec<u8>) -> BareClient {
        BareClient::new("PUT", body, WRITE_RESPONSE_BYTES, 1)
    }
}

impl Client for BareClient {
    fn next(&mut self) -> Option<Request<'_>> {
        let content = (self.method != "GET").then_some((JSON, &self.body[..]));
        Some(Request { method: self.method, target: &self.target, content })
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        match answer {
            Answer { status: 200, body } if body.len() as u64 == self.answer_bytes => Ok(self.operations),
            Answer { status, body } => Err(format!("the bare server: {status} with {} bytes", body.len())),
        }
    }
}

/// A temporary file that is written to, each write followed by fdatasync(2). It has no name.
///
/// The whole file was written and synced before. Overwriting bytes that are on the medium changes no
/// metadata, so such a write has the smallest cost of a durable one.
#[derive(Debug)]
pub(crate) struct RawFile {
    file: File,
    offset: u64,
}

impl RawFile {
    /// Creates the file in `directory`.
    pub(crate) fn create(directory: &Path) -> Result<RawFile> {
        let make = || -> io::Result<File> {
            let file = tempfile::tempfile_in(directory)?;
            let zeros = vec![0; 1 << 20];
            for offset in (0..RAW_FILE_BYTES).step_by(zeros.len()) {
                file.write_all_at(&zeros, offset)?;
            }
            file.sync_all()?;
            Ok(file)
        };
        Ok(RawFile { file: make().map_err(|error| Error::file(directory, error))?, offset: 0 })
    }

    /// Writes a frame of at most half of the file after the one before, and syncs it. Returns when the write
    /// began and when the sync began. Blocks.
    pub(crate) fn write(&mut self, frame: &[u8]) -> Result<(Instant, Instant)> {
        if self.offset + frame.len() as u64 > RAW_FILE_BYTES {
            self.offset = 0;
        }
        let began = Instant::now();
        let written = self.file.write_all_at(frame, self.offset).map(|()| Instant::now());
        let synced = written.and_then(|at| self.file.sync_data().map(|()| at));
        self.offset = (self.offset + frame.len() as u64).next_multiple_of(FRAME_STRIDE);
        Ok((began, synced.map_err(|error| Error::wrong("raw writes", error.to_string()))?))
    }
}

#[cfg(test)]
mod tests {
    use settee_client::{Connection, Server};

    use super::*;

    #[test]
    fn the_bare_server_reads_bodies_and_sends_the_requested_number_of_bytes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server: Server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            tokio::spawn(serve_bare(listener));
            let mut connection = Connection::open(&server).await.unwrap();
            for mut client in [
                BareClient::get(0),
                BareClient::get(1067),
                BareClient::get(WHOLE_BYTES_MAX + 3 * CHUNK_BYTES + 1),
                BareClient::put(vec![7; 1 << 20]),
                BareClient::new("POST", vec![7; 100], 5000, 1),
            ] {
                let answer = connection.exchange(client.next().unwrap()).await.unwrap();
                assert_eq!(client.check(answer), Ok(1));
            }
            assert_eq!(connection.exchange(Request::get("/elsewhere")).await.unwrap().status, 400);
        });
    }

    #[test]
    fn frames_wrap_around_at_the_end_of_the_synced_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = RawFile::create(directory.path()).unwrap();
        file.offset = RAW_FILE_BYTES - FRAME_STRIDE;
        let (began, synced) = file.write(&[1; 1174]).unwrap();
        assert_eq!((file.offset, began <= synced), (RAW_FILE_BYTES, true));
        file.write(&[1; 1174]).unwrap();
        assert_eq!(file.offset, FRAME_STRIDE);
    }
}
