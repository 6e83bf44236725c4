//! Goal: indexes are chosen, and explained, as CouchDB 3.5.0 does.
//! Method: requests over a few indexes, and the chosen index, warnings, errors and explanations expected.

use super::*;
use crate::mango::{Explanation, NewIndex};

const PLAIN: PlanScope = PlanScope { is_partitioned: false, in_partition: false };

/// An index `ddoc/name` of some fields.
fn index(ddoc: &str, name: &str, definition: &str) -> Arc<IndexDefinition> {
    let definition = match definition.starts_with('[') {
        true => format!("{{\"fields\":{definition}}}"),
        false => definition.to_owned(),
    };
    let body = format!("{{\"ddoc\":\"{ddoc}\",\"name\":\"{name}\",\"index\":{definition}}}");
    Arc::new(NewIndex::parse(body.as_bytes(), false).unwrap().definition)
}

fn request(members: &str) -> FindRequest {
    FindRequest::parse(format!("{{{members}}}").as_bytes()).unwrap()
}

/// The name of the chosen index, or the error's.
fn chosen(members: &str, indexes: &[Arc<IndexDefinition>]) -> String {
    match plan(&request(members), indexes, PLAIN) {
        Ok(plan) => plan.index.definition().map_or("_all_docs".to_owned(), |index| index.name.clone()),
        Err(error) => error.error.to_owned(),
    }
}

#[test]
fn most_compared_leading_columns_then_fewest_columns_then_names_decide() {
    let indexes = [
        index("d3", "abc", r#"["a","b","c"]"#),
        index("d2", "ba", r#"["b","a"]"#),
        index("d1", "a", r#"["a"]"#),
        index("d0", "a2", r#"["a"]"#),
    ];
    assert_eq!(chosen(r#""selector":{"a":1}"#, &indexes), "a2");
    assert_eq!(chosen(r#""selector":{"a":1,"b":2}"#, &indexes), "ba");
    assert_eq!(chosen(r#""selector":{"a":1,"b":2,"c":{"$gt":3}}"#, &indexes), "abc");
    assert_eq!(chosen(r#""selector":{"a":1,"b":2,"c":{"$regex":"x"}}"#, &indexes), "ba");
    assert_eq!(chosen(r#""selector":{"z":1}"#, &indexes), "_all_docs");
    assert_eq!(chosen(r#""selector":{"a":{"$in":[1]},"b":2}"#, &indexes), "ba");
    assert_eq!(chosen(r#""selector":{"$or":[{"a":1},{"a":2}]}"#, &indexes), "a2");
    assert_eq!(chosen(r#""selector":{"$or":[{"a":1},{"b":2}]}"#, &indexes), "_all_docs");
}

#[test]
fn an_index_without_columns_serves_any_search_without_a_sort() {
    let indexes = [index("d", "none", "[]")];
    assert_eq!(chosen(r#""selector":{}"#, &indexes), "none");
    assert_eq!(chosen(r#""selector":{"x":{"$gt":1}}"#, &indexes), "none");
    assert_eq!(chosen(r#""selector":{"x":1},"sort":["x"]"#, &indexes), "no_usable_index");
}

#[test]
fn a_sort_needs_its_index() {
    let indexes = [index("d", "n", r#"["n"]"#)];
    assert_eq!(chosen(r#""selector":{},"sort":["n"]"#, &indexes), "n");
    assert_eq!(chosen(r#""selector":{},"sort":[{"n":"desc"}]"#, &indexes), "n");
    assert_eq!(chosen(r#""selector":{"m":1},"sort":["m"]"#, &indexes), "no_usable_index");
    assert_eq!(chosen(r#""selector":{},"sort":["_id"]"#, &[]), "no_usable_index");
    assert_eq!(chosen(r#""selector":{"_id":{"$gt":null}},"sort":["_id"]"#, &[]), "_all_docs");
    let reason = |scope| plan(&request(r#""selector":{},"sort":["m"]"#), &indexes, scope).unwrap_err().reason;
    assert_eq!(reason(PLAIN), "No index exists for this sort, try indexing by the sort fields.");
}

#[test]
fn partial_indexes_are_used_only_on_request() {
    let partial = r#"{"fields":["n"],"partial_filter_selector":{"s":1}}"#;
    let indexes = [index("d", "p", partial)];
    assert_eq!(chosen(r#""selector":{"n":1}"#, &indexes), "_all_docs");
    assert_eq!(chosen(r#""selector":{"n":1},"use_index":"d""#, &indexes), "p");
    assert_eq!(chosen(r#""selector":{"n":1},"use_index":["d","p"]"#, &indexes), "p");
    assert_eq!(chosen(r#""selector":{"n":1},"use_index":["d","q"]"#, &indexes), "_all_docs");
}

#[test]
fn a_requested_index_that_is_unusable_is_replaced_with_a_warning_or_refused() {
    let indexes = [index("d", "n", r#"["n"]"#), index("e", "m", r#"["m"]"#)];
    let warnings = |members: &str| plan(&request(members), &indexes, PLAIN).unwrap().warnings.join("\n");
    assert_eq!(warnings(r#""selector":{"n":1}"#), "");
    assert_eq!(warnings(r#""selector":{"n":1},"use_index":"_design/d""#), "");
    assert_eq!(
        warnings(r#""selector":{"n":1},"use_index":"nope""#),
        "_design/nope was not used because it does not contain a valid index for this query."
    );
    assert_eq!(
        warnings(r#""selector":{"z":1},"use_index":["e","m"]"#),
        "_design/e, m was not used because it is not a valid index for this query.\n\
         No matching index found, create an index to optimize query time."
    );
    assert_eq!(chosen(r#""selector":{"n":1},"use_index":"e""#, &indexes), "n");
    assert_eq!(
        chosen(r#""selector":{"n":1},"use_index":"e","allow_fallback":false"#, &indexes),
        "invalid_index"
    );
    assert_eq!(chosen(r#""selector":{"n":1},"use_index":"d","allow_fallback":false"#, &indexes), "n");
    assert_eq!(chosen(r#""selector":{"n":1},"allow_fallback":false"#, &indexes), "n");
    assert_eq!(chosen(r#""selector":{"z":1},"allow_fallback":false"#, &indexes), "invalid_index");
}

#[test]
fn text_searches_read_all_documents() {
    let indexes = [index("d", "n", r#"["n"]"#)];
    assert_eq!(chosen(r#""selector":{"$text":"x","n":1}"#, &indexes), "_all_docs");
    assert_eq!(chosen(r#""selector":{"$text":"x","n":1},"sort":["n"]"#, &indexes), "no_usable_index");
}

#[test]
fn searches_that_contradict_themselves_are_empty() {
    let indexes = [index("d", "a", r#"["a"]"#)];
    let is_empty = |selector: &str| {
        let request = request(&format!("\"selector\":{selector}"));
        plan(&request, &indexes, PLAIN).unwrap().is_empty
    };
    for empty in [r#"{"$or":[]}"#, r#"{"$and":[]}"#, r#"{"$nor":[]}"#, r#"{"a":{"$gt":5,"$lt":3}}"#] {
        assert!(is_empty(empty), "{empty}");
    }
    for fine in ["{}", r#"{"z":1,"$or":[]}"#, r#"{"a":{"$in":[]}}"#, r#"{"z":{"$gt":5,"$lt":3}}"#] {
        assert!(!is_empty(fine), "{fine}");
    }
    assert!(plan(&request(r#""selector":{"_id":{"$gt":"b","$lt":"a"}}"#), &[], PLAIN).unwrap().is_empty);
}

#[test]
fn indexes_of_partitions_and_of_the_whole_database_are_kept_apart() {
    let body = r#"{"ddoc":"d","name":"g","partitioned":false,"index":{"fields":["n"]}}"#;
    let global = Arc::new(NewIndex::parse(body.as_bytes(), true).unwrap().definition);
    let body = r#"{"ddoc":"d","name":"p","index":{"fields":["n"]}}"#;
    let partitioned = Arc::new(NewIndex::parse(body.as_bytes(), true).unwrap().definition);
    let indexes = [global, partitioned];
    for (in_partition, name) in [(false, "g"), (true, "p")] {
        let scope = PlanScope { is_partitioned: true, in_partition };
        let found = plan(&request(r#""selector":{"n":1}"#), &indexes, scope).unwrap();
        assert_eq!(found.index.definition().unwrap().name, name);
        let error = plan(&request(r#""selector":{},"sort":["m"]"#), &indexes, scope).unwrap_err();
        let kind = if in_partition { "partitioned" } else { "global" };
        assert_eq!(
            error.reason,
            format!("No {kind} index exists for this sort, try indexing by the sort fields.")
        );
    }
}

#[test]
fn an_index_covers_what_is_shown_and_selected() {
    let indexes = [index("d", "ab", r#"["a","b"]"#)];
    let covers = |members: &str| plan(&request(members), &indexes, PLAIN).unwrap().covering;
    assert!(covers(r#""selector":{"a":1,"b":2},"fields":["_id","b"]"#));
    assert!(!covers(r#""selector":{"a":1,"b":2}"#));
    assert!(!covers(r#""selector":{"a":1,"b":2},"fields":["c"]"#));
    assert!(!covers(r#""selector":{"a":1,"b":2,"c":3},"fields":["b"]"#));
    assert!(!covers(r#""selector":{"z":1},"fields":["_id"]"#));
}

#[test]
fn ids_of_an_index_in_the_order_of_views_are_read_where_couchdb_reads_them() {
    let indexes = [index("d", "ai", r#"["a","_id"]"#)];
    let scan = plan(&request(r#""selector":{"a":1,"_id":{"$gt":"x"}}"#), &indexes, PLAIN).unwrap().scan;
    let Scan::Keys(ranges) = scan else { panic!("{scan:?}") };
    assert_eq!((ranges[0].low.json(), ranges[0].high.json()), (r#"[1,"x"]"#.into(), "[1]".into()));
}

#[test]
fn an_explanation_has_the_plan_and_the_reasons_against_other_indexes() {
    let partial = r#"{"fields":["a"],"partial_filter_selector":{"s":1}}"#;
    let indexes = [
        index("d", "a", r#"["a"]"#),
        index("d", "ab", r#"["a","b"]"#),
        index("e", "a", r#"["a"]"#),
        index("f", "z", r#"["z"]"#),
        index("g", "p", partial),
    ];
    let request = request(r#""selector":{"a":1,"b":{"$exists":true}},"fields":["a"],"limit":3"#);
    let (chosen, candidates) = explain(&request, &indexes, PLAIN).unwrap();
    let found: Vec<(String, &str, usize, Option<bool>)> = candidates
        .iter()
        .map(|candidate| {
            let name = candidate.index.definition().map_or("_all_docs".into(), |index| {
                format!("{}/{}", index.ddoc.trim_start_matches(DESIGN), index.name)
            });
            let Analysis { reason, ranking, covering, .. } = candidate.analysis;
            (name, reason.name(), ranking, covering)
        })
        .collect();
    let expected = [
        ("g/p".to_owned(), "is_partial", 5, Some(true)),
        ("f/z".to_owned(), "field_mismatch", 4, Some(false)),
        ("e/a".to_owned(), "alphabetically_comes_after", 1, Some(true)),
        ("d/ab".to_owned(), "too_many_fields", 2, Some(true)),
        ("_all_docs".to_owned(), "unfavored_type", 3, None),
    ];
    assert_eq!(found, expected);
    let explanation = Explanation {
        database: "db",
        scope: PLAIN,
        request: &request,
        plan: chosen.as_ref(),
        candidates: &candidates[..1],
    };
    let expected = concat!(
        r#"{"dbname":"db","index":{"ddoc":"_design/d","name":"a","type":"json","partitioned":false,"#,
        r#""def":{"fields":[{"a":"asc"}]}},"partitioned":false,"#,
        r#""selector":{"$and":[{"a":{"$eq":1}},{"b":{"$exists":true}}]},"#,
        r#""opts":{"use_index":[],"bookmark":"nil","limit":3,"skip":0,"sort":{},"fields":["a"],"partition":"","#,
        r#""r":1,"conflicts":false,"stale":false,"update":true,"stable":false,"execution_stats":false,"#,
        r#""allow_fallback":true},"limit":3,"skip":0,"fields":["a"],"index_candidates":[{"index":{"#,
        r#""ddoc":"_design/g","name":"p","type":"json","partitioned":false,"def":{"fields":[{"a":"asc"}],"#,
        r#""partial_filter_selector":{"s":{"$eq":1}}}},"analysis":{"usable":false,"#,
        r#""reasons":[{"name":"is_partial"}],"ranking":5,"covering":true}}],"#,
        r#""selector_hints":[{"type":"json","indexable_fields":["a"],"unindexable_fields":["b"]}],"#,
        r#""mrargs":{"include_docs":true,"view_type":"map","reduce":false,"partition":null,"start_key":[1],"#,
        r#""end_key":[1,"<MAX>"],"direction":"fwd","stable":false,"update":true,"conflicts":"undefined"},"#,
        r#""covering":false}"#,
    );
    assert_eq!(explanation.to_json(), expected);
}

/// The shown keys of a request.
fn keys(members: &str, indexes: &[Arc<IndexDefinition>]) -> (serde_json::Value, serde_json::Value) {
    let request = request(members);
    let (chosen, candidates) = explain(&request, indexes, PLAIN).unwrap();
    let explanation = Explanation {
        database: "db",
        scope: PLAIN,
        request: &request,
        plan: chosen.as_ref(),
        candidates: &candidates,
    };
    let shown: serde_json::Value = serde_json::from_str(&explanation.to_json()).unwrap();
    (shown["mrargs"]["start_key"].clone(), shown["mrargs"]["end_key"].clone())
}

#[test]
fn explanations_show_couchdbs_keys() {
    use serde_json::json;
    let indexes = [index("d", "ab", r#"["a","b"]"#)];
    let of = |members: &str| keys(members, &indexes);
    assert_eq!(of(r#""selector":{"a":{"$gt":1},"b":2}"#), (json!([1, 2]), json!(["<MAX>"])));
    assert_eq!(of(r#""selector":{"a":{"$lt":5},"b":2}"#), (json!([]), json!([5, 2, "<MAX>"])));
    assert_eq!(
        of(r#""selector":{"a":1,"b":2},"sort":[{"a":"desc"}]"#),
        (json!([1, 2, "<MAX>"]), json!([1, 2]))
    );
    assert_eq!(of(r#""selector":{"a":{"$in":[1]},"b":2}"#), (json!([]), json!(["<MAX>"])));
    assert_eq!(of(r#""selector":{"a":{"$gt":2,"$lt":1},"b":2}"#), (json!(null), json!(null)));
    assert_eq!(of(r#""selector":{"z":1}"#), (json!(""), json!("<MAX>")));
    assert_eq!(of(r#""selector":{"_id":{"$gt":"x"}}"#), (json!("x"), json!("<MAX>")));
}

#[test]
fn an_unusable_sort_is_explained_without_an_index() {
    let request = request(r#""selector":{"a":1},"sort":["z"]"#);
    let (chosen, candidates) = explain(&request, &[index("d", "a", r#"["a"]"#)], PLAIN).unwrap();
    assert!(chosen.is_none());
    let explanation =
        Explanation { database: "db", scope: PLAIN, request: &request, plan: None, candidates: &candidates };
    let shown: serde_json::Value = serde_json::from_str(&explanation.to_json()).unwrap();
    assert!(shown["index"].is_null() && shown.get("mrargs").is_none() && shown.get("covering").is_none());
    assert_eq!(shown["index_candidates"].as_array().unwrap().len(), 2);
    assert_eq!(shown["index_candidates"][0]["analysis"]["reasons"][0]["name"], "sort_order_mismatch");
}
