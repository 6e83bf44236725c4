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
//!
//! Modules in layers, each importing only those above it in this list: vocabulary (`error` to `uuids`); bodies,
//! responses, authentication, JavaScript contexts, figures and settings; `context`, the state that handlers share;
//! the handlers, by topic; `server`, which routes requests to them.

#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests parse as they like")
)]

mod blocking;
mod error;
mod identity;
mod json;
mod limits;
mod logged;
mod query;
mod uuids;
mod view;

mod auth;
mod body;
mod javascript;
mod metrics;
mod response;
mod settings;

mod context;

mod admin;
mod changes;
mod database;
mod document;
mod functions;
mod mango;

mod server;

#[cfg(test)]
#[path = "../tests/fuzz/mod.rs"]
mod fuzz;

pub use admin::backup::BACKED_UP_FILES;
pub use auth::Admin;
pub use identity::COUCHDB_VERSION;
pub use limits::Limits;
pub use server::{ACCESS_TARGET, ServeError, check_listener, serve};
pub use settings::{CONFIG_FILE, Configured, ServerOptions, TrustedProxies, read_configured};
pub use uuids::new_uuid;
