//! The documents that a list is of.

use crate::json;

/// The documents that a list is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Design,
    /// Those of one partition.
    Partition(String),
    Local,
}

/// Prefix of the ids of design documents.
const DESIGN: &str = "_design/";
/// Prefix of the ids of local documents.
pub(super) const LOCAL: &str = "_local/";
/// Prefixes of the names of local documents that CouchDB writes for itself.
pub(super) const SYSTEM_LOCALS: [&str; 2] = ["shard-sync-", "purge-"];

impl Scope {
    /// The prefix of the scope's ids.
    pub(super) fn prefix(&self) -> String {
        match self {
            Scope::All => String::new(),
            Scope::Design => DESIGN.to_owned(),
            Scope::Partition(partition) => settee_doc::partition_prefix(partition),
            Scope::Local => LOCAL.to_owned(),
        }
    }

    /// Whether the list may have this key. As in CouchDB, a partition's list takes any key.
    pub(super) fn takes_key(&self, key: &str) -> bool {
        let begins = |with: &str| json::string(key).is_some_and(|id| id.starts_with(with));
        match self {
            Scope::All | Scope::Partition(_) => true,
            Scope::Design => begins(DESIGN),
            Scope::Local => begins(LOCAL),
        }
    }
}
