//! The configuration as CouchDB's clients see it: sections of keys with texts for values, read and
//! written through `_node/_local/_config`.
//!
//! What holds without any change comes from the server's own settings. Changes lie over it, in
//! memory, and in the file [`CONFIG_FILE`] of the data folder, which is TOML with a table for a
//! section. A key that means something here takes effect at once ([`Derived`]). One that means something to
//! CouchDB alone is refused; any other is kept and given back, for clients that look for it.
//!
//! Invariants:
//! 1. The file is replaced as a whole and synced before a change is answered: a crash leaves the
//!    one before or the one after.
//! 2. What a key that takes effect can't mean is refused, and changes nothing.
//! 3. Administrators' passwords are neither shown nor written.
//! 4. What was answered with success is read at the next start: no file is written that is too long to be
//!    read.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;

use crate::cors::Cors;
use crate::error::Failure;
use crate::sign_in::SignIn;
use crate::uuids::Algorithm;
use crate::{Limits, logged};

mod couchdb_keys;

use couchdb_keys::{current_name, is_pretence, older_name};

/// The file of the data folder that keeps what was changed over HTTP.
pub const CONFIG_FILE: &str = "config.toml";

/// Bytes of that file at most.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// CouchDB's limit of a partition, in bytes.
const PARTITION_BYTES_MAX: u64 = 10 << 30;

/// Keys that may be changed, in all sections together.
const CHANGES_MAX: usize = 4096;

/// Bytes of a section's name or a key, and of a value.
const NAME_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Largest `chttpd/max_http_request_size`, in bytes: CouchDB's default.
const REQUEST_BYTES_MAX: u64 = 4 << 30;

/// Shown in place of what is secret.
const HIDDEN: &str = "****";

/// Sections that CouchDB lets nobody change over HTTP: they name programs.
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

/// Keys that tell of this server and are decided elsewhere.
const FIXED_KEYS: &[(&str, &str)] = &[
    ("chttpd", "bind_address"),
    ("chttpd", "port"),
    ("cluster", "n"),
    ("cluster", "q"),
    ("couchdb", "uuid"),
];

/// The limits that can be changed: each one's name in [`Limits`], its section and its key.
const CHANGEABLE_LIMITS: &[(&str, &str, &str)] = &[
    ("changes_timeout_ms", "chttpd", "changes_timeout"),
    ("compress_answers", "settee", "compress_answers"),
    ("max_attachment_size", "couchdb", "max_attachment_size"),
    ("max_dbs_info_names", "chttpd", "max_db_number_for_dbs_info_req"),
    ("max_document_size", "couchdb", "max_document_size"),
    ("max_request_bytes", "chttpd", "max_http_request_size"),
    ("max_requests_in_flight", "settee", "max_requests_in_flight"),
    ("max_uuids", "uuids", "max_count"),
    ("session_timeout_s", "chttpd_auth", "timeout"),
];

/// Sections, each with its keys and their values.
pub(crate) type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// What was changed: of each section and key the value, None where it was deleted.
type Changes = BTreeMap<(String, String), Option<String>>;

/// Whether the server is to be kept out of its users' way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Maintenance {
    #[default]
    None,
    /// `_up` says that the server is being worked at.
    Mode,
    /// As `Mode`, under another name: load balancers are to leave it alone.
    NoBalancing,
}

/// What the configuration means to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Derived {
    pub(crate) limits: Limits,
    pub(crate) maintenance: Maintenance,
    pub(crate) uuids: Algorithm,
    /// Whether `+` is a space in paths.
    pub(crate) plus_is_space: bool,
    /// Bytes of a partition from which on it takes nothing that makes it larger.
    pub(crate) partition_bytes_max: u64,
    pub(crate) sign_in: SignIn,
    /// None where it is off.
    pub(crate) cors: Option<Cors>,
}

/// The configuration of a server.
pub(crate) struct ConfigStore {
    file: Option<PathBuf>,
    limits: Limits,
    /// Whether there is somebody who can sign in.
    has_admin: bool,
    /// What holds where nothing was changed.
    known: Sections,
    state: Mutex<State>,
    /// Held by who changes something, until it is in the file.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// What holds.
    changes: Changes,
    /// Of that, what the file has.
    kept: Changes,
}

/// What was configured over HTTP, as it lies over the settings of a start.
#[derive(Debug)]
pub struct Configured {
    /// The limits in force.
    pub limits: Limits,
    /// The limits that were changed: each one's name in [`Limits`], and its section and key as
    /// `section/key`.
    pub changed: Vec<(&'static str, String)>,
    /// What else was changed: section, key, and the value, hidden where it is secret; None where
    /// the key was deleted.
    pub others: Vec<(String, String, Option<String>)>,
    /// What the file has and can't mean, by name, and why.
    pub left_out: Vec<(String, String)>,
}

/// Reads what a server of these limits would take from its [`CONFIG_FILE`], without one.
///
/// The file is read in the caller's thread. One that isn't there changes nothing; one that can't
/// be read is left out as a whole, as a server does.
pub fn read_configured(file: &Path, limits: &Limits) -> Configured {
    let store = ConfigStore {
        file: Some(file.to_owned()),
        limits: limits.clone(),
        has_admin: true,
        known: Sections::new(),
        state: Mutex::default(),
        changing: tokio::sync::Mutex::default(),
    };
    let (kept, derived, left_out) = store.settle();
    let mut configured = Configured { limits: derived.limits, changed: vec![], others: vec![], left_out };
    for ((section, key), value) in kept {
        let limit =
            CHANGEABLE_LIMITS.iter().find(|limit| (limit.1, limit.2) == (current_name(&section), &key));
        match (limit, value) {
            // What was deleted is what the start says.
            (Some((name, ..)), Some(_)) => configured.changed.push((name, format!("{section}/{key}"))),
            (_, value) => {
                let hide = |value| if is_secret(&section, &key) { HIDDEN.to_owned() } else { value };
                let value = value.map(hide);
                configured.others.push((section, key, value));
            }
        }
    }
    configured
}

/// What tells of a server to who asks for its configuration.
pub(crate) struct Facts<'a> {
    pub(crate) admin: Option<&'a str>,
    pub(crate) uuid: &'a str,
    pub(crate) address: Option<SocketAddr>,
}

impl ConfigStore {
    /// Reads what was changed; what can't be read is logged, and left out. The file is read in the
    /// caller's thread: to be called at the start.
    pub(crate) fn open(file: Option<PathBuf>, limits: Limits, facts: &Facts<'_>) -> (ConfigStore, Derived) {
        let known = known(&limits, facts);
        let changing = tokio::sync::Mutex::new(());
        let has_admin = facts.admin.is_some();
        let mut store = ConfigStore { file, limits, has_admin, known, state: Mutex::default(), changing };
        let (kept, derived, left_out) = store.settle();
        for (what, reason) in left_out {
            let (what, reason) = (logged::text(&what), logged::text(&reason));
            tracing::error!(what, reason, "what was configured over HTTP is left out");
        }
        store.state = Mutex::new(State { changes: kept.clone(), kept });
        (store, derived)
    }

    /// What the file has and what it means; and what it has that can't mean anything, with the
    /// reasons.
    fn settle(&self) -> (Changes, Derived, Vec<(String, String)>) {
        let mut left_out = Vec::new();
        let mut kept = self.read_file().unwrap_or_else(|error| {
            left_out.push((CONFIG_FILE.to_owned(), error.to_string()));
            Changes::new()
        });
        kept.retain(|(section, key), value| {
            let alone = Changes::from([((section.clone(), key.clone()), value.clone())]);
            let derived = self.derive(&alone);
            left_out
                .extend(derived.as_ref().err().map(|reason| (format!("{section}/{key}"), reason.clone())));
            derived.is_ok()
        });
        let derived = self.derive(&kept).expect("each of them was looked at");
        (kept, derived, left_out)
    }

    /// Everything. Who may ask may set it all; of administrators the passwords are hidden even so.
    pub(crate) fn all(&self) -> Sections {
        let state = self.lock();
        let mut all = self.known.clone();
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

    /// A section; empty where there is none.
    pub(crate) fn section(&self, section: &str) -> BTreeMap<String, String> {
        self.all().remove(section).unwrap_or_default()
    }

    /// The value of a key.
    pub(crate) fn get(&self, section: &str, key: &str) -> Option<String> {
        let state = self.lock();
        match state.changes.get(&(section.to_owned(), key.to_owned())) {
            Some(value) => value.clone(),
            None => self.known.get(section)?.get(key).cloned(),
        }
    }

    /// Sets a key, or deletes it, in the file too where that `persist`s. Returns what the
    /// configuration means then. The caller holds `changing`, and waits to the end: the file may still be
    /// being written where this is dropped.
    ///
    /// # Errors
    /// 403 and 501 for what can't be changed, 400 for a name, a key or a value that can't be, or one too much;
    /// 500 where the file can't be written: nothing is changed then.
    pub(crate) async fn change(
        &self,
        section: &str,
        key: &str,
        value: Option<String>,
        persist: bool,
    ) -> Result<Derived, Failure> {
        check_changeable(section, key)?;
        check_texts(section, key, value.as_deref().unwrap_or_default())?;
        let place = (section.to_owned(), key.to_owned());
        let (changes, kept) = {
            let state = self.lock();
            let (mut changes, mut kept) = (state.changes.clone(), state.kept.clone());
            changes.insert(place.clone(), value.clone());
            if persist {
                kept.insert(place, value.clone());
            }
            (changes, kept)
        };
        if changes.len() > CHANGES_MAX {
            return Err(Failure::bad_request(format!("more than {CHANGES_MAX} keys can't be configured")));
        }
        let derived = self.derive(&changes).map_err(Failure::bad_request)?;
        if persist {
            self.write_file(&kept).await?;
        }
        *self.lock() = State { changes, kept };
        let shown = if is_secret(section, key) { HIDDEN } else { value.as_deref().unwrap_or("(deleted)") };
        let (section, key, value) = (logged::name(section), logged::name(key), logged::name(shown));
        tracing::info!(section, key, value, persist, "configured over HTTP");
        Ok(derived)
    }

    /// Takes what the file has, and forgets what was changed in memory alone. The caller holds
    /// `changing`.
    ///
    /// # Errors
    /// 400 where the file can't be read, or holds what can't be: nothing is changed then.
    pub(crate) fn reload(&self) -> Result<Derived, Failure> {
        let kept = self.read_file().map_err(|error| Failure::bad_request(error.to_string()))?;
        let derived = self.derive(&kept).map_err(Failure::bad_request)?;
        *self.lock() = State { changes: kept.clone(), kept };
        Ok(derived)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What changes mean; the reason where one can't mean anything.
    fn derive(&self, changes: &Changes) -> Result<Derived, String> {
        if let Some((section, key)) = changes.keys().find(|(section, key)| is_pretence(section, key)) {
            return Err(format!("{section}/{key} changes nothing here"));
        }
        let set = |section: &str, key: &str| {
            let value = changes.get(&(section.to_owned(), key.to_owned()));
            value.and_then(Option::as_deref).filter(|value| !value.is_empty())
        };
        let changed = |section: &str, key: &str| {
            set(section, key).or_else(|| older_name(section).and_then(|older| set(older, key)))
        };
        let number =
            |section: &str, key: &str, least: u64, most: u64, default: u64| match changed(section, key) {
                None => Ok(default),
                Some(text) => match text.parse::<u64>() {
                    Ok(number) if (least..=most).contains(&number) => Ok(number),
                    _ => Err(format!("{section}/{key} must be a number from {least} to {most}")),
                },
            };
        let as_size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let base = &self.limits;
        let mut limits = base.clone();
        let document_max = settee_doc::DOCUMENT_BYTES_LIMIT as u64;
        limits.max_document_size =
            as_size(number("couchdb", "max_document_size", 1, document_max, base.max_document_size as u64)?);
        limits.max_attachment_size = match changed("couchdb", "max_attachment_size") {
            Some("infinity") => u64::MAX,
            _ => number("couchdb", "max_attachment_size", 0, u64::MAX, base.max_attachment_size)?,
        };
        let most = base.max_request_bytes.max(REQUEST_BYTES_MAX);
        limits.max_request_bytes =
            number("chttpd", "max_http_request_size", 1, most, base.max_request_bytes)?;
        limits.changes_timeout_ms =
            number("chttpd", "changes_timeout", 1, u64::from(u32::MAX), base.changes_timeout_ms)?;
        let names = base.max_dbs_info_names as u64;
        limits.max_dbs_info_names =
            as_size(number("chttpd", "max_db_number_for_dbs_info_req", 1, 1_000_000, names)?);
        limits.max_uuids = number("uuids", "max_count", 1, 1_000_000, base.max_uuids)?;
        limits.session_timeout_s =
            number("chttpd_auth", "timeout", 1, u64::from(u32::MAX), base.session_timeout_s)?;
        let in_flight = base.max_requests_in_flight as u64;
        limits.max_requests_in_flight =
            as_size(number("settee", "max_requests_in_flight", 1, u64::from(u32::MAX), in_flight)?);
        limits.compress_answers = match changed("settee", "compress_answers") {
            None => base.compress_answers,
            Some("true") => true,
            Some("false") => false,
            Some(_) => return Err("settee/compress_answers must be true or false".to_owned()),
        };
        let maintenance = match changed("couchdb", "maintenance_mode") {
            None | Some("false") => Maintenance::None,
            Some("true") => Maintenance::Mode,
            Some("nolb") => Maintenance::NoBalancing,
            Some(_) => return Err("couchdb/maintenance_mode must be true, false or nolb".to_owned()),
        };
        let suffix = changed("uuids", "utc_id_suffix").unwrap_or_default();
        let uuids = Algorithm::parse(changed("uuids", "algorithm").unwrap_or("sequential"), suffix)?;
        let plus_is_space = match changed("chttpd", "decode_plus_to_space") {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err("chttpd/decode_plus_to_space must be true or false".to_owned()),
        };
        let partition_bytes_max =
            match number("couchdb", "max_partition_size", 0, u64::MAX, PARTITION_BYTES_MAX)? {
                0 => u64::MAX,
                bytes => bytes,
            };
        let sign_in = SignIn::parse(changed)?;
        if sign_in.is_required() && !self.has_admin {
            return Err("chttpd/require_valid_user: without an administrator nobody can sign in".to_owned());
        }
        // Read either way: what can't be is refused when it is set.
        let cors = Cors::parse(|key| changed("cors", key))?;
        let cors = match changed("chttpd", "enable_cors") {
            None | Some("false") => None,
            Some("true") => Some(cors),
            Some(_) => return Err("chttpd/enable_cors must be true or false".to_owned()),
        };
        Ok(Derived { limits, maintenance, uuids, plus_is_space, partition_bytes_max, sign_in, cors })
    }

    fn read_file(&self) -> Result<Changes, io::Error> {
        let Some(path) = &self.file else { return Ok(Changes::new()) };
        let mut text = String::new();
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Changes::new()),
            Err(error) => return Err(named(path, &error)),
            Ok(file) => {
                file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| named(path, &e))?
            }
        };
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(named(path, &format!("more than {FILE_BYTES_MAX} bytes")));
        }
        let sections: Sections = toml::from_str(&text).map_err(|error| named(path, &error))?;
        let mut changes = Changes::new();
        for (section, keys) in sections {
            for (key, value) in keys {
                // As in CouchDB's files: a key without a value was deleted.
                let value = (!value.is_empty()).then_some(value);
                changes.insert((section.clone(), key), value);
            }
        }
        Ok(changes)
    }

    async fn write_file(&self, kept: &Changes) -> Result<(), Failure> {
        let Some(path) = self.file.clone() else { return Ok(()) };
        let mut sections = Sections::new();
        for ((section, key), value) in kept {
            let keys = sections.entry(section.clone()).or_default();
            keys.insert(key.clone(), value.clone().unwrap_or_default());
        }
        let failed =
            |error: String| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error);
        let text = toml::to_string(&sections).map_err(|error| failed(error.to_string()))?;
        let text = format!("# What was configured over HTTP. An empty value: the key was deleted.\n\n{text}");
        if text.len() as u64 > FILE_BYTES_MAX {
            let reason = format!("The configuration has at most {FILE_BYTES_MAX} bytes.");
            return Err(Failure::bad_request(reason));
        }
        let written = tokio::task::spawn_blocking(move || replace(&path, &text)).await;
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(panicked) => Err(failed(panicked.to_string())),
        }
    }
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// Replaces a file that only its owner may read; it is on stable storage when this returns.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("toml.new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished).map_err(|error| named(&unfinished, &error))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path).map_err(|error| named(path, &error))?;
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// What holds where nothing was changed.
fn known(limits: &Limits, facts: &Facts<'_>) -> Sections {
    let mut known = Sections::new();
    let mut set = |section: &str, key: &str, value: String| {
        known.entry(section.to_owned()).or_default().insert(key.to_owned(), value);
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
    set("chttpd", "max_db_number_for_dbs_info_req", limits.max_dbs_info_names.to_string());
    set("chttpd", "max_http_request_size", limits.max_request_bytes.to_string());
    set("chttpd_auth", "timeout", limits.session_timeout_s.to_string());
    set("cluster", "n", "1".to_owned());
    set("cluster", "q", "1".to_owned());
    set("couchdb", "max_attachment_size", limits.max_attachment_size.to_string());
    set("couchdb", "max_document_size", limits.max_document_size.to_string());
    set("couchdb", "max_partition_size", PARTITION_BYTES_MAX.to_string());
    set("couchdb", "uuid", facts.uuid.to_owned());
    set("settee", "compress_answers", limits.compress_answers.to_string());
    set("settee", "max_requests_in_flight", limits.max_requests_in_flight.to_string());
    set("uuids", "algorithm", "sequential".to_owned());
    set("uuids", "max_count", limits.max_uuids.to_string());
    set("vendor", "name", "Settee".to_owned());
    set("vendor", "version", env!("CARGO_PKG_VERSION").to_owned());
    known
}

fn check_changeable(section: &str, key: &str) -> Result<(), Failure> {
    if FORBIDDEN_SECTIONS.contains(&section) {
        return Err(Failure::forbidden("Config section blacklisted for modification over HTTP API."));
    }
    if section == "admins" {
        let reason =
            "Administrators are set where the server is started: over HTTP that is not implemented yet.";
        return Err(Failure::not_implemented(reason));
    }
    if FIXED_KEYS.contains(&(section, key)) || section == "vendor" {
        let reason = format!("{section}/{key} is decided where the server is started.");
        return Err(Failure::not_implemented(reason));
    }
    if is_pretence(section, key) {
        let reason = format!("{section}/{key} is not implemented: it would change nothing.");
        return Err(Failure::not_implemented(reason));
    }
    Ok(())
}

/// CouchDB's checks of what becomes a line of a file, and our limits.
fn check_texts(section: &str, key: &str, value: &str) -> Result<(), Failure> {
    let is_shown = |text: &str| text.chars().all(|char| !char.is_control() || char == '\t');
    let is_name = |text: &str| is_shown(text) && !text.contains(['[', ']']) && text.len() <= NAME_BYTES_MAX;
    if !is_name(section) {
        return Err(Failure::bad_request("Invalid configuration section"));
    }
    if !is_name(key) {
        return Err(Failure::bad_request("Invalid configuration key"));
    }
    if !is_shown(value) || value.len() > VALUE_BYTES_MAX {
        return Err(Failure::bad_request("Invalid configuration value"));
    }
    Ok(())
}

fn is_secret(section: &str, key: &str) -> bool {
    section == "admins" || ["password", "secret"].iter().any(|word| key.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> (ConfigStore, Derived) {
        let facts = Facts { admin: Some("ann"), uuid: "ab", address: None };
        ConfigStore::open(Some(folder.join(CONFIG_FILE)), Limits::default(), &facts)
    }

    async fn set(store: &ConfigStore, section: &str, key: &str, value: &str) -> Result<Derived, Failure> {
        store.change(section, key, Some(value.to_owned()), true).await
    }

    #[tokio::test]
    async fn changes_hold_after_a_restart_and_deletions_too() {
        let folder = tempfile::tempdir().unwrap();
        let (store, derived) = open(folder.path());
        assert_eq!(derived.limits, Limits::default());
        let derived = set(&store, "couchdb", "max_document_size", "1234").await.unwrap();
        assert_eq!(derived.limits.max_document_size, 1234);
        set(&store, "my section", "a \"key\" = ü", "va;lue [x] = \\ y").await.unwrap();
        store.change("uuids", "max_count", None, true).await.unwrap();
        store.change("couchdb", "maintenance_mode", Some("true".to_owned()), false).await.unwrap();

        let (again, derived) = open(folder.path());
        assert_eq!((derived.limits.max_document_size, derived.maintenance), (1234, Maintenance::None));
        assert_eq!(again.get("my section", "a \"key\" = ü").as_deref(), Some("va;lue [x] = \\ y"));
        assert_eq!(again.get("uuids", "max_count"), None);
        assert_eq!(store.get("couchdb", "maintenance_mode").as_deref(), Some("true"));
    }

    #[tokio::test]
    async fn what_makes_the_file_too_long_to_be_read_is_refused_and_the_rest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = open(folder.path());
        // As many as the file has room for, but for one: written at once, which takes less time.
        let long = "x".repeat(VALUE_BYTES_MAX);
        let count = usize::try_from(FILE_BYTES_MAX).unwrap() / (VALUE_BYTES_MAX + 16) - 1;
        let place = |n: usize| (("long".to_owned(), format!("{n:04}")), Some(long.clone()));
        let changes: Changes = (0..count).map(place).collect();
        *store.lock() = State { changes: changes.clone(), kept: changes };
        let mut refused = None;
        for n in count..count + 3 {
            let ((section, key), value) = place(n);
            refused = store.change(&section, &key, value, true).await.err().map(|failure| (n, failure));
            if refused.is_some() {
                break;
            }
        }
        let (kept, failure) = refused.expect("there is a limit");
        assert_eq!((failure.status.as_u16(), kept > count), (400, true), "{}", failure.reason);
        set(&store, "couchdb", "max_document_size", "1234").await.unwrap();
        let (again, derived) = open(folder.path());
        assert_eq!(derived.limits.max_document_size, 1234);
        assert_eq!(again.section("long").len(), kept, "all that was told to be kept, and nothing else");
    }

    #[tokio::test]
    async fn what_a_key_can_not_mean_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = open(folder.path());
        let before = store.all();
        for (section, key, value) in [
            ("couchdb", "max_document_size", "0"),
            ("couchdb", "max_document_size", "99999999999"),
            ("couchdb", "max_document_size", "x"),
            ("couchdb", "maintenance_mode", "maybe"),
            ("chttpd", "max_http_request_size", "18446744073709551615"),
            ("uuids", "algorithm", "dice"),
            ("settee", "compress_answers", "yes"),
            ("a[b", "c", "d"),
            ("a", "c\n", "d"),
            ("a", "c", "d\r\n[e]"),
        ] {
            let failure = set(&store, section, key, value).await.unwrap_err();
            assert_eq!(failure.status.as_u16(), 400, "{section}/{key} = {value}");
        }
        assert_eq!(store.all(), before);
        assert!(!folder.path().join(CONFIG_FILE).exists(), "nothing was written");
    }

    #[tokio::test]
    async fn what_the_file_can_not_mean_is_left_out_and_the_rest_holds() {
        let folder = tempfile::tempdir().unwrap();
        let text = "[uuids]\nalgorithm = \"dice\"\nmax_count = \"7\"\n";
        fs::write(folder.path().join(CONFIG_FILE), text).unwrap();
        let (store, derived) = open(folder.path());
        assert_eq!((derived.limits.max_uuids, derived.uuids), (7, Algorithm::Sequential));
        assert!(store.reload().is_err(), "who asks is told");
        fs::write(folder.path().join(CONFIG_FILE), "[uuids").unwrap();
        let (_, derived) = open(folder.path());
        assert_eq!(derived.limits, Limits::default());
    }

    /// The names and values of limits, as they show themselves.
    fn shown(limits: &Limits) -> Vec<String> {
        let text = format!("{limits:?}");
        text.trim_start_matches("Limits { ").trim_end_matches(" }").split(", ").map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn each_limit_that_can_be_changed_is_told_by_its_name_and_no_other_can() {
        let folder = tempfile::tempdir().unwrap();
        let (store, start) = open(folder.path());
        let mut found = Vec::new();
        for (section, keys) in store.all() {
            for key in keys.keys() {
                // A number that all take and none has, or what only some take.
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
        let told = CHANGEABLE_LIMITS.iter().map(|(name, section, key)| (*name, *section, *key));
        let found = found.iter().map(|(name, section, key)| (&**name, &**section, &**key));
        assert!(told.eq(found), "what can be changed isn't what is told");
    }

    #[tokio::test]
    async fn what_was_configured_is_told_without_a_server_and_without_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CONFIG_FILE);
        let nothing = read_configured(&path, &Limits::default());
        assert!(nothing.limits == Limits::default() && nothing.changed.is_empty(), "{nothing:?}");

        let (store, _) = open(folder.path());
        set(&store, "couchdb", "max_document_size", "1234").await.unwrap();
        set(&store, "mine", "password", "hidden").await.unwrap();
        store.change("uuids", "max_count", None, true).await.unwrap();
        let configured = read_configured(&path, &Limits { max_uuids: 7, ..Limits::default() });
        assert_eq!((configured.limits.max_document_size, configured.limits.max_uuids), (1234, 7));
        assert_eq!(configured.changed, [("max_document_size", "couchdb/max_document_size".to_owned())]);
        let deleted = ("uuids".to_owned(), "max_count".to_owned(), None);
        assert!(configured.others.contains(&deleted), "{configured:?}");
        assert!(!format!("{configured:?}").contains("\"hidden\""), "{configured:?}");

        fs::write(&path, "[uuids").unwrap();
        let damaged = read_configured(&path, &Limits::default());
        assert!(damaged.left_out[0].1.contains(CONFIG_FILE), "{damaged:?}");
    }

    #[test]
    fn only_its_owner_may_read_the_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CONFIG_FILE);
        replace(&path, "a").unwrap();
        replace(&path, "b").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "b");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
