//! Writes responses of any length: into one buffer, or as a stream of chunks if they outgrow it.
//!
//! A producer starts in the request's own task. If it ends within its first chunk, the response is one
//! buffer, and an error of the producer is an ordinary error response. Otherwise the producer continues in a
//! task of its own, at most `stream_chunks` chunks ahead of the client, and ends when the client closes the
//! connection.
//!
//! Invariant: a response ends normally only if its producer succeeded. If the producer fails, panics or is
//! dropped, the connection is aborted, so that a partial response never looks complete.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use super::body::{Body, HandlerResult, StreamItem};
use super::buffered;
use super::memory::ConnectionMemory;
use crate::error::ApiError;
use crate::limits::Limits;
use crate::logged;

/// The writer that a producer appends its response to.
pub(crate) struct ResponseWriter {
    /// Bytes that were not sent yet.
    pub(crate) buffer: Vec<u8>,
    chunk_bytes: usize,
    sender: mpsc::Sender<StreamItem>,
    connection_memory: Arc<ConnectionMemory>,
}

/// The server's limits for a response, and the connection's memory accounting.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) connection_memory: &'a Arc<ConnectionMemory>,
}

impl ResponseWriter {
    /// Sends the buffer if it has grown to a chunk. Waits while the client is `stream_chunks` chunks behind.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(crate) async fn flush_full(&mut self) -> Result<(), ApiError> {
        if self.buffer.len() < self.chunk_bytes { Ok(()) } else { self.flush().await }
    }

    /// Sends the buffer regardless of its size.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(crate) async fn flush(&mut self) -> Result<(), ApiError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = take_chunk(&mut self.buffer, self.chunk_bytes);
        self.queue(chunk).await?;
        self.caught_up().await
    }

    /// Sends the buffer if it has grown to a chunk. Returns `false` if the client took too little for `time`: the
    /// buffer may then be unsent, and [`ResponseWriter::caught_up`] waits for the client.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(crate) async fn flush_full_within(&mut self, time: Duration) -> Result<bool, ApiError> {
        if self.buffer.len() < self.chunk_bytes { Ok(true) } else { self.flush_within(time).await }
    }

    /// As [`ResponseWriter::flush_full_within`], regardless of the buffer's size.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(crate) async fn flush_within(&mut self, time: Duration) -> Result<bool, ApiError> {
        if self.buffer.is_empty() {
            return Ok(true);
        }
        if self.connection_memory.is_closing() {
            return Err(ApiError::gone());
        }
        let deadline = tokio::time::Instant::now() + time;
        let Ok(permit) = tokio::time::timeout_at(deadline, self.sender.reserve()).await else {
            return Ok(false);
        };
        let permit = permit.map_err(|_| ApiError::gone())?;
        let chunk = take_chunk(&mut self.buffer, self.chunk_bytes);
        permit.send(StreamItem::Chunk(self.connection_memory.track(chunk)));
        match tokio::time::timeout_at(deadline, self.caught_up()).await {
            Ok(taken) => taken.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Sends the buffer, then `bytes` without copying them.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(crate) async fn send(&mut self, bytes: Bytes) -> Result<(), ApiError> {
        self.flush().await?;
        match bytes.is_empty() {
            true => Ok(()),
            false => {
                self.queue(bytes).await?;
                self.caught_up().await
            }
        }
    }

    async fn queue(&self, bytes: Bytes) -> Result<(), ApiError> {
        if self.connection_memory.is_closing() {
            return Err(ApiError::gone());
        }
        let chunk = StreamItem::Chunk(self.connection_memory.track(bytes));
        self.sender.send(chunk).await.map_err(|_| ApiError::gone())
    }

    /// Returns when the next chunk may be produced: at once, or after all chunks were taken if the connection
    /// holds many bytes. Dropping the future has no effect.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(crate) async fn caught_up(&self) -> Result<(), ApiError> {
        tokio::select! {
            biased;
            () = self.connection_memory.below_stream_limit() => Ok(()),
            taken = self.sender.reserve_many(self.sender.max_capacity()) => {
                taken.map(drop).map_err(|_| ApiError::gone())
            }
        }
    }

    /// Sends the rest and marks the response as complete.
    async fn end(mut self) -> Result<(), ApiError> {
        self.flush().await?;
        self.sender.send(StreamItem::End).await.map_err(|_| ApiError::gone())
    }

    /// Completes when the client has closed the connection.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Looks whether the client is still there.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(crate) fn check_open(&self) -> Result<(), ApiError> {
        if self.sender.is_closed() { Err(ApiError::gone()) } else { Ok(()) }
    }
}

/// Takes the buffer's content, and leaves an empty buffer of a similar size.
fn take_chunk(buffer: &mut Vec<u8>, chunk_bytes: usize) -> Bytes {
    let next = Vec::with_capacity(buffer.len().min(2 * chunk_bytes));
    Bytes::from(std::mem::replace(buffer, next))
}

/// Answers 200 with the bytes that `produce` writes. An error of the producer before the first chunk is the
/// response; a later one aborts the connection.
pub(crate) async fn respond<P, F>(output: Output<'_>, produce: P) -> HandlerResult
where
    P: FnOnce(ResponseWriter) -> F,
    F: Future<Output = Result<ResponseWriter, ApiError>> + Send + 'static,
{
    let Output { limits, connection_memory } = output;
    let (sender, mut chunks) = mpsc::channel(limits.stream_chunks.max(1));
    let client = sender.clone();
    let (chunk_bytes, connection_memory) = (limits.stream_chunk_bytes, connection_memory.clone());
    let out = ResponseWriter { buffer: Vec::with_capacity(1024), chunk_bytes, sender, connection_memory };
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
                error = failure.error.as_ref(),
                reason = logged::text(&failure.reason),
                "a response broke off"
            );
        }
    });
    Ok(buffered::with_body(StatusCode::OK, Body::Chunks { first, rest: chunks, gzip: None }))
}

/// The response of a producer that ended before its first chunk was taken.
fn whole(out: ResponseWriter, chunks: &mut mpsc::Receiver<StreamItem>) -> Response<Body> {
    let mut text = Vec::new();
    while let Ok(StreamItem::Chunk(chunk)) = chunks.try_recv() {
        text.extend_from_slice(&chunk);
    }
    if text.is_empty() {
        return buffered::json(StatusCode::OK, out.buffer);
    }
    text.extend_from_slice(&out.buffer);
    buffered::json(StatusCode::OK, text)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use http_body_util::BodyExt;

    use super::*;
    use crate::response::memory::ResponseMemory;

    static LIMITS: LazyLock<Limits> =
        LazyLock::new(|| Limits { stream_chunk_bytes: 4, stream_chunks: 1, ..Limits::default() });

    static CONNECTION_MEMORY: LazyLock<Arc<ConnectionMemory>> =
        LazyLock::new(|| ResponseMemory::new(&LIMITS).connection());

    fn output() -> Output<'static> {
        Output { limits: &LIMITS, connection_memory: &CONNECTION_MEMORY }
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

    #[tokio::test(start_paused = true)]
    async fn a_flush_that_waits_too_long_returns_and_loses_nothing() {
        let time = Duration::from_secs(1);
        let (sender, mut taken) = mpsc::channel(1);
        let connection_memory = CONNECTION_MEMORY.clone();
        let mut out = ResponseWriter { buffer: Vec::new(), chunk_bytes: 4, sender, connection_memory };
        assert!(out.flush_within(time).await.unwrap(), "nothing is to be sent");
        out.buffer.extend_from_slice(b"abc");
        assert!(out.flush_full_within(time).await.unwrap(), "the chunk isn't full");
        out.buffer.push(b'd');
        assert!(out.flush_full_within(time).await.unwrap(), "there is space for a chunk");
        out.buffer.extend_from_slice(b"efgh");
        assert!(!out.flush_full_within(time).await.unwrap(), "the client has taken nothing");
        assert_eq!(out.buffer, b"efgh");
        let chunk = |item| match item {
            Some(StreamItem::Chunk(bytes)) => bytes.to_vec(),
            _ => panic!("no chunk"),
        };
        assert_eq!(chunk(taken.recv().await), b"abcd");
        assert!(out.flush_full_within(time).await.unwrap());
        assert_eq!(chunk(taken.recv().await), b"efgh");
        drop(taken);
        out.buffer.extend_from_slice(b"ijkl");
        assert!(out.flush_within(time).await.is_err(), "the client is gone");
    }

    #[tokio::test]
    async fn an_error_before_the_first_chunk_is_an_answer_and_a_later_one_breaks_off() {
        let early = respond(output(), |_out| async move { Err(ApiError::missing()) }).await;
        assert_eq!(early.err().map(|failure| failure.status.as_u16()), Some(404));

        let late = respond(output(), |mut out| async move {
            for _ in 0..10 {
                out.buffer.extend_from_slice(b"abcdef");
                out.flush_full().await?;
            }
            Err(ApiError::missing())
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
