//! The parameters of a run.

use std::time::Duration;

use crate::http::Server;

/// The database of the probe's documents, which attacks also use.
pub(super) const DATABASE: &str = "hostile";

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server, without authentication.
    pub anonymous: Server,
    /// The server, with the administrator's authentication.
    pub admin: Server,
    /// The server's process. None: its memory isn't measured.
    pub pid: Option<u32>,
    /// Duration of each attack.
    pub time: Duration,
    /// Factor for the numbers of connections and the sizes.
    pub scale: f64,
}
