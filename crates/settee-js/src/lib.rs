//! CouchDB's design functions in sandboxed JavaScript contexts.
