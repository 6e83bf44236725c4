//! Goal: the server answers like CouchDB 3.5.0, for valid and invalid input.
//! Method: start it in process on a free port with a temporary directory, send HTTP by hand over a socket,
//! and compare statuses, headers and bodies.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests parse as they like")]

mod all_docs;
mod attachments;
mod bad_input;
mod bulk;
mod changes;
mod client;
mod config;
mod copy;
mod cors;
mod damage;
mod databases;
mod db_updates;
mod design;
mod documents;
mod endpoints;
mod faults;
mod flood;
mod functions;
mod fuzz;
mod large;
mod limits;
mod local;
mod mango;
mod methods;
mod metrics;
mod namespaces;
mod node;
mod partitions;
mod protocol;
mod purge;
mod replaced;
mod revisions;
mod server;
mod session;
mod spool;
mod views;
