//! A connection's socket: a write that the client takes nothing of for too long fails, which
//! ends the connection, and with it whatever its answer holds.
//!
//! And quotes in a request's target are encoded on the way in: CouchDB takes `?startkey="a"` as
//! people type it, hyper's parser refuses it. Only what arrives where a request is known to begin
//! is looked at (a connection's first, and those after requests without a body), so no body is
//! ever changed.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What a connection's socket and its requests tell each other.
#[derive(Debug)]
pub(crate) struct Phase {
    /// While it is set, no write times out.
    pub(crate) patient: AtomicBool,
    /// The next bytes to come begin a request: the one before had no body, and has its answer.
    pub(crate) expects_request: AtomicBool,
}

impl Default for Phase {
    fn default() -> Phase {
        Phase { patient: AtomicBool::new(false), expects_request: AtomicBool::new(true) }
    }
}

/// A stream whose writes time out.
pub(crate) struct Socket<'a, S> {
    stream: S,
    /// Read, changed, and not yet given on.
    encoded: VecDeque<u8>,
    timeout: Duration,
    /// Runs from the first attempt that the stream took nothing of.
    stalled: Option<Pin<Box<Sleep>>>,
    phase: &'a Phase,
}

impl<'a, S> Socket<'a, S> {
    pub(crate) fn new(stream: S, timeout: Duration, phase: &'a Phase) -> Socket<'a, S> {
        Socket { stream, encoded: VecDeque::new(), timeout, stalled: None, phase }
    }

    /// As if these bytes came first: they did, and were looked at.
    pub(crate) fn begun_with(self, bytes: Vec<u8>) -> Socket<'a, S> {
        Socket { encoded: bytes.into(), ..self }
    }

    /// Passes on what became of a write.
    fn watch(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() || self.phase.patient.load(Ordering::Relaxed) {
            self.stalled = None;
            return written;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.encoded.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
            let came = &buffer.filled()[before..];
            if came.is_empty() || !self.phase.expects_request.swap(false, Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            let Some(encoded) = encode_quotes(came) else {
                return Poll::Ready(Ok(()));
            };
            buffer.set_filled(before);
            self.encoded = encoded.into();
        }
        let count = buffer.remaining().min(self.encoded.len());
        for byte in self.encoded.drain(..count) {
            buffer.put_slice(&[byte]);
        }
        Poll::Ready(Ok(()))
    }
}

/// The bytes of a request with the quotes of its first line encoded, where it has any.
fn encode_quotes(request: &[u8]) -> Option<Vec<u8>> {
    let end = request.iter().position(|byte| *byte == b'\r' || *byte == b'\n').unwrap_or(request.len());
    let (line, rest) = request.split_at(end);
    if !line.contains(&b'"') {
        return None;
    }
    let mut encoded = Vec::with_capacity(request.len() + 16);
    for byte in line {
        match byte {
            b'"' => encoded.extend_from_slice(b"%22"),
            byte => encoded.push(*byte),
        }
    }
    encoded.extend_from_slice(rest);
    Some(encoded)
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
        client.write_all(b"{\"body\":1}").await.unwrap();
        let count = socket.read(&mut found).await.unwrap();
        assert_eq!(&found[..count], b"{\"body\":1}");
    }
}
