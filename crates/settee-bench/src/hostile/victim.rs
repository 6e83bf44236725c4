//! The server that is attacked.

use settee_client::Server;

/// The database of the probe's documents, which attacks also use.
pub(super) const DATABASE: &str = "hostile";

/// The server that is attacked.
#[derive(Debug, Clone)]
pub struct Victim {
    /// The server, without authentication.
    pub anonymous: Server,
    /// The server, with the administrator's authentication.
    pub admin: Server,
    /// The server's process. None: its memory isn't measured.
    pub pid: Option<u32>,
}
