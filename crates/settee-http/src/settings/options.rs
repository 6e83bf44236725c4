//! The options that a server starts with.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use settee_view::ViewsOptions;

use super::trusted_proxies::TrustedProxies;
use crate::auth::Admin;
use crate::limits::Limits;

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// The administrator. Default: none; then every caller has administrator rights, and only loopback is
    /// served.
    pub admin: Option<Admin>,
    /// The server's identity in `GET /`: 32 hex digits, kept across restarts. Default: empty, which generates
    /// one.
    pub uuid: String,
    /// Limits of requests, connections and memory.
    pub limits: Limits,
    /// Options of the indexes of views.
    pub views: ViewsOptions,
    /// Proxies to whose connections `connections_per_address_max` doesn't apply.
    pub trusted_proxies: TrustedProxies,
    /// The file that stores the configuration set over HTTP: [`CONFIG_FILE`](crate::CONFIG_FILE) in the data
    /// directory. None: that configuration is kept in memory only.
    pub config_file: Option<PathBuf>,
    /// Whether each answered request is logged as an event with the target
    /// [`ACCESS_TARGET`](crate::ACCESS_TARGET).
    pub access_log: bool,
    /// Number of lines dropped from the process's own log, reported in the metrics.
    pub dropped_log_lines: Arc<AtomicU64>,
}
