//! The settings of a server that derive from the configuration.
//!
//! Invariant: an invalid value of a key with an effect here yields the reason and no settings.

use super::config_file::Changes;
use super::couchdb_keys::{has_no_effect, older_name};
use crate::auth::cors::Cors;
use crate::auth::sign_in::SignIn;
use crate::limits::Limits;
use crate::uuids::Algorithm;

/// CouchDB's limit for a partition, in bytes.
pub(super) const PARTITION_BYTES_MAX: u64 = 10 << 30;

/// Largest `chttpd/max_http_request_size` in bytes: CouchDB's default.
const REQUEST_BYTES_MAX: u64 = 4 << 30;

/// The maintenance mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Maintenance {
    #[default]
    None,
    /// `_up` answers 404.
    Mode,
    /// As `Mode`, with another name: load balancers should not route to the server.
    NoBalancing,
}

/// The server's settings that derive from the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Derived {
    pub(crate) limits: Limits,
    pub(crate) maintenance: Maintenance,
    pub(crate) uuids: Algorithm,
    /// Whether `+` in a path decodes to a space.
    pub(crate) plus_is_space: bool,
    /// Size in bytes from which on a partition refuses writes that enlarge it.
    pub(crate) partition_bytes_max: u64,
    pub(crate) sign_in: SignIn,
    /// None if CORS is disabled.
    pub(crate) cors: Option<Cors>,
}

impl Derived {
    /// Derives the settings from changes to a configuration with these limits.
    ///
    /// # Errors
    /// The reason why a change is invalid. Without an administrator (`has_admin`) nobody can be required to
    /// sign in.
    pub(super) fn of(changes: &Changes, limits: &Limits, has_admin: bool) -> Result<Derived, String> {
        if let Some((section, key)) = changes.keys().find(|(section, key)| has_no_effect(section, key)) {
            return Err(format!("{section}/{key} changes nothing here"));
        }
        let keys = ChangedKeys(changes);
        let limits = keys.limits(limits)?;
        let maintenance = match keys.get("couchdb", "maintenance_mode") {
            None | Some("false") => Maintenance::None,
            Some("true") => Maintenance::Mode,
            Some("nolb") => Maintenance::NoBalancing,
            Some(_) => return Err("couchdb/maintenance_mode must be true, false or nolb".to_owned()),
        };
        let suffix = keys.get("uuids", "utc_id_suffix").unwrap_or_default();
        let uuids = Algorithm::parse(keys.get("uuids", "algorithm").unwrap_or("sequential"), suffix)?;
        let plus_is_space = match keys.get("chttpd", "decode_plus_to_space") {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err("chttpd/decode_plus_to_space must be true or false".to_owned()),
        };
        let partition_bytes_max =
            match keys.number("couchdb", "max_partition_size", 0, u64::MAX, PARTITION_BYTES_MAX)? {
                0 => u64::MAX,
                bytes => bytes,
            };
        let sign_in = SignIn::parse(|section, key| keys.get(section, key))?;
        if sign_in.is_required() && !has_admin {
            return Err("chttpd/require_valid_user: without an administrator nobody can sign in".to_owned());
        }
        // Parsed even if CORS is disabled, so that invalid values are refused when they are set.
        let cors = Cors::parse(|key| keys.get("cors", key))?;
        let cors = match keys.get("chttpd", "enable_cors") {
            None | Some("false") => None,
            Some("true") => Some(cors),
            Some(_) => return Err("chttpd/enable_cors must be true or false".to_owned()),
        };
        Ok(Derived { limits, maintenance, uuids, plus_is_space, partition_bytes_max, sign_in, cors })
    }
}

/// The changed values of keys with an effect here.
#[derive(Clone, Copy)]
struct ChangedKeys<'a>(&'a Changes);

impl<'a> ChangedKeys<'a> {
    /// The value of a key, also under the section's older name; None if it isn't changed.
    fn get(self, section: &str, key: &str) -> Option<&'a str> {
        let set = |section: &str| {
            let value = self.0.get(&(section.to_owned(), key.to_owned()));
            value.and_then(Option::as_deref).filter(|value| !value.is_empty())
        };
        set(section).or_else(|| older_name(section).and_then(set))
    }

    /// A number from `least` to `most`.
    fn number(self, section: &str, key: &str, least: u64, most: u64, default: u64) -> Result<u64, String> {
        match self.get(section, key) {
            None => Ok(default),
            Some(text) => match text.parse::<u64>() {
                Ok(number) if (least..=most).contains(&number) => Ok(number),
                _ => Err(format!("{section}/{key} must be a number from {least} to {most}")),
            },
        }
    }

    /// The limits that result from changes to `base`.
    fn limits(self, base: &Limits) -> Result<Limits, String> {
        let as_size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut limits = base.clone();
        let document_max = settee_doc::DOCUMENT_BYTES_LIMIT as u64;
        limits.document_bytes_max = as_size(self.number(
            "couchdb",
            "max_document_size",
            1,
            document_max,
            base.document_bytes_max as u64,
        )?);
        limits.attachment_bytes_max = match self.get("couchdb", "max_attachment_size") {
            Some("infinity") => u64::MAX,
            _ => self.number("couchdb", "max_attachment_size", 0, u64::MAX, base.attachment_bytes_max)?,
        };
        let most = base.request_bytes_max.max(REQUEST_BYTES_MAX);
        limits.request_bytes_max =
            self.number("chttpd", "max_http_request_size", 1, most, base.request_bytes_max)?;
        limits.changes_timeout_ms =
            self.number("chttpd", "changes_timeout", 1, u64::from(u32::MAX), base.changes_timeout_ms)?;
        let names = base.dbs_info_names_max as u64;
        limits.dbs_info_names_max =
            as_size(self.number("chttpd", "max_db_number_for_dbs_info_req", 1, 1_000_000, names)?);
        limits.uuids_max = self.number("uuids", "max_count", 1, 1_000_000, base.uuids_max)?;
        limits.session_timeout_s =
            self.number("chttpd_auth", "timeout", 1, u64::from(u32::MAX), base.session_timeout_s)?;
        let in_flight = base.requests_in_flight_max as u64;
        limits.requests_in_flight_max =
            as_size(self.number("settee", "requests_in_flight_max", 1, u64::from(u32::MAX), in_flight)?);
        limits.compress_responses = match self.get("settee", "compress_responses") {
            None => base.compress_responses,
            Some("true") => true,
            Some("false") => false,
            Some(_) => return Err("settee/compress_responses must be true or false".to_owned()),
        };
        Ok(limits)
    }
}
