//! CouchDB's HTTP API over `settee-doc`.
//!
//! Each connection is a task on hyper. A request is authenticated, routed by the first segments of its path,
//! and answered from one buffer. A response larger than a chunk is streamed by its own task through a bounded
//! channel, so that a slow client delays only its own response.
//!
//! Invariants:
//! 1. Status codes, error names and reasons are those of CouchDB 3.5.0; a feature that isn't implemented yet
//!    answers 501.
//! 2. A failed request has stored nothing, unless its response reports the outcome of each document.
//!    Exception: a `_bulk_docs` that fails half-way because of the disk or the database may have stored the
//!    documents before the failure.
//! 3. Without an administrator the server listens on loopback only, and accepts only requests whose `Host` is
//!    a loopback name.
//! 4. Every wait for a client has a limit named in [`Limits`].
//!
//! This crate knows nothing of file formats.

#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests parse as they like")
)]

mod access;
mod admission;
mod all_docs;
mod attachment;
mod auth;
mod backup;
mod body;
mod bulk;
mod bulk_get;
mod changes;
mod cluster;
mod compress;
mod config_store;
mod connection;
mod connections;
mod copy;
mod cors;
mod database;
mod db_updates;
mod dbs_info;
mod document;
mod encoding;
mod endpoint;
mod error;
mod form;
mod framing;
#[cfg(test)]
mod fuzz;
mod json;
mod limits;
mod local;
mod logged;
mod metrics;
mod multipart;
mod node;
mod open_revs;
mod partition;
mod purge;
mod query;
mod related;
mod response;
mod response_memory;
mod response_writer;
mod revision_arg;
mod revisions;
mod root;
mod router;
mod server;
mod session;
mod shards;
mod sign_in;
mod socket;
mod spooled;
mod stats;
mod tasks;
mod uuids;

pub use access::ACCESS_TARGET;
pub use auth::Admin;
pub use backup::BACKED_UP_FILES;
pub use config_store::{CONFIG_FILE, Configured, read_configured};
pub use connections::TrustedProxies;
pub use limits::Limits;
pub use server::{ServeError, ServerOptions, check_listener, new_uuid, serve};

/// The version of CouchDB whose API this server implements, as reported by `GET /`.
pub const COUCHDB_VERSION: &str = "3.5.0";
