//! The effective configuration: settings merged, converted and checked.

use std::path::{Path, PathBuf};

use settee_http::{Admin, Limits, TrustedProxies};
use settee_io::EngineKind;

use super::file;
use super::limits::ServerLimits;
use super::settings::{Kind, SETTINGS, Settings};
use crate::logging::{LogConfig, LogFormat, LogLevel};
use crate::secret;

/// One address may open 1/`ADDRESS_SHARE` of all connections, unless `connections_per_address_max` is set.
const ADDRESS_SHARE: usize = 4;

/// The effective configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) data_dir: PathBuf,
    pub(crate) listen: String,
    pub(crate) admin: Option<Admin>,
    pub(crate) log: LogConfig,
    pub(crate) access_log: bool,
    /// Whether the server runs without an administrator. If false and `admin` is None, the server creates
    /// one.
    pub(crate) no_admin: bool,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) io_engine: EngineKind,
    pub(crate) limits: ServerLimits,
    /// Whether a source sets `connections_per_address_max`.
    pub(super) has_address_limit: bool,
}

impl Config {
    /// Reads the settings file and merges it with `given`, the settings from flags and variables.
    ///
    /// # Errors
    /// A message for the operator, without passwords.
    pub(crate) fn resolve(given: Settings, file: Option<&Path>) -> Result<Config, String> {
        let file = file.map_or_else(|| Ok(Settings::default()), file::settings)?;
        Config::of(&given.over(file))
    }

    /// Converts and checks merged settings.
    pub(super) fn of(settings: &Settings) -> Result<Config, String> {
        let text = |name| settings.text(name).expect("the setting has a default");
        let no_admin = settings.is_true("no_admin");
        let level = LogLevel::parse(&text("log_level"));
        let mut config = Config {
            data_dir: settings.path("data_dir").expect("the setting has a default"),
            listen: text("listen"),
            admin: admin(settings, no_admin)?,
            log: LogConfig {
                level: level.map_err(|error| format!("`log_level` (SETTEE_LOG): {error}"))?,
                format: if text("log_format") == "json" { LogFormat::Json } else { LogFormat::Text },
                file: settings.path("log_file"),
            },
            access_log: settings.is_true("access_log"),
            no_admin,
            trusted_proxies: text("trusted_proxies")
                .parse()
                .map_err(|error| format!("`trusted_proxies`: {error}"))?,
            io_engine: text("io_engine").parse()?,
            limits: limits(settings)?,
            has_address_limit: settings.has("connections_per_address_max"),
        };
        config.share_connections();
        Ok(config)
    }

    /// Lowers the limit on connections of one address to a quarter of all connections, unless a source sets
    /// it.
    pub(crate) fn share_connections(&mut self) {
        let limits = &mut self.limits.http;
        if !self.has_address_limit {
            let share = (limits.connections_max / ADDRESS_SHARE).max(1);
            limits.connections_per_address_max = limits.connections_per_address_max.min(share);
        }
    }

    /// Returns all limits as `name=value`, separated by spaces.
    pub(crate) fn limits_text(&self) -> String {
        let fields = SETTINGS.iter().filter_map(|setting| Some((setting, setting.field()?)));
        let limits = fields.map(|(setting, field)| format!("{}={}", setting.name, (field.get)(&self.limits)));
        limits.collect::<Vec<_>>().join(" ")
    }
}

/// Reads the administrator from its setting or its file.
fn admin(settings: &Settings, no_admin: bool) -> Result<Option<Admin>, String> {
    let (admin, file) = (settings.text("admin"), settings.path("admin_file"));
    if no_admin && (admin.is_some() || file.is_some()) {
        return Err("set an administrator or `no_admin`, not both".to_owned());
    }
    match (admin, file) {
        (Some(_), Some(_)) => Err("set `admin` or `admin_file`, not both".to_owned()),
        (Some(text), None) => Ok(Some(Admin::parse(&text)?)),
        (None, Some(path)) => {
            let admin = Admin::parse(&secret::read(&path)?);
            Ok(Some(admin.map_err(|error| format!("{}: {error}", path.display()))?))
        }
        (None, None) => Ok(None),
    }
}

/// Returns the limits after checking them.
fn limits(settings: &Settings) -> Result<ServerLimits, String> {
    let mut limits = ServerLimits::default();
    for setting in SETTINGS {
        if let (Some(field), Some(value)) = (setting.field(), settings.value(setting.name)) {
            (field.set)(&mut limits, &value);
        }
        if let Kind::Number(limit) = &setting.kind {
            limit.check(setting.name, &limits)?;
        }
    }
    check_sizes(&limits.http)?;
    limits.databases.log.check(limits.buffers.bytes_max).map_err(|error| format!("the limit {error}"))?;
    Ok(limits)
}

/// Checks the limits of requests against the largest document.
pub(super) fn check_sizes(limits: &Limits) -> Result<(), String> {
    let document = limits.document_bytes_max;
    for (name, value) in [
        ("request_bytes_in_flight_max", limits.request_bytes_in_flight_max),
        ("request_bytes_max", limits.request_bytes_max),
    ] {
        if value < document as u64 {
            return Err(format!(
                "the limit `{name}` is {value}: it must be at least `document_bytes_max`, {document}"
            ));
        }
    }
    Ok(())
}
