//! The choice of an index, with the reasons against the others, and what is read of it.
//!
//! CouchDB's rules: a JSON index can be used if each of its columns is in the selector or the sort, and if it has
//! the sort's order; a partial one only if it is requested. Of those that can be used the best compares most
//! fields of the selector in its first columns, then has the fewest columns, then comes first by design document
//! and name. Without one, all documents are read by id, unless the sort forbids that.

use std::cmp::Ordering;
use std::sync::Arc;

use super::error::{MangoError, shown};
use super::index::{DESIGN, IndexDefinition};
use super::normal::Normal;
use super::ranges::{IdRange, KeyRange, id_ranges, key_ranges};
use super::reason::Reason;
use super::request::FindRequest;
use super::spans::{self, Order};
use super::usability::{FieldRange, Seen};

/// The warning about a search without an index.
const NO_INDEX: &str = "No matching index found, create an index to optimize query time.";

/// An index of documents.
#[derive(Debug, Clone)]
pub enum Index {
    /// All documents by id.
    AllDocs,
    /// An index of some fields.
    Json(Arc<IndexDefinition>),
}

/// What a search is limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanScope {
    /// Whether the database is partitioned.
    pub is_partitioned: bool,
    /// Whether one partition is searched.
    pub in_partition: bool,
}

/// How a request is answered.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The index that is read.
    pub index: Index,
    /// What is read of it.
    pub scan: Scan,
    /// Whether the selector contradicts itself in a way that CouchDB notices: there are no results, and no
    /// bookmark.
    pub is_empty: bool,
    /// Whether the results descend.
    pub descending: bool,
    /// Whether the index's keys have all fields that the selector and the results need.
    pub covering: bool,
    /// Warnings about the choice.
    pub warnings: Vec<String>,
    /// The ranges of the index's first columns as CouchDB derives them; `None`: no value can match.
    pub(super) shown: Vec<Option<FieldRange>>,
}

/// Ranges of an index, ascending and disjoint, also where the results descend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scan {
    /// Of [`Index::AllDocs`].
    Ids(Vec<IdRange>),
    /// Of [`Index::Json`].
    Keys(Vec<KeyRange>),
}

/// An index that wasn't chosen.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The index.
    pub index: Index,
    /// Why it wasn't chosen.
    pub analysis: Analysis,
}

/// Why an index wasn't chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Analysis {
    /// Whether it could have answered the request.
    pub usable: bool,
    /// The first reason against it.
    pub reason: Reason,
    /// Its rank: the lower, the better.
    pub ranking: usize,
    /// Whether its columns have all shown fields; `None` for [`Index::AllDocs`].
    pub covering: Option<bool>,
}

impl Index {
    /// Number of columns.
    fn width(&self) -> usize {
        match self {
            Index::AllDocs => 1,
            Index::Json(definition) => definition.columns().len(),
        }
    }

    /// Whether a request for `use_index` means it.
    fn is_named(&self, use_index: &[String]) -> bool {
        let Index::Json(definition) = self else { return false };
        match use_index {
            [ddoc] => definition.ddoc.strip_prefix(DESIGN) == Some(ddoc),
            [ddoc, name] => definition.ddoc.strip_prefix(DESIGN) == Some(ddoc) && definition.name == *name,
            _ => false,
        }
    }

    fn order(&self, other: &Index) -> Ordering {
        let names = |index: &Index| match index {
            Index::AllDocs => None,
            Index::Json(definition) => Some((definition.ddoc.clone(), definition.name.clone())),
        };
        names(self).cmp(&names(other))
    }

    pub(super) fn definition(&self) -> Option<&Arc<IndexDefinition>> {
        match self {
            Index::AllDocs => None,
            Index::Json(definition) => Some(definition),
        }
    }
}

/// The stage at which an index dropped out, and what speaks against it.
enum Stage {
    Partial,
    OutOfScope,
    Unusable(Reason),
    Excluded,
    Unfavored,
    /// The number of compared fields that its first columns lack.
    Ranked {
        distance: usize,
    },
}

/// Plans a search through one of `indexes`, which are all JSON indexes of the database.
///
/// # Errors
/// `no_usable_index` if no index has the sort's order; `invalid_index` if the requested index can't be used and
/// no other one may be.
pub fn plan(
    request: &FindRequest,
    indexes: &[Arc<IndexDefinition>],
    scope: PlanScope,
) -> Result<Plan, MangoError> {
    let (chosen, _) = explain(request, indexes, scope)?;
    chosen.ok_or_else(|| {
        let kind = match (scope.is_partitioned, scope.in_partition) {
            (false, _) => "index",
            (true, true) => "partitioned index",
            (true, false) => "global index",
        };
        let reason = format!("No {kind} exists for this sort, try indexing by the sort fields.");
        MangoError::new("no_usable_index", reason)
    })
}

/// As [`plan`], with what speaks against the other indexes; without a plan if no index has the sort's order.
///
/// # Errors
/// `invalid_index` as for [`plan`].
pub fn explain(
    request: &FindRequest,
    indexes: &[Arc<IndexDefinition>],
    scope: PlanScope,
) -> Result<(Option<Plan>, Vec<Candidate>), MangoError> {
    let seen = Seen::of(&request.normal);
    let stages = stages(request, indexes, scope, &seen);
    check_fallback(request, &stages)?;
    let ranked = ranked(&stages);
    let winner = ranked.first().copied();
    let candidates = candidates(request, &stages, &ranked);
    let chosen = winner.map(|winner| planned(request, &stages[winner].0, &seen));
    Ok((chosen, candidates))
}

/// All indexes, sorted, with their stages.
fn stages(
    request: &FindRequest,
    indexes: &[Arc<IndexDefinition>],
    scope: PlanScope,
    seen: &Seen<'_>,
) -> Vec<(Index, Stage)> {
    let mut stages: Vec<(Index, Stage)> = Vec::with_capacity(indexes.len() + 1);
    stages.push((Index::AllDocs, all_docs_stage(request, seen)));
    for definition in indexes {
        let index = Index::Json(definition.clone());
        let stage = if definition.is_partial() && !index.is_named(&request.use_index) {
            Stage::Partial
        } else if definition.partitioned != scope.in_partition {
            Stage::OutOfScope
        } else if let Some(reason) = seen.reasons_against(definition, &request.sort).first().copied() {
            Stage::Unusable(reason)
        } else {
            let compared = prefix(definition.columns(), seen).len();
            Stage::Ranked { distance: seen.ranges.len() - compared }
        };
        stages.push((index, stage));
    }
    stages.sort_by(|(one, _), (other, _)| one.order(other));
    let is_usable = |stage: &Stage| matches!(stage, Stage::Ranked { .. });
    let is_requested = |index: &Index, stage: &Stage| is_usable(stage) && index.is_named(&request.use_index);
    let has_requested = stages.iter().any(|(index, stage)| is_requested(index, stage));
    let has_json = stages.iter().any(|(index, stage)| is_usable(stage) && index.definition().is_some());
    for (index, stage) in &mut stages {
        if !is_usable(stage) {
            continue;
        }
        if has_requested && !index.is_named(&request.use_index) {
            *stage = Stage::Excluded;
        } else if has_json && index.definition().is_none() {
            *stage = Stage::Unfavored;
        }
    }
    stages
}

fn all_docs_stage(request: &FindRequest, seen: &Seen<'_>) -> Stage {
    let by_id = request.sort.len() == 1 && request.sort[0] == "_id";
    let is_usable = request.sort.is_empty() || (by_id && seen.compares("_id"));
    if is_usable { Stage::Ranked { distance: 0 } } else { Stage::Unusable(Reason::SortOrderMismatch) }
}

/// The ranges of an index's first columns, as far as they have one.
fn prefix<'a>(columns: impl Iterator<Item = &'a str>, seen: &Seen<'_>) -> Vec<Option<FieldRange>> {
    columns.map_while(|column| seen.range(column).cloned()).collect()
}

fn check_fallback(request: &FindRequest, stages: &[(Index, Stage)]) -> Result<(), MangoError> {
    if request.allow_fallback {
        return Ok(());
    }
    let is_ranked = |stage: &Stage| matches!(stage, Stage::Ranked { .. });
    let is_wanted = |index: &Index| match request.use_index.is_empty() {
        true => index.definition().is_some(),
        false => index.is_named(&request.use_index),
    };
    if stages.iter().any(|(index, stage)| is_ranked(stage) && is_wanted(index)) {
        return Ok(());
    }
    let suffix = "specified by `use_index` could not be found or it is not suitable.";
    let reason = match &request.use_index[..] {
        [ddoc] => format!("_design/{} {suffix}", shown(ddoc)),
        [ddoc, name] => format!("_design/{}, {} {suffix}", shown(ddoc), shown(name)),
        _ => "You must specify an index with the `use_index` parameter.".to_owned(),
    };
    Err(MangoError::new("invalid_index", reason))
}

/// The positions of the indexes that are compared with each other, the best first.
fn ranked(stages: &[(Index, Stage)]) -> Vec<usize> {
    let mut ranked: Vec<(usize, usize, usize)> = Vec::new();
    for (place, (index, stage)) in stages.iter().enumerate() {
        if let Stage::Ranked { distance } = stage {
            ranked.push((*distance, index.width(), place));
        }
    }
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, _, place)| place).collect()
}

/// What speaks against all indexes but the winner, in CouchDB's order: the last by name first.
fn candidates(request: &FindRequest, stages: &[(Index, Stage)], ranked: &[usize]) -> Vec<Candidate> {
    let winner = ranked.first().copied();
    let has = |wanted: fn(&Stage) -> bool| usize::from(stages.iter().any(|(_, stage)| wanted(stage)));
    let unfavored = ranked.len().max(1);
    let excluded = unfavored + has(|stage| matches!(stage, Stage::Unfavored));
    let unusable = excluded + has(|stage| matches!(stage, Stage::Excluded));
    let out_of_scope = unusable + has(|stage| matches!(stage, Stage::Unusable(_)));
    let partial = out_of_scope + has(|stage| matches!(stage, Stage::OutOfScope));
    let winner_width = winner.map_or(0, |winner| stages[winner].0.width());
    let analysis = |place: usize, index: &Index, stage: &Stage| {
        let rank = || ranked.iter().position(|other| *other == place).unwrap_or(0);
        let (usable, reason, ranking) = match stage {
            Stage::Partial => (false, Reason::IsPartial, partial),
            Stage::OutOfScope => (false, Reason::ScopeMismatch, out_of_scope),
            Stage::Unusable(reason) => (false, *reason, unusable),
            Stage::Excluded => (true, Reason::ExcludedByUser, excluded),
            Stage::Unfavored => (true, Reason::UnfavoredType, unfavored),
            Stage::Ranked { distance } if *distance > 0 => (true, Reason::LessOverlap, rank()),
            Stage::Ranked { .. } if index.width() > winner_width => (true, Reason::TooManyFields, rank()),
            Stage::Ranked { .. } => (true, Reason::AlphabeticallyComesAfter, rank()),
        };
        let fields = request.fields.as_ref().map(|_| request.field_names.iter().map(String::as_str));
        let covering = index.definition().map(|definition| definition.covers(fields));
        Analysis { usable, reason, ranking, covering }
    };
    let others = stages.iter().enumerate().rev().filter(|(place, _)| Some(*place) != winner);
    let candidate = |(place, (index, stage)): (usize, &(Index, Stage))| Candidate {
        index: index.clone(),
        analysis: analysis(place, index, stage),
    };
    others.map(candidate).collect()
}

fn planned(request: &FindRequest, index: &Index, seen: &Seen<'_>) -> Plan {
    let shown = match index {
        Index::AllDocs => {
            let range = seen.range("_id").cloned();
            vec![range.unwrap_or_else(|| Some(FieldRange::all()))]
        }
        Index::Json(definition) => prefix(definition.columns(), seen),
    };
    let is_empty = match &request.normal {
        // At the top these have no results, although they match where they are nested.
        Normal::And(nodes) | Normal::Or(nodes) if nodes.is_empty() => true,
        _ => shown == [None],
    };
    let scan = match index {
        Index::AllDocs => Scan::Ids(id_ranges(&spans::of_column(&request.normal, "_id", Order::Ids))),
        Index::Json(definition) => Scan::Keys(keys_of(definition, &request.normal, &shown)),
    };
    let covering = index.definition().is_some_and(|definition| definition.covers(request.required_fields()));
    let descending = request.descending;
    let warnings = warnings(request, index);
    Plan { index: index.clone(), scan, is_empty, descending, covering, warnings, shown }
}

/// The ranges of an index's keys.
fn keys_of(definition: &IndexDefinition, selector: &Normal, shown: &[Option<FieldRange>]) -> Vec<KeyRange> {
    let column_spans = definition.columns().enumerate().map(|(place, column)| {
        let found = spans::of_column(selector, column, Order::Views);
        // An index in the order of views is read where CouchDB reads it, although ids match by their bytes.
        match shown.get(place) {
            Some(Some(range)) if column == "_id" => found.intersect(&range.spans(Order::Views)),
            _ => found,
        }
    });
    key_ranges(column_spans)
}

fn warnings(request: &FindRequest, index: &Index) -> Vec<String> {
    let mut warnings = Vec::new();
    match &request.use_index[..] {
        _ if index.is_named(&request.use_index) => {}
        [ddoc] => warnings.push(format!(
            "_design/{ddoc} was not used because it does not contain a valid index for this query."
        )),
        [ddoc, name] => warnings.push(format!(
            "_design/{ddoc}, {name} was not used because it is not a valid index for this query."
        )),
        _ => {}
    }
    if index.definition().is_none() {
        warnings.push(NO_INDEX.to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests;
