//! Finds the request lines in the bytes of an HTTP/1 connection.
//!
//! hyper refuses a `"` in a request target, and CouchDB accepts it. The socket therefore encodes quotes
//! before hyper reads them; this tracker tells it which bytes are a request line.
//!
//! The framing is tracked as hyper reads it. A head ends with an empty line; the bytes after it are held back
//! until hyper has parsed the head and reads on. By then the service has recorded the body's length in
//! [`ParsedHead`], or that the body is chunked (RFC 9112, 7.1). The tracker also records what hyper accepts
//! in a head and RFC 9112 forbids: [`ParsedHead::take_head`].
//!
//! Invariants:
//! 1. [`FramingTracker::scan`] never forwards bytes beyond a request head whose body length is still unknown.
//! 2. Only bytes known to be a request line are reported as one: after malformed chunks, and after a head
//!    that hyper rejects, none is reported until the connection ends.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The head that was parsed last, exchanged between the socket and the request's service.
#[derive(Debug)]
pub(crate) struct ParsedHead {
    /// Length of its body in bytes, or [`CHUNKED`] or [`UNKNOWN`].
    body: AtomicU64,
    /// Its size in bytes shifted left by one, with bit 0 set if it has a bare line feed; or [`UNKNOWN`].
    head: AtomicU64,
}

/// Not recorded yet.
const UNKNOWN: u64 = u64::MAX;

/// The body is chunked.
const CHUNKED: u64 = u64::MAX - 1;

impl Default for ParsedHead {
    fn default() -> ParsedHead {
        ParsedHead { body: AtomicU64::new(UNKNOWN), head: AtomicU64::new(UNKNOWN) }
    }
}

impl ParsedHead {
    /// Records the body length of the head that was parsed last. None: no length is declared, which in a
    /// request means a chunked body.
    pub(crate) fn set_body_length(&self, body_bytes: Option<u64>) {
        self.body.store(body_bytes.unwrap_or(CHUNKED), Ordering::Relaxed);
    }

    /// Takes the head that was parsed last; None if it is unknown.
    pub(crate) fn take_head(&self) -> Option<Head> {
        match self.head.swap(UNKNOWN, Ordering::Relaxed) {
            UNKNOWN => None,
            head => Some(Head { bytes: head >> 1, has_bare_line_feed: head & 1 == 1, ends_in_return: false }),
        }
    }

    fn set_head(&self, head: Head) {
        self.head.store(head.bytes << 1 | u64::from(head.has_bare_line_feed), Ordering::Relaxed);
    }

    /// Takes the state that follows the head.
    fn take_next_state(&self) -> FramingState {
        match self.body.swap(UNKNOWN, Ordering::Relaxed) {
            UNKNOWN => FramingState::Untracked,
            CHUNKED => FramingState::Chunk(Chunk::START),
            left => FramingState::Body { left },
        }
    }
}

/// The wire form of a request's head, with the empty lines before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Head {
    pub(crate) bytes: u64,
    /// Whether a line ends without a carriage return.
    pub(crate) has_bare_line_feed: bool,
    ends_in_return: bool,
}

impl Head {
    /// Adds bytes of the head. A line feed occurs at most as the last byte.
    fn take(&mut self, part: &[u8]) {
        let has_return = match part {
            [.., before, b'\n'] => *before == b'\r',
            [b'\n'] => self.ends_in_return,
            _ => true,
        };
        self.has_bare_line_feed |= !has_return;
        self.ends_in_return = part.last() == Some(&b'\r');
        self.bytes += part.len() as u64;
    }
}

/// A connection's position in its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramingState {
    /// In a request line, or in the empty lines before it, which a client may send.
    RequestLine {
        begun: bool,
    },
    /// In the header lines. `blank` is whether the current line has no characters yet.
    Headers {
        blank: bool,
    },
    /// After a head, before its body length is known.
    AwaitingBodyLength,
    Body {
        left: u64,
    },
    Chunk(Chunk),
    /// The position is unknown from here to the end of the connection: all bytes are forwarded.
    Untracked,
}

/// The position in a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// In the hexadecimal size, after `digits` digits.
    Size { size: u64, digits: u32 },
    /// In the chunk extensions after the size.
    Extension { size: u64 },
    /// Before the line feed that ends the size line.
    SizeEnd { size: u64 },
    /// In the content and the line end after it, which have `left` bytes left.
    Content { left: u64 },
    /// After the last chunk, at a line that ends the body if it is empty.
    End { has_return: bool },
    /// In a trailer line.
    Trailer { has_return: bool },
}

/// Maximum digits of a chunk's size.
const SIZE_DIGITS_MAX: u32 = 15;

impl Chunk {
    const START: Chunk = Chunk::Size { size: 0, digits: 0 };

    /// Consumes some of the next bytes, at least one. Returns their number and the state after them.
    fn step(self, bytes: &[u8]) -> (usize, FramingState) {
        let next = match (self, bytes[0]) {
            (Chunk::Content { left }, _) => {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - count as u64;
                let next = if left == 0 { Chunk::START } else { Chunk::Content { left } };
                return (count, FramingState::Chunk(next));
            }
            (Chunk::Size { size, digits }, digit)
                if digit.is_ascii_hexdigit() && digits < SIZE_DIGITS_MAX =>
            {
                let value = char::from(digit).to_digit(16).unwrap_or_default();
                Chunk::Size { size: (size << 4) | u64::from(value), digits: digits + 1 }
            }
            (Chunk::Size { size, digits: 1.. } | Chunk::Extension { size }, b'\r') => Chunk::SizeEnd { size },
            (Chunk::Size { size, digits: 1.. }, b' ' | b'\t' | b';') => Chunk::Extension { size },
            (Chunk::Extension { size }, other) if other != b'\n' => Chunk::Extension { size },
            (Chunk::SizeEnd { size: 0 }, b'\n') => Chunk::End { has_return: false },
            (Chunk::SizeEnd { size }, b'\n') => Chunk::Content { left: size + 2 },
            (Chunk::End { has_return: false }, b'\r') => Chunk::End { has_return: true },
            (Chunk::End { has_return: true }, b'\n') => {
                return (1, FramingState::RequestLine { begun: false });
            }
            (Chunk::Trailer { has_return: true }, b'\n') => Chunk::End { has_return: false },
            (Chunk::End { has_return: false } | Chunk::Trailer { has_return: false }, byte) => {
                Chunk::Trailer { has_return: byte == b'\r' }
            }
            _ => return (1, FramingState::Untracked),
        };
        (1, FramingState::Chunk(next))
    }
}

/// Tracks the position in the requests of a connection.
#[derive(Debug)]
pub(crate) struct FramingTracker {
    state: FramingState,
    /// The part of the current head that was seen.
    head: Head,
}

impl FramingTracker {
    /// A tracker at the beginning of a connection.
    pub(crate) fn new() -> FramingTracker {
        FramingTracker { state: FramingState::RequestLine { begun: false }, head: Head::default() }
    }

    /// A tracker that reports no request lines, for a protocol without them.
    pub(crate) fn none() -> FramingTracker {
        FramingTracker { state: FramingState::Untracked, head: Head::default() }
    }

    /// Returns how many of the next bytes may be forwarded, and the range among them that is part of a
    /// request line. Forwards at least one byte, unless there are none or the body length is unknown.
    pub(crate) fn scan(&mut self, bytes: &[u8], parsed_head: &ParsedHead) -> (usize, Range<usize>) {
        if self.state == FramingState::AwaitingBodyLength && !bytes.is_empty() {
            self.state = parsed_head.take_next_state();
        }
        let (mut at, mut line) = (0, 0..0);
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.state {
                FramingState::Untracked => at = bytes.len(),
                FramingState::AwaitingBodyLength => break,
                FramingState::Chunk(chunk) => {
                    let (count, next) = chunk.step(rest);
                    at += count;
                    self.state = next;
                }
                FramingState::Body { left: 0 } => self.state = FramingState::RequestLine { begun: false },
                FramingState::Body { left } => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= count as u64;
                    at += count;
                }
                FramingState::RequestLine { begun: false } if matches!(rest[0], b'\r' | b'\n') => {
                    self.head.take(&rest[..1]);
                    at += 1;
                }
                FramingState::RequestLine { begun } => {
                    *begun = true;
                    let end = memchr::memchr(b'\n', rest);
                    line = at..at + end.unwrap_or(rest.len());
                    if end.is_some() {
                        self.state = FramingState::Headers { blank: true };
                    }
                    let next = line.end + usize::from(end.is_some());
                    self.head.take(&bytes[at..next]);
                    at = next;
                }
                FramingState::Headers { blank } => {
                    let end = memchr::memchr(b'\n', rest);
                    *blank &= matches!(&rest[..end.unwrap_or(rest.len())], b"" | b"\r");
                    let count = end.map_or(rest.len(), |end| end + 1);
                    self.head.take(&rest[..count]);
                    at += count;
                    match end {
                        Some(_) if *blank => {
                            parsed_head.set_head(std::mem::take(&mut self.head));
                            self.state = FramingState::AwaitingBodyLength;
                        }
                        Some(_) => *blank = true,
                        None => {}
                    }
                }
            }
        }
        (at, line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests as request line, rest of the head, and body, which is chunked if the head says so.
    const REQUESTS: [(&[u8], &[u8], &[u8]); 7] = [
        (b"GET /a?b=\"c\" HTTP/1.1\r", b"\nif-none-match: \"d\"\r\n\r\n", b""),
        (
            b"PUT /a HTTP/1.1\r",
            b"\nif-match: \"e\"\r\ncontent-length: 17\r\n\r\n",
            b"\"a\"\r\n\r\nGET /\" \r\n\r\n",
        ),
        (b"GET /\"", b"\n\n", b""),
        (
            b"PUT /\"z\" HTTP/1.1\r",
            b"\nTransfer-Encoding: chunked\r\n\r\n",
            b"5\r\n\"\r\n\r\n\r\n00a;x=\"y\"\r\n0123456789\r\n0\r\n\r\n",
        ),
        (b"PUT /\"w\" HTTP/1.1\r", b"\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\nx: \"\r\ny: z\r\n\r\n"),
        (b"POST /\"x\" HTTP/1.1\r", b"\na: b\r\n\r\n", b"\""),
        (b"DELETE /\"y\" HTTP/1.1\r", b"\n\r\n", b""),
    ];

    /// The bytes forwarded for these pieces, with the request lines in upper case.
    fn forwarded(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut framing, parsed_head) = (FramingTracker::new(), ParsedHead::default());
        let (mut passed, mut heads) = (Vec::new(), 0);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (count, line) = framing.scan(rest, &parsed_head);
                assert!(count > 0, "nothing more would ever be forwarded");
                let start = passed.len();
                passed.extend_from_slice(&rest[..count]);
                passed[start..][line].make_ascii_uppercase();
                rest = &rest[count..];
                if framing.state == FramingState::AwaitingBodyLength && heads < REQUESTS.len() {
                    let (_, head, body) = REQUESTS[heads];
                    parsed_head
                        .set_body_length((!head.starts_with(b"\nTransfer")).then_some(body.len() as u64));
                    heads += 1;
                }
            }
        }
        passed
    }

    #[test]
    fn exactly_the_request_lines_are_found_for_any_split_of_the_bytes() {
        let mut sent = b"\r\n".to_vec();
        let mut expected = sent.clone();
        for (line, head, body) in REQUESTS {
            sent.extend([line, head, body].concat().to_ascii_lowercase());
            expected.extend(line.to_ascii_uppercase());
            expected.extend([head, body].concat().to_ascii_lowercase());
        }
        for first in 0..sent.len() {
            for second in first..sent.len() {
                let pieces = [&sent[..first], &sent[first..second], &sent[second..]];
                assert_eq!(forwarded(&pieces), expected, "cut at {first} and {second}");
            }
        }
        assert_eq!(forwarded(&sent.chunks(1).collect::<Vec<_>>()), expected);
    }

    #[test]
    fn head_size_and_bare_line_feeds_are_found_for_any_split() {
        let cases: [(&[u8], bool); 6] = [
            (b"GET / HTTP/1.1\r\na: b\r\n\r\n", false),
            (b"\r\nGET / HTTP/1.1\r\na: b\r\n\r\n", false),
            (b"GET / HTTP/1.1\na: b\r\n\r\n", true),
            (b"GET / HTTP/1.1\r\na: b\n\r\n", true),
            (b"GET / HTTP/1.1\r\na: b\r\n\n", true),
            (b"\nGET / HTTP/1.1\r\na: b\r\n\r\n", true),
        ];
        for (head, has_bare_line_feed) in cases {
            for size in 1..=head.len() {
                let (mut framing, parsed_head) = (FramingTracker::new(), ParsedHead::default());
                head.chunks(size)
                    .for_each(|piece| assert_eq!(framing.scan(piece, &parsed_head).0, piece.len()));
                let found = parsed_head.take_head().expect("it has ended");
                assert_eq!((found.bytes, found.has_bare_line_feed), (head.len() as u64, has_bare_line_feed));
                assert!(parsed_head.take_head().is_none(), "of the next head nothing is known");
            }
        }
    }

    #[test]
    fn after_malformed_bytes_no_request_line_is_reported() {
        let line = b"get /\"\r\n\r\n".as_slice();
        let chunks = ["1\r\na\r\n0\r\nx: y\rz", "g\r\n", "\r\n", "1\n", "0123456789abcdef\r\n", "1;\n"];
        let cases =
            chunks.iter().map(|chunks| (Some(None), chunks.as_bytes())).chain([(None, b"1".as_slice())]);
        for (set_body_length, body) in cases {
            let (mut framing, parsed_head) = (FramingTracker::new(), ParsedHead::default());
            let head = b"put / \r\n\r\n".as_slice();
            assert_eq!(framing.scan(&[head, body].concat(), &parsed_head).0, head.len());
            if let Some(body_bytes) = set_body_length {
                parsed_head.set_body_length(body_bytes);
            }
            let rest = [body, line].concat();
            assert_eq!(framing.scan(&rest, &parsed_head), (rest.len(), 0..0), "{}", body.escape_ascii());
        }
        assert_eq!(FramingTracker::none().scan(line, &ParsedHead::default()), (line.len(), 0..0));
    }
}
