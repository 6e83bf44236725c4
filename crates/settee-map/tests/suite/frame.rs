//! Goal: what surrounds a map function is CouchDB's: a frozen document, rows printed late, exceptions that drop.
//! Method: one function per rule, over documents on which it matters, compared with the engine.

use crate::reference::{assert_dropped, assert_mapped_alike, assert_outside, assert_rows};

#[test]
fn assignments_to_the_document_are_ignored() {
    assert_rows(
        "function (doc) { doc.a = 2; doc.b = 3; emit(doc.a, doc); }",
        r#"{"a":1}"#,
        &[("1", r#"{"a":1}"#)],
    );
    assert_rows(
        "function (doc) { doc.a.b = 2; emit(doc.a.b = 5, doc.a); }",
        r#"{"a":{"b":1}}"#,
        &[("5", r#"{"b":1}"#)],
    );
    assert_rows(
        "function (doc) { doc.tags[0] = 9; doc.tags[7] = 9; emit(doc.tags); }",
        r#"{"tags":[1]}"#,
        &[("[1]", "null")],
    );
    assert_rows(
        "function (doc) { doc.n++; doc.n += 5; emit(doc.n++, ++doc.n); }",
        r#"{"n":1}"#,
        &[("1", "2")],
    );
    assert_rows(
        "function (doc) { doc.tags.length = 0; emit(doc.tags); }",
        r#"{"tags":[1]}"#,
        &[("[1]", "null")],
    );
}

#[test]
fn deletions_from_the_document_are_ignored() {
    let source =
        "function (doc) { emit(delete doc._rev, delete doc.missing); delete doc._id; emit(doc._id, doc); }";
    assert_rows(
        source,
        r#"{"_id":"x","_rev":"1-a"}"#,
        &[("false", "true"), (r#""x""#, r#"{"_id":"x","_rev":"1-a"}"#)],
    );
}

#[test]
fn a_document_s_array_refuses_to_grow() {
    assert_dropped("function (doc) { emit(1); doc.tags.push(2); }", r#"{"tags":[]}"#);
    assert_outside("function (doc) { doc.tags.sort(); emit(doc.tags); }", "the method `sort`");
}

#[test]
fn the_document_s_variable_can_be_assigned() {
    assert_rows(
        "function (doc) { doc = doc.a; emit(doc); doc = {b: 1}; doc.b = 2; emit(doc); }",
        r#"{"a":1}"#,
        &[("1", "null"), (r#"{"b":2}"#, "null")],
    );
}

#[test]
fn rows_show_the_last_state_of_what_was_emitted() {
    assert_rows(
        "function (doc) { var a = [1]; emit(a, a); a.push(2); a[0] = doc.x; }",
        r#"{"x":0}"#,
        &[("[0,2]", "[0,2]")],
    );
    assert_rows(
        "function (doc) { var o = {a: {}}; emit(o); o.b = o.a; o.a.c = 1; delete o.a; }",
        "{}",
        &[(r#"{"b":{"c":1}}"#, "null")],
    );
    assert_rows(
        "function (doc) { var n = 1; emit(n); n = 2; emit(n); }",
        "{}",
        &[("1", "null"), ("2", "null")],
    );
}

#[test]
fn an_exception_drops_earlier_rows_of_the_document_and_no_others() {
    let source = "function (doc) { emit(1, 1); if (doc.bad) doc.a.b.c; emit(2, 2); }";
    assert_mapped_alike(source, &["{}", r#"{"bad":1}"#, "{}"]);
    assert_dropped(source, r#"{"bad":1}"#);
}

#[test]
fn a_free_variable_that_is_assigned_needs_the_engine() {
    for source in [
        "function (doc) { count = 1; emit(count); }",
        "function (doc) { total += doc.n; }",
        "function (doc) { seen++; }",
        "function (doc) { for (key in doc) emit(key); }",
        "function (doc) { for (key of doc.tags) emit(key); }",
        "function (doc) { undefined = 1; emit(undefined); }",
        "function (doc) { [a, b] = doc.list; }",
        "function (doc) { function h() { state = 1; } h(); }",
        "function (doc) { doc.tags.forEach(function (t) { last = t; }); }",
    ] {
        assert_outside(source, "a");
    }
}

#[test]
fn a_free_variable_that_is_read_needs_the_engine() {
    assert_outside("function (doc) { emit(state); }", "the free variable `state`");
    assert_outside(
        "function (doc) { if (typeof state === 'undefined') emit(1); }",
        "the free variable `state`",
    );
    assert_outside("function (doc) { emit(emit); }", "the free variable `emit`");
    assert_outside("function (doc) { emit(Math); }", "the free variable `Math`");
    assert_outside("function (doc) { log(doc); }", "a call of `log`");
    assert_outside("function (doc) { emit(sum(doc.list)); }", "a call of `sum`");
}

#[test]
fn nothing_of_a_run_is_seen_by_the_next() {
    let source = "function (doc) { var a, b = []; if (doc.a) a = doc.a; b.push(a); emit(a, b); for (var i in doc) ; emit(i); }";
    assert_mapped_alike(source, &[r#"{"a":[1]}"#, "{}", r#"{"a":"x"}"#, "{}"]);
}

#[test]
fn emit_takes_any_number_of_arguments() {
    assert_rows(
        "function (doc) { emit(); emit(1); emit(1, 2, 3); }",
        "{}",
        &[("null", "null"), ("1", "null"), ("1", "2")],
    );
}

#[test]
fn the_value_that_the_function_returns_is_ignored() {
    assert_rows("function (doc) { emit(1); return 2; emit(3); }", "{}", &[("1", "null")]);
    assert_rows("doc => emit(doc._id)", r#"{"_id":"a"}"#, &[("\"a\"", "null")]);
    assert_rows("(doc) => doc.a && emit(doc.a, emit(2))", r#"{"a":1}"#, &[("2", "null"), ("1", "null")]);
    assert_rows("(doc) => { emit(1) }", "{}", &[("1", "null")]);
}

#[test]
fn an_endless_loop_needs_the_engine() {
    for source in [
        "function (doc) { while (true); }",
        "function (doc) { for (;;) emit(1); }",
        "function (doc) { do {} while (1); }",
    ] {
        crate::reference::assert_needs_engine(source, "{}");
    }
}
