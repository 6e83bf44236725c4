//! Answers of any length: rendered into a buffer, sent in chunks where they outgrow it.
//!
//! A producer starts in the request's own task. If it ends within its first chunk, its answer
//! is one full body, and its error an ordinary one. Otherwise it goes on in a task of its own,
//! `stream_chunks` ahead of the client at most; it ends when the client goes away.
//!
//! Invariant: an answer ends well only where its producer said so. However else the producer
//! goes, the connection is broken off, so that no part of an answer looks like the whole.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use crate::error::Failure;
use crate::reply::{self, Answer, Body, Part};
use crate::unread::Unread;
use crate::{Limits, logged};

/// Where a producer writes.
pub(crate) struct Out {
    /// What has not been sent yet.
    pub(crate) buffer: Vec<u8>,
    chunk_bytes: usize,
    sender: mpsc::Sender<Part>,
    unread: Arc<Unread>,
}

/// What bounds an answer's way out: the server's limits, and the account of the connection.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) unread: &'a Arc<Unread>,
}

impl Out {
    /// Sends the buffer if it has grown to a chunk. Waits while the client is behind.
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) async fn flush_full(&mut self) -> Result<(), Failure> {
        if self.buffer.len() < self.chunk_bytes { Ok(()) } else { self.flush().await }
    }

    /// Sends the buffer, whatever its size.
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) async fn flush(&mut self) -> Result<(), Failure> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let next = Vec::with_capacity(self.buffer.len().min(2 * self.chunk_bytes));
        let chunk = Bytes::from(std::mem::replace(&mut self.buffer, next));
        self.send_chunk(chunk).await
    }

    /// Sends bytes as they are, behind what the buffer holds.
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) async fn send(&mut self, bytes: Bytes) -> Result<(), Failure> {
        self.flush().await?;
        match bytes.is_empty() {
            true => Ok(()),
            false => self.send_chunk(bytes).await,
        }
    }

    /// Sends a chunk, and returns when the next may be made: while the connection has many, when this one was
    /// taken.
    async fn send_chunk(&mut self, bytes: Bytes) -> Result<(), Failure> {
        if self.unread.is_closing() {
            return Err(Failure::gone());
        }
        self.sender.send(Part::Chunk(self.unread.hold(bytes))).await.map_err(|_| Failure::gone())?;
        tokio::select! {
            biased;
            () = self.unread.below_share() => Ok(()),
            taken = self.sender.reserve_many(self.sender.max_capacity()) => {
                taken.map(drop).map_err(|_| Failure::gone())
            }
        }
    }

    /// Sends the rest, and that this was all.
    async fn end(mut self) -> Result<(), Failure> {
        self.flush().await?;
        self.sender.send(Part::End).await.map_err(|_| Failure::gone())
    }

    /// Completes when the client has gone.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// Answers 200 with what `produce` writes. Its error is the answer where it comes before the
/// first chunk; a later one breaks the connection off.
pub(crate) async fn respond<P, F>(output: Output<'_>, produce: P) -> Answer
where
    P: FnOnce(Out) -> F,
    F: Future<Output = Result<Out, Failure>> + Send + 'static,
{
    let Output { limits, unread } = output;
    let (sender, mut chunks) = mpsc::channel(limits.stream_chunks.max(1));
    let client = sender.clone();
    let (chunk_bytes, unread) = (limits.stream_chunk_bytes, unread.clone());
    let out = Out { buffer: Vec::with_capacity(1024), chunk_bytes, sender, unread };
    let mut producer = Box::pin(produce(out));
    let first = tokio::select! {
        biased;
        ended = &mut producer => return Ok(whole(ended?, &mut chunks)),
        first = chunks.recv() => first,
    };
    tokio::spawn(async move {
        let ended = match producer.await {
            Ok(out) => out.end().await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = ended
            && !client.is_closed()
        {
            tracing::warn!(
                error = failure.error,
                reason = logged::text(&failure.reason),
                "an answer broke off"
            );
        }
    });
    Ok(reply::with_body(StatusCode::OK, Body::Chunks { first, rest: chunks, gzip: None }))
}

/// The answer of a producer that ended before its first chunk was taken.
fn whole(out: Out, chunks: &mut mpsc::Receiver<Part>) -> Response<Body> {
    let mut text = Vec::new();
    while let Ok(Part::Chunk(chunk)) = chunks.try_recv() {
        text.extend_from_slice(&chunk);
    }
    if text.is_empty() {
        return reply::json(StatusCode::OK, out.buffer);
    }
    text.extend_from_slice(&out.buffer);
    reply::json(StatusCode::OK, text)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use http_body_util::BodyExt;

    use super::*;
    use crate::unread::Answers;

    static LIMITS: LazyLock<Limits> =
        LazyLock::new(|| Limits { stream_chunk_bytes: 4, stream_chunks: 1, ..Limits::default() });

    static UNREAD: LazyLock<Arc<Unread>> = LazyLock::new(|| Answers::new(&LIMITS).connection());

    fn output() -> Output<'static> {
        Output { limits: &LIMITS, unread: &UNREAD }
    }

    #[tokio::test]
    async fn a_short_answer_is_one_full_body() {
        let answer = respond(output(), |mut out| async move {
            out.buffer.extend_from_slice(b"abc");
            out.flush_full().await?;
            Ok(out)
        });
        let body = answer.await.unwrap().into_body();
        assert!(matches!(&body, Body::Full(bytes) if bytes == "abc"));
    }

    #[tokio::test]
    async fn a_long_answer_arrives_whole_and_in_order() {
        let answer = respond(output(), |mut out| async move {
            for digit in 0..50u8 {
                out.buffer.push(b'0' + digit % 10);
                out.flush_full().await?;
            }
            Ok(out)
        });
        let body = answer.await.unwrap().into_body();
        assert!(matches!(body, Body::Chunks { .. }));
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(bytes, "0123456789".repeat(5));
    }

    #[tokio::test]
    async fn an_error_before_the_first_chunk_is_an_answer_and_a_later_one_breaks_off() {
        let early = respond(output(), |_out| async move { Err(Failure::missing()) }).await;
        assert_eq!(early.err().map(|failure| failure.status.as_u16()), Some(404));

        let late = respond(output(), |mut out| async move {
            for _ in 0..10 {
                out.buffer.extend_from_slice(b"abcdef");
                out.flush_full().await?;
            }
            Err(Failure::missing())
        });
        assert!(late.await.unwrap().into_body().collect().await.is_err());
    }

    #[tokio::test]
    async fn an_answer_whose_producer_panics_breaks_off() {
        let answer = respond(output(), |mut out| async move {
            for _ in 0..10 {
                out.buffer.extend_from_slice(b"abcdef");
                out.flush_full().await?;
            }
            panic!("a producer's mistake");
        });
        let body = answer.await.unwrap().into_body();
        assert!(body.collect().await.is_err(), "a part of an answer passed for the whole");
    }

    #[tokio::test]
    async fn a_producer_ends_when_its_client_goes_away() {
        let (ended, end) = tokio::sync::oneshot::channel();
        let answer = respond(output(), |mut out| async move {
            let failure = loop {
                out.buffer.extend_from_slice(b"abcdef");
                if let Err(failure) = out.flush_full().await {
                    break failure;
                }
            };
            ended.send(()).ok();
            Err(failure)
        });
        drop(answer.await.unwrap());
        assert!(end.await.is_ok());
    }
}
