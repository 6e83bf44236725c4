//! Converts CouchDB's ini files into a settings file.
//!
//! A key with a counterpart becomes a setting, in the order of a settings file. Every other key is listed in
//! a comment with the reason, for example that the server always behaves as the key demands.
//!
//! Invariants:
//! 1. Every key that the files set appears in the result, as a setting or in a comment with a reason.
//! 2. The result is a valid settings file.
//! 3. The result contains no password or hash except the one that becomes a setting.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use settee_http::{Admin, Limits};

use super::effective::Config;
use super::file;
use super::ini::{Ini, IniValue, SourceLine};
use super::limits::{BYTES_MAX, COUNT_MAX, SECONDS_MAX, Value};
use super::settings::{SETTINGS, Setting};
use super::show::{line, plain, toml_value};

mod reasons;
#[cfg(test)]
mod tests;

use reasons::reason;

/// CouchDB's value of an unlimited limit.
const INFINITY: &str = "infinity";

/// CouchDB's default address.
const ADDRESS_DEFAULT: &str = "127.0.0.1";

/// CouchDB's default port.
const PORT_DEFAULT: u16 = 5984;

/// Prefixes of hashed passwords.
const HASH_PREFIXES: &[&str] = &["-pbkdf2", "-hashed-"];

/// A numeric key of CouchDB with a corresponding setting.
struct NumericKey {
    /// The sections in which CouchDB looks for the key, in order of precedence.
    sections: &'static [&'static str],
    key: &'static str,
    setting: &'static str,
    /// Largest value of the setting.
    max: u64,
    /// Text appended to the setting's comment.
    note: &'static str,
}

const NUMERIC_KEYS: &[NumericKey] = &[
    NumericKey {
        sections: &["couchdb"],
        key: "max_document_size",
        setting: "document_bytes_max",
        max: settee_doc::DOCUMENT_BYTES_LIMIT as u64,
        note: "",
    },
    NumericKey {
        sections: &["couchdb"],
        key: "max_attachment_size",
        setting: "attachment_bytes_max",
        max: BYTES_MAX,
        note: "",
    },
    NumericKey {
        sections: &["couchdb"],
        key: "max_dbs_open",
        setting: "open_databases_max",
        max: COUNT_MAX,
        note: "CouchDB counts shards, of which a database has several; Settee counts databases",
    },
    NumericKey {
        sections: &["chttpd", "httpd"],
        key: "max_http_request_size",
        setting: "request_bytes_max",
        max: BYTES_MAX,
        note: "",
    },
    NumericKey {
        sections: &["chttpd", "httpd"],
        key: "changes_timeout",
        setting: "changes_timeout_ms",
        max: SECONDS_MAX * 1000,
        note: "",
    },
    NumericKey {
        sections: &["chttpd_auth", "couch_httpd_auth"],
        key: "timeout",
        setting: "session_timeout_s",
        max: SECONDS_MAX,
        note: "",
    },
];

/// A setting converted from keys of CouchDB.
#[derive(Debug)]
struct ConvertedSetting {
    value: Value,
    /// The keys with their lines.
    from: String,
    /// Text appended to the comment.
    note: String,
}

/// A key that has no corresponding setting.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnconvertedKey {
    source: SourceLine,
    key: String,
    value: String,
    reason: String,
}

/// Result of converting CouchDB's files.
#[derive(Debug, Default)]
pub(super) struct Conversion {
    files: Vec<String>,
    /// The settings by name.
    converted: BTreeMap<&'static str, ConvertedSetting>,
    unconverted: Vec<UnconvertedKey>,
    ignored: Vec<SourceLine>,
    /// Names of the administrators that were not converted. Empty if one was.
    unconverted_admins: Vec<String>,
    /// Warnings for the operator.
    pub(super) warnings: Vec<String>,
}

impl Conversion {
    /// Converts files, given as names and texts. Later files take precedence.
    ///
    /// # Errors
    /// The result isn't a valid settings file, which is a bug of this module.
    pub(super) fn new(files: &[(String, String)]) -> Result<Conversion, String> {
        let mut ini = Ini::default();
        for (name, text) in files {
            ini.read(name, text);
        }
        let mut conversion = Conversion {
            files: files.iter().map(|(name, _)| name.clone()).collect(),
            ignored: std::mem::take(&mut ini.ignored),
            ..Conversion::default()
        };
        for numeric in NUMERIC_KEYS {
            conversion.convert_number(&mut ini, numeric);
        }
        conversion.reconcile_sizes();
        conversion.convert_listen(&mut ini);
        conversion.convert_admins(&mut ini);
        conversion.convert_connections(&mut ini);
        conversion.convert_log_level(&mut ini);
        for ((section, key), entry) in ini.entries {
            let reason = reason(&section, &key, &entry.value);
            conversion.add_unconverted(&section, &key, entry, reason);
        }
        conversion.unconverted.sort();
        let settings = file::parse(&conversion.toml(), Path::new("settee.toml"));
        settings
            .and_then(|settings| Config::of(&settings))
            .map_err(|error| format!("the conversion isn't a valid settings file: {error}"))?;
        Ok(conversion)
    }

    /// Returns the numbers of converted settings and of unconverted keys.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.converted.len(), self.unconverted.len())
    }

    /// Returns an error message if the files have administrators and none was converted.
    pub(super) fn missing_admin(&self) -> Option<String> {
        let names = self.unconverted_admins.iter().map(|name| plain(name)).collect::<Vec<_>>().join(", ");
        let missing = format!(
            "no administrator was converted ({names}): set one by admin_file or SETTEE_ADMIN, or the server \
             creates one at its first start"
        );
        (!self.unconverted_admins.is_empty()).then_some(missing)
    }

    fn add_unconverted(&mut self, section: &str, key: &str, entry: IniValue, reason: impl Into<String>) {
        let IniValue { value, source } = entry;
        let value = if is_secret(section, key) { "****".to_owned() } else { value };
        self.unconverted.push(UnconvertedKey {
            source,
            key: format!("{section}/{key}"),
            value,
            reason: reason.into(),
        });
    }

    fn convert_number(&mut self, ini: &mut Ini, numeric: &NumericKey) {
        let mut found: Option<&str> = None;
        for section in numeric.sections {
            let Some(entry) = ini.take(section, numeric.key) else { continue };
            if let Some(preferred) = found {
                self.add_unconverted(
                    section,
                    numeric.key,
                    entry,
                    format!("{preferred}/{} takes precedence", numeric.key),
                );
                continue;
            }
            found = Some(section);
            let name = format!("{section}/{}", numeric.key);
            let parsed = match entry.value.parse::<u64>() {
                _ if entry.value == INFINITY && numeric.setting == "attachment_bytes_max" => Ok(u64::MAX),
                Ok(0) => Err("0 isn't allowed: the default is used"),
                Ok(value) => Ok(value),
                Err(_) => Err("not a number: CouchDB uses its default, and so does this server"),
            };
            match parsed {
                Err(reason) => self.add_unconverted(section, numeric.key, entry, reason),
                Ok(given) => {
                    let mut note = numeric.note.to_owned();
                    if given > numeric.max {
                        note = format!("CouchDB's {} exceeds the maximum, which is used", entry.value);
                        self.warnings.push(format!("{name} ({}): {note}: {}", entry.source, numeric.max));
                    }
                    let from = format!("{name} ({})", entry.source);
                    let value = Value::Number(given.min(numeric.max));
                    self.converted.insert(numeric.setting, ConvertedSetting { value, from, note });
                }
            }
        }
    }

    /// Returns a converted number, or the default.
    fn size(&self, setting: &str, default: u64) -> u64 {
        self.converted.get(setting).map_or(default, |converted| match converted.value {
            Value::Number(value) => value,
            _ => default,
        })
    }

    /// Lowers `document_bytes_max` to `request_bytes_max`. CouchDB accepts a larger document limit and
    /// applies the smaller of the two.
    fn reconcile_sizes(&mut self) {
        let limits = Limits::default();
        let request = self.size("request_bytes_max", limits.request_bytes_max);
        let document = self.size("document_bytes_max", limits.document_bytes_max as u64);
        if document > request {
            let note = "a document can't exceed the limit of a request, request_bytes_max".to_owned();
            let own =
                self.converted.get("document_bytes_max").map(|converted| format!("{}, ", converted.from));
            let from = own.unwrap_or_default() + "chttpd/max_http_request_size";
            let converted = ConvertedSetting { value: Value::Number(request), from, note };
            self.warnings.push(format!("document_bytes_max is {request}: {}", converted.note));
            self.converted.insert("document_bytes_max", converted);
        }
    }

    /// Converts the address and port that clients use, CouchDB's clustered port.
    fn convert_listen(&mut self, ini: &mut Ini) {
        let (address, port) = (ini.take("chttpd", "bind_address"), ini.take("chttpd", "port"));
        let port_number = match &port {
            None => Some(PORT_DEFAULT),
            Some(entry) => entry.value.parse::<u16>().ok(),
        };
        let Some(number) = port_number else {
            for (key, entry) in [("bind_address", address), ("port", port)] {
                if let Some(entry) = entry {
                    self.add_unconverted(
                        "chttpd",
                        key,
                        entry,
                        "the port isn't a number up to 65535: set `listen`",
                    );
                }
            }
            return;
        };
        let from: Vec<String> = [("bind_address", &address), ("port", &port)]
            .iter()
            .filter_map(|(key, entry)| Some(format!("chttpd/{key} ({})", entry.as_ref()?.source)))
            .collect();
        if from.is_empty() {
            return;
        }
        let host = match address.as_ref().map_or(ADDRESS_DEFAULT, |entry| &entry.value) {
            "any" => "0.0.0.0".to_owned(),
            host => match host.parse::<IpAddr>() {
                Ok(IpAddr::V6(address)) => format!("[{address}]"),
                _ => host.to_owned(),
            },
        };
        let value = Value::Text(format!("{host}:{number}"));
        self.converted
            .insert("listen", ConvertedSetting { value, from: from.join(", "), note: String::new() });
    }

    /// Converts the first administrator with a plain password. CouchDB has any number of administrators,
    /// Settee one.
    fn convert_admins(&mut self, ini: &mut Ini) {
        let keys: Vec<_> = ini.entries.keys().filter(|(section, _)| section == "admins").cloned().collect();
        let entries = keys.into_iter().map(|(section, key)| {
            let entry = ini.take(&section, &key).expect("the key exists");
            (key, entry)
        });
        let mut admins: Vec<(String, IniValue)> = entries.collect();
        admins.sort_by(|one, other| one.1.source.cmp(&other.1.source));
        for (name, entry) in admins {
            let is_hash = HASH_PREFIXES.iter().any(|prefix| entry.value.starts_with(prefix));
            let text = format!("{name}:{}", entry.value);
            let is_same = Admin::parse(&text).is_ok_and(|admin| admin.name() == name);
            let reason = match () {
                () if is_hash => {
                    "the password is a hash, which isn't supported yet: set the password itself by \
                     admin_file or SETTEE_ADMIN"
                }
                () if !is_same => "an administrator's name can't contain a colon",
                () if self.converted.contains_key("admin") => {
                    "only one administrator is supported, and an earlier one was converted"
                }
                () => {
                    let from = format!("admins/{} ({})", name, entry.source);
                    let note = "keep this file private, or move the value to admin_file".to_owned();
                    self.converted.insert("admin", ConvertedSetting { value: Value::Text(text), from, note });
                    continue;
                }
            };
            self.warnings.push(format!("administrator {name} ({}): {reason}", entry.source));
            self.unconverted_admins.push(name.clone());
            self.add_unconverted("admins", &name, entry, reason);
        }
        if self.converted.contains_key("admin") {
            self.unconverted_admins.clear();
        }
        let is_loopback = |listen: &str| listen.starts_with("127.") || listen.starts_with("[::1]");
        let listen = self.converted.get("listen").map(|listen| listen.value.to_string());
        if let Some(listen) = listen.filter(|listen| !is_loopback(listen))
            && !self.converted.contains_key("admin")
        {
            let warning = format!("no administrator for {listen}: the server creates one at its first start");
            self.warnings.push(warning);
        }
    }

    /// Converts the log level. CouchDB has more levels.
    fn convert_log_level(&mut self, ini: &mut Ini) {
        let Some(entry) = ini.take("log", "level") else { return };
        let level = match entry.value.as_str() {
            "debug" => "debug",
            "info" | "notice" => "info",
            "warning" | "warn" => "warn",
            "error" | "err" | "critical" | "crit" | "alert" | "emergency" | "emerg" => "error",
            "none" => "off",
            _ => {
                return self.add_unconverted(
                    "log",
                    "level",
                    entry,
                    "not a level of CouchDB: set `log_level`",
                );
            }
        };
        let from = format!("log/level ({})", entry.source);
        self.converted.insert(
            "log_level",
            ConvertedSetting { value: Value::Text(level.to_owned()), from, note: String::new() },
        );
    }

    /// Converts the option `{max, N}` of the Erlang term `server_options`, the only one with a counterpart.
    fn convert_connections(&mut self, ini: &mut Ini) {
        let Some(entry) = ini.take("chttpd", "server_options") else { return };
        let compact: String = entry.value.chars().filter(|char| !char.is_whitespace()).collect();
        let max = compact.split_once("{max,").and_then(|(_, rest)| rest.split_once('}'));
        match max
            .and_then(|(number, _)| number.parse::<u64>().ok())
            .filter(|max| (1..=COUNT_MAX).contains(max))
        {
            Some(max) => {
                let from = format!("chttpd/server_options ({})", entry.source);
                let note = "only {max, N}; the other options are for Erlang's sockets".to_owned();
                self.converted
                    .insert("connections_max", ConvertedSetting { value: Value::Number(max), from, note });
            }
            None => {
                let reason = reason("chttpd", "server_options", &entry.value);
                self.add_unconverted("chttpd", "server_options", entry, reason);
            }
        }
    }

    /// Returns the text of the settings file, with all unconverted keys in comments.
    pub(super) fn toml(&self) -> String {
        let mut text =
            String::from("# Converted from CouchDB's configuration by `settee config import-ini`:\n");
        for name in &self.files {
            text.push_str(&format!("#   {}\n", plain(name)));
        }
        text.push_str("# `settee config --config FILE` prints the effective settings.\n");
        for warning in &self.warnings {
            text.push_str(&format!("# Note: {}\n", plain(warning)));
        }
        if let Some(missing) = self.missing_admin() {
            text.push_str(&format!(
                "#\n# INCOMPLETE: {missing}.\n\
                 #admin_file = \"/etc/settee/admin\"    # contains NAME:PASSWORD, mode 0600\n"
            ));
        }
        text.push('\n');
        let mut last = "";
        for Setting { table, name, .. } in SETTINGS {
            let Some(converted) = self.converted.get(name) else { continue };
            if *table != last {
                text.push_str(&format!("\n[{table}]\n"));
                last = table;
            }
            let ConvertedSetting { value, from, note } = converted;
            let note = if note.is_empty() { String::new() } else { format!("; {note}") };
            text.push_str(&line(&format!("{name} = {}", toml_value(value)), &format!("{from}{note}")));
        }
        if !self.unconverted.is_empty() {
            text.push_str(&format!("\n# {} keys have no setting:\n", self.unconverted.len()));
        }
        for UnconvertedKey { source, key, value, reason } in &self.unconverted {
            text.push_str(&format!(
                "# {}\n#     {}\n",
                plain(&format!("{key} = {value} ({source})")),
                plain(reason)
            ));
        }
        for source in &self.ignored {
            text.push_str(&format!(
                "# {}: neither a section nor a key with a value: CouchDB ignores the line\n",
                plain(&source.to_string())
            ));
        }
        text
    }
}

fn is_secret(section: &str, key: &str) -> bool {
    let sections = ["admins", "jwt_keys", "encryption"];
    sections.contains(&section) || ["password", "secret", "token"].iter().any(|word| key.contains(word))
}
