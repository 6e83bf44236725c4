//! CouchDB's HTTP API over `settee-doc`.
//!
//! A connection is a task on hyper; a request is routed by its path's first segments, checked
//! for who asks, and answered from one buffer. What outgrows a chunk is streamed by a task of
//! its own through a bounded channel, so that a slow client holds back its own answer alone.
//!
//! Invariants:
//! 1. Status, error name and wording are CouchDB 3.5.0's; what isn't there yet answers 501.
//! 2. A request that fails has stored nothing, but where its answer says so row by row; a `_bulk_docs` that the
//!    disk or the database refuses half-way may have stored the documents before.
//! 3. Without an administrator only loopback is served, and only what names it as its host.
//! 4. Every wait on a client has a limit named in [`Limits`].
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
mod named;
mod node;
mod open_revs;
mod partition;
mod purge;
mod query;
mod related;
mod reply;
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
mod stream;
mod tasks;
mod unread;
mod uuids;

pub use access::ACCESS_TARGET;
pub use auth::Admin;
pub use backup::BACKED_UP_FILES;
pub use config_store::{CONFIG_FILE, Configured, read_configured};
pub use connections::TrustedProxies;
pub use limits::Limits;
pub use server::{ServeError, ServerOptions, check_listener, new_uuid, serve};

/// The version of CouchDB whose API is spoken, as `GET /` tells it.
pub const COUCHDB_VERSION: &str = "3.5.0";
