//! A connection's socket: a write that the client takes nothing of for too long fails, which
//! ends the connection, and with it whatever its answer holds.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes time out.
pub(crate) struct Socket<'a, S> {
    stream: S,
    timeout: Duration,
    /// Runs from the first attempt that the stream took nothing of.
    stalled: Option<Pin<Box<Sleep>>>,
    /// While it is set, nothing times out.
    patient: &'a AtomicBool,
}

impl<'a, S> Socket<'a, S> {
    pub(crate) fn new(stream: S, timeout: Duration, patient: &'a AtomicBool) -> Socket<'a, S> {
        Socket { stream, timeout, stalled: None, patient }
    }

    /// Passes on what became of a write.
    fn watch(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() || self.patient.load(Ordering::Relaxed) {
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
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
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
        let impatient = AtomicBool::new(false);
        let written = Socket::new(stream, TIMEOUT, &impatient).write_all(&[0; 100]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_that_goes_on_taking_gets_everything() {
        let (stream, mut client) = duplex(8);
        let impatient = AtomicBool::new(false);
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
        let patient = AtomicBool::new(true);
        let mut socket = Socket::new(stream, TIMEOUT, &patient);
        let taken = async {
            tokio::time::sleep(10 * TIMEOUT).await;
            client.read_exact(&mut [0; 100]).await
        };
        let (written, _) = tokio::join!(socket.write_all(&[0; 100]), taken);
        assert!(written.is_ok());
    }
}
