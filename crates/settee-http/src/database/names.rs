//! `_all_dbs`: the names of the databases in a range.

use std::ops::Bound;

use settee_doc::NameRange;

use crate::context::{RequestContext, tagged_by_content};
use crate::error::ApiError;
use crate::json;
use crate::query::{self, Key, Query};
use crate::response::HandlerResult;

/// Handles `_all_dbs`: the names of the databases in a range.
pub(crate) fn all_dbs(context: &RequestContext<'_>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET,HEAD"));
    }
    let range = name_range(context.query())?;
    let mut text = vec![b'['];
    context.server.databases.visit_names(range, |name| json::item(name, &mut text));
    text.extend_from_slice(b"]\n");
    Ok(tagged_by_content(context, text))
}

/// Parses the range of names in a query.
pub(super) fn name_range(query: Query<'_>) -> Result<NameRange, ApiError> {
    let (mut start, mut end) = (None, None);
    let (mut inclusive_end, mut descending) = (true, false);
    let (mut limit, mut skip) = (u64::MAX, 0);
    for (name, value) in query.pairs() {
        match name.as_ref() {
            "startkey" | "start_key" => start = Some(Key::parse(&value)?),
            "endkey" | "end_key" => end = Some(Key::parse(&value)?),
            "key" => (start, end) = (Some(Key::parse(&value)?), Some(Key::parse(&value)?)),
            "inclusive_end" => inclusive_end = query::boolean(&value)?,
            "descending" => descending = query::boolean(&value)?,
            "limit" => limit = query::positive(&value)?,
            "skip" => skip = query::positive(&value)?,
            _ => {}
        }
    }
    let bound = |key: Option<Key>, inclusive: bool| match key {
        None => Bound::Unbounded,
        Some(Key::Text(name)) if inclusive => Bound::Included(name),
        Some(Key::Text(name)) => Bound::Excluded(name),
        // No name sorts before the empty one.
        Some(Key::BeforeAll) => Bound::Excluded(String::new()),
    };
    let (start, end) = (bound(start, true), bound(end, inclusive_end));
    let (start, end) = if descending { (end, start) } else { (start, end) };
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    Ok(NameRange { start, end, descending, skip, limit })
}
