//! A checked query: the ranges of rows that it is of.

use settee_doc::Database;
use settee_view::{DesignViews, KeyRange, KeySpace, RowRange};

use super::args::{Args, Output};
use crate::error::ApiError;

/// A query of a view, checked.
pub(super) struct ViewQuery {
    pub(super) args: Args,
    pub(super) output: Output,
    pub(super) view: String,
    pub(super) space: KeySpace,
    pub(super) ranges: Vec<RowRange>,
}

impl ViewQuery {
    /// # Errors
    /// CouchDB's for options that don't fit the view, or each other.
    pub(super) fn new(
        database: &Database,
        views: &DesignViews,
        view: &str,
        mut args: Args,
    ) -> Result<ViewQuery, ApiError> {
        let definition = views.view(view)?;
        let output = args.check(definition.reduce.is_some())?;
        if let Some(partition) = &args.partition {
            if !views.design.is_partitioned {
                let reason = match database.is_partitioned() {
                    true => "`partition` parameter is not supported in this design doc",
                    false => "`partition` parameter is not supported on this db",
                };
                return Err(ApiError::query_parse_error(reason));
            }
            settee_doc::check_partition(partition)?;
        } else if views.design.is_partitioned {
            let reason = "`partition` parameter is mandatory for queries to this view.";
            return Err(ApiError::query_parse_error(reason));
        }
        let space = views.space(definition, args.partition.as_deref());
        let ranges = ranges(&args, &space)?;
        Ok(ViewQuery { args, output, view: view.to_owned(), space, ranges })
    }
}

fn ranges(args: &Args, space: &KeySpace) -> Result<Vec<RowRange>, ApiError> {
    if let Some(keys) = &args.keys {
        let of_key = |key: &String| {
            let ids = KeyRange {
                start_id: args.start_id.clone(),
                end_id: args.end_id.clone(),
                ..KeyRange::default()
            };
            let range = KeyRange { inclusive_end: args.inclusive_end, ..ids };
            let of_key = KeyRange::of_key(key, args.descending);
            space.range(&KeyRange {
                start: of_key.start,
                end: of_key.end,
                descending: args.descending,
                ..range
            })
        };
        let mut ranges = keys.iter().map(of_key).collect::<Result<Vec<_>, _>>()?;
        if args.descending && args.output_is_rows() {
            ranges.reverse();
        }
        return Ok(ranges);
    }
    if let (Some(start), Some(end)) = (&args.start, &args.end) {
        let is_inverted = match args.descending {
            false => space.is_after(start, end)?,
            true => space.is_after(end, start)?,
        };
        if is_inverted {
            let reason = format!(
                "No rows can match your key range, reverse your start_key and end_key or set descending={}",
                !args.descending
            );
            return Err(ApiError::query_parse_error(reason));
        }
    }
    Ok(vec![space.range(&KeyRange {
        start: args.start.clone(),
        start_id: args.start_id.clone(),
        end: args.end.clone(),
        end_id: args.end_id.clone(),
        inclusive_end: args.inclusive_end,
        descending: args.descending,
    })?])
}
