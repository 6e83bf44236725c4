//! Goal: rows have the text that `JSON.stringify` gives a value, however the document wrote it.
//! Method: documents with every form that JSON and JavaScript write differently, compared with the engine.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use settee_map::{Document, Plan, Scratch};

use crate::reference::{
    assert_dropped, assert_mapped_alike, assert_needs_engine, assert_outside, assert_rows,
};

const WHOLE: &str = "function (doc) { emit(doc.v, doc); }";

/// Asserts how a document's value is printed, alone and within the document.
#[track_caller]
fn assert_printed(written: &str, printed: &str) {
    assert_rows(WHOLE, &format!(r#"{{"v":{written}}}"#), &[(printed, &format!(r#"{{"v":{printed}}}"#))]);
    assert_rows(
        WHOLE,
        &format!(r#"{{"v":[1,{written}]}}"#),
        &[(&format!("[1,{printed}]"), &format!(r#"{{"v":[1,{printed}]}}"#))],
    );
}

#[test]
fn what_json_lacks_becomes_null() {
    assert_rows("function (doc) { emit(undefined, doc.missing); }", "{}", &[("null", "null")]);
    assert_rows(
        "function (doc) { emit(NaN, -Infinity); emit([NaN, 1 / 0, undefined]); }",
        "{}",
        &[("null", "null"), ("[null,null,null]", "null")],
    );
    assert_rows(
        "function (doc) { emit({a: NaN, b: Infinity}, 'x' * 1); }",
        "{}",
        &[(r#"{"a":null,"b":null}"#, "null")],
    );
    assert_outside("function (doc) { emit([1,,2]); }", "a hole");
    assert_outside("function (doc) { emit(function () {}); }", "a function as a value");
    assert_outside("function (doc) { emit([function () {}]); }", "a function as a value");
}

#[test]
fn undefined_members_vanish() {
    assert_rows(
        "function (doc) { emit({a: undefined, b: doc.x, c: 1}, {a: doc.x}); }",
        "{}",
        &[(r#"{"c":1}"#, "{}")],
    );
}

#[test]
fn minus_zero_is_printed_without_its_sign() {
    assert_printed("-0", "0");
    assert_printed("-0.0", "0");
    assert_printed("-0e5", "0");
    assert_rows(
        "function (doc) { emit(-0, [0 * -1]); emit(1 / doc.z); }",
        r#"{"z":-0}"#,
        &[("0", "[0]"), ("null", "null")],
    );
    assert_rows("function (doc) { emit(String(-0) + doc.z); }", r#"{"z":-0}"#, &[(r#""00""#, "null")]);
}

#[test]
fn numbers_are_doubles_in_javascript_s_text() {
    for (written, printed) in [
        ("1.0", "1"),
        ("1e3", "1000"),
        ("1E+2", "100"),
        ("1e21", "1e+21"),
        ("1e20", "100000000000000000000"),
        ("1e-6", "0.000001"),
        ("1e-7", "1e-7"),
        ("9007199254740993", "9007199254740992"),
        ("123456789012345678", "123456789012345680"),
        ("0.1", "0.1"),
        ("0.10", "0.1"),
        ("-1.50", "-1.5"),
        ("5e-324", "5e-324"),
        ("2e-324", "0"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("1e400", "null"),
        ("-1e400", "null"),
        ("999999999999999", "999999999999999"),
        ("1000000000000000", "1000000000000000"),
        ("-9007199254740991", "-9007199254740991"),
    ] {
        assert_printed(written, printed);
    }
    assert_rows(
        "function (doc) { emit(0.1 + 0.2, doc.n / 3); }",
        r#"{"n":1}"#,
        &[("0.30000000000000004", "0.3333333333333333")],
    );
}

#[test]
fn to_json_runs_only_in_the_engine() {
    assert_outside("function (doc) { emit({toJSON: function () { return 1; }}); }", "a function as a value");
    assert_rows(
        "function (doc) { emit(doc, {toJSON: 1}); }",
        r#"{"toJSON":2}"#,
        &[(r#"{"toJSON":2}"#, r#"{"toJSON":1}"#)],
    );
}

#[test]
fn of_members_of_one_name_the_first_place_has_the_last_value() {
    assert_rows(WHOLE, r#"{"v":1,"a":2,"v":3}"#, &[("3", r#"{"v":3,"a":2}"#)]);
    assert_rows(
        WHOLE,
        r#"{"v":{"a":1,"b":[],"a":{"c":1,"c":2}},"w":0}"#,
        &[(r#"{"a":{"c":2},"b":[]}"#, r#"{"v":{"a":{"c":2},"b":[]},"w":0}"#)],
    );
    assert_rows(WHOLE, r#"{"v":1,"\u0076":2}"#, &[("2", r#"{"v":2}"#)]);
    let members: Vec<String> = (0..300).map(|index| format!(r#""m{}":{index}"#, index % 299)).collect();
    assert_mapped_alike(
        "function (doc) { emit(doc.m0, doc); for (var k in doc) emit(k); }",
        &[&format!("{{{}}}", members.join(","))],
    );
    assert_rows("function (doc) { emit({a: 1, b: 2, a: 3}); }", "{}", &[(r#"{"a":3,"b":2}"#, "null")]);
}

#[test]
fn names_that_are_array_indexes_come_first() {
    assert_rows(
        WHOLE,
        r#"{"b":1,"10":2,"v":0,"9":3,"01":4,"-1":5,"1.5":6}"#,
        &[("0", r#"{"9":3,"10":2,"b":1,"v":0,"01":4,"-1":5,"1.5":6}"#)],
    );
    assert_rows(
        WHOLE,
        r#"{"v":{"4294967295":1,"4294967294":2,"0":3}}"#,
        &[(r#"{"0":3,"4294967294":2,"4294967295":1}"#, r#"{"v":{"0":3,"4294967294":2,"4294967295":1}}"#)],
    );
    assert_rows(WHOLE, r#"{"v":0,"\u0031":1}"#, &[("0", r#"{"1":1,"v":0}"#)]);
    assert_rows(
        "function (doc) { var o = {b: 1, 2: 2, '1': 3}; o[0] = 4; emit(o); }",
        "{}",
        &[(r#"{"0":4,"1":3,"2":2,"b":1}"#, "null")],
    );
}

#[test]
fn escapes_are_printed_in_one_form() {
    assert_printed(r#""\u0041\/\u00e9""#, "\"A/é\"");
    assert_printed(r#""\u000a\u0008\u001F\u007f""#, "\"\\n\\b\\u001f\u{7f}\"");
    assert_printed(r#""\"\\\b\f\n\r\t""#, r#""\"\\\b\f\n\r\t""#);
    assert_printed(r#""\u0022\u005c""#, r#""\"\\""#);
    assert_rows(WHOLE, r#"{"v":0,"\u0061\/":1}"#, &[("0", r#"{"v":0,"a/":1}"#)]);
}

#[test]
fn a_member_named_proto_is_the_engine_s_unless_the_document_has_it() {
    assert_rows(
        "function (doc) { emit(doc.__proto__, doc); }",
        r#"{"__proto__":{"a":1}}"#,
        &[(r#"{"a":1}"#, r#"{"__proto__":{"a":1}}"#)],
    );
    assert_rows("function (doc) { emit(doc.a); }", r#"{"__proto__":{"a":1}}"#, &[("null", "null")]);
    assert_needs_engine("function (doc) { emit(doc.__proto__); }", "{}");
    assert_outside("function (doc) { emit({__proto__: doc}); }", "`__proto__`");
    assert_outside("function (doc) { emit({'__proto__': doc}); }", "`__proto__`");
    assert_needs_engine("function (doc) { var o = {}; o[doc.k] = 1; emit(o); }", r#"{"k":"__proto__"}"#);
    assert_needs_engine("function (doc) { doc.__proto__ = {}; }", "{}");
}

#[test]
fn surrogates_are_split_and_joined() {
    assert_printed(r#""\ud83d\ude00""#, "\"😀\"");
    assert_printed(r#""\ud83d""#, r#""\ud83d""#);
    assert_printed(r#""\ude00\ud83d""#, r#""\ude00\ud83d""#);
    let document = r#"{"v":"a😀b"}"#;
    assert_rows(
        "function (doc) { emit(doc.v.slice(0, 2), doc.v.slice(2)); }",
        document,
        &[(r#""a\ud83d""#, r#""\ude00b""#)],
    );
    assert_rows(
        "function (doc) { emit(doc.v.slice(0, 2) + doc.v.slice(2), doc.v[1] + doc.v.charAt(2)); }",
        document,
        &[("\"a😀b\"", "\"😀\"")],
    );
    assert_rows(
        "function (doc) { emit(doc.v.slice(0, 2).length, [doc.v.slice(1, 2), doc.v.slice(2, 3)].join('')); }",
        document,
        &[("2", "\"😀\"")],
    );
}

#[test]
fn white_space_between_tokens_is_not_printed() {
    assert_rows(WHOLE, "{ \"v\" : [ 1 ,\n2 ] , \"w\":{ } }", &[("[1,2]", r#"{"v":[1,2],"w":{}}"#)]);
}

#[test]
fn arrays_with_holes_need_the_engine() {
    for statement in [
        "a[2] = 1;",
        "a[doc.n] = 1;",
        "a['3'] = 1;",
        "a.length = 5;",
        "a.x = 1;",
        "a[-1] = 1;",
        "delete a[0];",
    ] {
        assert_needs_engine(&format!("function (doc) {{ var a = [0]; {statement} emit(a); }}"), r#"{"n":9}"#);
    }
    assert_rows(
        "function (doc) { var a = [0]; a[1] = 1; a['2'] = 2; a[0] = 3; emit(a); }",
        "{}",
        &[("[3,1,2]", "null")],
    );
}

#[test]
fn circular_and_deep_values_need_the_engine() {
    assert_needs_engine("function (doc) { var a = []; a.push(a); emit(a); }", "{}");
    assert_needs_engine(
        "function (doc) { var o = {}; for (var i = 0; i < 60; i++) o = {o: o}; emit(o); }",
        "{}",
    );
    let deep = format!("{{\"v\":{}{}}}", "[".repeat(200), "]".repeat(200));
    assert_needs_engine(WHOLE, &deep);
}

#[test]
fn documents_that_are_no_json_objects_have_no_index() {
    for json in [
        "",
        "1",
        "[]",
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":tru}",
        "{}x",
        "{\"a\":\"",
        "{\"a\":\"\\",
        "{\"a\":-}",
        "{a:1}",
    ] {
        assert!(settee_map::Document::new(json.as_bytes()).is_err(), "{json}");
    }
    assert!(settee_map::Document::new(b"{\"a\":\"\xff\"}").is_err());
}

/// Stored documents are well-formed; this is about what happens if one isn't.
#[test]
fn damaged_documents_never_panic() {
    let sources = [
        WHOLE,
        "function (doc) { for (var k in doc) emit(k, [doc[k], doc[k] && doc[k].length, '' + k, k < 'a', k.slice(1), k.split('')]); }",
        "function (doc) { for (var k in doc) emit(Object.entries(doc)); emit(doc.a + doc.b, doc.tags && doc.tags[1]); }",
    ];
    let plans = sources.map(|source| Plan::compile(source).expect("a plan"));
    let mut random = StdRng::seed_from_u64(5);
    let mut scratch = Scratch::new();
    let mut indexed_count = 0;
    for _ in 0..4_000 {
        let mut bytes = crate::documents::document(&mut random).into_bytes();
        for _ in 0..random.random_range(1..4).min(bytes.len() - 1) {
            let at = random.random_range(0..bytes.len());
            let other = random.random_range(0..bytes.len());
            match random.random_range(0..4) {
                0 => bytes[at] = random.random_range(0..128),
                1 => bytes[at] = bytes[other],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"\"\\{}[],:u0"[random.random_range(0..10)]),
            }
        }
        if random.random_bool(0.1) {
            bytes.truncate(bytes.len() / 2);
        }
        let Ok(document) = Document::new(&bytes) else { continue };
        indexed_count += 1;
        for plan in &plans {
            plan.run(&document, &mut scratch, &mut Vec::new());
        }
    }
    assert!(indexed_count > 400, "{indexed_count}");
}

/// Loops over long strings and large objects stop after a number of steps, not of iterations.
#[test]
fn what_a_run_looks_at_is_counted() {
    let text = "x".repeat(200_000);
    let members: Vec<String> = (0..20_000).map(|index| format!(r#""m{index}":0"#)).collect();
    let document = format!(r#"{{"s":"{text}","t":"{text}","é":"é{text}","o":{{{}}}}}"#, members.join(","));
    for expression in [
        "doc.s === doc.t",
        "doc.s == doc.t",
        "doc.s < doc.t",
        "doc.s.length",
        "doc.s[5]",
        "doc.s.indexOf('y')",
        "+doc.s",
        "doc.o.missing",
        "doc.o['a' + i]",
        "doc['é'].charAt(3)",
        "[doc.s].indexOf(doc.t)",
    ] {
        let source = format!("function (doc) {{ for (var i = 0; i < 200000; i++) {{ {expression}; }} }}");
        assert_needs_engine(&source, &document);
    }
    assert_needs_engine(
        "function (doc) { var o = {}; for (var i = 0; i < 100000; i++) o['m' + i] = i; }",
        "{}",
    );
}

#[test]
fn limits_of_a_run_need_the_engine() {
    assert_needs_engine("function (doc) { for (var i = 0; i < 70000; i++) emit(i); }", "{}");
    assert_needs_engine(
        "function (doc) { var s = 'x'; for (var i = 0; i < 30; i++) s += s; emit(s); }",
        "{}",
    );
    assert_needs_engine("function (doc) { var a = []; for (var i = 0; i < 300000; i++) a.push(i); }", "{}");
    assert_dropped("function (doc) { emit(1); doc.x.y; }", "{}");
}
