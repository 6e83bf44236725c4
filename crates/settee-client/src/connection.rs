//! A connection that is kept alive over exchanges.
//!
//! A response's head is parsed only for the status and for the framing of the body.
//!
//! Invariants:
//! 1. A body counts as whole only at its proper end: after `Content-Length` bytes, or after the last chunk.
//!    A connection that ends earlier causes [`HttpError::Cut`], never a short body.
//! 2. At most [`RESPONSE_BYTES_MAX`] bytes of a response are buffered; [`Connection::chunk`] streams larger
//!    responses with a buffer of at most 64 KiB.

use std::io;
use std::ops::Range;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::{HttpError, RESPONSE_BYTES_MAX, Result};
use crate::framing::{Body, parse_chunk_line, parse_head};
use crate::server::{Request, Server};

#[cfg(test)]
mod tests;

/// Initial size in bytes of a connection's input buffer: a client with many connections needs little memory.
const INPUT_BYTES_MIN: usize = 4 << 10;

/// Size in bytes up to which the input buffer grows while reads fill it.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Largest body in bytes that is sent together with its head.
const JOINED_BYTES_MAX: usize = 16 << 10;

/// Longest wait for a connection to be established.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);

/// A response with its whole body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// The body, without transfer encoding.
    pub body: &'a [u8],
}

/// A connection kept alive over exchanges.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    server: Server,
    stream: S,
    /// The head of the request.
    head: Vec<u8>,
    input: Input,
    body: Body,
    /// Bytes at the front of `input` that the caller borrowed with the last response.
    lent: usize,
    /// The body of a response that isn't of a fixed length.
    whole: Vec<u8>,
    is_closing: bool,
}

impl Connection {
    /// Connects within 10 s.
    ///
    /// # Errors
    /// [`HttpError::Connect`].
    pub async fn open(server: &Server) -> Result<Connection> {
        let failed = |source| HttpError::Connect { address: server.address().to_owned(), source };
        let stream = tokio::time::timeout(CONNECT_WAIT_MAX, TcpStream::connect(server.address()))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Connection::new(server, stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Returns a connection to `server` over an open stream.
    pub fn new(server: &Server, stream: S) -> Connection<S> {
        Connection {
            server: server.clone(),
            stream,
            head: Vec::new(),
            input: Input::new(),
            body: Body::End,
            lent: 0,
            whole: Vec::new(),
            is_closing: false,
        }
    }

    /// Whether the server closes the connection after this response, so that it serves no further request.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Sends a request and returns the whole response.
    ///
    /// # Errors
    /// Any [`HttpError`] but those of addresses. Whether the server executed the request is unknown.
    pub async fn exchange(&mut self, request: Request<'_>) -> Result<Answer<'_>> {
        let status = self.begin(request).await?;
        if let Body::Fixed(length) = self.body {
            let length = usize::try_from(length).map_err(|_| HttpError::TooLarge)?;
            if length > RESPONSE_BYTES_MAX {
                return Err(HttpError::TooLarge);
            }
            self.input.reserve(length);
            while self.input.filled().len() < length {
                self.input.fill(&mut self.stream, "in the middle of a response").await?;
            }
            self.body = Body::End;
            self.lent = length;
            return Ok(Answer { status, body: &self.input.filled()[..length] });
        }
        self.whole.clear();
        while let Some(range) = self.advance().await? {
            let chunk = &self.input.filled()[range];
            if self.whole.len() + chunk.len() > RESPONSE_BYTES_MAX {
                return Err(HttpError::TooLarge);
            }
            self.whole.extend_from_slice(chunk);
        }
        Ok(Answer { status, body: &self.whole })
    }

    /// Sends a request and returns the response's status. [`Connection::chunk`] returns the body, which must
    /// be read to its end before the next request.
    ///
    /// # Errors
    /// Any [`HttpError`] but those of addresses.
    pub async fn begin(&mut self, Request { method, target, content }: Request<'_>) -> Result<u16> {
        assert!(matches!(self.body, Body::End), "the last response was read to its end");
        self.input.consume(std::mem::take(&mut self.lent));
        self.head.clear();
        let (kind, body) = content.unwrap_or_default();
        self.server.render(method, target, content.map(|_| (kind, body.len())), &mut self.head);
        // A small body goes with the head in one packet.
        let (with_head, rest) = body.split_at(if body.len() <= JOINED_BYTES_MAX { body.len() } else { 0 });
        self.head.extend_from_slice(with_head);
        // A server may refuse a body and close the connection before it has read the body; its response has
        // the reason.
        let mut sent = self.stream.write_all(&self.head).await;
        if sent.is_ok() && !rest.is_empty() {
            sent = self.stream.write_all(rest).await;
        }
        match (self.receive_head().await, sent) {
            (Err(_), Err(error)) => Err(error.into()),
            (answer, sent) => {
                self.is_closing |= sent.is_err();
                answer
            }
        }
    }

    /// Returns the next piece of the body, or `None` at its proper end.
    ///
    /// # Errors
    /// [`HttpError::Cut`] if the connection ends before the body.
    pub async fn chunk(&mut self) -> Result<Option<&[u8]>> {
        let range = self.advance().await?;
        Ok(range.map(|range| &self.input.filled()[range]))
    }

    async fn receive_head(&mut self) -> Result<u16> {
        loop {
            let Some(head) = parse_head(self.input.filled())? else {
                self.input.fill(&mut self.stream, "before a response").await?;
                continue;
            };
            self.input.consume(head.bytes);
            if head.status >= 200 {
                self.body = head.body;
                self.is_closing = head.is_closing;
                return Ok(head.status);
            }
        }
    }

    /// Returns the next piece of the body as a range of the input. The next call consumes it.
    async fn advance(&mut self) -> Result<Option<Range<usize>>> {
        self.input.consume(std::mem::take(&mut self.lent));
        loop {
            let filled = self.input.filled();
            match &mut self.body {
                Body::End => return Ok(None),
                Body::UntilClose if !filled.is_empty() => {
                    self.lent = filled.len();
                    return Ok(Some(0..self.lent));
                }
                Body::Fixed(0) => {
                    self.body = Body::End;
                    return Ok(None);
                }
                Body::Fixed(left) | Body::Chunk(left @ 1..) if !filled.is_empty() => {
                    self.lent = usize::try_from(*left).map_or(filled.len(), |left| left.min(filled.len()));
                    *left -= self.lent as u64;
                    if self.body == Body::Fixed(0) {
                        self.body = Body::End;
                    }
                    return Ok(Some(0..self.lent));
                }
                Body::UntilClose | Body::Fixed(_) | Body::Chunk(1..) => {}
                Body::Chunked | Body::Chunk(0) | Body::Trailer => {
                    if let Some((consumed, body)) = parse_chunk_line(self.body, filled)? {
                        self.input.consume(consumed);
                        self.body = body;
                        continue;
                    }
                }
            }
            match self.input.fill(&mut self.stream, "in the middle of a response").await {
                Err(HttpError::Cut(_)) if self.body == Body::UntilClose => self.body = Body::End,
                other => other?,
            }
        }
    }
}

/// Bytes that have been read and not consumed.
#[derive(Debug)]
struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    fn new() -> Input {
        Input { bytes: vec![0; INPUT_BYTES_MIN], start: 0, end: 0 }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "consumed only bytes that were read");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Makes the buffer large enough for `length` bytes, counted from the first that isn't consumed.
    fn reserve(&mut self, length: usize) {
        if self.bytes.len() - self.start < length {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.bytes.len() < length {
                self.bytes.resize(length, 0);
            }
        }
    }

    /// Reads more. `position` describes, for the error, the part of the response that an end of the stream
    /// would cut.
    async fn fill<S: AsyncRead + Unpin>(&mut self, stream: &mut S, position: &'static str) -> Result<()> {
        if self.end == self.bytes.len() {
            let length = self.filled().len();
            self.reserve(if length < self.bytes.len() { length + 1 } else { 2 * length });
        }
        match stream.read(&mut self.bytes[self.end..]).await? {
            0 => Err(HttpError::Cut(position)),
            count => {
                self.end += count;
                if self.end == self.bytes.len() && self.end < INPUT_BYTES_MAX {
                    self.bytes.resize(2 * self.end, 0);
                }
                Ok(())
            }
        }
    }
}
