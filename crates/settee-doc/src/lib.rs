//! Documents, revision trees and changes over an ordered key-value store.
//!
//! - [`Databases`] is the server's set of databases; [`Database`] is one of them.
//! - [`Edit`] is a document on its way in: parsed, checked and hashed in its caller's task.
//! - [`View`] is a snapshot; everything that is read comes from one. What a view shows is
//!   persisted.
//!
//! This crate knows nothing of HTTP and nothing of file formats.

mod api;
pub use api::*;
