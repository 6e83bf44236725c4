//! An HTTP/1.1 client for servers that speak CouchDB's API, shared by `settee load`, `dump`, `backup` and the
//! benchmarks.
//!
//! - [`Server`] is an address with a user, parsed from a URL; it renders requests.
//! - [`Connection`] runs one exchange at a time, in the caller's task, and reuses its buffers. It is no library's
//!   client because a benchmark's clients share the processors with the server that they measure: here an
//!   exchange needs no second task, no map of headers, and no allocation. Heads and chunk sizes are parsed by
//!   `httparse`, as in hyper.
//! - [`Couch`] is a client with one connection, and the part of CouchDB's API that the commands need.

mod connection;
mod couch;
mod error;
mod framing;
mod server;

pub use connection::{Answer, Connection};
pub use couch::{BulkRow, Couch, CouchError, Reply, parse};
pub use error::{HttpError, RESPONSE_BYTES_MAX};
pub use framing::HEAD_BYTES_MAX;
pub use server::{JSON, Request, Server, encode_segment};
