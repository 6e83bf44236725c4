//! The options of a query of a view, as CouchDB parses and checks them.

use std::borrow::Cow;

use settee_view::Grouping;

use crate::body::{ALLOCATION_BYTES, BodyBudget};
use crate::error::ApiError;
use crate::json;
use crate::query::{self, Query};

/// When the index is brought up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Update {
    /// Before the query.
    Before,
    /// After it.
    After,
    Never,
}

/// The options of a query. Keys are JSON texts.
#[derive(Debug, Clone)]
pub(super) struct Args {
    pub(super) start: Option<String>,
    pub(super) start_id: Option<String>,
    pub(super) end: Option<String>,
    pub(super) end_id: Option<String>,
    pub(super) keys: Option<Vec<String>>,
    pub(super) inclusive_end: bool,
    pub(super) descending: bool,
    pub(super) skip: u64,
    pub(super) limit: u64,
    pub(super) reduce: Option<bool>,
    group: Option<bool>,
    group_level: Option<u64>,
    pub(super) include_docs: bool,
    pub(super) conflicts: bool,
    pub(super) attachments: bool,
    pub(super) encoding: bool,
    pub(super) update: Update,
    pub(super) update_seq: bool,
    pub(super) sorted: bool,
    pub(super) partition: Option<String>,
    has_queries: bool,
}

impl Default for Args {
    fn default() -> Args {
        Args {
            start: None,
            start_id: None,
            end: None,
            end_id: None,
            keys: None,
            inclusive_end: true,
            descending: false,
            skip: 0,
            limit: u64::MAX,
            reduce: None,
            group: None,
            group_level: None,
            include_docs: false,
            conflicts: false,
            attachments: false,
            encoding: false,
            update: Update::Before,
            update_seq: false,
            sorted: true,
            partition: None,
            has_queries: false,
        }
    }
}

/// What a checked query returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Rows,
    Groups(Grouping),
}

impl Args {
    /// Sets an option. `value` is JSON for keys, plain text for others.
    fn set(&mut self, name: &str, value: &str) -> Result<(), ApiError> {
        let key = |value: &str| query::json_value(value).map(|key| Some(key.to_owned()));
        match name {
            "startkey" | "start_key" => self.start = key(value)?,
            "endkey" | "end_key" => self.end = key(value)?,
            "key" => (self.start, self.end) = (key(value)?, key(value)?),
            "startkey_docid" | "start_key_doc_id" => self.start_id = Some(value.to_owned()),
            "endkey_docid" | "end_key_doc_id" => self.end_id = Some(value.to_owned()),
            "inclusive_end" => self.inclusive_end = query::boolean(value)?,
            "descending" => self.descending = query::boolean(value)?,
            "skip" => self.skip = query::positive(value)?,
            "limit" => self.limit = query::positive(value)?,
            "reduce" => self.reduce = Some(query::boolean(value)?),
            "group" => self.group = Some(query::boolean(value)?),
            "group_level" => self.group_level = Some(query::positive(value)?),
            "include_docs" => self.include_docs = query::boolean(value)?,
            "conflicts" => self.conflicts = query::boolean(value)?,
            "attachments" => self.attachments = query::boolean(value)?,
            "att_encoding_info" => self.encoding = query::boolean(value)?,
            "update_seq" => self.update_seq = query::boolean(value)?,
            "sorted" => self.sorted = query::boolean(value)?,
            "partition" => self.partition = Some(value.to_owned()),
            "stable" => drop(query::boolean(value).map_err(|_| invalid(name))?),
            "update" => {
                self.update = match value {
                    "true" => Update::Before,
                    "lazy" => Update::After,
                    "false" => Update::Never,
                    _ => return Err(invalid(name)),
                }
            }
            "stale" => {
                self.update = match value {
                    "ok" => Update::Never,
                    "update_after" => Update::After,
                    _ => return Err(invalid(name)),
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Sets the options in a query string.
    pub(super) fn take_query(&mut self, query: Query<'_>) -> Result<(), ApiError> {
        for (name, value) in query.pairs() {
            match name.as_ref() {
                "keys" => {
                    let no_list = || ApiError::query_parse_error("`keys` must be an array of strings.");
                    self.set_keys(&value, no_list, &mut BodyBudget::unlimited())?;
                }
                name => self.set(name, &value)?,
            }
        }
        Ok(())
    }

    /// Sets the options in a body.
    pub(super) fn take_members(&mut self, text: &[u8], budget: &mut BodyBudget) -> Result<(), ApiError> {
        json::each_member(text, |name, value| match name.as_ref() {
            "keys" => {
                let no_list = || ApiError::bad_request("`keys` member must be an array.");
                self.set_keys(value, no_list, budget)
            }
            "queries" => {
                self.has_queries = true;
                Ok(())
            }
            "key" | "startkey" | "start_key" | "endkey" | "end_key" => {
                budget.charge(1, value.len())?;
                self.set(&name, value)
            }
            // Booleans may be strings; numbers must be numbers.
            name @ ("limit" | "skip" | "group_level") => match json::string(value) {
                Some(text) => Err(query::no_integer(&text)),
                None => self.set(name, value),
            },
            name => self.set(name, &json::string(value).unwrap_or(Cow::Borrowed(value))),
        })
    }

    fn set_keys(
        &mut self,
        raw: &str,
        no_list: impl FnOnce() -> ApiError,
        budget: &mut BodyBudget,
    ) -> Result<(), ApiError> {
        let raw = query::json_value(raw)?;
        let mut keys = Vec::new();
        json::each_element(raw, no_list, |key| budget.push(key.to_owned(), ALLOCATION_BYTES, &mut keys))?;
        self.keys = Some(keys);
        Ok(())
    }

    /// Checks that the options are compatible with each other, and with a view that has a reduce function or none.
    pub(super) fn check(&mut self, has_reduce: bool) -> Result<Output, ApiError> {
        if self.has_queries {
            let reason = "The `queries` parameter is no longer supported at this endpoint";
            return Err(ApiError::bad_request(reason));
        }
        if self.reduce == Some(true) && !has_reduce {
            return Err(ApiError::query_parse_error("Reduce is invalid for map-only views."));
        }
        let output = match has_reduce && self.reduce != Some(false) {
            true => Output::Groups(self.grouping()?),
            false => {
                self.check_no_grouping()?;
                Output::Rows
            }
        };
        if output != Output::Rows && self.include_docs {
            return Err(ApiError::query_parse_error("`include_docs` is invalid for reduce"));
        }
        if output != Output::Rows && self.conflicts {
            return Err(ApiError::query_parse_error("`conflicts` is invalid for reduce views."));
        }
        self.check_keys(output)?;
        Ok(output)
    }

    /// Whether the result is of rows: whole keys have one group each, in the order of the keys.
    pub(super) fn output_is_rows(&self) -> bool {
        self.group != Some(true)
    }

    fn grouping(&self) -> Result<Grouping, ApiError> {
        match (self.group, self.group_level) {
            (Some(false), Some(level)) if level > 0 => {
                let reason = "Can't specify group=false and group_level>0 at the same time";
                Err(ApiError::query_parse_error(reason))
            }
            (_, Some(0)) => Ok(Grouping::All),
            (_, Some(level)) => Ok(Grouping::Level(usize::try_from(level).unwrap_or(usize::MAX))),
            (Some(true), None) => Ok(Grouping::Exact),
            (Some(false) | None, None) => Ok(Grouping::All),
        }
    }

    fn check_no_grouping(&self) -> Result<(), ApiError> {
        match (self.group, self.group_level) {
            (Some(false), Some(level)) if level > 0 => {
                let reason = "Can't specify group=false and group_level>0 at the same time";
                Err(ApiError::query_parse_error(reason))
            }
            (_, Some(0)) | (None | Some(false), None) => Ok(()),
            _ => Err(ApiError::query_parse_error("Invalid use of grouping on a map view.")),
        }
    }

    /// A single key of `keys` counts as `key`. Without any, bounds are accepted and have no effect.
    fn check_keys(&mut self, output: Output) -> Result<(), ApiError> {
        let Some(keys) = &mut self.keys else { return Ok(()) };
        if let [key] = &mut keys[..] {
            let key = std::mem::take(key);
            (self.start, self.end) = (Some(key.clone()), Some(key));
            self.keys = None;
            return Ok(());
        }
        if !keys.is_empty() && (self.start.is_some() || self.end.is_some()) {
            let reason = "`keys` is incompatible with `key`, `start_key` and `end_key`";
            return Err(ApiError::query_parse_error(reason));
        }
        match output {
            Output::Groups(grouping) if grouping != Grouping::Exact => {
                let reason = "Multi-key fetches for reduce views must use `group=true`";
                Err(ApiError::query_parse_error(reason))
            }
            _ => Ok(()),
        }
    }
}

fn invalid(name: &str) -> ApiError {
    ApiError::query_parse_error(format!("Invalid value for `{name}`."))
}
