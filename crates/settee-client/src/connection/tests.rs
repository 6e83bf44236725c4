//! Goal: a response is decoded alike whatever the sizes of reads, and a truncated response is an error.
//! Method: scripted streams deliver given bytes in pieces of given sizes.

use std::pin::Pin;
use std::task::{Context, Poll};

use proptest::prelude::*;
use tokio::io::ReadBuf;

use super::*;
use crate::framing::HEAD_BYTES_MAX;

/// A stream that delivers `script` in pieces of the given sizes, cyclically, and then ends. It records the
/// bytes that are sent.
#[derive(Debug)]
struct Scripted {
    script: Vec<u8>,
    at: usize,
    sizes: Vec<usize>,
    reads: usize,
    sent: Vec<u8>,
}

impl Scripted {
    fn new(script: &[u8], sizes: &[usize]) -> Scripted {
        Scripted { script: script.to_vec(), at: 0, sizes: sizes.to_vec(), reads: 0, sent: Vec::new() }
    }
}

impl AsyncRead for Scripted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let size = self.sizes[self.reads % self.sizes.len()];
        let end = (self.at + size.min(buf.remaining())).min(self.script.len());
        buf.put_slice(&self.script[self.at..end]);
        self.at = end;
        self.reads += 1;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Scripted {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.sent.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn connection(script: &[u8], sizes: &[usize]) -> Connection<Scripted> {
    Connection::new(&"http://h".parse().unwrap(), Scripted::new(script, sizes))
}

fn exchange_once(script: &[u8], sizes: &[usize]) -> Result<(u16, Vec<u8>)> {
    let mut connection = connection(script, sizes);
    run(async { connection.exchange(Request::get("/")).await.map(|a| (a.status, a.body.to_vec())) })
}

fn chunked(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        out.extend_from_slice(format!("{:x};note=1\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
    out
}

fn fixed(body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    out.extend_from_slice(body);
    out
}

proptest! {
    #[test]
    fn chunked_responses_are_decoded_whatever_the_sizes_of_reads(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        sizes in prop::collection::vec(1_usize..50, 1..5),
    ) {
        let (status, body) = exchange_once(&chunked(&pieces), &sizes).unwrap();
        prop_assert_eq!(status, 200);
        prop_assert_eq!(body, pieces.concat());
    }

    #[test]
    fn a_connection_carries_responses_one_after_the_other(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6),
        sizes in prop::collection::vec(1_usize..200, 1..5),
    ) {
        let both = |body: &Vec<u8>| [fixed(body), chunked(std::slice::from_ref(body))].concat();
        let script: Vec<u8> = bodies.iter().flat_map(both).collect();
        let mut connection = connection(&script, &sizes);
        for body in &bodies {
            let answer = run(connection.exchange(Request::get("/"))).unwrap();
            prop_assert_eq!(answer, Answer { status: 201, body });
            let answer = run(connection.exchange(Request::get("/"))).unwrap();
            prop_assert_eq!(answer, Answer { status: 200, body });
        }
        let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        prop_assert_eq!(connection.stream.sent, request.repeat(2 * bodies.len()));
    }

    #[test]
    fn a_response_truncated_anywhere_is_an_error(
        body in prop::collection::vec(any::<u8>(), 1..60), cut in any::<prop::sample::Index>(),
    ) {
        for script in [fixed(&body), chunked(std::slice::from_ref(&body))] {
            let cut = cut.index(script.len());
            let error = exchange_once(&script[..cut], &[7]).unwrap_err();
            prop_assert!(matches!(error, HttpError::Cut(_)), "{error}");
        }
    }

    #[test]
    fn streamed_chunks_concatenate_to_the_body(
        body in prop::collection::vec(any::<u8>(), 0..200_000), size in 1_usize..100_000,
    ) {
        let mut connection = connection(&fixed(&body), &[size]);
        let mut found = Vec::new();
        run(async {
            connection.begin(Request::get("/")).await.unwrap();
            while let Some(chunk) = connection.chunk().await.unwrap() {
                found.extend_from_slice(chunk);
            }
        });
        prop_assert_eq!(found, body);
        prop_assert!(connection.input.bytes.len() <= INPUT_BYTES_MAX, "streaming needs no larger buffer");
    }
}

#[test]
fn a_body_without_a_length_ends_when_the_connection_closes() {
    let (status, body) = exchange_once(b"HTTP/1.0 404 No\r\nServer: x\r\n\r\nabc", &[5]).unwrap();
    assert_eq!((status, body.as_slice()), (404, b"abc".as_slice()));
}

#[test]
fn a_304_has_no_body_and_interim_responses_are_skipped() {
    let script = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(exchange_once(script, &[3]).unwrap(), (304, Vec::new()));
}

#[test]
fn the_connection_header_announces_whether_the_server_closes() {
    for (header, closing) in [("Connection: close", true), ("Connection: keep-alive", false)] {
        let script = format!("HTTP/1.1 200 OK\r\n{header}\r\nContent-Length: 0\r\n\r\n");
        let mut connection = connection(script.as_bytes(), &[9]);
        run(connection.exchange(Request::get("/"))).unwrap();
        assert_eq!(connection.is_closing(), closing, "{header}");
    }
}

#[test]
fn an_invalid_response_is_malformed() {
    let cases: [&[u8]; 8] = [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
    ];
    for case in cases {
        let error = exchange_once(case, &[100]).unwrap_err();
        assert!(matches!(error, HttpError::Malformed(_)), "{}: {error}", String::from_utf8_lossy(case));
    }
    let endless = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &vec![b'a'; HEAD_BYTES_MAX]].concat();
    assert!(matches!(exchange_once(&endless, &[9999]), Err(HttpError::Malformed(_))));
}
