//! The limits of the server.

/// Limits of a server. Times are in milliseconds unless the name has another unit.
///
/// Most are settings. The defaults of `head_bytes_max`, `headers_max`, `discard_bytes_max`,
/// `body_bytes_per_second_min`, `stream_chunk_bytes` and `stream_chunks` are those of every server, since nobody
/// who runs one has a reason to change them; tests and embedders do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open connections. Past it, those that have been idle longest are closed, at most 64
    /// together; if none is idle, new ones wait. Default: 4096.
    pub connections_max: usize,
    /// Maximum number of open connections of one address, or of one IPv6 network of 64 bits, except for
    /// trusted proxies. Past it, the address's connection that has been idle longest is closed; if none is
    /// idle, the new one is closed. Default: 1024.
    pub connections_per_address_max: usize,
    /// Maximum number of requests in progress, from the end of their heads to the head of their responses.
    /// Past it: 503. Streamed responses, such as feeds, are bounded by the limits on connections. Default:
    /// 4096.
    pub requests_in_flight_max: usize,
    /// Bytes of a request's head, the request line and the headers. Past it: 431. Default: 64 KiB.
    pub head_bytes_max: usize,
    /// Number of headers of a request. Past it: 431. Default: 100.
    pub headers_max: usize,
    /// Bytes of a request's body. Past it: 413. Default: 4 GiB.
    pub request_bytes_max: u64,
    /// Bytes of all request bodies in memory. Bodies up to 16 KiB don't count; a larger one counts by the
    /// bytes that have arrived. Past it a request waits up to `body_timeout_ms` for memory, and then fails
    /// with 503. Default: 1 GiB.
    pub request_bytes_in_flight_max: u64,
    /// Bytes of all spool files. The body of a `_bulk_docs` that exceeds 32 MiB, or half of
    /// `request_bytes_in_flight_max`, goes to such a file, and so does one of very many documents. Past it: 413,
    /// or 503 if other spool files take the space. 0 disables spooling. Default: 4 GiB.
    pub spool_bytes_max: u64,
    /// Bytes of all responses that clients haven't read yet. Past it the connection that holds the most is
    /// closed; a connection that holds a quarter of it gets 503. Default: 256 MiB.
    pub response_bytes_in_flight_max: u64,
    /// Bytes of a document's JSON text. Past it: 413. Default: 8,000,000.
    pub document_bytes_max: usize,
    /// Bytes of an attachment. Past it: 413. Default: 1 GiB.
    pub attachment_bytes_max: u64,
    /// Bytes of a refused body that are read and dropped, so that a client that is still sending gets the
    /// response. Past it the connection is closed. Default: 1 GiB.
    pub discard_bytes_max: u64,
    /// How long a connection may take to send a request's head, including idle time before it. Default: 60 s.
    pub head_timeout_ms: u64,
    /// Longest pause within a request's body, and longest duration of the whole body of an unauthenticated
    /// request. Past it: 408. Default: 30 s.
    pub body_timeout_ms: u64,
    /// Average bytes per second at which a client must send a request's body after the first
    /// `body_timeout_ms`. Below it: 408. 0 disables the limit. Default: 1024.
    pub body_bytes_per_second_min: u64,
    /// Whether responses are compressed for clients that accept gzip. Default: false.
    pub compress_responses: bool,
    /// Maximum number of names in a `POST /_dbs_info`. Default: 100.
    pub dbs_info_names_max: usize,
    /// Maximum number of identifiers in a response of `_uuids`. Default: 1000.
    pub uuids_max: u64,
    /// Bytes of a response from which on it is streamed, and the size of its chunks. Default: 64 KiB.
    pub stream_chunk_bytes: usize,
    /// Number of chunks of a streamed response that are buffered for a slow client. Default: 4.
    pub stream_chunks: usize,
    /// How long a client may read nothing of a response. Past it the connection is closed.
    /// Default: 60 s.
    pub send_timeout_ms: u64,
    /// The largest `heartbeat` and `timeout` of a feed, and the default of both. Default: 60 s.
    pub changes_timeout_ms: u64,
    /// Lifetime of a session cookie in seconds. A cookie in use is renewed. Default: 600.
    pub session_timeout_s: u64,
    /// How long a server that shuts down waits for requests in flight. Default: 8 s.
    pub stop_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 4096,
            connections_per_address_max: 1024,
            requests_in_flight_max: 4096,
            head_bytes_max: 64 << 10,
            headers_max: 100,
            request_bytes_max: 4 << 30,
            request_bytes_in_flight_max: 1 << 30,
            spool_bytes_max: 4 << 30,
            response_bytes_in_flight_max: 256 << 20,
            document_bytes_max: 8_000_000,
            attachment_bytes_max: 1 << 30,
            discard_bytes_max: 1 << 30,
            head_timeout_ms: 60_000,
            body_timeout_ms: 30_000,
            body_bytes_per_second_min: 1024,
            compress_responses: false,
            dbs_info_names_max: 100,
            uuids_max: 1000,
            stream_chunk_bytes: 64 << 10,
            stream_chunks: 4,
            send_timeout_ms: 60_000,
            changes_timeout_ms: 60_000,
            session_timeout_s: 600,
            stop_timeout_ms: 8_000,
        }
    }
}
