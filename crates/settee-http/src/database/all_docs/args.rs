//! The options of a list.

use std::borrow::Cow;

use settee_doc::{Database, Range};

use super::scope::Scope;
use crate::body::{ALLOCATION_BYTES, BodyBudget};
use crate::error::ApiError;
use crate::json;
use crate::query::{self, Key};

/// The options of a list.
pub(super) struct Args {
    pub(super) start: Option<Key>,
    pub(super) end: Option<Key>,
    pub(super) inclusive_end: bool,
    pub(super) descending: bool,
    /// JSON texts.
    pub(super) keys: Option<Vec<String>>,
    pub(super) skip: u64,
    pub(super) limit: u64,
    pub(super) include_docs: bool,
    pub(super) conflicts: bool,
    pub(super) attachments: bool,
    pub(super) encoding: bool,
    pub(super) update_seq: bool,
    /// Options for views, which are only checked here.
    pub(super) group: Option<bool>,
    pub(super) group_level: Option<u64>,
    pub(super) reduce: bool,
    /// Whether local documents that CouchDB writes for itself are included.
    pub(super) include_system: bool,
    pub(super) partition: Option<String>,
}

impl Default for Args {
    fn default() -> Args {
        Args {
            start: None,
            end: None,
            inclusive_end: true,
            descending: false,
            keys: None,
            skip: 0,
            limit: u64::MAX,
            include_docs: false,
            conflicts: false,
            attachments: false,
            encoding: false,
            update_seq: false,
            group: None,
            group_level: None,
            reduce: false,
            include_system: false,
            partition: None,
        }
    }
}

impl Args {
    /// Sets an option. `value` is JSON text for keys, plain text for others.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), ApiError> {
        match name {
            "startkey" | "start_key" => self.start = Some(Key::parse(value)?),
            "endkey" | "end_key" => self.end = Some(Key::parse(value)?),
            "key" => (self.start, self.end) = (Some(Key::parse(value)?), Some(Key::parse(value)?)),
            "inclusive_end" => self.inclusive_end = query::boolean(value)?,
            "descending" => self.descending = query::boolean(value)?,
            "skip" => self.skip = query::positive(value)?,
            "limit" => self.limit = query::positive(value)?,
            "include_docs" => self.include_docs = query::boolean(value)?,
            "conflicts" => self.conflicts = query::boolean(value)?,
            "attachments" => self.attachments = query::boolean(value)?,
            "att_encoding_info" => self.encoding = query::boolean(value)?,
            "update_seq" => self.update_seq = query::boolean(value)?,
            "include_system" => self.include_system = value == "true",
            "partition" => self.partition = Some(value.to_owned()),
            "group" => self.group = Some(query::boolean(value)?),
            "group_level" => self.group_level = Some(query::positive(value)?),
            "reduce" => self.reduce = query::boolean(value)?,
            name => return check_ignored(name, value),
        }
        Ok(())
    }

    /// Sets `keys` from JSON text.
    pub(super) fn set_keys(
        &mut self,
        raw: &str,
        no_list: impl FnOnce() -> ApiError,
        budget: &mut BodyBudget,
    ) -> Result<(), ApiError> {
        let raw = query::json_value(raw)?;
        if raw == "null" {
            return Ok(());
        }
        let mut keys = Vec::new();
        json::each_element(raw, no_list, |key| budget.push(key.to_owned(), ALLOCATION_BYTES, &mut keys))?;
        self.keys = Some(keys);
        Ok(())
    }

    /// Sets the options in a request's body.
    pub(super) fn take_members(&mut self, text: &[u8], budget: &mut BodyBudget) -> Result<(), ApiError> {
        json::each_member(text, |name, value| match name.as_ref() {
            "keys" => {
                let no_list = || ApiError::bad_request("`keys` body member must be an array.");
                self.set_keys(value, no_list, budget)
            }
            name if name.ends_with("key") => self.set(name, value),
            // A number or boolean may be sent as a string, too.
            name => self.set(name, &json::string(value).unwrap_or(Cow::Borrowed(value))),
        })
    }

    /// Checks that the options are compatible. Returns the scope, which the option `partition` narrows.
    pub(super) fn check(&self, database: &Database, scope: Scope) -> Result<Scope, ApiError> {
        if self.keys.is_some() && (self.start.is_some() || self.end.is_some()) {
            let reason = "`keys` is incompatible with `key`, `start_key` and `end_key`";
            return Err(ApiError::query_parse_error(reason));
        }
        if self.reduce {
            return Err(ApiError::query_parse_error("Reduce is invalid for map-only views."));
        }
        match (self.group, self.group_level) {
            (_, Some(0)) | (None | Some(false), None) => {}
            (Some(false), Some(_)) => {
                let reason = "Can't specify group=false and group_level>0 at the same time";
                return Err(ApiError::query_parse_error(reason));
            }
            _ => return Err(ApiError::query_parse_error("Invalid use of grouping on a map view.")),
        }
        let Some(partition) = self.partition.as_ref().filter(|_| scope == Scope::All) else {
            return Ok(scope);
        };
        if !database.is_partitioned() {
            let reason = "`partition` parameter is not supported on this db";
            return Err(ApiError::query_parse_error(reason));
        }
        settee_doc::check_partition(partition)?;
        Ok(Scope::Partition(partition.clone()))
    }

    /// The range of ids; None if no id can be in it.
    pub(super) fn range(&self) -> Option<Range> {
        let bound = |key: &Option<Key>| match key {
            Some(Key::Text(text)) => Some(text.clone()),
            Some(Key::BeforeAll) | None => None,
        };
        // JSON that isn't a string sorts before every id.
        let first_high = if self.descending { &self.start } else { &self.end };
        if *first_high == Some(Key::BeforeAll) {
            return None;
        }
        let range = Range {
            start: bound(&self.start),
            end: bound(&self.end),
            exclusive_end: !self.inclusive_end,
            descending: self.descending,
            skip: self.skip,
            ..Range::default()
        };
        let (low, high) =
            if self.descending { (&range.end, &range.start) } else { (&range.start, &range.end) };
        match (low, high) {
            (Some(low), Some(high)) if low > high => None,
            _ => Some(range),
        }
    }
}

/// Checks options on the freshness and order of a view. This list is always fresh and sorted.
fn check_ignored(name: &str, value: &str) -> Result<(), ApiError> {
    let allowed: &[&str] = match name {
        "stale" => &["ok", "update_after"],
        "stable" => &["true", "false"],
        "update" => &["true", "false", "lazy"],
        "sorted" => return query::boolean(value).map(drop),
        _ => return Ok(()),
    };
    match allowed.contains(&value) {
        true => Ok(()),
        false => Err(ApiError::query_parse_error(format!("Invalid value for `{name}`."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(pairs: &[(&str, &str)]) -> Args {
        let mut args = Args::default();
        for (name, value) in pairs {
            args.set(name, value).unwrap();
        }
        args
    }

    #[test]
    fn an_inverted_range_holds_nothing() {
        assert!(args(&[("startkey", "\"b\""), ("endkey", "\"a\"")]).range().is_none());
        assert!(
            args(&[("startkey", "\"a\""), ("endkey", "\"b\""), ("descending", "true")]).range().is_none()
        );
        assert!(
            args(&[("startkey", "\"b\""), ("endkey", "\"a\""), ("descending", "true")]).range().is_some()
        );
        assert!(args(&[("key", "\"a\"")]).range().is_some());
    }

    #[test]
    fn keys_that_are_no_strings_sort_before_every_id() {
        assert_eq!(args(&[("startkey", "1")]).range().unwrap().start, None);
        assert!(args(&[("endkey", "null")]).range().is_none());
        assert!(args(&[("startkey", "{}"), ("descending", "true")]).range().is_none());
    }
}
