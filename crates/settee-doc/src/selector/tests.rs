//! Goal: a selector matches what CouchDB's would, and reads no more of a document than it must.
//! Method: cases by operator, each with documents that match and others that don't; then random selectors
//! over random documents, compared with a matcher that applies the rules literally to trees.

use std::cmp::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::limits::{CONDITIONS_MAX, LISTED_MAX, NESTING_MAX, REGEXES_MAX, SELECTOR_BYTES_MAX, WALKS_MAX};
use super::{Selector, work};
use crate::documents::{Document, Extras, Revision};

fn matches(selector: &Value, document: &Value) -> bool {
    let selector = Selector::parse(&selector.to_string()).unwrap();
    selector.matches_json(&document.to_string())
}

/// Compares the indexes of the matching `documents`.
#[track_caller]
fn check(selector: Value, documents: &[Value], expected: &[usize]) {
    let found: Vec<usize> =
        (0..documents.len()).filter(|index| matches(&selector, &documents[*index])).collect();
    assert_eq!(found, expected, "{selector}");
}

#[test]
fn an_empty_selector_matches_all_and_plain_values_mean_equality() {
    let documents = [json!({}), json!({"a": 1}), json!({"a": {"b": 1}}), json!({"a": [1]}), json!({"a": {}})];
    check(json!({}), &documents, &[0, 1, 2, 3, 4]);
    check(json!({"a": 1}), &documents, &[1]);
    check(json!({"a": 1.0}), &documents, &[1]);
    check(json!({"a": {"b": 1}}), &documents, &[2]);
    check(json!({"a.b": 1}), &documents, &[2]);
    check(json!({"a": [1]}), &documents, &[3]);
    check(json!({"a": {}}), &documents, &[4]);
    check(json!({"a": 1, "b": 1}), &documents, &[]);
}

#[test]
fn comparisons_across_types_follow_the_order_of_views() {
    let documents = [json!({"a": null}), json!({"a": true}), json!({"a": 5}), json!({"a": "x"})];
    let more = [json!({"a": []}), json!({"a": {}}), json!({"b": 1})];
    let documents = [documents.as_slice(), &more].concat();
    check(json!({"a": {"$gt": 5}}), &documents, &[3, 4, 5]);
    check(json!({"a": {"$gte": 5, "$lt": []}}), &documents, &[2, 3]);
    check(json!({"a": {"$lte": 5}}), &documents, &[0, 1, 2]);
    check(json!({"a": {"$gt": null}}), &documents, &[1, 2, 3, 4, 5]);
    check(json!({"a": {"$ne": 5}}), &documents, &[0, 1, 3, 4, 5]);
}

#[test]
fn strings_are_collated_except_ids() {
    let documents = [json!({"_id": "a", "n": "a"}), json!({"_id": "B", "n": "B"})];
    check(json!({"n": {"$lt": "b"}}), &documents, &[0]);
    check(json!({"n": {"$gt": "a"}}), &documents, &[1]);
    check(json!({"_id": {"$lt": "a"}}), &documents, &[1]);
    check(json!({"_id": {"$gt": null}}), &documents, &[0, 1]);
    // Canonically equivalent strings are equal.
    check(json!({"n": "é"}), &[json!({"n": "e\u{301}"})], &[0]);
    check(json!({"_id": "é"}), &[json!({"_id": "e\u{301}"})], &[]);
}

#[test]
fn a_negation_needs_its_field_and_is_pushed_down() {
    let documents = [json!({"a": 1}), json!({"a": 7}), json!({"b": 1}), json!({"a": 7, "b": 2})];
    check(json!({"$not": {"a": 1}}), &documents, &[1, 3]);
    check(json!({"a": {"$not": {"$gt": 1}}}), &documents, &[0]);
    check(json!({"$nor": [{"a": 1}, {"b": 1}]}), &documents, &[3]);
    check(json!({"$not": {"$or": [{"a": 1}, {"b": 1}]}}), &documents, &[3]);
    check(json!({"$not": {"$and": [{"a": 7}, {"b": 2}]}}), &documents, &[0, 2]);
    check(json!({"$not": {"a": 7, "b": 2}}), &documents, &[0, 2]);
    check(json!({"$not": {"$not": {"a": 1}}}), &documents, &[0]);
    check(json!({"$not": {"$nor": [{"a": 1}, {"b": 1}]}}), &documents, &[0, 2]);
    check(json!({"a": {"$not": {"$in": [1]}}}), &documents, &[1, 3]);
    check(json!({"a": {"$not": {"$type": "string"}}}), &documents, &[0, 1, 3]);
    check(json!({"$not": {"a": {"$exists": true}}}), &documents, &[2]);
}

#[test]
fn empty_combinations_match() {
    let documents = [json!({"a": 1}), json!({})];
    for empty in ["$and", "$or", "$nor"] {
        check(json!({empty: []}), &documents, &[0, 1]);
    }
    check(json!({"$not": {"$and": []}}), &documents, &[0, 1]);
    check(json!({"$or": [{"a": 1}, {"a": 2}]}), &documents, &[0]);
    check(json!({"a": {"$or": [{"$lt": 1}, {"$gt": 0}]}}), &documents, &[0]);
}

#[test]
fn null_fields_exist_and_scalars_have_no_fields() {
    let documents = [json!({"a": null}), json!({"a": 1}), json!({"a": {"b": 0}}), json!({})];
    check(json!({"a": {"$exists": true}}), &documents, &[0, 1, 2]);
    check(json!({"a": {"$exists": false}}), &documents, &[3]);
    check(json!({"a.b": {"$exists": true}}), &documents, &[2]);
    // A path through a scalar is neither present nor missing.
    check(json!({"a.b": {"$exists": false}}), &documents, &[3]);
}

#[test]
fn paths_have_escapes_and_array_indexes() {
    let documents =
        [json!({"a.b": 1}), json!({"a": {"b": 1}}), json!({"a": [0, {"b": 1}]}), json!({"a\\b": 1})];
    check(json!({"a\\.b": 1}), &documents, &[0]);
    check(json!({"a.b": 1}), &documents, &[1]);
    check(json!({"a.1.b": 1}), &documents, &[2]);
    check(json!({"a": {"1": {"b": 1}}}), &documents, &[2]);
    check(json!({"a.2": {"$exists": false}}), &documents, &[0, 1, 3]);
    check(json!({"a.-1": 0}), &documents, &[]);
}

#[test]
fn type_size_and_mod_match_suitable_values() {
    let values =
        [json!(null), json!(true), json!(10), json!(10.5), json!("x"), json!([1, 2]), json!({"k": 1})];
    let documents: Vec<_> = values.iter().map(|value| json!({"a": value})).collect();
    let names = ["null", "boolean", "number", "number", "string", "array", "object"];
    for (index, name) in names.iter().enumerate() {
        let found: Vec<_> = (0..7).filter(|other| names[*other] == *name).collect();
        check(json!({"a": {"$type": name}}), &documents, &found);
        assert!(found.contains(&index));
    }
    check(json!({"a": {"$type": "blob"}}), &documents, &[]);
    check(json!({"a": {"$size": 2}}), &documents, &[5]);
    check(json!({"a": {"$mod": [3, 1]}}), &documents, &[2]);
    check(json!({"a": {"$mod": [-3, 1]}}), &documents, &[2]);
    let negative = [json!({"a": -10}), json!({"a": 4.0})];
    check(json!({"a": {"$mod": [3, -1]}}), &negative, &[0]);
    check(json!({"a": {"$mod": [2, 0]}}), &negative, &[0]);
}

#[test]
fn in_looks_into_arrays_and_all_compares_elements() {
    let documents =
        [json!({"a": 1}), json!({"a": [1, 2]}), json!({"a": [[1, 2]]}), json!({"a": "é"}), json!({})];
    check(json!({"a": {"$in": [1, "e\u{301}"]}}), &documents, &[0, 1, 3]);
    check(json!({"a": {"$in": [[1, 2]]}}), &documents, &[2]);
    check(json!({"a": {"$in": []}}), &documents, &[]);
    check(json!({"a": {"$nin": [1]}}), &documents, &[2, 3]);
    check(json!({"a": {"$nin": []}}), &documents, &[0, 1, 2, 3]);
    check(json!({"a": {"$all": [2, 1]}}), &documents, &[1]);
    check(json!({"a": {"$all": [1.0]}}), &documents, &[]);
    check(json!({"a": {"$all": [[1, 2]]}}), &documents, &[1, 2]);
    check(json!({"a": {"$all": []}}), &documents, &[]);
}

#[test]
fn elements_and_keys_are_matched_one_by_one() {
    let documents = [
        json!({"a": [{"x": 1, "y": 1}, {"x": 2}]}),
        json!({"a": [{"x": 1}, {"y": 1}]}),
        json!({"a": []}),
        json!({"a": [80, 90]}),
        json!({"a": {"camera": 1}}),
    ];
    check(json!({"a": {"$elemMatch": {"x": 1, "y": 1}}}), &documents, &[0]);
    check(json!({"a": {"$elemMatch": {"$gte": 85, "$lt": 95}}}), &documents, &[3]);
    check(json!({"a": {"$allMatch": {"x": {"$gt": 0}}}}), &documents, &[0]);
    check(json!({"a": {"$keyMapMatch": {"$eq": "camera"}}}), &documents, &[4]);
    check(json!({"a": {"$keyMapMatch": {"$regex": "^z"}}}), &documents, &[]);
    // Inside, a negation is an ordinary one: it holds for an element without the field.
    check(json!({"a": {"$elemMatch": {"$not": {"x": 1}}}}), &documents, &[0, 1, 3]);
    check(json!({"a": {"$elemMatch": {"$nor": [{"x": 1}, {"x": 2}]}}}), &documents, &[1, 3]);
    check(json!({"a": {"$not": {"$elemMatch": {"x": 2}}}}), &documents, &[1, 2, 3, 4]);
}

#[test]
fn regex_and_begins_with_match_bytes() {
    let documents = [json!({"a": "Grüße"}), json!({"a": "grün"}), json!({"a": 5}), json!({"a": "x\ny"})];
    check(json!({"a": {"$regex": "^(?i)gr"}}), &documents, &[0, 1]);
    check(json!({"a": {"$regex": "ü"}}), &documents, &[0, 1]);
    check(json!({"a": {"$regex": "gr..n"}}), &documents, &[1]);
    check(json!({"a": {"$regex": "[üß]e$"}}), &documents, &[0]);
    check(json!({"a": {"$regex": "x.y"}}), &documents, &[]);
    check(json!({"a": {"$beginsWith": "gr"}}), &documents, &[1]);
    check(json!({"a": {"$beginsWith": ""}}), &documents, &[0, 1, 3]);
}

#[test]
fn invalid_selectors_are_refused_with_couchdbs_errors() {
    let cases = [
        (json!({"a": {"$foo": 1}}), "invalid_operator", "Invalid operator: $foo"),
        (json!({"a": {"$regex": 1}}), "invalid_operator", "Invalid operator: $regex"),
        (json!({"a": {"$beginsWith": [1]}}), "invalid_operator", "Invalid operator: $beginsWith"),
        (json!({"a": {"$where": ""}}), "not_supported", "Unsupported operator: $where"),
        (json!({"a": {"$in": 1}}), "bad_arg", "Bad argument for operator $in: 1"),
        (json!({"a": {"$nin": true}}), "bad_arg", "Bad argument for operator $nin: true"),
        (json!({"a": {"$all": 1}}), "bad_arg", "Bad argument for operator $all: 1"),
        (json!({"$and": 1}), "bad_arg", "Bad argument for operator $and: 1"),
        (json!({"$or": null}), "bad_arg", "Bad argument for operator $or: null"),
        (json!({"$nor": 1}), "bad_arg", "Bad argument for operator $nor: 1"),
        (json!({"$not": [1]}), "bad_arg", "Bad argument for operator $not: [1]"),
        (json!({"a": {"$exists": 1}}), "bad_arg", "Bad argument for operator $exists: 1"),
        (json!({"a": {"$type": 1}}), "bad_arg", "Bad argument for operator $type: 1"),
        (json!({"a": {"$size": -1}}), "bad_arg", "Bad argument for operator $size: -1"),
        (json!({"a": {"$size": 1.5}}), "bad_arg", "Bad argument for operator $size: 1.5"),
        (json!({"a": {"$mod": [1]}}), "bad_arg", "Bad argument for operator $mod: [1]"),
        (json!({"a": {"$mod": [0, 1]}}), "bad_arg", "Bad argument for operator $mod: [0,1]"),
        (json!({"a": {"$mod": [2, 0.5]}}), "bad_arg", "Bad argument for operator $mod: [2,0.5]"),
        (json!({"a": {"$regex": "("}}), "bad_arg", "Bad argument for operator $regex: \"(\""),
        (json!({"a": {"$regex": "(?=x)"}}), "bad_arg", "Bad argument for operator $regex: \"(?=x)\""),
        (json!({"a": {"$elemMatch": 1}}), "bad_arg", "Bad argument for operator $elemMatch: 1"),
        (json!({"a": {"$allMatch": 1}}), "bad_arg", "Bad argument for operator $allMatch: 1"),
        (json!({"a": {"$keyMapMatch": 1}}), "bad_arg", "Bad argument for operator $keyMapMatch: 1"),
        (json!({"$gt": 1}), "invalid_selector", "One or more conditions is missing a field name."),
        (json!({"": 1}), "invalid_selector", "One or more conditions is missing a field name."),
        (json!({"a..b": 1}), "invalid_field_name", "Invalid field name: a..b"),
        (json!([1]), "invalid_selector_json", "Selector must be a JSON object, not: [1]"),
    ];
    for (selector, error, reason) in cases {
        let found = Selector::parse(&selector.to_string()).unwrap_err();
        assert_eq!((found.error, found.reason.as_str()), (error, reason), "{selector}");
    }
    for junk in ["", "{", "{\"a\":\"\\ud800\"}", "{\"\\ud800\":1}", "nul"] {
        assert_eq!(Selector::parse(junk).unwrap_err().error, "bad_request", "{junk}");
    }
}

#[test]
fn a_selector_is_bounded_in_depth_size_and_automata() {
    let nested = |depth: usize| format!("{}1{}", "{\"$and\":[".repeat(depth), "]}".repeat(depth));
    assert!(Selector::parse(&nested(NESTING_MAX)).is_ok());
    for depth in [NESTING_MAX + 1, 100_000] {
        assert_eq!(Selector::parse(&nested(depth)).unwrap_err().error, "invalid_selector", "{depth}");
    }
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(Selector::parse(&deep).unwrap_err().error, "invalid_selector");
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(SELECTOR_BYTES_MAX));
    assert_eq!(Selector::parse(&long).unwrap_err().error, "invalid_selector");
    let many = json!({"$or": vec![json!({"a": {"$regex": "x"}}); REGEXES_MAX + 1]});
    assert_eq!(Selector::parse(&many.to_string()).unwrap_err().error, "invalid_selector");
    let compiled = |pattern: &str, count: usize| {
        let selector = json!({"$or": vec![json!({"a": {"$regex": pattern}}); count]});
        Selector::parse(&selector.to_string()).map_err(|error| error.reason)
    };
    assert!(compiled("(a{1000}){1000}", 1).unwrap_err().contains("bytes when compiled"));
    assert!(compiled("(?i:[ab]{0,300}z)", 1).is_ok());
    assert!(compiled("(?i:[ab]{0,300}z)", 60).unwrap_err().contains("bytes when compiled"));
    assert!(compiled("(?i)[a-z]{1,9}@", 20).is_ok());
    assert!(compiled(r"^(?u)\w+$", 2).is_ok());
    // What compiles to little may take long to compile.
    assert!(compiled(&format!("(?i)[{}]", r"\pL".repeat(5000)), 1).unwrap_err().contains("bytes."));
    let deep_document = format!("{{\"a\":{}{}}}", "[".repeat(900), "]".repeat(900));
    let selector = Selector::parse("{\"a\":{\"$gt\":[[0]]}}").unwrap();
    assert!(selector.matches_json(&deep_document), "an array is greater than a number");
    let wide = json!({"$or": vec![json!({"a": 1}); CONDITIONS_MAX]});
    assert_eq!(Selector::parse(&wide.to_string()).unwrap_err().error, "invalid_selector");
}

#[test]
fn the_cost_of_matching_grows_with_the_document_only() {
    let list = |count: usize, of: &dyn Fn(usize) -> String| (0..count).map(of).collect::<Vec<_>>().join(",");
    let numbers = |count, from: usize| list(count, &|n| (n + from).to_string());
    let wanted = 20_000;
    let others = format!(
        "{{\"a\":[{}],\"b\":{{{}}}}}",
        numbers(50_000, 1_000_000),
        list(50_000, &|n| format!("\"x{n}\":{n}"))
    );
    let selectors = [
        format!("{{\"a\":{{\"$in\":[{}]}}}}", numbers(wanted, 0)),
        format!("{{\"a\":{{\"$nin\":[{}]}}}}", numbers(wanted, 0)),
        format!("{{\"a\":{{\"$all\":[{}]}}}}", numbers(wanted, 1_000_000)),
        format!("{{\"$or\":[{}]}}", list(4_000, &|n| format!("{{\"b.x{n}\":-1}}"))),
        format!("{{\"$and\":[{}]}}", list(4_000, &|n| format!("{{\"a.{n}\":{{\"$gt\":0}}}}"))),
    ];
    let matches = [false, true, true, false, true];
    for (selector, expected) in selectors.iter().zip(matches) {
        let parsed = Selector::parse(selector).unwrap();
        let mut found = None;
        let steps = work::of(|| found = Some(parsed.matches_json(&others)));
        assert_eq!(found, Some(expected), "{}", &selector[..40]);
        // Halving 20,000 takes 15 comparisons.
        assert!(steps < 100_000 * 17, "{steps} for {}", &selector[..40]);
    }
}

#[test]
fn the_steps_of_regular_expressions_are_known_ahead() {
    let selector = |patterns: &[&str]| {
        let conditions: Vec<Value> = patterns.iter().map(|text| json!({"a": {"$regex": text}})).collect();
        Selector::parse(&json!({"$or": conditions}).to_string()).unwrap()
    };
    assert_eq!(Selector::parse("{\"a\":{\"$beginsWith\":\"x\"}}").unwrap().regex_steps(1 << 20), 0);
    let (one, two) = (selector(&["^a.*z$"]), selector(&["^a.*z$", "[ab]{0,300}z"]));
    let (one, two) = (one.regex_steps(1000), two.regex_steps(1000));
    assert!(one > 100_000 && one < 5_000_000, "{one}");
    assert!(two > one + 10_000_000, "{two}");
    assert_eq!(selector(&["[ab]{0,300}z"]).regex_steps(u64::MAX), u64::MAX);
}

#[test]
fn walking_conditions_and_list_values_are_limited() {
    let refusal = |selector: Value| Selector::parse(&selector.to_string()).err().map(|error| error.reason);
    let walks = |count| json!({"$or": vec![json!({"a": {"$size": 1}}); count]});
    assert_eq!(refusal(walks(WALKS_MAX)), None);
    assert!(refusal(walks(WALKS_MAX + 1)).unwrap().contains("that look into"));
    let within = json!({"a": {"$elemMatch": {"$or": vec![json!({"b": 1}); WALKS_MAX]}}});
    assert!(refusal(within).unwrap().contains("that look into"));
    // Other conditions aren't limited.
    assert_eq!(refusal(json!({"$or": vec![json!({"a": "x"}); WALKS_MAX + 1]})), None);
    assert_eq!(refusal(json!({"a": {"$in": vec![1; LISTED_MAX]}})), None);
    let two = json!({"a": {"$in": vec![1; LISTED_MAX]}, "b": {"$all": [1]}});
    assert!(refusal(two).unwrap().contains("lists have at most"));
}

#[test]
fn reserved_members_are_fields_too() {
    let revision: Revision = "2-0123456789abcdef0123456789abcdef".parse().unwrap();
    let document = Document {
        id: "x".into(),
        revision: revision.clone(),
        deleted: true,
        body: "\"a\":1,\"b\":{\"c\":[true]}".into(),
        attachments: Vec::new(),
        large_body: None,
    };
    let matches = |selector: Value, extras: &Extras| {
        let selector = Selector::parse(&selector.to_string()).unwrap();
        (selector.matches(&document, extras), selector.needs_body())
    };
    let none = Extras::default();
    assert_eq!(matches(json!({"_id": "x"}), &none), (true, false));
    assert_eq!(matches(json!({"_id": {"$gt": "x"}}), &none), (false, false));
    assert_eq!(matches(json!({"_rev": revision.to_string()}), &none), (true, false));
    assert_eq!(matches(json!({"_deleted": true, "a": 1}), &none), (true, true));
    assert_eq!(matches(json!({"b.c.0": true}), &none), (true, true));
    assert_eq!(matches(json!({"_conflicts": {"$exists": true}}), &none), (false, false));
    let extras = Extras { conflicts: vec![revision], ..Extras::default() };
    assert_eq!(matches(json!({"_conflicts": {"$exists": true}}), &extras), (true, false));
    // As a whole, an object is greater than every value that isn't an object.
    assert_eq!(matches(json!({"$and": [{"$gt": "z"}]}), &none), (true, true));
    assert_eq!(matches(json!({"$and": [{"$lt": "z"}, {"a": 1}]}), &none), (false, true));
    assert_eq!(matches(json!({}), &none), (true, false));
}

// The reference matcher, which applies the rules to trees.

#[derive(Clone, Copy, PartialEq)]
enum Push {
    No,
    Negated,
    Inside,
}

fn obeys(selector: &Value, path: &[String], push: Push, subject: &Value, raw: bool) -> bool {
    let is_object = selector.as_object().filter(|members| !members.is_empty());
    let Some(members) = is_object else {
        return test_at("$eq", selector, path, push, subject, raw);
    };
    let mut results = members.iter().map(|(name, value)| obeys_member(name, value, path, push, subject, raw));
    if push == Push::Negated { results.any(|holds| holds) } else { results.all(|holds| holds) }
}

fn obeys_member(name: &str, value: &Value, path: &[String], push: Push, subject: &Value, raw: bool) -> bool {
    let each = |push| value.as_array().unwrap().iter().map(move |one| obeys(one, path, push, subject, raw));
    let any = |push| value.as_array().unwrap().is_empty() || each(push).any(|holds| holds);
    let turned = match push {
        Push::No => Push::Negated,
        Push::Negated => Push::No,
        Push::Inside => Push::Inside,
    };
    match (name, push) {
        ("$and", Push::Negated) => any(push),
        ("$and", _) => each(push).all(|holds| holds),
        ("$or", Push::Negated) => each(push).all(|holds| holds),
        ("$or", _) => any(push),
        ("$nor", Push::Negated) => any(turned),
        ("$nor", Push::No) => each(turned).all(|holds| holds),
        ("$nor", Push::Inside) => !each(push).any(|holds| holds),
        ("$not", Push::Inside) => !obeys(value, path, push, subject, raw),
        ("$not", _) => obeys(value, path, turned, subject, raw),
        (operator, _) if operator.starts_with('$') => test_at(operator, value, path, push, subject, raw),
        (field, _) => {
            let inner: Vec<String> = path.iter().cloned().chain(field.split('.').map(Into::into)).collect();
            obeys(value, &inner, push, subject, raw)
        }
    }
}

fn test_at(
    operator: &str,
    argument: &Value,
    path: &[String],
    push: Push,
    subject: &Value,
    raw: bool,
) -> bool {
    let mut value = subject;
    for part in path {
        value = match value {
            Value::Object(members) => match members.get(part) {
                Some(value) => value,
                // Missing: only this condition holds.
                None => {
                    return operator == "$exists" && *argument == json!(push == Push::Negated);
                }
            },
            Value::Array(values) => match part.parse().ok().and_then(|place: usize| values.get(place)) {
                Some(value) => value,
                None => return false,
            },
            _ => return false,
        };
    }
    let raw = raw || path == ["_id"];
    holds(operator, argument, value, raw) != (push == Push::Negated)
}

fn holds(operator: &str, argument: &Value, value: &Value, raw: bool) -> bool {
    let order = |argument: &Value| order(value, argument, raw);
    let list = || argument.as_array().unwrap().iter();
    let values = value.as_array();
    let inside = |value: &Value| obeys(argument, &[], Push::Inside, value, raw);
    match operator {
        "$lt" => order(argument).is_lt(),
        "$lte" => order(argument).is_le(),
        "$eq" => order(argument).is_eq(),
        "$ne" => order(argument).is_ne(),
        "$gte" => order(argument).is_ge(),
        "$gt" => order(argument).is_gt(),
        "$in" | "$nin" => {
            let one = |value: &Value| list().any(|argument| self::order(value, argument, raw).is_eq());
            let found = values.map_or_else(|| one(value), |values| values.iter().any(one));
            found == (operator == "$in")
        }
        "$exists" => *argument == json!(true),
        "$type" => *argument == json!(type_of(value)),
        "$size" => values.is_some_and(|values| json!(values.len()) == *argument),
        "$mod" => {
            let numbers = (argument[0].as_i64().unwrap(), argument[1].as_i64().unwrap());
            value.as_i64().is_some_and(|value| value % numbers.0 == numbers.1)
        }
        "$all" => values.is_some_and(|values| {
            let all = argument.as_array().unwrap();
            // As texts: members in another order make another value.
            let texts: Vec<String> = values.iter().map(Value::to_string).collect();
            let has = |one: &Value| texts.contains(&one.to_string());
            let is_it = all.len() == 1 && all[0].is_array() && self::order(&all[0], value, raw).is_eq();
            !all.is_empty() && (all.iter().all(has) || is_it)
        }),
        "$elemMatch" => values.is_some_and(|values| values.iter().any(inside)),
        "$allMatch" => values.is_some_and(|values| !values.is_empty() && values.iter().all(inside)),
        "$keyMapMatch" => {
            value.as_object().is_some_and(|members| members.keys().any(|name| inside(&json!(name))))
        }
        "$beginsWith" => value.as_str().is_some_and(|text| text.starts_with(argument.as_str().unwrap())),
        operator => unreachable!("{operator} is not generated"),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The generated strings are lower-case letters, whose collation is that of their bytes.
fn order(one: &Value, other: &Value, raw: bool) -> Ordering {
    let rank = |value: &Value| {
        let ranks = if raw { [2, 1, 3, 0, 6, 5, 4] } else { [0, 1, 2, 3, 4, 5, 6] };
        ranks[match value {
            Value::Null => 0,
            Value::Bool(false) => 1,
            Value::Bool(true) => 2,
            Value::Number(_) => 3,
            Value::String(_) => 4,
            Value::Array(_) => 5,
            Value::Object(_) => 6,
        }]
    };
    let within = || match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64().partial_cmp(&other.as_f64()).unwrap(),
        (Value::String(one), Value::String(other)) => one.cmp(other),
        (Value::Array(one), Value::Array(other)) => {
            let pairs = one.iter().zip(other).map(|(one, other)| order(one, other, raw));
            pairs.fold(Ordering::Equal, Ordering::then).then(one.len().cmp(&other.len()))
        }
        (Value::Object(one), Value::Object(other)) => {
            let pairs = one.iter().zip(other);
            let pairs = pairs.map(|(one, other)| one.0.cmp(other.0).then(order(one.1, other.1, raw)));
            pairs.fold(Ordering::Equal, Ordering::then).then(one.len().cmp(&other.len()))
        }
        _ => Ordering::Equal,
    };
    rank(one).cmp(&rank(other)).then_with(within)
}

fn object(members: Vec<(&'static str, Value)>) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

const NAMES: [&str; 4] = ["a", "b", "c", "_id"];

fn values() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|value| json!(value)),
        (-3_i64..6).prop_map(|value| json!(value)),
        Just(json!(1.5)),
        "[a-c]{0,2}".prop_map(|value| json!(value)),
    ];
    scalar.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::Array),
            vec((proptest::sample::select(&NAMES), inner), 0..3).prop_map(object),
        ]
    })
}

fn conditions() -> impl Strategy<Value = Value> {
    let compared = (proptest::sample::select(&["$lt", "$lte", "$eq", "$ne", "$gte", "$gt"]), values());
    let lists = (proptest::sample::select(&["$in", "$nin", "$all"]), vec(values(), 0..3));
    let condition = prop_oneof![
        compared.prop_map(|(name, value)| json!({name: value})),
        lists.prop_map(|(name, list)| json!({name: list})),
        any::<bool>().prop_map(|wanted| json!({"$exists": wanted})),
        proptest::sample::select(&["null", "boolean", "number", "string", "array", "object"])
            .prop_map(|name| json!({"$type": name})),
        (0..3).prop_map(|size| json!({"$size": size})),
        (1..4, -2..3).prop_map(|(divisor, rest)| json!({"$mod": [divisor, rest]})),
        "[a-c]{0,2}".prop_map(|prefix| json!({"$beginsWith": prefix})),
        values(),
    ];
    condition.prop_recursive(4, 24, 3, |inner| {
        let fields = proptest::sample::select(&["a", "b", "c", "_id", "a.b", "a.0", "b.1.a", "c._id"]);
        prop_oneof![
            (proptest::sample::select(&["$and", "$or", "$nor"]), vec(inner.clone(), 0..3))
                .prop_map(|(name, list)| json!({name: list})),
            inner
                .clone()
                .prop_filter("of objects alone", Value::is_object)
                .prop_map(|one| json!({"$not": one})),
            (
                proptest::sample::select(&["$elemMatch", "$allMatch", "$keyMapMatch"]),
                inner.clone().prop_filter("of objects alone", Value::is_object),
            )
                .prop_map(|(name, one)| json!({name: one})),
            vec((fields, inner), 1..3).prop_map(object),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_selector_matches_like_the_reference(
        condition in conditions(),
        members in vec((proptest::sample::select(&NAMES), values()), 0..5),
    ) {
        // Each with a field's name, so that few are refused.
        let selector = json!({"a": condition});
        let document = object(members);
        if let Ok(parsed) = Selector::parse(&selector.to_string()) {
            let expected = obeys(&selector, &[], Push::No, &document, false);
            prop_assert_eq!(parsed.matches_json(&document.to_string()), expected, "{} of {}", selector, document);
        }
    }

    #[test]
    fn white_space_and_escapes_change_nothing(condition in conditions(), members in vec((proptest::sample::select(&NAMES), values()), 0..5)) {
        let selector = json!({"$or": [{"a": condition}, {"b": condition}]});
        let document = object(members);
        let (plain, pretty) = (document.to_string(), serde_json::to_string_pretty(&document).unwrap());
        let escaped = plain.replace('a', "\\u0061").replace("f\\u0061lse", "false");
        if let Ok(parsed) = Selector::parse(&serde_json::to_string_pretty(&selector).unwrap()) {
            let expected = parsed.matches_json(&plain);
            prop_assert_eq!(parsed.matches_json(&pretty), expected, "{}", pretty);
            prop_assert_eq!(parsed.matches_json(&escaped), expected, "{}", escaped);
        }
    }
}

#[test]
fn text_searches_match_all_in_a_search_and_are_refused_elsewhere() {
    let accepts = |text: &str| Selector::parse_for_find(text).map(|found| found.matches_json(r#"{"a":1}"#));
    assert!(accepts(r#"{"$text":"x"}"#).unwrap());
    assert!(accepts(r#"{"$text":"x","a":1}"#).unwrap());
    assert!(!accepts(r#"{"$and":[{"$text":true},{"a":2}]}"#).unwrap());
    let error = |text: &str| accepts(text).unwrap_err().error;
    assert_eq!(error(r#"{"a":{"$text":"x"}}"#), "bad_field");
    assert_eq!(error(r#"{"$text":["x"]}"#), "bad_arg");
    assert_eq!(error(r#"{"$not":{"$text":"x"}}"#), "bad_arg");
    assert_eq!(Selector::parse(r#"{"$text":"x"}"#).unwrap_err().error, "not_supported");
}
