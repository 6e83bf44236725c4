//! A connection's socket. A write fails if the client reads nothing for the send timeout, which ends the
//! connection and releases its response. An HTTP/1 client that doesn't read its responses isn't read either.
//!
//! The socket also encodes quotes in request targets: CouchDB accepts `?startkey="a"`, hyper's parser
//! doesn't. The tracker in `framing.rs` finds the request lines; no other bytes are changed.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connections::{Activity, ActivityGuard};
use super::framing::{FramingTracker, ParsedHead};

/// State shared by a connection's socket and its requests.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStatus {
    /// The head of the last request.
    pub(crate) parsed_head: ParsedHead,
    pub(crate) activity: Arc<Activity>,
}

/// A stream whose writes time out.
pub(crate) struct Socket<'a, S> {
    stream: S,
    /// Bytes read and not yet examined: those after a head.
    unexamined: BytesMut,
    /// Bytes read and encoded, but not yet forwarded. They precede `unexamined`.
    encoded: BytesMut,
    framing: FramingTracker,
    /// Whether requests are read while responses are stalled. False for HTTP/1, where each request would add
    /// its response to the stalled ones. True for HTTP/2, whose client may need to be read before it reads.
    reads_while_stalled: bool,
    timeout: Duration,
    /// Timer from the first write that made no progress to the next one that does. Meanwhile the connection
    /// counts as active.
    stalled: Option<(Pin<Box<Sleep>>, Option<ActivityGuard>)>,
    /// The reader to wake when a write that stalled it makes progress.
    reader: Option<Waker>,
    status: &'a ConnectionStatus,
}

impl<'a, S> Socket<'a, S> {
    pub(crate) fn new(stream: S, timeout: Duration, status: &'a ConnectionStatus) -> Socket<'a, S> {
        let (unexamined, encoded) = (BytesMut::new(), BytesMut::new());
        let framing = FramingTracker::new();
        Socket {
            stream,
            unexamined,
            encoded,
            framing,
            reads_while_stalled: false,
            timeout,
            stalled: None,
            reader: None,
            status,
        }
    }

    /// Prepends bytes that were consumed from the stream before.
    pub(crate) fn with_prefix(self, bytes: &[u8]) -> Socket<'a, S> {
        Socket { unexamined: bytes.into(), ..self }
    }

    /// For a protocol without lines.
    pub(crate) fn without_lines(self) -> Socket<'a, S> {
        Socket { framing: FramingTracker::none(), reads_while_stalled: true, ..self }
    }

    /// Starts or stops the timer by the result of a write, and fails the write when the timer has run out.
    fn check_stall(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            self.reader.take().into_iter().for_each(Waker::wake);
            return written;
        }
        let timeout = self.timeout;
        let activity = &self.status.activity;
        let stalled = || (Box::pin(tokio::time::sleep(timeout)), activity.begin());
        let (stalled, _) = self.stalled.get_or_insert_with(stalled);
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.stalled.is_some() && !this.reads_while_stalled {
            this.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        if this.encoded.is_empty() && this.unexamined.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let came = &buffer.filled()[before..];
            let (count, line) = this.framing.scan(came, &this.status.parsed_head);
            if !came[line.clone()].contains(&b'"') {
                this.unexamined.extend_from_slice(&came[count..]);
                buffer.set_filled(before + count);
                return Poll::Ready(Ok(()));
            }
            encode_quotes(&came[..count], line, &mut this.encoded);
            this.unexamined.extend_from_slice(&came[count..]);
            buffer.set_filled(before);
        } else if this.encoded.is_empty() {
            let (count, line) = this.framing.scan(&this.unexamined, &this.status.parsed_head);
            encode_quotes(&this.unexamined[..count], line, &mut this.encoded);
            this.unexamined.advance(count);
        }
        let count = buffer.remaining().min(this.encoded.len());
        buffer.put_slice(&this.encoded[..count]);
        this.encoded.advance(count);
        free_if_empty(&mut this.encoded);
        free_if_empty(&mut this.unexamined);
        Poll::Ready(Ok(()))
    }
}

/// Frees the memory of an empty buffer, so that a waiting connection holds none.
fn free_if_empty(buffer: &mut BytesMut) {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
}

/// Appends `bytes` with the quotes in the range `line` encoded.
fn encode_quotes(bytes: &[u8], line: Range<usize>, out: &mut BytesMut) {
    out.extend_from_slice(&bytes[..line.start]);
    let mut pieces = bytes[line.clone()].split(|byte| *byte == b'"');
    out.extend_from_slice(pieces.next().unwrap_or_default());
    for piece in pieces {
        out.extend_from_slice(b"%22");
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(&bytes[line.end..]);
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_stall(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_stall(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_write_without_progress_times_out() {
        let (stream, _client) = duplex(8);
        let status = ConnectionStatus::default();
        let written = Socket::new(stream, TIMEOUT, &status).write_all(&[0; 100]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_that_keeps_reading_gets_everything() {
        let (stream, mut client) = duplex(8);
        let status = ConnectionStatus::default();
        let mut socket = Socket::new(stream, TIMEOUT, &status);
        let taken = async {
            for _ in 0..100 {
                tokio::time::sleep(TIMEOUT - Duration::from_secs(1)).await;
                client.read_u8().await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(socket.write_all(&[0; 100]), taken);
        assert!(written.is_ok());
    }

    #[tokio::test]
    async fn no_request_is_read_while_the_client_reads_no_responses() {
        let (stream, mut client) = duplex(8);
        let status = ConnectionStatus::default();
        let mut socket = Socket::new(stream, TIMEOUT, &status);
        client.write_all(b"GET / HT").await.unwrap();
        let mut request = [0; 8];
        assert!(socket.write_all(&[0; 20]).now_or_never().is_none());
        assert!(socket.read(&mut request).now_or_never().is_none(), "a request was read");
        assert!(socket.reader.is_some());
        client.read_exact(&mut [0; 8]).await.unwrap();
        assert_eq!(socket.write(&[0]).await.unwrap(), 1);
        assert!(socket.reader.is_none(), "the reader was not woken");
        assert_eq!(socket.read(&mut request).await.unwrap(), 8);
        // In HTTP/2 the client may need to be read before it reads.
        let (stream, mut client) = duplex(8);
        let mut socket = Socket::new(stream, TIMEOUT, &status).without_lines();
        client.write_all(b"12345678").await.unwrap();
        assert!(socket.write_all(&[0; 20]).now_or_never().is_none());
        assert_eq!(socket.read(&mut request).await.unwrap(), 8);
    }

    #[tokio::test]
    async fn quotes_are_encoded_in_request_lines_only() {
        let (stream, mut client) = duplex(1_000);
        let status = ConnectionStatus::default();
        let mut socket = Socket::new(stream, TIMEOUT, &status);
        let mut found = vec![0; 1_000];
        let request = b"GET /a?b=\"c\" HTTP/1.1\r\nif-none-match: \"d\"\r\n\r\n";
        client.write_all(request).await.unwrap();
        // A buffer large enough for the bytes sent, but not for their encoded form.
        let mut first = vec![0; request.len()];
        socket.read_exact(&mut first).await.unwrap();
        let count = socket.read(&mut found).await.unwrap();
        let whole = [&first[..], &found[..count]].concat();
        assert_eq!(whole, b"GET /a?b=%22c%22 HTTP/1.1\r\nif-none-match: \"d\"\r\n\r\n");
        status.parsed_head.set_body_length(Some(10));
        client.write_all(b"{\"body\":1}PUT /\"f\" HTTP/1.1\r\n").await.unwrap();
        let count = socket.read(&mut found).await.unwrap();
        assert_eq!(&found[..count], b"{\"body\":1}PUT /%22f%22 HTTP/1.1\r\n");
        client.write_all(b"content-length: 3\r\n\r\na\"b").await.unwrap();
        let count = socket.read(&mut found).await.unwrap();
        assert_eq!(&found[..count], b"content-length: 3\r\n\r\n", "the body length is still unknown");
        status.parsed_head.set_body_length(Some(3));
        let count = socket.read(&mut found).await.unwrap();
        assert_eq!(&found[..count], b"a\"b");
    }
}
