//! The effective configuration: settings merged, converted and checked.

use std::path::{Path, PathBuf};

use settee_doc::{DatabasesOptions, LogOptions, StoreLimits};
use settee_http::{Admin, Limits, TrustedProxies};
use settee_io::EngineKind;

use super::file;
use super::settings::{IoEngine, IoLimits, LimitTable, LogFormat, Settings, TableName};
use crate::logging::{LogConfig, LogLevel};
use crate::secret;

/// Largest number of threads of each kind of the I/O engine.
const IO_THREADS_MAX: usize = 1024;

/// Largest number of entries of the ring that the I/O engine accepts.
const IO_RING_ENTRIES_MAX: u32 = 4096;

/// One address may open 1/`ADDRESS_SHARE` of all connections, unless `max_connections_per_address` is set.
const ADDRESS_SHARE: usize = 4;

/// The effective configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) data_dir: PathBuf,
    pub(crate) listen: String,
    pub(crate) admin: Option<Admin>,
    /// The file that `admin` was read from, if any.
    pub(super) admin_file: Option<PathBuf>,
    pub(crate) log: LogConfig,
    pub(crate) access_log: bool,
    /// Whether the server runs without an administrator. If false and `admin` is None, the server creates
    /// one.
    pub(crate) no_admin: bool,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) io_engine: EngineKind,
    pub(crate) limits: Limits,
    /// Whether a source sets `max_connections_per_address`.
    pub(super) has_address_limit: bool,
    /// The options of the databases, including the limits of their logs and stores.
    pub(crate) databases: DatabasesOptions,
    pub(crate) io: IoLimits,
}

impl Config {
    /// Reads the settings file and merges it with `given`, the settings from flags and variables.
    ///
    /// # Errors
    /// A message for the operator, without passwords.
    pub(crate) fn resolve(given: Settings, file: Option<&Path>) -> Result<Config, String> {
        let file = file.map_or_else(|| Ok(Settings::default()), file::settings)?;
        Config::merge(given, file)
    }

    /// Merges the settings: `given` takes precedence over `file`, and both over the defaults.
    pub(super) fn merge(given: Settings, file: Settings) -> Result<Config, String> {
        // The administrator settings of the file count only if flags and variables set none of them.
        let (admin, admin_file, no_admin) = match (given.admin, given.admin_file, given.no_admin) {
            (None, None, None | Some(false)) => {
                (file.admin, file.admin_file, given.no_admin.or(file.no_admin))
            }
            given => given,
        };
        let no_admin = no_admin.unwrap_or(false);
        if no_admin && (admin.is_some() || admin_file.is_some()) {
            return Err("set an administrator or `no_admin`, not both".to_owned());
        }
        let admin = match (admin, &admin_file) {
            (Some(_), Some(_)) => return Err("set `admin` or `admin_file`, not both".to_owned()),
            (Some(text), None) => Some(Admin::parse(&text)?),
            (None, Some(path)) => {
                let admin = Admin::parse(&secret::read(path)?);
                Some(admin.map_err(|error| format!("{}: {error}", path.display()))?)
            }
            (None, None) => None,
        };
        let level = given.log_level.or(file.log_level).unwrap_or_else(|| "info".to_owned());
        let server_log = LogConfig {
            level: LogLevel::parse(&level).map_err(|error| format!("`log_level` (SETTEE_LOG): {error}"))?,
            format: given.log_format.or(file.log_format).unwrap_or(LogFormat::Text),
            file: given.log_file.or(file.log_file),
        };
        let has_address_limit = given.limits.has_address_limit() || file.limits.has_address_limit();
        let io = check_io(given.io.resolve(file.io)?)?;
        let log = given.log.resolve(file.log)?;
        let log = LogOptions { direct: given.direct_io.or(file.direct_io).unwrap_or(log.direct), ..log };
        let mut config = Config {
            data_dir: given.data_dir.or(file.data_dir).unwrap_or_else(|| "./settee-data".into()),
            listen: given.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:5984".to_owned()),
            admin,
            admin_file,
            log: server_log,
            access_log: given.access_log.or(file.access_log).unwrap_or(false),
            no_admin,
            trusted_proxies: match given.trusted_proxies.or(file.trusted_proxies) {
                Some(text) => text.parse().map_err(|error| format!("`trusted_proxies`: {error}"))?,
                None => TrustedProxies::default(),
            },
            io_engine: given.io_engine.or(file.io_engine).unwrap_or(IoEngine::Auto).into(),
            limits: check_limits(given.limits.resolve(file.limits)?)?,
            has_address_limit,
            databases: DatabasesOptions {
                log: check_log(log, io.buffer_pool_bytes_max)?,
                store: check_store(given.store.resolve(file.store)?)?,
                ..given.databases.resolve(file.databases)?
            },
            io,
        };
        config.share_connections();
        Ok(config)
    }

    /// Lowers the limit on connections of one address to a quarter of all connections, unless a source sets
    /// it.
    pub(crate) fn share_connections(&mut self) {
        let limits = &mut self.limits;
        if !self.has_address_limit {
            let share = (limits.max_connections / ADDRESS_SHARE).max(1);
            limits.max_connections_per_address = limits.max_connections_per_address.min(share);
        }
    }

    /// Returns all limits as `name=value`, separated by spaces.
    pub(crate) fn limits_text(&self) -> String {
        let groups = self.groups();
        let limits = groups.iter().flat_map(|(_, limits)| limits);
        limits.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    /// Returns all limits by their tables.
    pub(super) fn groups(&self) -> [(TableName, Vec<(&'static str, serde_json::Value)>); 5] {
        [
            ("limits", self.limits.values()),
            ("databases", self.databases.values()),
            ("store", self.databases.store.values()),
            ("log", self.databases.log.values()),
            ("io", self.io.values()),
        ]
    }
}

/// Checks the server's limits against each other and against the largest document that can be stored.
pub(super) fn check_limits(limits: Limits) -> Result<Limits, String> {
    let (document, max) = (limits.max_document_size, settee_doc::DOCUMENT_BYTES_LIMIT);
    if document > max {
        return Err(format!(
            "the limit `max_document_size` is {document}: at most {max} bytes can be stored"
        ));
    }
    for (name, value) in [
        ("request_bytes_in_flight_max", limits.request_bytes_in_flight_max),
        ("max_request_bytes", limits.max_request_bytes),
    ] {
        if value < document as u64 {
            return Err(format!(
                "the limit `{name}` is {value}: it must be at least `max_document_size`, {document}"
            ));
        }
    }
    Ok(limits)
}

/// Checks the log's limits against each other and against the size of the buffer pool.
fn check_log(log: LogOptions, buffer_pool_bytes_max: usize) -> Result<LogOptions, String> {
    log.check(buffer_pool_bytes_max).map_err(|error| format!("the limit {error}"))?;
    let (min, max) = (log.segment_bytes_min, log.segment_bytes_max);
    match min > max {
        true => Err(format!(
            "the limit `segment_bytes_min` is {min}: it must be at most `segment_bytes_max`, {max}"
        )),
        false => Ok(log),
    }
}

/// Checks the limits of the I/O engine.
fn check_io(io: IoLimits) -> Result<IoLimits, String> {
    let threads = [
        ("io_threads", io.io_threads),
        ("io_write_threads", io.io_write_threads),
        ("io_sync_threads", io.io_sync_threads),
    ];
    for (name, count) in threads {
        if count > IO_THREADS_MAX {
            return Err(format!("the limit `{name}` is {count}: it must be at most {IO_THREADS_MAX}"));
        }
    }
    let entries = io.io_ring_entries;
    if !entries.is_power_of_two() || entries > IO_RING_ENTRIES_MAX {
        return Err(format!(
            "the limit `io_ring_entries` is {entries}: it must be a power of two, at most \
             {IO_RING_ENTRIES_MAX}"
        ));
    }
    Ok(io)
}

/// Checks the limits of the stores against each other.
fn check_store(store: StoreLimits) -> Result<StoreLimits, String> {
    let (min, max) = (store.checkpoint_entries_min, store.checkpoint_entries_max);
    if min > max {
        return Err(format!(
            "the limit `checkpoint_entries_min` is {min}: it must be at most `checkpoint_entries_max`, {max}"
        ));
    }
    let (garbage, bytes) = (store.checkpoint_garbage_min, store.checkpoint_bytes_max);
    if garbage > bytes {
        return Err(format!(
            "the limit `checkpoint_garbage_min` is {garbage}: it must be at most `checkpoint_bytes_max`, \
             {bytes}"
        ));
    }
    Ok(store)
}
