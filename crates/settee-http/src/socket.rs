//! A connection's socket: a write that the client takes nothing of for too long fails, which
//! ends the connection, and with it whatever its answer holds. Meanwhile an HTTP/1 client is not read.
//!
//! And quotes in a request's target are encoded on the way in: CouchDB takes `?startkey="a"` as
//! people type it, hyper's parser refuses it. Requests are followed for that (`framing.rs`), and
//! nothing but their first lines is ever changed.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::connections::{Activity, UnderWay};
use crate::framing::{Framing, Told};

/// What a connection's socket and its requests tell each other.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// While it is set, no write times out.
    pub(crate) patient: AtomicBool,
    /// The body of the request that came last.
    pub(crate) told: Told,
    pub(crate) activity: Arc<Activity>,
}

/// A stream whose writes time out.
pub(crate) struct Socket<'a, S> {
    stream: S,
    /// Read, and not yet looked at: what came behind a head.
    held: BytesMut,
    /// Read, changed, and not yet given on. Goes before `held`.
    encoded: BytesMut,
    framing: Framing,
    /// Whether requests are read while answers are stalled. In HTTP/1 they aren't: each would add its answer to
    /// those that wait. An HTTP/2 client may need to be read before it reads.
    reads_while_stalled: bool,
    timeout: Duration,
    /// Runs from the first attempt that the stream took nothing of. Until it takes more, the answer is under way.
    stalled: Option<(Pin<Box<Sleep>>, Option<UnderWay>)>,
    /// Woken when a read that was put off by a stalled write can go on.
    reader: Option<Waker>,
    phase: &'a Phase,
}

impl<'a, S> Socket<'a, S> {
    pub(crate) fn new(stream: S, timeout: Duration, phase: &'a Phase) -> Socket<'a, S> {
        let (held, encoded) = (BytesMut::new(), BytesMut::new());
        let framing = Framing::new();
        Socket {
            stream,
            held,
            encoded,
            framing,
            reads_while_stalled: false,
            timeout,
            stalled: None,
            reader: None,
            phase,
        }
    }

    /// As if these bytes came first: they did.
    pub(crate) fn begun_with(self, bytes: &[u8]) -> Socket<'a, S> {
        Socket { held: bytes.into(), ..self }
    }

    /// Of a protocol that isn't lines.
    pub(crate) fn without_lines(self) -> Socket<'a, S> {
        Socket { framing: Framing::none(), reads_while_stalled: true, ..self }
    }

    /// Passes on what became of a write.
    fn watch(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() || self.phase.patient.load(Ordering::Relaxed) {
            self.stalled = None;
            self.reader.take().into_iter().for_each(Waker::wake);
            return written;
        }
        let timeout = self.timeout;
        let activity = &self.phase.activity;
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
        if this.encoded.is_empty() && this.held.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let came = &buffer.filled()[before..];
            let (count, line) = this.framing.look(came, &this.phase.told);
            if !came[line.clone()].contains(&b'"') {
                this.held.extend_from_slice(&came[count..]);
                buffer.set_filled(before + count);
                return Poll::Ready(Ok(()));
            }
            encode_quotes(&came[..count], line, &mut this.encoded);
            this.held.extend_from_slice(&came[count..]);
            buffer.set_filled(before);
        } else if this.encoded.is_empty() {
            let (count, line) = this.framing.look(&this.held, &this.phase.told);
            encode_quotes(&this.held[..count], line, &mut this.encoded);
            this.held.advance(count);
        }
        let count = buffer.remaining().min(this.encoded.len());
        buffer.put_slice(&this.encoded[..count]);
        this.encoded.advance(count);
        give_back(&mut this.encoded);
        give_back(&mut this.held);
        Poll::Ready(Ok(()))
    }
}

/// A connection that waits holds nothing.
fn give_back(buffer: &mut BytesMut) {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
}

/// Appends `bytes` with the quotes in their part `line` encoded.
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
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(written, context)
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
    async fn a_write_of_which_nothing_is_taken_times_out() {
        let (stream, _client) = duplex(8);
        let impatient = Phase::default();
        let written = Socket::new(stream, TIMEOUT, &impatient).write_all(&[0; 100]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_that_goes_on_taking_gets_everything() {
        let (stream, mut client) = duplex(8);
        let impatient = Phase::default();
        let mut socket = Socket::new(stream, TIMEOUT, &impatient);
        let taken = async {
            for _ in 0..100 {
                tokio::time::sleep(TIMEOUT - Duration::from_secs(1)).await;
                client.read_u8().await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(socket.write_all(&[0; 100]), taken);
        assert!(written.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_patient_socket_waits_for_its_client() {
        let (stream, mut client) = duplex(8);
        let patient = Phase { patient: AtomicBool::new(true), ..Phase::default() };
        let mut socket = Socket::new(stream, TIMEOUT, &patient);
        let taken = async {
            tokio::time::sleep(10 * TIMEOUT).await;
            client.read_exact(&mut [0; 100]).await
        };
        let (written, _) = tokio::join!(socket.write_all(&[0; 100]), taken);
        assert!(written.is_ok());
    }

    #[tokio::test]
    async fn no_request_is_read_while_its_client_takes_nothing_of_answers() {
        let (stream, mut client) = duplex(8);
        let phase = Phase::default();
        let mut socket = Socket::new(stream, TIMEOUT, &phase);
        client.write_all(b"GET / HT").await.unwrap();
        let mut request = [0; 8];
        assert!(socket.write_all(&[0; 20]).now_or_never().is_none());
        assert!(socket.read(&mut request).now_or_never().is_none(), "a request was read");
        assert!(socket.reader.is_some());
        client.read_exact(&mut [0; 8]).await.unwrap();
        assert_eq!(socket.write(&[0]).await.unwrap(), 1);
        assert!(socket.reader.is_none(), "nobody woke the reader");
        assert_eq!(socket.read(&mut request).await.unwrap(), 8);
        // Of another protocol reading may be what lets its client go on.
        let (stream, mut client) = duplex(8);
        let mut socket = Socket::new(stream, TIMEOUT, &phase).without_lines();
        client.write_all(b"12345678").await.unwrap();
        assert!(socket.write_all(&[0; 20]).now_or_never().is_none());
        assert_eq!(socket.read(&mut request).await.unwrap(), 8);
    }

    #[tokio::test]
    async fn quotes_are_encoded_where_a_request_begins_and_nowhere_else() {
        let (stream, mut client) = duplex(1_000);
        let phase = Phase::default();
        let mut socket = Socket::new(stream, TIMEOUT, &phase);
        let mut found = vec![0; 1_000];
        let request = b"GET /a?b=\"c\" HTTP/1.1\r\nif-none-match: \"d\"\r\n\r\n";
        client.write_all(request).await.unwrap();
        // A buffer that holds what came and not what becomes of it.
        let mut first = vec![0; request.len()];
        socket.read_exact(&mut first).await.unwrap();
        let count = socket.read(&mut found).await.unwrap();
        let whole = [&first[..], &found[..count]].concat();
        assert_eq!(whole, b"GET /a?b=%22c%22 HTTP/1.1\r\nif-none-match: \"d\"\r\n\r\n");
        phase.told.tell(Some(10));
        client.write_all(b"{\"body\":1}PUT /\"f\" HTTP/1.1\r\n").await.unwrap();
        let count = socket.read(&mut found).await.unwrap();
        assert_eq!(&found[..count], b"{\"body\":1}PUT /%22f%22 HTTP/1.1\r\n");
        client.write_all(b"content-length: 3\r\n\r\na\"b").await.unwrap();
        let count = socket.read(&mut found).await.unwrap();
        assert_eq!(&found[..count], b"content-length: 3\r\n\r\n", "nobody knows yet what follows");
        phase.told.tell(Some(3));
        let count = socket.read(&mut found).await.unwrap();
        assert_eq!(&found[..count], b"a\"b");
    }
}
