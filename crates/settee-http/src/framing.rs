//! Which of a connection's bytes are requests' first lines.
//!
//! They are followed as hyper takes them: a head ends with an empty line, and what comes behind it is
//! held back until hyper has parsed it and asks for more; whoever answers has then told how long the
//! body is ([`Told`]), or that it comes in chunks (RFC 9112, 7.1). What hyper's parser lets pass and
//! RFC 9112 forbids is noticed on the way: [`Told::take_head`].
//!
//! Invariants:
//! 1. Of what [`Framing::look`] gives on no byte lies behind the end of a head that isn't told of.
//! 2. What isn't known to be a first line is never taken for one: behind chunks that aren't
//!    well-formed and behind what hyper doesn't take for a head, nothing is until the connection ends.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a connection and its requests tell each other of the head that was parsed last.
#[derive(Debug)]
pub(crate) struct Told {
    /// Bytes of the body behind it; or one of the next two.
    body: AtomicU64,
    /// Its length in bytes, doubled, and one more where it has a bare line feed; or [`NOTHING`].
    head: AtomicU64,
}

/// Nobody has told of that head yet.
const NOTHING: u64 = u64::MAX;

/// The body comes in chunks.
const CHUNKS: u64 = u64::MAX - 1;

impl Default for Told {
    fn default() -> Told {
        Told { body: AtomicU64::new(NOTHING), head: AtomicU64::new(NOTHING) }
    }
}

impl Told {
    /// Tells of the head that was parsed last: None where its body's length isn't declared, which in a request
    /// means chunks.
    pub(crate) fn tell(&self, body_bytes: Option<u64>) {
        self.body.store(body_bytes.unwrap_or(CHUNKS), Ordering::Relaxed);
    }

    /// The head that was parsed last; None where nothing is known of it.
    pub(crate) fn take_head(&self) -> Option<Head> {
        match self.head.swap(NOTHING, Ordering::Relaxed) {
            NOTHING => None,
            head => Some(Head { bytes: head >> 1, has_bare_line_feed: head & 1 == 1, ends_in_return: false }),
        }
    }

    fn set_head(&self, head: Head) {
        self.head.store(head.bytes << 1 | u64::from(head.has_bare_line_feed), Ordering::Relaxed);
    }

    /// Where a connection is behind that head.
    fn take(&self) -> State {
        match self.body.swap(NOTHING, Ordering::Relaxed) {
            NOTHING => State::Lost,
            CHUNKS => State::Chunk(Chunk::START),
            left => State::Body { left },
        }
    }
}

/// What a request's head looked like on the wire, the empty lines before it included.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Head {
    pub(crate) bytes: u64,
    /// Whether one of its lines ends without a carriage return.
    pub(crate) has_bare_line_feed: bool,
    ends_in_return: bool,
}

impl Head {
    /// Takes what comes next, in which a line feed is the last byte if it is there at all.
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

/// Where in its requests a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a first line, or in the empty lines before it, which a client may send.
    FirstLine {
        begun: bool,
    },
    /// In the lines behind it; whether the line so far has nothing but a line's end.
    Headers {
        blank: bool,
    },
    /// Behind a head.
    HeadEnded,
    Body {
        left: u64,
    },
    Chunk(Chunk),
    /// Nothing is known from here on.
    Lost,
}

/// Where in the chunks of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// In the digits of its size; how many there were.
    Size { size: u64, digits: u32 },
    /// Behind them, where extensions may stand.
    Extension { size: u64 },
    /// In front of the line feed behind it.
    SizeEnd { size: u64 },
    /// In what it holds, the line's end behind that included.
    Content { left: u64 },
    /// Behind the size of the last one, in the line's end that ends the body.
    End { has_return: bool },
    /// In a trailer behind it.
    Trailer { has_return: bool },
}

/// Digits of a chunk's size.
const SIZE_DIGITS_MAX: u32 = 15;

impl Chunk {
    const START: Chunk = Chunk::Size { size: 0, digits: 0 };

    /// Takes some of the bytes that come next, which are some: how many, and where it is then.
    fn step(self, bytes: &[u8]) -> (usize, State) {
        let next = match (self, bytes[0]) {
            (Chunk::Content { left }, _) => {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - count as u64;
                let next = if left == 0 { Chunk::START } else { Chunk::Content { left } };
                return (count, State::Chunk(next));
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
            (Chunk::End { has_return: true }, b'\n') => return (1, State::FirstLine { begun: false }),
            (Chunk::Trailer { has_return: true }, b'\n') => Chunk::End { has_return: false },
            (Chunk::End { has_return: false } | Chunk::Trailer { has_return: false }, byte) => {
                Chunk::Trailer { has_return: byte == b'\r' }
            }
            _ => return (1, State::Lost),
        };
        (1, State::Chunk(next))
    }
}

/// Follows a connection through its requests.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    /// The head that it is in.
    head: Head,
}

impl Framing {
    /// Of a connection from its beginning.
    pub(crate) fn new() -> Framing {
        Framing { state: State::FirstLine { begun: false }, head: Head::default() }
    }

    /// Of what has no lines.
    pub(crate) fn none() -> Framing {
        Framing { state: State::Lost, head: Head::default() }
    }

    /// How many of these bytes, which come next, may be given on now, and where among them part of a first
    /// line lies. Of some bytes it is some.
    pub(crate) fn look(&mut self, bytes: &[u8], told: &Told) -> (usize, Range<usize>) {
        if self.state == State::HeadEnded && !bytes.is_empty() {
            self.state = told.take();
        }
        let (mut at, mut line) = (0, 0..0);
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.state {
                State::Lost => at = bytes.len(),
                State::HeadEnded => break,
                State::Chunk(chunk) => {
                    let (count, next) = chunk.step(rest);
                    at += count;
                    self.state = next;
                }
                State::Body { left: 0 } => self.state = State::FirstLine { begun: false },
                State::Body { left } => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= count as u64;
                    at += count;
                }
                State::FirstLine { begun: false } if matches!(rest[0], b'\r' | b'\n') => {
                    self.head.take(&rest[..1]);
                    at += 1;
                }
                State::FirstLine { begun } => {
                    *begun = true;
                    let end = memchr::memchr(b'\n', rest);
                    line = at..at + end.unwrap_or(rest.len());
                    if end.is_some() {
                        self.state = State::Headers { blank: true };
                    }
                    let next = line.end + usize::from(end.is_some());
                    self.head.take(&bytes[at..next]);
                    at = next;
                }
                State::Headers { blank } => {
                    let end = memchr::memchr(b'\n', rest);
                    *blank &= matches!(&rest[..end.unwrap_or(rest.len())], b"" | b"\r");
                    let count = end.map_or(rest.len(), |end| end + 1);
                    self.head.take(&rest[..count]);
                    at += count;
                    match end {
                        Some(_) if *blank => {
                            told.set_head(std::mem::take(&mut self.head));
                            self.state = State::HeadEnded;
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

    /// A request: its first line, the rest of its head, its body, which comes in chunks where its head says so.
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

    /// What is given on where the bytes come in these pieces: those of first lines in upper case.
    fn given_on(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut framing, told) = (Framing::new(), Told::default());
        let (mut given, mut heads) = (Vec::new(), 0);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (count, line) = framing.look(rest, &told);
                assert!(count > 0, "nothing more would ever be given on");
                let start = given.len();
                given.extend_from_slice(&rest[..count]);
                given[start..][line].make_ascii_uppercase();
                rest = &rest[count..];
                if framing.state == State::HeadEnded && heads < REQUESTS.len() {
                    let (_, head, body) = REQUESTS[heads];
                    told.tell((!head.starts_with(b"\nTransfer")).then_some(body.len() as u64));
                    heads += 1;
                }
            }
        }
        given
    }

    #[test]
    fn first_lines_are_found_however_requests_are_cut_and_nothing_else_is() {
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
                assert_eq!(given_on(&pieces), expected, "cut at {first} and {second}");
            }
        }
        assert_eq!(given_on(&sent.chunks(1).collect::<Vec<_>>()), expected);
    }

    #[test]
    fn a_heads_length_and_its_bare_line_feeds_are_known_however_it_is_cut() {
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
                let (mut framing, told) = (Framing::new(), Told::default());
                head.chunks(size).for_each(|piece| assert_eq!(framing.look(piece, &told).0, piece.len()));
                let found = told.take_head().expect("it has ended");
                assert_eq!((found.bytes, found.has_bare_line_feed), (head.len() as u64, has_bare_line_feed));
                assert!(told.take_head().is_none(), "of the next head nothing is known");
            }
        }
    }

    #[test]
    fn behind_what_is_not_well_formed_nothing_is_a_line() {
        let line = b"get /\"\r\n\r\n".as_slice();
        let chunks = ["1\r\na\r\n0\r\nx: y\rz", "g\r\n", "\r\n", "1\n", "0123456789abcdef\r\n", "1;\n"];
        let cases =
            chunks.iter().map(|chunks| (Some(None), chunks.as_bytes())).chain([(None, b"1".as_slice())]);
        for (tell, body) in cases {
            let (mut framing, told) = (Framing::new(), Told::default());
            let head = b"put / \r\n\r\n".as_slice();
            assert_eq!(framing.look(&[head, body].concat(), &told).0, head.len());
            if let Some(body_bytes) = tell {
                told.tell(body_bytes);
            }
            let rest = [body, line].concat();
            assert_eq!(framing.look(&rest, &told), (rest.len(), 0..0), "{}", body.escape_ascii());
        }
        assert_eq!(Framing::none().look(line, &Told::default()), (line.len(), 0..0));
    }
}
