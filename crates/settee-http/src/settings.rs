//! A server's settings: its options at the start, and the configuration set over HTTP.

mod config_file;
mod config_store;
mod couchdb_keys;
mod derived;
mod options;
mod trusted_proxies;

pub use self::config_file::CONFIG_FILE;
pub(crate) use self::config_file::Sections;
pub(crate) use self::config_store::{ConfigStore, Facts};
pub use self::config_store::{Configured, read_configured};
pub(crate) use self::derived::{Derived, Maintenance};
pub use self::options::ServerOptions;
pub use self::trusted_proxies::TrustedProxies;
