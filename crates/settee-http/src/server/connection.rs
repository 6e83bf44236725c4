//! Serves one connection: detects HTTP/1.1 or HTTP/2, and limits how long its client may stall.
//!
//! HTTP/1.1 answers one request after the other. HTTP/2 without encryption begins with a preface that no
//! HTTP/1 request begins with; each of its requests is a task of the connection, at most `STREAMS_MAX` at
//! once.
//!
//! A connection without a request in flight may be closed in favor of a new one
//! ([`Connections`](super::connections::Connections)).
//!
//! Invariants, for both protocols:
//! 1. A stalled client holds resources for a limited time: before its request (`head_timeout_ms`), within the
//!    request (`body_timeout_ms`) and within the response (`send_timeout_ms`). A feed that has nothing to send
//!    doesn't stall.
//! 2. A connection's tasks end with it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::connections::{Activity, ConnectionSlot};
use super::http1::serve_http1;
use super::http2::serve_http2;
use crate::context::{Shared, stopped};

/// The beginning of the client preface of HTTP/2.
///
/// Source: RFC 9113, section 3.4.
const PREFACE: &[u8; 14] = b"PRI * HTTP/2.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Serves a connection until it ends or its slot is needed for another.
pub(crate) async fn serve(shared: Arc<Shared>, stream: TcpStream, slot: ConnectionSlot) {
    let metrics = shared.current().metrics.clone();
    let _open = metrics.count_connection();
    tokio::select! {
        () = serve_stream(shared, stream, slot.activity()) => {}
        () = slot.activity().wait_for_close() => {
            metrics.count_idle_closed();
            tracing::debug!("an idle connection was closed in favor of a waiting one");
        }
    }
}

async fn serve_stream(shared: Arc<Shared>, stream: TcpStream, activity: &Arc<Activity>) {
    let server = shared.current();
    // Responses are written in whole buffers, so Nagle's algorithm would only delay them.
    stream.set_nodelay(true).ok();
    let address = stream.peer_addr().ok();
    let head_timeout = Duration::from_millis(server.limits.head_timeout_ms);
    let mut prefix = Vec::new();
    let mut stopping = server.stopping.clone();
    let protocol = tokio::select! {
        protocol = tokio::time::timeout(head_timeout, detect_protocol(&stream, &mut prefix)) => protocol,
        () = stopped(&mut stopping) => return,
    };
    match protocol {
        Ok(Ok(protocol)) => {
            let connection_memory = shared.response_memory.connection();
            let served = async {
                match protocol {
                    Protocol::Http1 => {
                        serve_http1(&shared, &connection_memory, &server, activity, stream, address, prefix)
                            .await
                    }
                    // Boxed, because its future is far larger than that of HTTP/1, and idle connections
                    // should be small.
                    Protocol::Http2 => {
                        Box::pin(serve_http2(
                            &shared,
                            &connection_memory,
                            &server,
                            activity,
                            stream,
                            address,
                            prefix,
                        ))
                        .await
                    }
                }
            };
            tokio::select! {
                () = served => {}
                () = connection_memory.closed() => {}
            }
        }
        Ok(Err(error)) => tracing::debug!(%error, "a connection broke off"),
        Err(_) => tracing::debug!("a connection without a request timed out"),
    }
}

/// Detects the protocol by peeking at the first bytes. `prefix` receives the bytes that were consumed.
async fn detect_protocol(stream: &TcpStream, prefix: &mut Vec<u8>) -> io::Result<Protocol> {
    loop {
        let rest = &PREFACE[prefix.len()..];
        let mut seen = [0; PREFACE.len()];
        let count = stream.peek(&mut seen[..rest.len()]).await?;
        if count == 0 || !rest.starts_with(&seen[..count]) {
            return Ok(Protocol::Http1);
        }
        if count == rest.len() {
            return Ok(Protocol::Http2);
        }
        // Consumed, so that the next peek waits for more.
        match stream.try_read(&mut seen[..count]) {
            Ok(taken) => prefix.extend_from_slice(&seen[..taken]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use settee_doc::{Databases, DatabasesOptions};
    use settee_io::{Env, ThreadEngine, ThreadOptions};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn detected(pieces: &[&[u8]]) -> (Protocol, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut prefix = Vec::new();
        let send = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (protocol, ()) = tokio::join!(detect_protocol(&stream, &mut prefix), send);
        (protocol.unwrap(), prefix)
    }

    #[tokio::test]
    async fn http2_is_detected_by_its_preface_for_any_split() {
        assert_eq!(detected(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]).await, (Protocol::Http2, Vec::new()));
        let (protocol, prefix) = detected(&[b"P", b"RI * HT", b"TP/2.0\r\n"]).await;
        assert_eq!((protocol, &prefix[..]), (Protocol::Http2, &b"PRI * HT"[..]));
        assert_eq!(detected(&[b"GET / HTTP/1.1\r\n\r\n"]).await.0, Protocol::Http1);
        let (protocol, prefix) = detected(&[b"P", b"UT /db HTTP/1.1\r\n"]).await;
        assert_eq!((protocol, &prefix[..]), (Protocol::Http1, &b"P"[..]));
    }

    /// A request that creates a database `name`, in HTTP/1.1 or HTTP/2.
    ///
    /// Source: RFC 9113, sections 3.4 and 6.2; RFC 7541, section 6.
    fn creation(name: u8, protocol: Protocol) -> Vec<u8> {
        match protocol {
            Protocol::Http1 => {
                format!("PUT /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", name as char).into_bytes()
            }
            Protocol::Http2 => {
                let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
                let headers = b"\0\0\x15\x01\x05\0\0\0\x01\x02\x03PUT\x86\x04\x02/";
                [&preface[..], &headers[..], &[name], b"\x01\x09localhost"].concat()
            }
        }
    }

    #[tokio::test]
    async fn a_request_on_a_connection_that_closes_does_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Arc::new(ThreadEngine::new(ThreadOptions::default()));
        let env = Env::with_engine(tokio::runtime::Handle::current(), engine);
        let databases =
            Databases::open_with(env, directory.path(), DatabasesOptions::default()).await.unwrap();
        let (_stop, stopping) = tokio::sync::watch::channel(false);
        let options = crate::ServerOptions::default();
        let shared = Arc::new(Shared::new(databases.clone(), options, None, stopping));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for (name, protocol, is_closing) in [
            (b'a', Protocol::Http1, false),
            (b'b', Protocol::Http2, false),
            (b'c', Protocol::Http1, true),
            (b'd', Protocol::Http2, true),
        ] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            client.write_all(&creation(name, protocol)).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let activity = Arc::new(Activity::default());
            if is_closing {
                assert!(activity.close());
            }
            let serving = tokio::spawn({
                let (shared, activity) = (shared.clone(), activity.clone());
                async move { serve_stream(shared, stream, &activity).await }
            });
            tokio::time::sleep(Duration::from_millis(300)).await;
            serving.abort();
        }
        assert_eq!(databases.names(), ["a", "b"]);
        databases.close().await.unwrap();
    }
}
