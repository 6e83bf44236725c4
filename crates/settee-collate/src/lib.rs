//! The collation order of CouchDB's views: JSON values as keys that `memcmp` orders.
