//! Databases' names: CouchDB's rules for them, and ranges of them.

use std::ops::Bound;

use crate::{Error, ErrorKind, Result};

/// Longest database name in bytes; CouchDB's limit for names that become file names.
pub const NAME_SIZE_MAX: usize = 238;

/// CouchDB's own databases.
const SYSTEM_DATABASES: [&str; 3] = ["_users", "_replicator", "_global_changes"];

/// A range of databases' names, in the order of their bytes. The default is all names.
#[derive(Debug, Clone)]
pub struct NameRange {
    /// Lower bound of the names.
    pub start: Bound<String>,
    /// Upper bound of the names.
    pub end: Bound<String>,
    /// Whether the order is descending.
    pub descending: bool,
    /// Number of names skipped first.
    pub skip: usize,
    /// Largest number of names.
    pub limit: usize,
}

impl Default for NameRange {
    fn default() -> NameRange {
        let (start, end) = (Bound::Unbounded, Bound::Unbounded);
        NameRange { start, end, descending: false, skip: 0, limit: usize::MAX }
    }
}

/// Whether a name, or its part behind the last slash, is that of a CouchDB system database.
pub(super) fn is_system_database(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    SYSTEM_DATABASES.contains(&name) || ["_users", "_replicator"].contains(&last)
}

/// Checks a database's name against CouchDB's rule: a lowercase letter, then lowercase letters, digits and
/// `_$()+/-`; or the name of a CouchDB system database.
///
/// # Errors
/// `IllegalDatabaseName`.
pub fn check_database_name(name: &str) -> Result<()> {
    let system = SYSTEM_DATABASES.contains(&name);
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_$()+/-".contains(&byte);
    let ordinary = name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(legal);
    if system || (ordinary && name.len() <= NAME_SIZE_MAX) {
        return Ok(());
    }
    let reason = format!(
        "Name: '{name}'. Only lowercase characters (a-z), digits (0-9), and any of the characters \
         _, $, (, ), +, -, and / are allowed. Must begin with a letter."
    );
    Err(Error::new(ErrorKind::IllegalDatabaseName, reason))
}
