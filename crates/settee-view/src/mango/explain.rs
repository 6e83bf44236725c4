//! What `_explain` answers.

use super::bookmark::NOTHING;
use super::design::ALL_DOCS;
use super::plan::{Candidate, Index, Plan, PlanScope};
use super::request::FindRequest;
use super::text::{array, quoted};
use super::usability::compared_fields;

/// The end of an order, as explanations show it.
const MAX: &str = "\"<MAX>\"";

/// What `_explain` answers about a request.
#[derive(Debug)]
pub struct Explanation<'a> {
    /// Name of the database.
    pub database: &'a str,
    /// Whether it is partitioned.
    pub scope: PlanScope,
    /// The request.
    pub request: &'a FindRequest,
    /// The plan; `None` if no index has the sort's order.
    pub plan: Option<&'a Plan>,
    /// The other indexes.
    pub candidates: &'a [Candidate],
}

impl Explanation<'_> {
    /// Its JSON text.
    pub fn to_json(&self) -> String {
        let request = self.request;
        let index = self.plan.map_or_else(|| "null".to_owned(), |plan| shown_index(&plan.index));
        let candidates = array(self.candidates.iter().map(shown_candidate));
        let mut out = format!(
            "{{\"dbname\":{},\"index\":{index},\"partitioned\":{},\"selector\":{},\"opts\":{},\"limit\":{},\
             \"skip\":{},\"fields\":{},\"index_candidates\":{candidates},\"selector_hints\":{}",
            quoted(self.database),
            self.scope.is_partitioned,
            request.normal.to_json(),
            options(request),
            request.limit,
            request.skip,
            quoted_list(&request.field_names),
            hints(request),
        );
        if let Some(plan) = self.plan {
            out.push_str(&format!(",\"mrargs\":{},\"covering\":{}", view_args(request, plan), plan.covering));
        }
        out.push('}');
        out
    }
}

fn quoted_list<T: AsRef<str>>(texts: &[T]) -> String {
    array(texts.iter().map(|text| quoted(text.as_ref())))
}

fn shown_index(index: &Index) -> String {
    match index {
        Index::AllDocs => ALL_DOCS.to_owned(),
        Index::Json(definition) => definition.to_json(),
    }
}

fn shown_candidate(candidate: &Candidate) -> String {
    let analysis = &candidate.analysis;
    let covering = analysis.covering.map_or_else(|| "null".to_owned(), |covering| covering.to_string());
    format!(
        "{{\"index\":{},\"analysis\":{{\"usable\":{},\"reasons\":[{{\"name\":\"{}\"}}],\"ranking\":{},\
         \"covering\":{covering}}}}}",
        shown_index(&candidate.index),
        analysis.usable,
        analysis.reason.name(),
        analysis.ranking,
    )
}

/// The options of a request.
fn options(request: &FindRequest) -> String {
    let direction = if request.descending { "\"desc\"" } else { "\"asc\"" };
    let sort: Vec<String> =
        request.sort.iter().map(|field| format!("{}:{direction}", quoted(field))).collect();
    format!(
        "{{\"use_index\":{},\"bookmark\":{},\"limit\":{},\"skip\":{},\"sort\":{{{}}},\"fields\":{},\
         \"partition\":{},\"r\":{},\"conflicts\":{},\"stale\":{},\"update\":{},\"stable\":{},\
         \"execution_stats\":{},\"allow_fallback\":{}}}",
        quoted_list(&request.use_index),
        quoted(request.bookmark.as_deref().unwrap_or(NOTHING)),
        request.limit,
        request.skip,
        sort.join(","),
        quoted_list(&request.field_names),
        quoted(request.partition.as_deref().unwrap_or_default()),
        request.copies,
        request.conflicts,
        if request.stale { "\"ok\"" } else { "false" },
        request.update,
        request.stable,
        request.execution_stats,
        request.allow_fallback,
    )
}

/// Which fields of the selector an index could help with.
fn hints(request: &FindRequest) -> String {
    let indexable = compared_fields(&request.normal);
    let mut others = request.normal.fields();
    others.retain(|field| !indexable.contains(field));
    format!(
        "[{{\"type\":\"json\",\"indexable_fields\":{},\"unindexable_fields\":{}}}]",
        quoted_list(&indexable),
        quoted_list(&others),
    )
}

/// The query of a view that CouchDB would run.
fn view_args(request: &FindRequest, plan: &Plan) -> String {
    let (low, high) = bounds(plan);
    let (start, end, direction) = match plan.descending {
        false => (low, high, "fwd"),
        true => (high, low, "rev"),
    };
    let partition = request.partition.as_deref().map_or_else(|| "null".to_owned(), quoted);
    format!(
        "{{\"include_docs\":{},\"view_type\":\"map\",\"reduce\":false,\"partition\":{partition},\
         \"start_key\":{start},\"end_key\":{end},\"direction\":\"{direction}\",\"stable\":{},\"update\":{},\
         \"conflicts\":{}}}",
        !plan.covering && request.copies == 1,
        request.stable || request.stale,
        request.update && !request.stale,
        if request.conflicts { "true" } else { "\"undefined\"" },
    )
}

/// The lower and upper key, as CouchDB derives them.
fn bounds(plan: &Plan) -> (String, String) {
    if plan.is_empty {
        return ("null".to_owned(), "null".to_owned());
    }
    let ranges = || plan.shown.iter().flatten();
    if plan.index.definition().is_none() {
        let range = ranges().next();
        let low = range.and_then(|range| range.low.as_ref()).map_or("\"\"", |(value, _)| value);
        let high = range.and_then(|range| range.high.as_ref()).map_or(MAX, |(value, _)| value);
        return (low.to_owned(), high.to_owned());
    }
    let low = ranges().map_while(|range| range.low.as_ref().map(|(value, _)| value.as_str()));
    let high = ranges().map_while(|range| range.high.as_ref().map(|(value, _)| value.as_str()));
    (array(low), array(high.chain([MAX])))
}
