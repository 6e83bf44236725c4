//! Limits of the machine, with which a server is compared.
//!
//! - The bare server reads a request's body and responds with the number of random bytes in the request's
//!   path (`/bytes/1024`): HTTP alone, on hyper, without a database. It runs in a separate process, so that
//!   its processor time is measured like that of any server.
//! - The sync limit writes frames to a file and syncs each: the disk alone.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::documents::{Generator, binary_pool};
use crate::error::{Error, Result};
use crate::http::{Answer, Server};
use crate::stats::Samples;

/// Bytes of a record in the log besides its document: headers, key, meta and checksum.
pub const FRAME_OVERHEAD_BYTES: usize = 150;

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
const SYNC_FILE_BYTES: u64 = 16 << 20;

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

async fn respond(request: Request<Incoming>, pool: Bytes) -> Result<Response<BareBody>, Infallible> {
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
    /// A client that gets responses of `answer_bytes`.
    pub(crate) fn get(answer_bytes: u64) -> BareClient {
        let target = bare_target(answer_bytes);
        BareClient { method: "GET", target, body: Vec::new(), answer_bytes, operations: 1 }
    }

    /// A client that sends `body` and gets responses of the size of those to a write.
    pub(crate) fn put(body: Vec<u8>) -> BareClient {
        let target = bare_target(WRITE_RESPONSE_BYTES);
        BareClient { method: "PUT", target, body, answer_bytes: WRITE_RESPONSE_BYTES, operations: 1 }
    }

    /// A client that sends `body` and gets responses of `answer_bytes`, which count for `operations`.
    pub(crate) fn post(body: Vec<u8>, answer_bytes: u64, operations: u64) -> BareClient {
        let target = bare_target(answer_bytes);
        BareClient { method: "POST", target, body, answer_bytes, operations }
    }
}

impl crate::drive::Client for BareClient {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        let content = (self.method != "GET").then_some(("application/json", self.body.len()));
        server.render_head(self.method, &self.target, content, request);
        true
    }

    fn body(&self) -> &[u8] {
        &self.body
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        match answer {
            Answer { status: 200, body } if body.len() as u64 == self.answer_bytes => Ok(self.operations),
            Answer { status, body } => Err(format!("the bare server: {status} with {} bytes", body.len())),
        }
    }
}

/// A temporary file to which frames are written, each followed by fdatasync(2). It is removed on drop.
///
/// The whole file was written and synced before. Overwriting bytes that are on the medium changes no
/// metadata, so such a write has the smallest cost of a durable one.
#[derive(Debug)]
pub struct SyncLimit {
    directory: PathBuf,
    file: File,
    frame: Vec<u8>,
    offset: u64,
}

impl SyncLimit {
    /// Creates the file in `directory`, for frames of `frame_bytes`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn create(directory: &Path, frame_bytes: usize) -> Result<SyncLimit> {
        let mut frame = Vec::new();
        Generator::new(2).document("frame", frame_bytes, &mut frame);
        let failed = |error: io::Error| Error::file(directory, error);
        let file = tempfile::tempfile_in(directory).map_err(failed)?;
        let zeros = vec![0; 1 << 20];
        for offset in (0..SYNC_FILE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, offset).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(SyncLimit { directory: directory.to_owned(), file, frame, offset: 0 })
    }

    /// Writes frames for `duration`. Returns the latency of each write with its sync. Blocks the thread.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn measure(&mut self, duration: Duration) -> Result<Samples> {
        let mut samples = Samples::default();
        let started = Instant::now();
        loop {
            if self.offset + self.frame.len() as u64 > SYNC_FILE_BYTES {
                self.offset = 0;
            }
            let before = Instant::now();
            self.file
                .write_all_at(&self.frame, self.offset)
                .and_then(|()| self.file.sync_data())
                .map_err(|error| Error::file(&self.directory, error))?;
            samples.push(before.elapsed());
            self.offset = (self.offset + self.frame.len() as u64).next_multiple_of(FRAME_STRIDE);
            if started.elapsed() >= duration {
                return Ok(samples);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Client;
    use crate::http::Connection;

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
                BareClient::post(vec![7; 100], 5000, 1),
            ] {
                let mut head = Vec::new();
                assert!(client.render(&server, &mut head));
                let answer = connection.exchange_parts(&head, client.body()).await.unwrap();
                assert_eq!(client.check(answer), Ok(1));
            }
            let mut head = Vec::new();
            server.render("GET", "/elsewhere", None, &mut head);
            assert_eq!(connection.exchange(&head).await.unwrap().status, 400);
        });
    }

    #[test]
    fn frames_wrap_around_at_the_end_of_the_synced_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut limit = SyncLimit::create(directory.path(), 1174).unwrap();
        limit.offset = SYNC_FILE_BYTES - FRAME_STRIDE;
        assert_eq!(limit.measure(Duration::ZERO).unwrap().count(), 1);
        assert_eq!(limit.offset, SYNC_FILE_BYTES);
        assert_eq!(limit.measure(Duration::ZERO).unwrap().count(), 1);
        assert_eq!(limit.offset, FRAME_STRIDE);
    }
}
