//! The configuration as CouchDB's clients see it: sections of keys with text values, read and written through
//! `_node/_local/_config`.
//!
//! The defaults come from the server's own settings. Changes override them, in memory and in the file
//! [`CONFIG_FILE`] of the data directory, which is TOML with one table per section. A key with an effect here
//! takes effect at once ([`Derived`]). A key that only CouchDB acts on is refused; any other key is stored
//! and returned, for clients that look for it.
//!
//! Invariants:
//! 1. The file is replaced atomically and synced before a change is answered: a crash leaves the file before
//!    or after the change.
//! 2. An invalid value of a key with an effect is refused and changes nothing.
//! 3. Administrators' passwords are neither shown nor written.
//! 4. A change that was answered with success is read at the next start: no file is written that is too large
//!    to be read.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::config_file::{self, CONFIG_FILE, Changes, Sections};
use super::couchdb_keys::{current_name, has_no_effect};
use super::derived::{Derived, PARTITION_BYTES_MAX};
use crate::error::ApiError;
use crate::limits::Limits;
use crate::logged;

/// Maximum number of changed keys in all sections.
const CHANGES_MAX: usize = 4096;

/// Largest section name or key in bytes.
const NAME_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Replaces secret values.
const HIDDEN: &str = "****";

/// Sections that CouchDB forbids to change over HTTP, because they name programs.
const FORBIDDEN_SECTIONS: &[&str] = &[
    "daemons",
    "external",
    "feature_flags",
    "httpd_db_handlers",
    "httpd_design_handlers",
    "httpd_global_handlers",
    "native_query_servers",
    "os_daemons",
    "query_servers",
];

/// Keys that describe this server and are set elsewhere.
const FIXED_KEYS: &[(&str, &str)] = &[
    ("chttpd", "bind_address"),
    ("chttpd", "port"),
    ("cluster", "n"),
    ("cluster", "q"),
    ("couchdb", "uuid"),
];

/// The limits that can be changed: name in [`Limits`], section and key.
const CHANGEABLE_LIMITS: &[(&str, &str, &str)] = &[
    ("attachment_bytes_max", "couchdb", "max_attachment_size"),
    ("changes_timeout_ms", "chttpd", "changes_timeout"),
    ("compress_responses", "settee", "compress_responses"),
    ("dbs_info_names_max", "chttpd", "max_db_number_for_dbs_info_req"),
    ("document_bytes_max", "couchdb", "max_document_size"),
    ("request_bytes_max", "chttpd", "max_http_request_size"),
    ("requests_in_flight_max", "settee", "requests_in_flight_max"),
    ("session_timeout_s", "chttpd_auth", "timeout"),
    ("uuids_max", "uuids", "max_count"),
];

/// Keys that were renamed: section, former and current name. A file with a former name is rewritten at start.
const RENAMED_KEYS: &[(&str, &str, &str)] = &[
    ("settee", "compress_answers", "compress_responses"),
    ("settee", "max_requests_in_flight", "requests_in_flight_max"),
];

/// The configuration of a server.
pub(crate) struct ConfigStore {
    file: Option<PathBuf>,
    limits: Limits,
    /// Whether there is an administrator, so that callers can sign in.
    has_admin: bool,
    /// The values without any change.
    defaults: Sections,
    state: Mutex<ConfigState>,
    /// Held during a change until the file is written.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ConfigState {
    /// The changes in effect.
    changes: Changes,
    /// Those of the changes that are in the file.
    persisted: Changes,
}

/// The configuration set over HTTP, applied to the settings of a start.
#[derive(Debug)]
pub struct Configured {
    /// The resulting limits.
    pub limits: Limits,
    /// The changed limits: each one's name in [`Limits`], its section, key and value.
    pub changed: Vec<(&'static str, String, String, String)>,
    /// The other changes: section, key and value. Secret values are hidden; None means that the key was
    /// deleted.
    pub others: Vec<(String, String, Option<String>)>,
    /// Invalid entries of the file, by name, with the reason.
    pub invalid: Vec<(String, String)>,
}

/// Reads the settings that a server with these limits would take from its [`CONFIG_FILE`], without starting
/// one.
///
/// Blocks the caller's thread. A missing file changes nothing. An unreadable file is ignored as a whole, as
/// by a server; the result reports it.
pub fn read_configured(file: &Path, limits: &Limits) -> Configured {
    let store = ConfigStore {
        file: Some(file.to_owned()),
        limits: limits.clone(),
        has_admin: true,
        defaults: Sections::new(),
        state: Mutex::default(),
        changing: tokio::sync::Mutex::default(),
    };
    let (persisted, derived, invalid) = store.load();
    let mut configured = Configured { limits: derived.limits, changed: vec![], others: vec![], invalid };
    for ((section, key), value) in persisted {
        let limit =
            CHANGEABLE_LIMITS.iter().find(|limit| (limit.1, limit.2) == (current_name(&section), &key));
        match (limit, value) {
            // A deleted key has its default.
            (Some((name, ..)), Some(value)) => configured.changed.push((name, section, key, value)),
            (_, value) => {
                let hide = |value| if is_secret(&section, &key) { HIDDEN.to_owned() } else { value };
                let value = value.map(hide);
                configured.others.push((section, key, value));
            }
        }
    }
    configured
}

/// Facts about the server that its configuration shows.
pub(crate) struct Facts<'a> {
    pub(crate) admin: Option<&'a str>,
    pub(crate) uuid: &'a str,
    pub(crate) address: Option<SocketAddr>,
}

impl ConfigStore {
    /// Reads the changes. Invalid ones are logged and ignored. Blocks the caller's thread; to be called at
    /// the start.
    pub(crate) fn open(file: Option<PathBuf>, limits: Limits, facts: &Facts<'_>) -> (ConfigStore, Derived) {
        let defaults = defaults(&limits, facts);
        let changing = tokio::sync::Mutex::new(());
        let has_admin = facts.admin.is_some();
        let mut store = ConfigStore { file, limits, has_admin, defaults, state: Mutex::default(), changing };
        store.migrate_file();
        let (persisted, derived, invalid) = store.load();
        for (what, reason) in invalid {
            let (what, reason) = (logged::text(&what), logged::text(&reason));
            tracing::error!(what, reason, "configuration set over HTTP was ignored");
        }
        store.state = Mutex::new(ConfigState { changes: persisted.clone(), persisted });
        (store, derived)
    }

    /// Rewrites the file with the current names of its keys. If that fails, the file stays as it is:
    /// `read_file` renames the keys in any case.
    fn migrate_file(&self) {
        let Some(path) = self.file.as_deref() else { return };
        // `load` reports an unreadable file.
        let Ok(mut changes) = config_file::read(path) else { return };
        let renamed = rename_keys(&mut changes);
        if renamed.is_empty() {
            return;
        }
        let written = config_file::text(&changes).and_then(|text| config_file::replace(path, &text));
        let (file, keys) = (path.display(), renamed.join(", "));
        match written {
            Ok(()) => tracing::info!(%file, keys, "renamed keys of the configuration set over HTTP"),
            Err(error) => tracing::warn!(%file, keys, %error, "cannot write the renamed keys"),
        }
    }

    /// Returns the valid changes of the file, the settings derived from them, and the invalid entries with
    /// the reasons.
    fn load(&self) -> (Changes, Derived, Vec<(String, String)>) {
        let mut invalid = Vec::new();
        let mut persisted = self.read_file().unwrap_or_else(|error| {
            invalid.push((CONFIG_FILE.to_owned(), error.to_string()));
            Changes::new()
        });
        persisted.retain(|(section, key), value| {
            let alone = Changes::from([((section.clone(), key.clone()), value.clone())]);
            let derived = self.derive(&alone);
            invalid.extend(derived.as_ref().err().map(|reason| (format!("{section}/{key}"), reason.clone())));
            derived.is_ok()
        });
        let derived = self.derive(&persisted).expect("each of them was looked at");
        (persisted, derived, invalid)
    }

    /// All values. Callers may set any of them, but administrators' passwords are hidden.
    pub(crate) fn all(&self) -> Sections {
        let state = self.lock();
        let mut all = self.defaults.clone();
        for ((section, key), value) in &state.changes {
            match value {
                Some(value) => {
                    all.entry(section.clone()).or_default().insert(key.clone(), value.clone());
                }
                None => {
                    all.get_mut(section).map(|keys| keys.remove(key));
                }
            }
        }
        all.retain(|_, keys| !keys.is_empty());
        all
    }

    /// The values of a section; empty if there is none.
    pub(crate) fn section(&self, section: &str) -> BTreeMap<String, String> {
        self.all().remove(section).unwrap_or_default()
    }

    /// The value of a key.
    pub(crate) fn get(&self, section: &str, key: &str) -> Option<String> {
        let state = self.lock();
        match state.changes.get(&(section.to_owned(), key.to_owned())) {
            Some(value) => value.clone(),
            None => self.defaults.get(section)?.get(key).cloned(),
        }
    }

    /// Sets a key or deletes it, in the file too if `persist` is set. Returns the derived settings. The
    /// caller holds `changing` and must not drop the future: the file may still be written then.
    ///
    /// # Errors
    /// 403 and 501 for keys that can't be changed; 400 for an invalid name, key or value, or too many
    /// changes; 500 if the file can't be written. Nothing is changed then.
    pub(crate) async fn change(
        &self,
        section: &str,
        key: &str,
        value: Option<String>,
        persist: bool,
    ) -> Result<Derived, ApiError> {
        check_changeable(section, key)?;
        check_texts(section, key, value.as_deref().unwrap_or_default())?;
        let entry = (section.to_owned(), key.to_owned());
        let (changes, persisted) = {
            let state = self.lock();
            let (mut changes, mut persisted) = (state.changes.clone(), state.persisted.clone());
            changes.insert(entry.clone(), value.clone());
            if persist {
                persisted.insert(entry, value.clone());
            }
            (changes, persisted)
        };
        if changes.len() > CHANGES_MAX {
            return Err(ApiError::bad_request(format!("more than {CHANGES_MAX} keys can't be configured")));
        }
        let derived = self.derive(&changes).map_err(ApiError::bad_request)?;
        if persist {
            self.write_file(&persisted).await?;
        }
        *self.lock() = ConfigState { changes, persisted };
        let shown = if is_secret(section, key) { HIDDEN } else { value.as_deref().unwrap_or("(deleted)") };
        let (section, key, value) = (logged::name(section), logged::name(key), logged::name(shown));
        tracing::info!(section, key, value, persist, "configured over HTTP");
        Ok(derived)
    }

    /// Loads the file and discards the changes that are only in memory. The caller holds `changing`.
    ///
    /// # Errors
    /// 400 if the file can't be read or has invalid entries. Nothing is changed then.
    pub(crate) fn reload(&self) -> Result<Derived, ApiError> {
        let persisted = self.read_file().map_err(|error| ApiError::bad_request(error.to_string()))?;
        let derived = self.derive(&persisted).map_err(ApiError::bad_request)?;
        *self.lock() = ConfigState { changes: persisted.clone(), persisted };
        Ok(derived)
    }

    fn lock(&self) -> MutexGuard<'_, ConfigState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Derives the settings from changes, or returns the reason why one is invalid.
    fn derive(&self, changes: &Changes) -> Result<Derived, String> {
        Derived::of(changes, &self.limits, self.has_admin)
    }

    fn read_file(&self) -> Result<Changes, io::Error> {
        let mut changes = self.file.as_deref().map_or_else(|| Ok(Changes::new()), config_file::read)?;
        rename_keys(&mut changes);
        Ok(changes)
    }

    async fn write_file(&self, persisted: &Changes) -> Result<(), ApiError> {
        match &self.file {
            Some(path) => config_file::write(path, persisted).await,
            None => Ok(()),
        }
    }
}

/// Gives keys their current names; a value that already has the current name takes precedence. Returns the
/// renamed keys as `section/former -> section/current`.
fn rename_keys(changes: &mut Changes) -> Vec<String> {
    let mut renamed = Vec::new();
    for (section, former, current) in RENAMED_KEYS {
        let Some(value) = changes.remove(&((*section).to_owned(), (*former).to_owned())) else { continue };
        changes.entry(((*section).to_owned(), (*current).to_owned())).or_insert(value);
        renamed.push(format!("{section}/{former} -> {section}/{current}"));
    }
    renamed
}

/// The values without any change.
fn defaults(limits: &Limits, facts: &Facts<'_>) -> Sections {
    let mut defaults = Sections::new();
    let mut set = |section: &str, key: &str, value: String| {
        defaults.entry(section.to_owned()).or_default().insert(key.to_owned(), value);
    };
    if let Some(admin) = facts.admin {
        set("admins", admin, HIDDEN.to_owned());
    }
    if let Some(address) = facts.address {
        set("chttpd", "bind_address", address.ip().to_string());
        set("chttpd", "port", address.port().to_string());
    }
    set("chttpd", "changes_timeout", limits.changes_timeout_ms.to_string());
    set("chttpd", "decode_plus_to_space", true.to_string());
    set("chttpd", "max_db_number_for_dbs_info_req", limits.dbs_info_names_max.to_string());
    set("chttpd", "max_http_request_size", limits.request_bytes_max.to_string());
    set("chttpd_auth", "timeout", limits.session_timeout_s.to_string());
    set("cluster", "n", "1".to_owned());
    set("cluster", "q", "1".to_owned());
    set("couchdb", "max_attachment_size", limits.attachment_bytes_max.to_string());
    set("couchdb", "max_document_size", limits.document_bytes_max.to_string());
    set("couchdb", "max_partition_size", PARTITION_BYTES_MAX.to_string());
    set("couchdb", "uuid", facts.uuid.to_owned());
    set("settee", "compress_responses", limits.compress_responses.to_string());
    set("settee", "requests_in_flight_max", limits.requests_in_flight_max.to_string());
    set("uuids", "algorithm", "sequential".to_owned());
    set("uuids", "max_count", limits.uuids_max.to_string());
    set("vendor", "name", "Settee".to_owned());
    set("vendor", "version", env!("CARGO_PKG_VERSION").to_owned());
    defaults
}

fn check_changeable(section: &str, key: &str) -> Result<(), ApiError> {
    if FORBIDDEN_SECTIONS.contains(&section) {
        return Err(ApiError::forbidden("Config section blacklisted for modification over HTTP API."));
    }
    if section == "admins" {
        let reason =
            "Administrators are set where the server is started: over HTTP that is not implemented yet.";
        return Err(ApiError::not_implemented(reason));
    }
    if FIXED_KEYS.contains(&(section, key)) || section == "vendor" {
        let reason = format!("{section}/{key} is set when the server is started.");
        return Err(ApiError::not_implemented(reason));
    }
    if let Some((.., current)) = RENAMED_KEYS.iter().find(|renamed| (renamed.0, renamed.1) == (section, key))
    {
        return Err(ApiError::bad_request(format!("{section}/{key} is {section}/{current} now.")));
    }
    if has_no_effect(section, key) {
        let reason = format!("{section}/{key} is not implemented: it would change nothing.");
        return Err(ApiError::not_implemented(reason));
    }
    Ok(())
}

/// CouchDB's checks of texts that become lines of a file, and the limits of this server.
fn check_texts(section: &str, key: &str, value: &str) -> Result<(), ApiError> {
    let is_shown = |text: &str| text.chars().all(|char| !char.is_control() || char == '\t');
    let is_name = |text: &str| is_shown(text) && !text.contains(['[', ']']) && text.len() <= NAME_BYTES_MAX;
    if !is_name(section) {
        return Err(ApiError::bad_request("Invalid configuration section"));
    }
    if !is_name(key) {
        return Err(ApiError::bad_request("Invalid configuration key"));
    }
    if !is_shown(value) || value.len() > VALUE_BYTES_MAX {
        return Err(ApiError::bad_request("Invalid configuration value"));
    }
    Ok(())
}

fn is_secret(section: &str, key: &str) -> bool {
    section == "admins" || ["password", "secret"].iter().any(|word| key.contains(word))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::Maintenance;
    use crate::settings::config_file::FILE_BYTES_MAX;
    use crate::uuids::Algorithm;

    fn open(directory: &Path) -> (ConfigStore, Derived) {
        let facts = Facts { admin: Some("ann"), uuid: "ab", address: None };
        ConfigStore::open(Some(directory.join(CONFIG_FILE)), Limits::default(), &facts)
    }

    async fn set(store: &ConfigStore, section: &str, key: &str, value: &str) -> Result<Derived, ApiError> {
        store.change(section, key, Some(value.to_owned()), true).await
    }

    #[tokio::test]
    async fn changes_hold_after_a_restart_and_deletions_too() {
        let directory = tempfile::tempdir().unwrap();
        let (store, derived) = open(directory.path());
        assert_eq!(derived.limits, Limits::default());
        let derived = set(&store, "couchdb", "max_document_size", "1234").await.unwrap();
        assert_eq!(derived.limits.document_bytes_max, 1234);
        set(&store, "my section", "a \"key\" = ü", "va;lue [x] = \\ y").await.unwrap();
        store.change("uuids", "max_count", None, true).await.unwrap();
        store.change("couchdb", "maintenance_mode", Some("true".to_owned()), false).await.unwrap();

        let (again, derived) = open(directory.path());
        assert_eq!((derived.limits.document_bytes_max, derived.maintenance), (1234, Maintenance::None));
        assert_eq!(again.get("my section", "a \"key\" = ü").as_deref(), Some("va;lue [x] = \\ y"));
        assert_eq!(again.get("uuids", "max_count"), None);
        assert_eq!(store.get("couchdb", "maintenance_mode").as_deref(), Some("true"));
    }

    #[tokio::test]
    async fn a_change_that_makes_the_file_too_large_is_refused_and_the_rest_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = open(directory.path());
        // All keys that fit but one are written at once, which is faster.
        let long = "x".repeat(VALUE_BYTES_MAX);
        let count = usize::try_from(FILE_BYTES_MAX).unwrap() / (VALUE_BYTES_MAX + 16) - 1;
        let entry = |n: usize| (("long".to_owned(), format!("{n:04}")), Some(long.clone()));
        let changes: Changes = (0..count).map(entry).collect();
        *store.lock() = ConfigState { changes: changes.clone(), persisted: changes };
        let mut refused = None;
        for n in count..count + 3 {
            let ((section, key), value) = entry(n);
            refused = store.change(&section, &key, value, true).await.err().map(|failure| (n, failure));
            if refused.is_some() {
                break;
            }
        }
        let (persisted, failure) = refused.expect("there is a limit");
        assert_eq!((failure.status.as_u16(), persisted > count), (400, true), "{}", failure.reason);
        set(&store, "couchdb", "max_document_size", "1234").await.unwrap();
        let (again, derived) = open(directory.path());
        assert_eq!(derived.limits.document_bytes_max, 1234);
        assert_eq!(again.section("long").len(), persisted, "exactly the acknowledged keys were stored");
    }

    #[tokio::test]
    async fn an_invalid_value_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = open(directory.path());
        let before = store.all();
        for (section, key, value) in [
            ("couchdb", "max_document_size", "0"),
            ("couchdb", "max_document_size", "99999999999"),
            ("couchdb", "max_document_size", "x"),
            ("couchdb", "maintenance_mode", "maybe"),
            ("chttpd", "max_http_request_size", "18446744073709551615"),
            ("uuids", "algorithm", "dice"),
            ("settee", "compress_responses", "yes"),
            ("a[b", "c", "d"),
            ("a", "c\n", "d"),
            ("a", "c", "d\r\n[e]"),
        ] {
            let failure = set(&store, section, key, value).await.unwrap_err();
            assert_eq!(failure.status.as_u16(), 400, "{section}/{key} = {value}");
        }
        assert_eq!(store.all(), before);
        assert!(!directory.path().join(CONFIG_FILE).exists(), "nothing was written");
    }

    #[tokio::test]
    async fn invalid_entries_of_the_file_are_ignored_and_others_apply() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[uuids]\nalgorithm = \"dice\"\nmax_count = \"7\"\n";
        fs::write(directory.path().join(CONFIG_FILE), text).unwrap();
        let (store, derived) = open(directory.path());
        assert_eq!((derived.limits.uuids_max, derived.uuids), (7, Algorithm::Sequential));
        assert!(store.reload().is_err(), "a reload reports invalid entries");
        fs::write(directory.path().join(CONFIG_FILE), "[uuids").unwrap();
        let (_, derived) = open(directory.path());
        assert_eq!(derived.limits, Limits::default());
    }

    #[tokio::test]
    async fn a_file_with_former_names_is_rewritten_at_start_and_they_are_refused_over_http() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(CONFIG_FILE);
        let text = "[settee]\ncompress_answers = \"true\"\nmax_requests_in_flight = \"7\"\n\
                    requests_in_flight_max = \"9\"\n[mine]\ncompress_answers = \"x\"\n";
        fs::write(&path, text).unwrap();
        let configured = read_configured(&path, &Limits::default());
        assert_eq!((configured.limits.requests_in_flight_max, configured.changed.len()), (9, 2));
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "only a server writes the file");

        let (store, derived) = open(directory.path());
        assert!(derived.limits.compress_responses && derived.limits.requests_in_flight_max == 9);
        let written = fs::read_to_string(&path).unwrap();
        let sections: Sections = toml::from_str(&written).unwrap();
        let keys = |section: &str| sections[section].keys().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(keys("settee"), ["compress_responses", "requests_in_flight_max"], "{written}");
        assert_eq!(keys("mine"), ["compress_answers"], "{written}");
        let (_, again) = open(directory.path());
        assert_eq!((again, fs::read_to_string(&path).unwrap()), (derived, written.clone()));

        let failure = set(&store, "settee", "compress_answers", "true").await.unwrap_err();
        assert!(failure.status.as_u16() == 400 && failure.reason.contains("settee/compress_responses"));
        assert_eq!(fs::read_to_string(&path).unwrap(), written);

        // A file that can't be rewritten is read all the same.
        fs::write(&path, text).unwrap();
        fs::create_dir(path.with_extension("toml.new")).unwrap();
        let (store, derived) = open(directory.path());
        assert!(derived.limits.compress_responses && store.reload().is_ok());
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    /// The names and values of limits, by their `Debug` output.
    fn shown(limits: &Limits) -> Vec<String> {
        let text = format!("{limits:?}");
        text.trim_start_matches("Limits { ").trim_end_matches(" }").split(", ").map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn exactly_the_changeable_limits_are_reported_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let (store, start) = open(directory.path());
        let mut found = Vec::new();
        for (section, keys) in store.all() {
            for key in keys.keys() {
                // A number that every numeric limit accepts and none has, or a boolean for the others.
                let (number, other) = (set(&store, &section, key, "12345").await, "true");
                let (value, changed) = match number {
                    Ok(derived) => ("12345", derived),
                    Err(_) => match set(&store, &section, key, other).await {
                        Ok(derived) => (other, derived),
                        Err(_) => continue,
                    },
                };
                store.change(&section, key, None, true).await.unwrap();
                let (before, after) = (shown(&start.limits), shown(&changed.limits));
                let differing: Vec<&String> = after.iter().filter(|limit| !before.contains(limit)).collect();
                for limit in &differing {
                    let (name, now) = limit.split_once(": ").unwrap();
                    assert_eq!((now, differing.len()), (value, 1), "{section}/{key}");
                    found.push((name.to_owned(), section.clone(), key.clone()));
                }
            }
        }
        found.sort();
        let expected = CHANGEABLE_LIMITS.iter().map(|(name, section, key)| (*name, *section, *key));
        let found = found.iter().map(|(name, section, key)| (&**name, &**section, &**key));
        assert!(expected.eq(found), "reported limits differ from the changeable ones");
    }

    #[tokio::test]
    async fn the_configuration_is_read_without_a_server_and_without_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(CONFIG_FILE);
        let nothing = read_configured(&path, &Limits::default());
        assert!(nothing.limits == Limits::default() && nothing.changed.is_empty(), "{nothing:?}");

        let (store, _) = open(directory.path());
        set(&store, "couchdb", "max_document_size", "1234").await.unwrap();
        set(&store, "mine", "password", "hidden").await.unwrap();
        store.change("uuids", "max_count", None, true).await.unwrap();
        let configured = read_configured(&path, &Limits { uuids_max: 7, ..Limits::default() });
        assert_eq!((configured.limits.document_bytes_max, configured.limits.uuids_max), (1234, 7));
        let [section, key, value] = ["couchdb", "max_document_size", "1234"].map(str::to_owned);
        assert_eq!(configured.changed, [("document_bytes_max", section, key, value)]);
        let deleted = ("uuids".to_owned(), "max_count".to_owned(), None);
        assert!(configured.others.contains(&deleted), "{configured:?}");
        assert!(!format!("{configured:?}").contains("\"hidden\""), "{configured:?}");

        fs::write(&path, "[uuids").unwrap();
        let damaged = read_configured(&path, &Limits::default());
        assert!(damaged.invalid[0].1.contains(CONFIG_FILE), "{damaged:?}");
    }
}
