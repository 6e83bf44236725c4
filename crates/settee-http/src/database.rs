//! Databases: requests for one as a whole or for many documents of it, and lists of databases.

pub(crate) mod all_docs;
pub(crate) mod dbs_info;
mod handler;
pub(crate) mod info;
pub(crate) mod maintenance;
pub(crate) mod names;
pub(crate) mod partition;
pub(crate) mod purge;
pub(crate) mod shards;

pub(crate) use self::handler::{create, delete, handle};
