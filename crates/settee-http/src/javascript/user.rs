//! The user and the security object that design functions see.

use crate::json;

/// The security object of a database that has none.
pub(crate) const DEFAULT_SECURITY: &str = "{}";

/// `userCtx` without `db`. Every caller is the administrator: named, or without name where there is none.
#[derive(Debug, Clone)]
pub(crate) struct UserContext {
    name: Option<String>,
}

impl UserContext {
    pub(crate) fn new(name: Option<&str>) -> UserContext {
        UserContext { name: name.map(str::to_owned) }
    }

    /// The JSON text in a database.
    pub(crate) fn json(&self, database: &str) -> String {
        let name = self.name.as_deref().map_or_else(|| "null".to_owned(), json::quoted);
        format!("{{\"db\":{},\"name\":{name},\"roles\":[\"_admin\"]}}", json::quoted(database))
    }
}
