//! What the machine allows: the floors that a server is measured against.
//!
//! - The bare server answers every GET with the same 1 KiB document and takes every body: HTTP
//!   alone, on hyper, with nothing behind it.
//! - The sync floor writes frames to a file as the log does and syncs each: the disk alone.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::fs::FallocateFlags;
use tokio::net::TcpListener;

use crate::documents::Generator;
use crate::error::{Error, Result};
use crate::http::{Answer, Server};
use crate::stats::Samples;

/// Size in bytes of the document that the bare server sends.
pub const FLOOR_DOCUMENT_BYTES: usize = 1024;

/// What a record costs the log besides its document: headers, key, meta and checksum, in bytes.
pub const FRAME_OVERHEAD_BYTES: usize = 150;

/// Where a frame may begin that follows a synced one, in the log's files.
const SYNC_ALIGNMENT: u64 = 4096;

/// What the log's files reserve at first and most ahead, in bytes.
const ROOM_BYTES_FIRST: u64 = 64 << 10;
const ROOM_AHEAD_BYTES_MAX: u64 = 4 << 20;

/// The size at which the file begins anew: a segment's.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Serves the bare answers on `listener` until the task is dropped.
///
/// # Errors
/// What the system says where accepting fails.
pub async fn serve_floor(listener: TcpListener) -> io::Result<()> {
    let mut document = Vec::new();
    Generator::new(0).document("floor", FLOOR_DOCUMENT_BYTES, &mut document);
    let document = Bytes::from(document);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let document = document.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| answer(request, document.clone()));
            // A client that goes away ends its connection and nothing else.
            let _ = hyper::server::conn::http1::Builder::new()
                .pipeline_flush(true)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(request: Request<Incoming>, document: Bytes) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_read = request.method() == Method::GET;
    let whole = request.into_body().collect().await;
    let (status, body) = match (is_read, whole) {
        (_, Err(_)) => (StatusCode::BAD_REQUEST, Bytes::new()),
        (true, Ok(_)) => (StatusCode::OK, document),
        (false, Ok(_)) => (StatusCode::CREATED, Bytes::from_static(b"{\"ok\":true}\n")),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// A client of the bare server.
#[derive(Debug)]
pub(crate) enum FloorClient {
    Get,
    /// Sends a document of so many bytes.
    Put(Vec<u8>),
}

impl FloorClient {
    pub(crate) fn put(bytes: usize) -> FloorClient {
        let mut document = Vec::new();
        Generator::new(1).document("floor", bytes, &mut document);
        FloorClient::Put(document)
    }
}

impl crate::drive::Client for FloorClient {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        match self {
            FloorClient::Get => server.render("GET", "/floor/document", None, request),
            FloorClient::Put(document) => server.render("PUT", "/floor/document", Some(document), request),
        }
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        match (&*self, answer.status, answer.body.len()) {
            (FloorClient::Get, 200, FLOOR_DOCUMENT_BYTES) | (FloorClient::Put(_), 201, _) => Ok(1),
            (_, status, length) => Err(format!("{status} with {length} bytes")),
        }
    }
}

/// Writes frames of `frame_bytes` to a file in `folder` for `duration`, each followed by
/// fdatasync, and returns what each write with its sync took. The file is removed.
///
/// The file is laid out as a segment of the log that a lone writer fills: room is reserved
/// ahead in growing steps, and each frame begins where no sync has been before.
///
/// # Errors
/// [`Error::File`].
pub fn sync_floor(folder: &Path, frame_bytes: usize, duration: Duration) -> Result<Samples> {
    let mut frame = Vec::new();
    Generator::new(2).document("frame", frame_bytes, &mut frame);
    let failed = |error: io::Error| Error::file(folder, error);
    let file = tempfile::tempfile_in(folder).map_err(failed)?;
    let (mut offset, mut reserved) = (SYNC_ALIGNMENT, 0);
    let mut samples = Samples::default();
    let started = Instant::now();
    loop {
        let end = offset + frame.len() as u64;
        let before = Instant::now();
        if end > reserved {
            let ahead = reserved.clamp(ROOM_BYTES_FIRST, ROOM_AHEAD_BYTES_MAX);
            rustix::fs::fallocate(&file, FallocateFlags::empty(), reserved, end + ahead - reserved)
                .map_err(|error| failed(error.into()))?;
            reserved = end + ahead;
        }
        file.write_all_at(&frame, offset).and_then(|()| file.sync_data()).map_err(failed)?;
        samples.push(before.elapsed());
        offset = end.next_multiple_of(SYNC_ALIGNMENT);
        if offset > FILE_BYTES_MAX {
            offset = SYNC_ALIGNMENT;
            reserved = 0;
            file.set_len(0).map_err(failed)?;
        }
        if started.elapsed() >= duration {
            return Ok(samples);
        }
    }
}
