//! Goal: operators, names and loops mean what they mean in JavaScript.
//! Method: one function per rule, over documents on which it matters, compared with the engine.

use crate::reference::{
    assert_dropped, assert_mapped_alike, assert_needs_engine, assert_outside, assert_rows,
};

#[test]
fn loose_equality_coerces_primitives_and_leaves_objects_to_the_engine() {
    let source = "function (doc) { emit([doc.a == 1, doc.a == '1', doc.a == true, doc.a == null, doc.a == undefined, doc.a == '', doc.a != 0]); }";
    assert_mapped_alike(
        source,
        &[
            "{}",
            r#"{"a":1}"#,
            r#"{"a":"1"}"#,
            r#"{"a":" 1 "}"#,
            r#"{"a":""}"#,
            r#"{"a":null}"#,
            r#"{"a":true}"#,
            r#"{"a":"1e0"}"#,
        ],
    );
    assert_needs_engine("function (doc) { emit(doc.a == 'x'); }", r#"{"a":["x"]}"#);
    assert_needs_engine("function (doc) { emit(doc.a == 1); }", r#"{"a":"0x1"}"#);
    assert_mapped_alike(
        "function (doc) { emit([doc.a == doc.a, doc.a == doc.b, doc.a == null, doc.a === doc.a, [] == []]); }",
        &[r#"{"a":[],"b":[]}"#],
    );
}

#[test]
fn strings_are_ordered_by_units() {
    let source = "function (doc) { emit([doc.a < doc.b, doc.a > doc.b, doc.a <= doc.b, doc.a >= doc.b]); }";
    for (a, b) in [
        ("\u{ffff}", "😀"),
        ("😀", "\u{fffd}"),
        ("a", "B"),
        ("é", "z"),
        ("", "a"),
        ("ab", "abc"),
        ("10", "9"),
        ("😀a", "😀b"),
        ("\\ud83d", "😀"),
        ("\\ue000", "\\ud83d"),
    ] {
        assert_mapped_alike(
            source,
            &[&format!(r#"{{"a":"{a}","b":"{b}"}}"#), &format!(r#"{{"a":"{b}","b":"{a}"}}"#)],
        );
    }
    assert_mapped_alike(
        source,
        &[
            r#"{"a":"10","b":9}"#,
            r#"{"a":null,"b":0}"#,
            r#"{"a":1}"#,
            r#"{"a":"x","b":1}"#,
            r#"{"a":true,"b":"1"}"#,
        ],
    );
    assert_needs_engine(source, r#"{"a":[1],"b":2}"#);
}

#[test]
fn plus_formats_numbers_and_words() {
    let source = "function (doc) { emit(doc.a + doc.b, '' + doc.a); }";
    assert_mapped_alike(
        source,
        &[
            r#"{"a":1,"b":"x"}"#,
            r#"{"a":1.0,"b":2.50}"#,
            r#"{"a":1e21,"b":""}"#,
            r#"{"a":null,"b":1}"#,
            r#"{"a":"x"}"#,
            r#"{"a":true,"b":false}"#,
            r#"{"b":"y"}"#,
            r#"{"a":-0,"b":"!"}"#,
            r#"{"a":1e-7,"b":"\ude00"}"#,
        ],
    );
    assert_needs_engine(source, r#"{"a":[1],"b":2}"#);
    assert_needs_engine(source, r#"{"a":{},"b":""}"#);
}

#[test]
fn logical_operators_give_operands() {
    let source = "function (doc) { emit(doc.a && doc.b, doc.a || doc.b); emit(doc.a ?? doc.b, !doc.a); }";
    assert_mapped_alike(
        source,
        &[
            "{}",
            r#"{"a":0,"b":1}"#,
            r#"{"a":"","b":"x"}"#,
            r#"{"a":[],"b":{}}"#,
            r#"{"a":null,"b":null}"#,
            r#"{"a":"0","b":2}"#,
            r#"{"a":-0}"#,
        ],
    );
}

#[test]
fn arithmetic_is_that_of_doubles() {
    let source = "function (doc) { var a = doc.a, b = doc.b; emit([a - b, a * b, a / b, a % b, -a, +a, ~a, a | b, a & b, a ^ b, a << b, a >> b, a >>> b]); }";
    assert_mapped_alike(
        source,
        &[
            r#"{"a":7,"b":-2}"#,
            r#"{"a":-7,"b":2}"#,
            r#"{"a":"3","b":"x"}"#,
            r#"{"a":4294967297,"b":33}"#,
            r#"{"a":-1,"b":0}"#,
            r#"{"a":1e300,"b":1e300}"#,
            r#"{"a":null,"b":true}"#,
            r#"{"a":2147483648,"b":31}"#,
            r#"{"a":-2147483649.7,"b":-1}"#,
            "{}",
        ],
    );
}

#[test]
fn emit_as_a_callback_emits_indexes_as_values() {
    assert_rows(
        "function (doc) { doc.tags.forEach(emit); }",
        r#"{"tags":["a",{"b":1}]}"#,
        &[(r#""a""#, "0"), (r#"{"b":1}"#, "1")],
    );
    assert_mapped_alike(
        "function (doc) { emit(doc.tags.map(emit), doc.tags.filter(emit)); doc.tags.reduce(emit, 1); doc.tags.some(emit); }",
        &[r#"{"tags":["a",2]}"#, r#"{"tags":[]}"#],
    );
}

#[test]
fn shadowed_names_are_the_inner_ones() {
    assert_rows("function (undefined) { emit(undefined.a); }", r#"{"a":1}"#, &[("1", "null")]);
    assert_rows(
        "function (doc) { doc.list.forEach(function (doc) { emit(doc); }); emit(doc.x); }",
        r#"{"list":[1],"x":2}"#,
        &[("1", "null"), ("2", "null")],
    );
    assert_rows(
        "function (doc) { let x = 1; { let x = 2; emit(x); } emit(x); for (let x in doc) emit(x); emit(x); }",
        r#"{"a":1}"#,
        &[("2", "null"), ("1", "null"), (r#""a""#, "null"), ("1", "null")],
    );
    assert_rows("function (doc) { var NaN = 1; emit(NaN); }", "{}", &[("1", "null")]);
    assert_outside("function (emit) { emit(1); }", "a call of a variable");
    assert_outside("function (doc) { var emit = doc.emit; emit(1); }", "a call of a variable");
    assert_outside("function (doc) { emit(1); var emit; }", "a call of a variable");
    assert_outside("function (doc) { var Math = doc; emit(Math.abs(1)); }", "the method `abs`");
    assert_outside("function emit(doc) { emit(doc); }", "a function that refers to itself");
    assert_outside(
        "function (doc) { function isArray(x) { return isArray(x); } emit(isArray(1)); }",
        "recursive",
    );
    assert_mapped_alike(
        "function (doc) { function isArray(x) { return x; } emit(isArray(doc.a)); }",
        &[r#"{"a":"mine"}"#],
    );
}

#[test]
fn variables_are_hoisted() {
    assert_rows(
        "function (doc) { emit(x, i); var x = 1; for (var i = 0; i < 2; i++) { var x = i; } emit(x, i); }",
        "{}",
        &[("null", "null"), ("1", "2")],
    );
    assert_rows(
        "function (doc) { emit(f(1)); function f(x) { return x + y; } var y = 2; emit(f(1)); }",
        "{}",
        &[("null", "null"), ("3", "null")],
    );
    assert_rows(
        "function (doc) { var doc; emit(doc.a); var doc = 2; emit(doc); }",
        r#"{"a":1}"#,
        &[("1", "null"), ("2", "null")],
    );
    assert_rows(
        "function (doc) { function h(a, b) { return b; } emit(h(1, 2), h(1)); emit(h()); }",
        "{}",
        &[("2", "null"), ("null", "null")],
    );
    assert_rows("function (doc, missing) { emit(missing); }", "{}", &[("null", "null")]);
    assert_rows(
        "function (doc) { for (var i = 0; i < 2; i++) { let x; emit(x); x = i; } for (var j = 0; j < 2; j++) { var y; emit(y); y = j; } }",
        "{}",
        &[("null", "null"), ("null", "null"), ("null", "null"), ("0", "null")],
    );
    assert_rows(
        "function (doc) { doc.l.forEach(function (t) { var seen; emit(seen); seen = t; }); }",
        r#"{"l":[1,2]}"#,
        &[("null", "null"), ("null", "null")],
    );
}

#[test]
fn uses_before_declarations_need_the_engine() {
    for source in [
        "function (doc) { emit(x); let x = 1; }",
        "function (doc) { let x = x; }",
        "function (doc) { f(); let x = 1; function f() { emit(x); } }",
        "function (doc) { for (let x of x) emit(x); }",
        "function (doc) { for (const x in [x]) emit(x); }",
        "function (doc) { if (doc.a) { x = 1; } let x; }",
        "function (doc) { switch (doc.a) { case 1: let x = 1; default: emit(x); } }",
        "function (doc) { const x = 1; x = 2; }",
        "function (doc) { const x = 1; x++; }",
    ] {
        assert_outside(source, "");
    }
}

#[test]
fn names_that_are_declared_twice_need_the_engine() {
    for source in [
        "function (doc) { let x; let x; }",
        "function (doc) { let doc = 1; }",
        "function (doc) { var x; let x; }",
        "function (doc) { let x; { var x; } }",
        "function (doc) { function f() {} var f; emit(f); }",
        "function (doc) { function doc() {} }",
        "function (doc, doc) { emit(doc); }",
        "function (doc) { break; }",
        "function (doc) { doc.l.forEach(function () { continue; }); }",
        "function (doc) { while (doc.a) { doc.l.forEach(function () { break; }); } }",
        "function (doc) { if (doc.a) let x = 1; }",
        "function (doc) { if (doc.a) function f() {} }",
        "function (doc) { { function f() {} } }",
    ] {
        assert_outside(source, "");
    }
}

#[test]
fn enumeration_has_javascript_s_order() {
    let source = "function (doc) { for (var k in doc) emit(k, doc[k]); emit(Object.keys(doc), Object.values(doc)); emit(Object.entries(doc)); }";
    assert_mapped_alike(
        source,
        &[
            r#"{"b":1,"2":2,"a":3,"10":4,"1":5,"b":6,"01":7}"#,
            r#"{"__proto__":1,"length":2,"\u0061":3}"#,
            "{}",
            r#"{"toString":1,"_id":"x"}"#,
        ],
    );
    assert_mapped_alike(
        "function (doc) { for (var k in doc.l) emit(k, typeof k); for (var k in 'é😀') emit(k); for (var k in 5) emit(k); for (var k in {b: 1, 1: 2}) emit(k); }",
        &[r#"{"l":["x","y"]}"#],
    );
}

#[test]
fn names_deleted_before_their_turn_are_not_enumerated() {
    assert_rows(
        "function (doc) { var o = {a: 1, b: 2, c: 3}; for (var k in o) { emit(k); delete o.b; o.d = 1; } }",
        "{}",
        &[(r#""a""#, "null"), (r#""c""#, "null")],
    );
}

#[test]
fn lengths_are_read_in_each_iteration() {
    assert_rows(
        "function (doc) { var a = [1]; for (var i = 0; i < a.length && i < 5; i++) { a.push(i); } emit(a); }",
        "{}",
        &[("[1,0,1,2,3,4]", "null")],
    );
    assert_rows(
        "function (doc) { var a = [1]; for (var x of a) { if (a.length < 3) a.push(x + 1); emit(x); } }",
        "{}",
        &[("1", "null"), ("2", "null"), ("3", "null")],
    );
    assert_rows(
        "function (doc) { var a = [1]; a.forEach(function (x) { a.push(x); }); emit(a); }",
        "{}",
        &[("[1,1]", "null")],
    );
}

#[test]
fn jumps_leave_the_innermost_loop_or_switch() {
    let source = "function (doc) { for (var i = 0; i < 4; i++) { switch (i) { case 1: continue; case 3: break; default: emit(i); case 9: emit('fell', i); } emit('after', i); } }";
    assert_mapped_alike(source, &["{}"]);
    let source = "function (doc) { do { for (var k in doc) { if (k === 'b') break; emit(k); } if (doc.a) return; } while (false); emit('end'); }";
    assert_mapped_alike(source, &[r#"{"x":1,"b":2,"c":3}"#, r#"{"a":1}"#, "{}"]);
}

#[test]
fn optional_chains_end_as_a_whole() {
    let source = "function (doc) { emit(doc.a?.b.c, doc.a?.b['c'].length); emit(doc.a?.indexOf('x').y, (doc.z?.a)?.b); }";
    assert_mapped_alike(source, &["{}", r#"{"a":null}"#, r#"{"a":"x"}"#, r#"{"a":{"b":{"c":"yes"}}}"#]);
    assert_dropped("function (doc) { emit((doc.a?.b).c); }", "{}");
}

#[test]
fn typeof_knows_documents_types() {
    assert_mapped_alike(
        "function (doc) { emit([typeof doc, typeof doc.a, typeof doc.b, typeof null, typeof [], typeof 'x', typeof 1, typeof true, typeof NaN]); }",
        &[r#"{"a":[]}"#, r#"{"a":null,"b":"s"}"#],
    );
}

#[test]
fn templates_format_as_strings() {
    assert_mapped_alike(
        "function (doc) { emit(`${doc.a}-${doc.b}!`, `plain`); }",
        &[r#"{"a":1.50,"b":"é"}"#, r#"{"a":null}"#],
    );
    assert_needs_engine("function (doc) { emit(`${doc.a}`); }", r#"{"a":[1]}"#);
}

#[test]
fn frozen_and_made_objects_are_compared_by_identity() {
    assert_mapped_alike(
        "function (doc) { var a = doc.a, b = [a]; emit([a === doc.a, b[0] === doc.a, b === [a], b.indexOf(doc.a), {} === {}, doc.l.indexOf(doc.l[1])]); }",
        &[r#"{"a":{},"l":[[],[]]}"#],
    );
}

/// All binary operators over all pairs of primitives, and of a primitive and a missing member.
#[test]
fn operators_agree_on_all_pairs_of_primitives() {
    let operators = [
        "==", "!=", "===", "!==", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "|", "&", "^", "<<", ">>",
        ">>>",
    ];
    let results: Vec<String> = operators.iter().map(|operator| format!("a {operator} b")).collect();
    let source = format!(
        "function (doc) {{ var a = doc.a, b = doc.b; emit([{}], [a && b, a || b, a ?? b, a ? 1 : 2, !a, -a, +a, ~a, typeof a, '' + a, `${{a}}`]); }}",
        results.join(", ")
    );
    let values = [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1",
        "2.5",
        "1e21",
        "1e400",
        "4294967296",
        r#""""#,
        r#""0""#,
        r#""1""#,
        r#""x""#,
        r#"" 1\n""#,
        r#""-0""#,
        r#""1e3""#,
        r#"".5""#,
        r#""5.""#,
        r#"".""#,
        r#""+1""#,
        r#""--1""#,
        r#""1_0""#,
        r#""Infinity""#,
        r#""infinity""#,
        r#""NaN""#,
        r#""null""#,
        r#""true""#,
        r#""10""#,
        r#""9""#,
    ];
    let mut documents = vec!["{}".to_owned()];
    for a in values {
        documents.push(format!(r#"{{"a":{a}}}"#));
        documents.push(format!(r#"{{"b":{a}}}"#));
        documents.extend(values.iter().map(|b| format!(r#"{{"a":{a},"b":{b}}}"#)));
    }
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    assert_mapped_alike(&source, &documents);
}

/// All methods of strings with all positions.
#[test]
fn string_methods_agree_on_all_positions() {
    let positions = [
        "",
        "undefined",
        "null",
        "0",
        "1",
        "2",
        "3",
        "4",
        "-1",
        "-2",
        "-9",
        "9",
        "1.7",
        "-1.7",
        "NaN",
        "Infinity",
        "-Infinity",
        "'1'",
        "true",
        "1e10",
    ];
    let mut calls = Vec::new();
    for first in positions {
        for method in ["charAt", "charCodeAt", "slice", "substring", "substr"] {
            calls.push(format!("s.{method}({first})"));
        }
        for second in positions.iter().filter(|position| !position.is_empty() && !first.is_empty()) {
            calls.extend(
                ["slice", "substring", "substr"].map(|method| format!("s.{method}({first}, {second})")),
            );
        }
        if !first.is_empty() {
            calls.extend(["indexOf", "includes"].map(|method| format!("s.{method}('b', {first})")));
            calls.extend(["indexOf", "includes"].map(|method| format!("s.{method}('', {first})")));
        }
    }
    for chunk in calls.chunks(100) {
        let source = format!("function (doc) {{ var s = doc.s; emit([{}]); }}", chunk.join(", "));
        assert_mapped_alike(
            &source,
            &[
                r#"{"s":""}"#,
                r#"{"s":"b"}"#,
                r#"{"s":"abcb"}"#,
                r#"{"s":"é😀b"}"#,
                r#"{"s":"\ude00b\ud83d"}"#,
            ],
        );
    }
}

/// All methods of arrays with all positions.
#[test]
fn array_methods_agree_on_all_positions() {
    let positions = [
        "undefined",
        "null",
        "0",
        "1",
        "2",
        "-1",
        "-2",
        "-9",
        "9",
        "1.7",
        "NaN",
        "Infinity",
        "-Infinity",
        "'1'",
    ];
    let mut calls = Vec::new();
    for first in positions {
        calls.push(format!("a.slice({first})"));
        calls.extend(["indexOf", "includes"].map(|method| format!("a.{method}({first})")));
        for second in positions {
            calls.push(format!("a.slice({first}, {second})"));
            calls.extend(["indexOf", "includes"].map(|method| format!("a.{method}('1', {second})")));
        }
    }
    calls.extend(
        [
            "a.join()",
            "a.join('')",
            "a.join(null)",
            "a.concat()",
            "a.concat(a, 1, [2, [3]])",
            "a.length",
            "a.indexOf()",
            "a.includes()",
        ]
        .map(str::to_owned),
    );
    for chunk in calls.chunks(100) {
        let source = format!("function (doc) {{ var a = doc.a; emit([{}]); }}", chunk.join(", "));
        assert_mapped_alike(&source, &[r#"{"a":[]}"#, r#"{"a":["1",null,0,1,"1"]}"#, r#"{"a":["1"]}"#]);
        let made = source.replace("var a = doc.a", "var a = [NaN, undefined, '1', 2, 1.7]");
        assert_mapped_alike(&made, &["{}"]);
    }
}

#[test]
fn functions_of_numbers_agree_on_all_kinds_of_numbers() {
    let calls = ["abs", "ceil", "floor", "round", "trunc"]
        .map(|function| format!("Math.{function}(n), 1 / Math.{function}(n)"));
    let source = format!(
        "function (doc) {{ var n = doc.n; emit([{}], [Math.max(n, 0), 1 / Math.max(n, -0), Math.min(n, 0), 1 / Math.min(n, -0), 1 / Math.min(0, n), Math.max(n, doc.x), Math.max(), Math.min(n), Number(n), Number(), String(n), String(), Boolean(n), n.toString()]); }}",
        calls.join(", ")
    );
    let numbers = [
        "0",
        "-0",
        "0.5",
        "-0.5",
        "1.5",
        "2.5",
        "-1.5",
        "-2.5",
        "0.49999999999999994",
        "-0.2",
        "4503599627370495.5",
        "4503599627370497",
        "9007199254740993",
        "1e21",
        "1e300",
        "-1e300",
        "1e400",
        "5e-324",
        "123456.7891",
    ];
    let documents: Vec<String> = numbers.iter().map(|number| format!(r#"{{"n":{number}}}"#)).collect();
    assert_mapped_alike(&source, &documents.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn strings_that_grow_leave_their_beginnings_alone() {
    let source = "function (doc) { var s = '', t = []; for (var i = 0; i < doc.l.length; i++) { s += doc.l[i]; t.push(s); s = s + '-' + i; } emit(s, t); var a = s + 'x', b = s + 'y', c = a + b; emit([a, b, c, s + s]); }";
    assert_mapped_alike(
        source,
        &[r#"{"l":["a","b",1,null,"é"]}"#, r#"{"l":["\ud83d","\ude00","\ud83d","😀"]}"#, r#"{"l":[]}"#],
    );
    let joined = "function (doc) { var b = doc.b, s = doc.a + '|' + doc.a, t = [s, b].join(''); emit([s, t, b]); s = s + '!' + doc.a; t = s.concat('', b); emit([s, t, b]); }";
    assert_mapped_alike(joined, &[r#"{"a":"\ud83d","b":"\ude00"}"#, r#"{"a":"x","b":"\ude00"}"#]);
    let pairs = "function (doc) { var s = doc.a + ''; s += doc.a; var t = s + doc.b; emit([s, t, s + doc.b, t.length, s.length]); }";
    assert_mapped_alike(
        pairs,
        &[r#"{"a":"x\ud83d","b":"\ude00y"}"#, r#"{"a":"\ud83d","b":"\ude00"}"#, r#"{"a":"","b":"\ude00"}"#],
    );
}
