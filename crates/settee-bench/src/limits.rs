//! What the machine allows: the floors that a server is measured against.
//!
//! - The bare server reads whatever a request carries and answers with as many random bytes as
//!   its path asks for (`/bytes/1024`): HTTP alone, on hyper, with nothing behind it. It runs in a
//!   process of its own, so that its processor time is counted as any server's is.
//! - The sync floor writes frames to a file and syncs each: the disk alone.

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

/// What a record costs the log besides its document: headers, key, meta and checksum, in bytes.
pub const FRAME_OVERHEAD_BYTES: usize = 150;

/// What a server answers to a write, in bytes: `{"ok":true,"id":…,"rev":…}`.
pub(crate) const WRITE_ANSWER_BYTES: u64 = 80;

/// Before the number of bytes in a path of the bare server.
const BYTES_PATH: &str = "/bytes/";

/// Longest answer that the bare server sends with its length and as one piece, in bytes; longer
/// ones are chunked, as listings are.
const WHOLE_BYTES_MAX: u64 = 2 << 20;

/// Bytes of a chunk of a longer one.
const CHUNK_BYTES: u64 = 64 << 10;

/// Where a frame begins: at a multiple of this, as a log's synced groups do.
const FRAME_STRIDE: u64 = 4096;

/// Size of the file that is synced; its frames are written over again from its start on.
const SYNC_FILE_BYTES: u64 = 16 << 20;

/// Serves the bare answers on `listener` until the task is dropped.
///
/// # Errors
/// What the system says where accepting fails.
pub async fn serve_floor(listener: TcpListener) -> io::Result<()> {
    let pool = Bytes::from_static(binary_pool());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let pool = pool.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| answer(request, pool.clone()));
            // A client that goes away ends its connection and nothing else.
            let _ = hyper::server::conn::http1::Builder::new()
                .pipeline_flush(true)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(request: Request<Incoming>, pool: Bytes) -> Result<Response<FloorBody>, Infallible> {
    let bytes = request.uri().path().strip_prefix(BYTES_PATH).and_then(|count| count.parse().ok());
    let mut body = request.into_body();
    let mut is_broken = false;
    // Read and let go piece by piece.
    while let Some(frame) = body.frame().await {
        is_broken |= frame.is_err();
    }
    let (status, left) = match bytes {
        Some(bytes) if !is_broken => (StatusCode::OK, bytes),
        _ => (StatusCode::BAD_REQUEST, 0),
    };
    let mut response = Response::new(FloorBody { pool, left, is_whole: left <= WHOLE_BYTES_MAX });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Random bytes of a length that is told in front, or chunked.
struct FloorBody {
    pool: Bytes,
    left: u64,
    is_whole: bool,
}

impl Body for FloorBody {
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
        // Different places of the pool, so that the bytes come from memory as a listing's do.
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

/// The path under which the bare server sends so many bytes.
pub(crate) fn floor_target(bytes: u64) -> String {
    format!("{BYTES_PATH}{bytes}")
}

/// A client of the bare server: it sends what the server's clients send and is sent as much.
#[derive(Debug, Clone)]
pub(crate) struct FloorClient {
    method: &'static str,
    target: String,
    body: Vec<u8>,
    answer_bytes: u64,
    /// What one answer counts for.
    operations: u64,
}

impl FloorClient {
    /// One that gets answers of so many bytes.
    pub(crate) fn get(answer_bytes: u64) -> FloorClient {
        let target = floor_target(answer_bytes);
        FloorClient { method: "GET", target, body: Vec::new(), answer_bytes, operations: 1 }
    }

    /// One that sends `body` and gets what is answered to a write.
    pub(crate) fn put(body: Vec<u8>) -> FloorClient {
        let target = floor_target(WRITE_ANSWER_BYTES);
        FloorClient { method: "PUT", target, body, answer_bytes: WRITE_ANSWER_BYTES, operations: 1 }
    }

    /// One that sends `body` and gets as many documents in so many bytes.
    pub(crate) fn post(body: Vec<u8>, answer_bytes: u64, operations: u64) -> FloorClient {
        let target = floor_target(answer_bytes);
        FloorClient { method: "POST", target, body, answer_bytes, operations }
    }
}

impl crate::drive::Client for FloorClient {
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

/// A file that frames are written to, each followed by fdatasync. It goes with the value.
///
/// All of it was written before: a sync of bytes over others that are on the medium changes no
/// metadata, which is the least that a durable write costs.
#[derive(Debug)]
pub struct SyncFloor {
    directory: PathBuf,
    file: File,
    frame: Vec<u8>,
    offset: u64,
}

impl SyncFloor {
    /// A file in `directory` for frames of `frame_bytes`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn create(directory: &Path, frame_bytes: usize) -> Result<SyncFloor> {
        let mut frame = Vec::new();
        Generator::new(2).document("frame", frame_bytes, &mut frame);
        let failed = |error: io::Error| Error::file(directory, error);
        let file = tempfile::tempfile_in(directory).map_err(failed)?;
        let zeros = vec![0; 1 << 20];
        for offset in (0..SYNC_FILE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, offset).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(SyncFloor { directory: directory.to_owned(), file, frame, offset: 0 })
    }

    /// Writes frames for `duration`: what each write with its sync took. Blocks the thread.
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
    fn the_bare_server_sends_as_many_bytes_as_are_asked_for_and_reads_what_comes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server: Server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            tokio::spawn(serve_floor(listener));
            let mut connection = Connection::open(&server).await.unwrap();
            for mut client in [
                FloorClient::get(0),
                FloorClient::get(1067),
                FloorClient::get(WHOLE_BYTES_MAX + 3 * CHUNK_BYTES + 1),
                FloorClient::put(vec![7; 1 << 20]),
                FloorClient::post(vec![7; 100], 5000, 1),
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
    fn the_sync_floor_goes_round_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut floor = SyncFloor::create(directory.path(), 1174).unwrap();
        floor.offset = SYNC_FILE_BYTES - FRAME_STRIDE;
        assert_eq!(floor.measure(Duration::ZERO).unwrap().count(), 1);
        assert_eq!(floor.offset, SYNC_FILE_BYTES);
        assert_eq!(floor.measure(Duration::ZERO).unwrap().count(), 1);
        assert_eq!(floor.offset, FRAME_STRIDE);
    }
}
