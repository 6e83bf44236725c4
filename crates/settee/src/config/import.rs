//! Converts what CouchDB's ini files say into a file of settings.
//!
//! What has a counterpart becomes a setting; what this server does anyway is told as such; of
//! all else it is told why it stays behind. The order of the keys within is that of a file of
//! settings.
//!
//! Invariants:
//! 1. Every key that the files set is told in the result, as a setting or with a reason.
//! 2. The result is taken as a file of settings.
//! 3. No password or hash is told but the one that becomes a setting.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};
use settee_http::{Admin, Limits};

use super::ini::{Entry, Ini, Place};
use super::settings::{BYTES_MAX, COUNT_MAX, SECONDS_MAX, Settings};
use super::show::{line, plain, toml_value};
use super::{Config, file};

mod reasons;
#[cfg(test)]
mod tests;

use reasons::reason;

/// How CouchDB writes that there is no limit.
const INFINITY: &str = "infinity";

/// Where CouchDB listens where it isn't told.
const ADDRESS_DEFAULT: &str = "127.0.0.1";
const PORT_DEFAULT: u16 = 5984;

/// How a password that is a hash begins.
const HASHES: &[&str] = &["-pbkdf2", "-hashed-"];

/// A number of CouchDB's that is a number here.
struct Number {
    /// The sections that CouchDB looks into, the first that has it counts.
    sections: &'static [&'static str],
    key: &'static str,
    setting: &'static str,
    /// The largest that is taken here.
    most: u64,
    /// What is to be known of it.
    note: &'static str,
}

const NUMBERS: &[Number] = &[
    Number {
        sections: &["couchdb"],
        key: "max_document_size",
        setting: "max_document_size",
        most: settee_doc::DOCUMENT_BYTES_LIMIT as u64,
        note: "",
    },
    Number {
        sections: &["couchdb"],
        key: "max_attachment_size",
        setting: "max_attachment_size",
        most: BYTES_MAX,
        note: "",
    },
    Number {
        sections: &["couchdb"],
        key: "max_dbs_open",
        setting: "open_databases_max",
        most: COUNT_MAX,
        note: "CouchDB counts shards, of which a database has several; here databases are counted",
    },
    Number {
        sections: &["chttpd", "httpd"],
        key: "max_http_request_size",
        setting: "max_request_bytes",
        most: BYTES_MAX,
        note: "",
    },
    Number {
        sections: &["chttpd", "httpd"],
        key: "changes_timeout",
        setting: "changes_timeout_ms",
        most: SECONDS_MAX * 1000,
        note: "",
    },
    Number {
        sections: &["chttpd"],
        key: "max_db_number_for_dbs_info_req",
        setting: "max_dbs_info_names",
        most: COUNT_MAX,
        note: "",
    },
    Number {
        sections: &["chttpd_auth", "couch_httpd_auth"],
        key: "timeout",
        setting: "session_timeout_s",
        most: SECONDS_MAX,
        note: "",
    },
    Number { sections: &["uuids"], key: "max_count", setting: "max_uuids", most: COUNT_MAX, note: "" },
];

/// A setting that came of CouchDB's keys.
#[derive(Debug)]
struct Converted {
    value: Value,
    /// The keys, and where they stand.
    from: String,
    /// What is to be known of it; warned of where the value isn't CouchDB's.
    note: String,
}

/// A key that stays behind.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Left {
    place: Place,
    key: String,
    value: String,
    reason: String,
}

/// What became of CouchDB's files.
#[derive(Debug, Default)]
pub(super) struct Conversion {
    files: Vec<String>,
    /// By the settings' names.
    converted: BTreeMap<&'static str, Converted>,
    left: Vec<Left>,
    ignored: Vec<Place>,
    /// Administrators none of whom could be taken over.
    lost_admins: Vec<String>,
    /// What whoever starts the server has to know first.
    pub(super) warnings: Vec<String>,
}

impl Conversion {
    /// Converts files, the later before the earlier: names and texts.
    ///
    /// # Errors
    /// Where what comes of it isn't taken as a file of settings: a mistake of this module.
    pub(super) fn of(files: &[(String, String)]) -> Result<Conversion, String> {
        let mut ini = Ini::default();
        for (name, text) in files {
            ini.read(name, text);
        }
        let mut conversion = Conversion {
            files: files.iter().map(|(name, _)| name.clone()).collect(),
            ignored: std::mem::take(&mut ini.ignored),
            ..Conversion::default()
        };
        for number in NUMBERS {
            conversion.number(&mut ini, number);
        }
        conversion.reconcile_sizes();
        conversion.listen(&mut ini);
        conversion.admins(&mut ini);
        conversion.connections(&mut ini);
        conversion.log_level(&mut ini);
        for ((section, key), entry) in ini.entries {
            let reason = reason(&section, &key, &entry.value);
            conversion.leave(&section, &key, entry, reason);
        }
        conversion.left.sort();
        let settings = file::parse(&conversion.toml());
        settings.and_then(|settings| Config::merge(Settings::default(), settings)).map_err(|error| {
            format!("what came of the conversion isn't taken as a file of settings: {error}")
        })?;
        Ok(conversion)
    }

    /// How many keys became settings' values, and how many stay behind.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.converted.len(), self.left.len())
    }

    /// What is missing where there were administrators and none could be taken over.
    pub(super) fn missing_admin(&self) -> Option<String> {
        let names = self.lost_admins.iter().map(|name| plain(name)).collect::<Vec<_>>().join(", ");
        let missing = format!(
            "no administrator was taken over ({names}): set one by admin_file or SETTEE_ADMIN, or the server \
             makes one of its own at its first start"
        );
        (!self.lost_admins.is_empty()).then_some(missing)
    }

    fn leave(&mut self, section: &str, key: &str, entry: Entry, reason: impl Into<String>) {
        let Entry { value, place } = entry;
        let value = if is_secret(section, key) { "****".to_owned() } else { value };
        self.left.push(Left { place, key: format!("{section}/{key}"), value, reason: reason.into() });
    }

    fn number(&mut self, ini: &mut Ini, number: &Number) {
        let mut found: Option<&str> = None;
        for section in number.sections {
            let Some(entry) = ini.take(section, number.key) else { continue };
            if let Some(nearer) = found {
                self.leave(section, number.key, entry, format!("{nearer}/{} goes before it", number.key));
                continue;
            }
            found = Some(section);
            let name = format!("{section}/{}", number.key);
            let asked = match entry.value.parse::<u64>() {
                _ if entry.value == INFINITY && number.setting == "max_attachment_size" => Ok(u64::MAX),
                Ok(0) => Err("0 isn't taken here: the default holds"),
                Ok(asked) => Ok(asked),
                Err(_) => Err("not a number: CouchDB takes its default, and so does this server"),
            };
            match asked {
                Err(reason) => self.leave(section, number.key, entry, reason),
                Ok(asked) => {
                    let mut note = number.note.to_owned();
                    if asked > number.most {
                        note = format!("CouchDB's {} is more than can be here: the most", entry.value);
                        self.warnings.push(format!("{name} ({}): {note}, {}", entry.place, number.most));
                    }
                    let from = format!("{name} ({})", entry.place);
                    let value = json!(asked.min(number.most));
                    self.converted.insert(number.setting, Converted { value, from, note });
                }
            }
        }
    }

    /// A number that was converted, or what holds without.
    fn size(&self, setting: &str, default: u64) -> u64 {
        self.converted.get(setting).and_then(|converted| converted.value.as_u64()).unwrap_or(default)
    }

    /// A request holds its document here; CouchDB takes what contradicts that, and goes by the smaller.
    fn reconcile_sizes(&mut self) {
        let limits = Limits::default();
        let request = self.size("max_request_bytes", limits.max_request_bytes);
        let document = self.size("max_document_size", limits.max_document_size as u64);
        if document > request {
            let note = "no document is larger than a request, max_request_bytes, may be".to_owned();
            let own =
                self.converted.get("max_document_size").map(|converted| format!("{}, ", converted.from));
            let from = own.unwrap_or_default() + "chttpd/max_http_request_size";
            let converted = Converted { value: json!(request), from, note };
            self.warnings.push(format!("max_document_size is {request}: {}", converted.note));
            self.converted.insert("max_document_size", converted);
        }
    }

    /// CouchDB's clustered port, which all clients use.
    fn listen(&mut self, ini: &mut Ini) {
        let (address, port) = (ini.take("chttpd", "bind_address"), ini.take("chttpd", "port"));
        let port_number = match &port {
            None => Some(PORT_DEFAULT),
            Some(entry) => entry.value.parse::<u16>().ok(),
        };
        let Some(number) = port_number else {
            for (key, entry) in [("bind_address", address), ("port", port)] {
                if let Some(entry) = entry {
                    self.leave("chttpd", key, entry, "the port isn't a number up to 65535: set `listen`");
                }
            }
            return;
        };
        let from: Vec<String> = [("bind_address", &address), ("port", &port)]
            .iter()
            .filter_map(|(key, entry)| Some(format!("chttpd/{key} ({})", entry.as_ref()?.place)))
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
        let value = json!(format!("{host}:{number}"));
        self.converted.insert("listen", Converted { value, from: from.join(", "), note: String::new() });
    }

    /// CouchDB has any number of administrators, here there is one.
    fn admins(&mut self, ini: &mut Ini) {
        let keys: Vec<_> = ini.entries.keys().filter(|(section, _)| section == "admins").cloned().collect();
        let entries = keys.into_iter().map(|(section, key)| {
            let entry = ini.take(&section, &key).expect("it was there");
            (key, entry)
        });
        let mut admins: Vec<(String, Entry)> = entries.collect();
        admins.sort_by(|one, other| one.1.place.cmp(&other.1.place));
        for (name, entry) in admins {
            let is_hash = HASHES.iter().any(|begin| entry.value.starts_with(begin));
            let text = format!("{name}:{}", entry.value);
            let is_same = Admin::parse(&text).is_ok_and(|admin| admin.name() == name);
            let reason = match () {
                () if is_hash => {
                    "the password is a hash, which isn't taken yet: give the password itself, \
                     by admin_file or SETTEE_ADMIN"
                }
                () if !is_same => "a name with a colon can't be an administrator's here",
                () if self.converted.contains_key("admin") => {
                    "there is one administrator, and there is one before"
                }
                () => {
                    let from = format!("admins/{} ({})", name, entry.place);
                    let note = "keep this file from others, or move it to admin_file".to_owned();
                    self.converted.insert("admin", Converted { value: json!(text), from, note });
                    continue;
                }
            };
            self.warnings.push(format!("administrator {name} ({}): {reason}", entry.place));
            self.lost_admins.push(name.clone());
            self.leave("admins", &name, entry, reason);
        }
        if self.converted.contains_key("admin") {
            self.lost_admins.clear();
        }
        let is_loopback = |listen: &str| listen.starts_with("127.") || listen.starts_with("[::1]");
        let listen = self.converted.get("listen").and_then(|listen| listen.value.as_str());
        if let Some(listen) = listen.filter(|listen| !is_loopback(listen))
            && !self.converted.contains_key("admin")
        {
            let warning = format!("no administrator for {listen}: the server makes one at its first start");
            self.warnings.push(warning);
        }
    }

    /// CouchDB's levels, of which there are more.
    fn log_level(&mut self, ini: &mut Ini) {
        let Some(entry) = ini.take("log", "level") else { return };
        let level = match entry.value.as_str() {
            "debug" => "debug",
            "info" | "notice" => "info",
            "warning" | "warn" => "warn",
            "error" | "err" | "critical" | "crit" | "alert" | "emergency" | "emerg" => "error",
            "none" => "off",
            _ => return self.leave("log", "level", entry, "not a level of CouchDB's: set `log_level`"),
        };
        let from = format!("log/level ({})", entry.place);
        self.converted.insert("log_level", Converted { value: json!(level), from, note: String::new() });
    }

    /// Of the options that are written in Erlang one has a counterpart: `{max, N}`.
    fn connections(&mut self, ini: &mut Ini) {
        let Some(entry) = ini.take("chttpd", "server_options") else { return };
        let compact: String = entry.value.chars().filter(|char| !char.is_whitespace()).collect();
        let max = compact.split_once("{max,").and_then(|(_, rest)| rest.split_once('}'));
        match max
            .and_then(|(number, _)| number.parse::<u64>().ok())
            .filter(|max| (1..=COUNT_MAX).contains(max))
        {
            Some(max) => {
                let from = format!("chttpd/server_options ({})", entry.place);
                let note = "of it {max, N}; the other options are for Erlang's sockets".to_owned();
                self.converted.insert("max_connections", Converted { value: json!(max), from, note });
            }
            None => {
                let reason = reason("chttpd", "server_options", &entry.value);
                self.leave("chttpd", "server_options", entry, reason);
            }
        }
    }

    /// As a file of settings, with all that stays behind in comments.
    pub(super) fn toml(&self) -> String {
        let mut text =
            String::from("# Converted from CouchDB's configuration by `settee config import-ini`:\n");
        for name in &self.files {
            text.push_str(&format!("#   {}\n", plain(name)));
        }
        text.push_str("# `settee config --config FILE` shows what holds with it.\n");
        for warning in &self.warnings {
            text.push_str(&format!("# Note: {}\n", plain(warning)));
        }
        if let Some(missing) = self.missing_admin() {
            text.push_str(&format!(
                "#\n# INCOMPLETE: {missing}.\n#admin_file = \"/etc/settee/admin\"    # holds NAME:PASSWORD, mode 0600\n"
            ));
        }
        text.push('\n');
        let mut last = "";
        for (table, name) in Settings::names() {
            let Some(converted) = self.converted.get(name) else { continue };
            if table != last {
                text.push_str(&format!("\n[{table}]\n"));
                last = table;
            }
            let Converted { value, from, note } = converted;
            let note = if note.is_empty() { String::new() } else { format!("; {note}") };
            text.push_str(&line(&format!("{name} = {}", toml_value(value)), &format!("{from}{note}")));
        }
        if !self.left.is_empty() {
            text.push_str(&format!("\n# {} keys are no settings here:\n", self.left.len()));
        }
        for Left { place, key, value, reason } in &self.left {
            text.push_str(&format!(
                "# {}\n#     {}\n",
                plain(&format!("{key} = {value} ({place})")),
                plain(reason)
            ));
        }
        for place in &self.ignored {
            text.push_str(&format!(
                "# {}: neither a section nor a key with a value: CouchDB ignores the line\n",
                plain(&place.to_string())
            ));
        }
        text
    }
}

fn is_secret(section: &str, key: &str) -> bool {
    let sections = ["admins", "jwt_keys", "encryption"];
    sections.contains(&section) || ["password", "secret", "token"].iter().any(|word| key.contains(word))
}
