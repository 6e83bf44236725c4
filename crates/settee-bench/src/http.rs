//! A minimal HTTP/1.1 client, cheap enough to share two cores with the server that it measures.
//!
//! The caller renders a request as bytes. A response's head is parsed only for the status and for the
//! framing of the body. A [`Connection`] runs one exchange at a time and is kept alive between exchanges.
//! `load`, `dump` and `bench` use this client.
//!
//! Invariants:
//! 1. A body counts as whole only at its proper end: after `Content-Length` bytes, or after the last chunk.
//!    A connection that ends earlier causes [`HttpError::Cut`], never a short body.
//! 2. At most [`RESPONSE_BYTES_MAX`] bytes of a response are buffered; [`Connection::chunk`] streams larger
//!    responses with a buffer of [`INPUT_BYTES_MIN`].

use std::io;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use memchr::memmem;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

#[cfg(test)]
mod tests;

/// Largest body in bytes that [`Connection::exchange`] returns.
pub const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// Largest head of a response in bytes.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// Initial size in bytes of a connection's input buffer.
pub const INPUT_BYTES_MIN: usize = 64 << 10;

/// Longest wait for a connection to be established.
pub const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);

/// Characters that are percent-encoded in a segment of a path.
const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The result of an exchange with a server.
pub type Result<T, E = HttpError> = std::result::Result<T, E>;

/// Why an exchange failed. The connection can't be used afterwards.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL is invalid or not supported.
    #[error("{url}: {reason}")]
    Url {
        /// The URL without its user and password.
        url: String,
        /// The URL's fault.
        reason: &'static str,
    },

    /// No connection to the address could be established.
    #[error("no connection to {address}: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// The system's error.
        source: io::Error,
    },

    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),

    /// The server closed the connection before the end of the response.
    #[error("the server closed the connection {0}")]
    Cut(&'static str),

    /// The response isn't HTTP/1 or uses an unsupported feature of it.
    #[error("the response is malformed: {0}")]
    Malformed(&'static str),

    /// The response exceeds [`RESPONSE_BYTES_MAX`].
    #[error("the response exceeds {max} bytes", max = RESPONSE_BYTES_MAX)]
    TooLarge,
}

/// A server's address, parsed from a URL: `http://[user:password@]host[:port][/prefix]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    address: String,
    prefix: String,
    headers: String,
    has_user: bool,
}

impl FromStr for Server {
    type Err = HttpError;

    fn from_str(url: &str) -> Result<Server> {
        let bad = |reason| HttpError::Url { url: without_userinfo(url), reason };
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => return Err(bad("https is not supported, only http")),
            _ => return Err(bad("a URL begins with http://")),
        };
        if rest.contains(['?', '#']) {
            return Err(bad("a server's URL has no query and no fragment"));
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (userinfo, address) = match authority.rsplit_once('@') {
            Some((userinfo, address)) => (Some(userinfo), address),
            None => (None, authority),
        };
        if address.is_empty() || address.starts_with(':') || address.contains(|c: char| c.is_ascii_control())
        {
            return Err(bad("the URL names no host"));
        }
        let has_port = match address.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                port.parse::<u16>().map_err(|_| bad("the port isn't a number up to 65535"))?;
                true
            }
            _ => false,
        };
        let server = Server {
            address: if has_port { address.to_owned() } else { format!("{address}:80") },
            prefix: path.trim_end_matches('/').to_owned(),
            headers: format!("Host: {address}\r\n"),
            has_user: false,
        };
        let Some(userinfo) = userinfo else { return Ok(server) };
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let decode = |text| percent_decode_str(text).collect::<Vec<u8>>();
        Ok(server.with_user(&decode(user), &decode(password)))
    }
}

impl Server {
    /// Whether requests to it are authenticated.
    pub fn has_user(&self) -> bool {
        self.has_user
    }

    /// Returns the same server with a user, for whom requests use basic authentication.
    ///
    /// # Panics
    /// If the server has a user.
    pub fn with_user(mut self, name: &[u8], password: &[u8]) -> Server {
        assert!(!self.has_user, "requests name one user");
        let encoded = base64::engine::general_purpose::STANDARD.encode([name, b":", password].concat());
        self.headers.push_str(&format!("Authorization: Basic {encoded}\r\n"));
        self.has_user = true;
        self
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The value of the header `Authorization`, if the server has a user.
    pub(crate) fn authorization(&self) -> Option<&str> {
        self.headers.lines().find_map(|line| line.strip_prefix("Authorization: "))
    }

    /// Appends a request to `out`. `target` begins with `/` and is percent-encoded ([`encode_segment`]). A
    /// body's type is JSON.
    pub fn render(&self, method: &str, target: &str, body: Option<&[u8]>, out: &mut Vec<u8>) {
        let content = body.map(|body| ("application/json", body.len()));
        self.render_head(method, target, content, out);
        out.extend_from_slice(body.unwrap_or_default());
    }

    /// Appends a request's head to `out`. `content` is the body's type and length, if there is a body.
    pub fn render_head(&self, method: &str, target: &str, content: Option<(&str, usize)>, out: &mut Vec<u8>) {
        for part in [method, " ", &self.prefix, target, " HTTP/1.1\r\n", &self.headers] {
            out.extend_from_slice(part.as_bytes());
        }
        if let Some((kind, length)) = content {
            let text = format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n");
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Percent-encodes a database's name or a document's id as one segment of a path.
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, PATH_SEGMENT).to_string()
}

fn without_userinfo(url: &str) -> String {
    let scheme = url.find("://").map_or(0, |at| at + 3);
    let host = url.rfind('@').map_or(scheme, |at| at + 1);
    format!("{}{}", &url[..scheme], &url[host.max(scheme)..])
}

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
    stream: S,
    input: Input,
    body: Body,
    /// Bytes at the front of `input` that the caller borrowed with the last response.
    lent: usize,
    /// The body of a chunked response.
    whole: Vec<u8>,
    is_closing: bool,
}

impl Connection {
    /// Connects within [`CONNECT_WAIT_MAX`].
    ///
    /// # Errors
    /// [`HttpError::Connect`].
    pub async fn open(server: &Server) -> Result<Connection> {
        let failed = |source| HttpError::Connect { address: server.address.clone(), source };
        let stream = tokio::time::timeout(CONNECT_WAIT_MAX, TcpStream::connect(&server.address))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Connection::new(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Returns a connection over an open stream.
    pub fn new(stream: S) -> Connection<S> {
        Connection {
            stream,
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

    /// Sends a rendered request and returns the whole response.
    ///
    /// # Errors
    /// Any [`HttpError`] but those of addresses. Whether the server executed the request is unknown.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        self.exchange_parts(request, &[]).await
    }

    /// Like [`Connection::exchange`], with a body in a separate buffer.
    pub(crate) async fn exchange_parts(&mut self, head: &[u8], body: &[u8]) -> Result<Answer<'_>> {
        let status = self.begin_parts(head, body).await?;
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

    /// Sends a rendered request and returns the response's status. [`Connection::chunk`] returns the body,
    /// which must be read to its end before the next request.
    ///
    /// # Errors
    /// Any [`HttpError`] but those of addresses.
    pub async fn begin(&mut self, request: &[u8]) -> Result<u16> {
        self.begin_parts(request, &[]).await
    }

    async fn begin_parts(&mut self, head: &[u8], body: &[u8]) -> Result<u16> {
        assert!(matches!(self.body, Body::End), "the last response was read to its end");
        self.input.consume(std::mem::take(&mut self.lent));
        // A server may refuse a body and close the connection before it has read the body; its response has
        // the reason.
        let mut sent = self.stream.write_all(head).await;
        if sent.is_ok() && !body.is_empty() {
            sent = self.stream.write_all(body).await;
        }
        match (self.head().await, sent) {
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

    /// Returns the stream, the decoder of the chunked response that has begun, and the bytes of it that have
    /// been read.
    ///
    /// # Errors
    /// [`HttpError::Malformed`] if the response isn't chunked.
    pub(crate) fn into_chunked(self) -> Result<(S, Chunked, Vec<u8>)> {
        match self.body {
            Body::Chunked(chunked) => Ok((self.stream, chunked, self.input.filled()[self.lent..].to_vec())),
            _ => Err(HttpError::Malformed("its transfer encoding isn't chunked")),
        }
    }

    async fn head(&mut self) -> Result<u16> {
        loop {
            if let Some(head) = parse_head(self.input.filled())? {
                self.input.consume(head.bytes);
                if head.status >= 200 {
                    self.body = head.body;
                    self.is_closing = head.is_closing;
                    return Ok(head.status);
                }
            } else if self.input.filled().len() >= HEAD_BYTES_MAX {
                return Err(HttpError::Malformed("its head is too long"));
            } else {
                self.input.fill(&mut self.stream, "before a response").await?;
            }
        }
    }

    /// Returns the next piece of the body as a range of the input. The next call consumes it.
    async fn advance(&mut self) -> Result<Option<Range<usize>>> {
        self.input.consume(std::mem::take(&mut self.lent));
        loop {
            if self.input.filled().is_empty() && !matches!(self.body, Body::End) {
                match self.input.fill(&mut self.stream, "in the middle of a response").await {
                    Err(HttpError::Cut(_)) if matches!(self.body, Body::UntilClose) => self.body = Body::End,
                    other => other?,
                }
            }
            let filled = self.input.filled();
            match &mut self.body {
                Body::End => return Ok(None),
                Body::UntilClose => {
                    self.lent = filled.len();
                    return Ok(Some(0..self.lent));
                }
                Body::Fixed(left) => {
                    if *left == 0 {
                        self.body = Body::End;
                        return Ok(None);
                    }
                    self.lent = usize::try_from(*left).map_or(filled.len(), |left| left.min(filled.len()));
                    *left -= self.lent as u64;
                    if *left == 0 {
                        self.body = Body::End;
                    }
                    return Ok(Some(0..self.lent));
                }
                Body::Chunked(chunks) => {
                    let (consumed, data) = chunks.decode(filled)?;
                    if !data.is_empty() {
                        self.lent = consumed;
                        return Ok(Some(data));
                    }
                    self.input.consume(consumed);
                    if matches!(chunks, Chunked::End) {
                        self.body = Body::End;
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// The framing of a body and its remaining length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    /// The body has ended, or there is none.
    End,
    /// This many bytes remain.
    Fixed(u64),
    Chunked(Chunked),
    /// The body ends when the server closes the connection.
    UntilClose,
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    body: Body,
    is_closing: bool,
    /// The head's length, the empty line included.
    bytes: usize,
}

/// Parses a response's head. Returns `None` if it hasn't arrived whole.
fn parse_head(input: &[u8]) -> Result<Option<Head>> {
    let Some(end) = memmem::find(input, b"\r\n\r\n") else {
        return Ok(None);
    };
    let mut lines = input[..end].split(|&byte| byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let status = match line {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', digits @ ..] => {
            digits.get(..3).and_then(parse_decimal).filter(|status| (100..1000).contains(status))
        }
        _ => None,
    };
    let status = status.ok_or(HttpError::Malformed("it doesn't begin with HTTP/1.1 and a status"))? as u16;
    let mut body = Body::UntilClose;
    let mut is_closing = false;
    for line in lines {
        let Some(colon) = memchr::memchr(b':', line) else {
            return Err(HttpError::Malformed("a header has no colon"));
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(HttpError::Malformed("its transfer encoding isn't chunked"));
            }
            body = Body::Chunked(Chunked::new());
        } else if name.eq_ignore_ascii_case(b"content-length") && body == Body::UntilClose {
            let length = parse_decimal(value).ok_or(HttpError::Malformed("its length isn't a number"))?;
            body = Body::Fixed(length);
        } else if name.eq_ignore_ascii_case(b"connection") {
            is_closing = value.eq_ignore_ascii_case(b"close");
        }
    }
    if status < 200 || status == 204 || status == 304 {
        body = Body::End;
    }
    Ok(Some(Head { status, body, is_closing: is_closing || body == Body::UntilClose, bytes: end + 4 }))
}

fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// An incremental decoder of the chunked transfer encoding (RFC 9112, section 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunked {
    /// In the line with a chunk's size, after this many digits.
    Size {
        size: u64,
        digits: u8,
        extension: bool,
    },
    /// In a chunk's data.
    Data(u64),
    /// In the line end after a chunk's data.
    DataEnd,
    /// In the trailer, after this many bytes of a line.
    Trailer(usize),
    End,
}

impl Chunked {
    pub(crate) fn new() -> Chunked {
        Chunked::Size { size: 0, digits: 0, extension: false }
    }

    /// Decodes up to the end of the next piece of data. Returns the number of bytes consumed of `input` and
    /// the range of the data in it, which is empty if there is none.
    pub(crate) fn decode(&mut self, input: &[u8]) -> Result<(usize, Range<usize>)> {
        let mut at = 0;
        while at < input.len() {
            if let Chunked::Data(left) = *self {
                let length =
                    usize::try_from(left).map_or(input.len() - at, |left| left.min(input.len() - at));
                let left = left - length as u64;
                *self = if left == 0 { Chunked::DataEnd } else { Chunked::Data(left) };
                return Ok((at + length, at..at + length));
            }
            if matches!(self, Chunked::End) {
                break;
            }
            self.step(input[at])?;
            at += 1;
        }
        Ok((at, at..at))
    }

    /// Decodes one byte of the framing.
    fn step(&mut self, byte: u8) -> Result<()> {
        *self = match (*self, byte) {
            (Chunked::Size { digits: 0, .. }, b'\n' | b';') => {
                return Err(HttpError::Malformed("a chunk has no size"));
            }
            (Chunked::Size { size: 0, .. }, b'\n') => Chunked::Trailer(0),
            (Chunked::Size { size, .. }, b'\n') => Chunked::Data(size),
            (state @ Chunked::Size { .. }, b'\r') => state,
            (state @ Chunked::Size { extension: true, .. }, _) => state,
            (Chunked::Size { size, digits, .. }, b';' | b' ' | b'\t') => {
                Chunked::Size { size, digits, extension: true }
            }
            (Chunked::Size { size, digits, .. }, byte) => {
                let digit = (byte as char).to_digit(16).filter(|_| digits < 16);
                let digit = digit.ok_or(HttpError::Malformed("a chunk's size isn't a hexadecimal number"))?;
                Chunked::Size { size: size << 4 | u64::from(digit), digits: digits + 1, extension: false }
            }
            (Chunked::DataEnd, b'\r') => Chunked::DataEnd,
            (Chunked::DataEnd, b'\n') => Chunked::new(),
            (Chunked::DataEnd, _) => return Err(HttpError::Malformed("a chunk is longer than its size")),
            (Chunked::Trailer(0), b'\n') => Chunked::End,
            (Chunked::Trailer(_), b'\n') => Chunked::Trailer(0),
            (state @ Chunked::Trailer(_), b'\r') => state,
            (Chunked::Trailer(length), _) if length < HEAD_BYTES_MAX => Chunked::Trailer(length + 1),
            (Chunked::Trailer(_), _) => return Err(HttpError::Malformed("its trailer is too long")),
            (Chunked::Data(_) | Chunked::End, _) => unreachable!("no framing to read here"),
        };
        Ok(())
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
                Ok(())
            }
        }
    }
}
