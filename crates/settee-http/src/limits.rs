//! Every limit of the server by its name.

/// Limits of a server. Times are milliseconds unless the name says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections served at once. Past it the one is closed that has been without a request under
    /// way for longest; where all have one, further ones wait.
    pub max_connections: usize,
    /// Connections of one address, or of one IPv6 network of 64 bits, trusted proxies excepted. Past
    /// it one of its own is closed likewise, or the new one where all have a request under way.
    pub max_connections_per_address: usize,
    /// Requests that may be at work at once, from the end of their heads to the head of their
    /// answers: what streams, a feed above all, is held by the limits on connections. Past it: 503.
    pub max_requests_in_flight: usize,
    /// Requests that a connection may have under way at once where it speaks HTTP/2, streams that
    /// are still being sent included. Past it the client has to wait.
    pub max_streams: u32,
    /// Bytes of a request's head: its first line and headers. Past it: 431.
    pub max_head_bytes: usize,
    /// Headers of a request. Past it: 431.
    pub max_headers: usize,
    /// Bytes of a request's body. Past it: 413.
    pub max_request_bytes: u64,
    /// Bytes of all requests' bodies together that are held at once, from 16 KiB each: smaller
    /// ones don't count. A body takes them as it arrives. Past it a request waits for its turn,
    /// `body_timeout_ms` at most: 503.
    pub request_bytes_in_flight_max: u64,
    /// Bytes of all spool files together. The body of a `_bulk_docs` that exceeds 32 MiB, or half of
    /// `request_bytes_in_flight_max`, goes to such a file. Past it: 413, or 503 where other spools take the space. 0: none is spooled.
    pub spool_bytes_max: u64,
    /// Bytes of all answers together that are held until their clients take them. Past it the connection
    /// that holds the most is closed; one that holds a quarter of it gets 503.
    pub answer_bytes_in_flight_max: u64,
    /// Bytes of a document's JSON text. Past it: 413.
    pub max_document_size: usize,
    /// Bytes of an attachment. Past it: 413.
    pub max_attachment_size: u64,
    /// Bytes of a refused body that are read and thrown away, so that the client, which may
    /// still be sending, gets its answer. Past it the connection is closed.
    pub max_discard_bytes: u64,
    /// How long a connection may take to send a request's head, idle time before it included.
    pub head_timeout_ms: u64,
    /// How long a client may pause within a request's body, and how long the whole body of a
    /// request may take that isn't authenticated. Past it: 408.
    pub body_timeout_ms: u64,
    /// Bytes of a request's body that a client must send in a second, on average from
    /// `body_timeout_ms` on. Past it: 408. 0 is no limit.
    pub body_bytes_per_second_min: u64,
    /// Whether answers are compressed for clients that take gzip.
    pub compress_answers: bool,
    /// Names that `POST /_dbs_info` takes.
    pub max_dbs_info_names: usize,
    /// Identifiers that `_uuids` gives at once.
    pub max_uuids: u64,
    /// Ids that a feed with `filter=_doc_ids` takes.
    pub max_feed_doc_ids: usize,
    /// Bytes from which on an answer is streamed, and the size of its chunks.
    pub stream_chunk_bytes: usize,
    /// Chunks of one streamed answer that wait for a slow client.
    pub stream_chunks: usize,
    /// How long a client may take nothing of an answer that it is being sent. Past it the
    /// connection is closed. Feeds without an end are left alone.
    pub send_timeout_ms: u64,
    /// The longest silence in a changes feed: the greatest `heartbeat` and `timeout`, and the
    /// default of both.
    pub changes_timeout_ms: u64,
    /// Seconds for which a session's cookie is good; it is renewed as it is used.
    pub session_timeout_s: u64,
    /// How long a stopping server waits for the requests in flight.
    pub stop_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_connections: 4096,
            max_connections_per_address: 1024,
            max_requests_in_flight: 4096,
            max_streams: 100,
            max_head_bytes: 64 << 10,
            max_headers: 100,
            max_request_bytes: 4 << 30,
            request_bytes_in_flight_max: 1 << 30,
            spool_bytes_max: 4 << 30,
            answer_bytes_in_flight_max: 256 << 20,
            max_document_size: 8_000_000,
            max_attachment_size: 1 << 30,
            max_discard_bytes: 1 << 30,
            head_timeout_ms: 60_000,
            body_timeout_ms: 30_000,
            body_bytes_per_second_min: 1024,
            compress_answers: false,
            max_dbs_info_names: 100,
            max_uuids: 1000,
            max_feed_doc_ids: 100_000,
            stream_chunk_bytes: 64 << 10,
            stream_chunks: 4,
            send_timeout_ms: 60_000,
            changes_timeout_ms: 60_000,
            session_timeout_s: 600,
            stop_timeout_ms: 8_000,
        }
    }
}
