//! Goal: map functions see documents, and their rows come out, as in CouchDB's loop.
//! Method: one test for each property, over literal functions and documents.

use settee_js::{Limits, MapBatch, MapContext, Outcome};

/// The rows of `function` over `document`, as `key:value`, or what else happened.
fn map_one(function: &str, document: &str) -> String {
    map_all(&[function], &[document]).remove(0)
}

fn map_all(functions: &[&str], documents: &[&str]) -> Vec<String> {
    let mut context = MapContext::new(None, functions, Limits::default()).expect("functions compile");
    let texts: Vec<&[u8]> = documents.iter().map(|d| d.as_bytes()).collect();
    let batch = context.map(&texts).expect("the engine works");
    (0..documents.len())
        .flat_map(|document| (0..functions.len()).map(move |function| (document, function)))
        .map(|(document, function)| shown(&batch, document, function))
        .collect()
}

fn shown(batch: &MapBatch, document: usize, function: usize) -> String {
    match batch.outcome(document, function) {
        Outcome::Rows(rows) => rows.map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>().join(" "),
        Outcome::Dropped { message } => format!("dropped {message}"),
        Outcome::Stopped(stop) => format!("stopped {stop}"),
        Outcome::Skipped => "skipped".to_owned(),
    }
}

#[test]
fn a_document_is_deeply_frozen() {
    let f = "function (doc) { doc.a = 2; doc.n.b = 3; delete doc.a; doc.l[0] = 9; doc.l[0].c = 1; doc.z = 1;
             emit(doc.a, [doc.n, doc.l, doc.z]); }";
    assert_eq!(map_one(f, r#"{"a":1,"n":{"b":2},"l":[{"c":5}]}"#), r#"1:[{"b":2},[{"c":5}],null]"#);
    for method in
        ["push(1)", "sort()", "reverse()", "shift()", "pop()", "splice(0, 1)", "unshift(1)", "fill(0)"]
    {
        let f = format!("function (doc) {{ doc.l.{method}; emit(1, 1); }}");
        let shown = map_one(&f, r#"{"l":[3,1,2]}"#);
        assert!(shown.starts_with("dropped TypeError"), "{method}: {shown}");
    }
    let strict = "function (doc) { 'use strict'; doc.a = 2; }";
    assert!(map_one(strict, r#"{"a":1}"#).starts_with("dropped TypeError"));
}

#[test]
fn indirect_writes_do_not_change_a_document() {
    let writers = [
        "doc.l.forEach(doc.l.push, doc.l)",
        "doc.o.forEach(doc.l['sort'], doc.l)",
        "Object.assign(doc, {a: 2})",
        "[doc.a] = [2]",
        "({x: doc.a} = {x: 2})",
        "for (doc.a of [2]);",
        "for (doc['a'] in {q: 1});",
        "var String = doc.constructor.assign; String(doc, {a: 2})",
        "var f = doc.constructor.assign; f(doc, {a: 2})",
        "[{a: 2}].reduce(doc.constructor.assign, doc)",
        "doc['a']++",
        "doc.a += 1",
        "doc\n.a = 2",
        "doc.l.length = 0",
        "with (doc) { a = 2; }",
        "eval('doc.a = 2')",
        "doc.constructor.defineProperty(doc, 'a', {value: 2})",
        "var d = doc; d.a = 2",
        "[doc].map(function (d) { d.a = 2; })",
        "doc.__proto__ = {a: 2}",
        "doc.__defineGetter__('a', function () { return 2; })",
        "doc.\\u0061 = 2",
        "`${doc.a = 2}`",
        "/'/.test(doc.a = 2)",
        "doc?.l.push(1)",
        "(doc).a = 2",
        "(doc.a) = 2",
        "doc.a ||= 0, doc.a &&= 2",
        "doc.a **= 2, ++doc.a",
        "--doc /* c */ . a",
        "arguments[0].a = 2",
        "doc.l.concat.constructor('doc', 'doc.a = 2')(doc)",
    ];
    let document = r#"{"a":1,"l":[1,2],"o":[1]}"#;
    for writer in writers {
        let writing = format!("function (doc) {{ {writer}; }}");
        let reading = "function (doc) { emit(doc.a, doc.l); }";
        let shown = map_all(&[&writing, reading, reading], &[document, document]);
        assert_eq!(shown[1], "1:[1,2]", "{writer}");
        assert_eq!(shown[4], "1:[1,2]", "{writer}");
    }
}

#[test]
fn all_functions_see_the_same_document() {
    let shown = map_all(
        &[
            "function (doc) { doc.l.seen = 1; emit(doc.l.seen, 1); }",
            "function (doc) { emit(doc.l.seen, 2); }",
        ],
        &[r#"{"l":[]}"#],
    );
    assert_eq!(shown, ["null:1", "null:2"]);
}

#[test]
fn rows_are_serialised_after_the_function_ran() {
    let f = "function (doc) { var a = [1]; emit(1, a); a.push(2); emit(a, 2); a.push(3); }";
    assert_eq!(map_one(f, "{}"), "1:[1,2,3] [1,2,3]:2");
    // But before the next document.
    let f =
        "(function () { var all = []; return function (doc) { all.push(doc._id); emit(doc._id, all); }; })()";
    let shown = map_all(&[f], &[r#"{"_id":"a"}"#, r#"{"_id":"b"}"#]);
    assert_eq!(shown, [r#""a":["a"]"#, r#""b":["a","b"]"#]);
}

#[test]
fn prototypes_of_documents_and_of_emit_can_change_rows_only() {
    let f =
        "function (doc) { doc.a.constructor.prototype.toJSON = function () { return 5; }; emit(doc.a, {}); }";
    assert_eq!(map_all(&[f, f], &[r#"{"a":{}}"#; 2]), ["5:{}"; 4]);
    let f = "function (doc) { var make = emit.constructor;
             try { make('Object.prototype.toJSON = Array.prototype.toJSON = function () { return 6; }')(); } catch (e) {}
             try { make('Array.prototype.push = JSON.stringify = Object.freeze = Map = null')(); } catch (e) {}
             emit([1], {}); emit(make('return typeof settee + typeof run + typeof Object.prototype.toJSON')(), 1); }";
    assert_eq!(map_all(&[f], &["{}", "{}"]), [r#"[1]:{} "undefinedundefinedundefined":1"#; 2]);
}

#[test]
fn values_without_json_become_null_or_vanish() {
    let f = "function (doc) { emit(); emit(undefined, function () {}); emit(NaN, Infinity); emit(-Infinity, -0);
             emit([undefined, function () {}, NaN, , 1], {a: undefined, b: function () {}, c: NaN}); emit(1); }";
    assert_eq!(
        map_one(f, "{}"),
        r#"null:null null:null null:null null:0 [null,null,null,null,1]:{"c":null} 1:null"#
    );
    assert_eq!(map_one("function (doc) { emit(Symbol.iterator, {s: Symbol.iterator}); }", "{}"), "null:{}");
    assert_eq!(
        map_one("function (doc) { emit(new Date(0), new Number(3)); }", "{}"),
        r#""1970-01-01T00:00:00.000Z":3"#
    );
}

#[test]
fn to_json_is_honoured_and_runs_after_the_function() {
    let f = "function (doc) { var n = 0; var o = {toJSON: function (k) { return [k, n]; }};
             emit(o, o); emit(1, {m: o}); n = 7; }";
    assert_eq!(map_one(f, "{}"), r#"["0",7]:["1",7] 1:{"m":["m",7]}"#);
    let f = "function (doc) { emit(1, 1); emit({toJSON: function () { throw new Error('late'); }}, 2); }";
    assert_eq!(map_one(f, "{}"), "dropped Error: late");
}

#[test]
fn numbers_have_javascript_text() {
    let f = "function (doc) { doc.l.forEach(function (n) { emit(n, null); }); }";
    let shown =
        map_one(f, r#"{"l":[1.0,9007199254740993,1e21,1e-7,-0,0.1,123456789012345680000,1E400,5e-324]}"#);
    assert_eq!(
        shown,
        "1:null 9007199254740992:null 1e+21:null 1e-7:null 0:null 0.1:null 123456789012345680000:null null:null 5e-324:null"
    );
}

#[test]
fn an_exception_drops_the_rows_of_that_function_and_document_only() {
    let shown = map_all(
        &[
            "function (doc) { emit(1, 1); if (doc.bad) throw new TypeError('x'); }",
            "function (doc) { emit(2, 2); }",
        ],
        &["{}", r#"{"bad":true}"#, "{}"],
    );
    assert_eq!(shown, ["1:1", "2:2", "dropped TypeError: x", "2:2", "1:1", "2:2"]);
    assert_eq!(map_one("function (doc) { throw {a: 1}; }", "{}"), r#"dropped {"a":1}"#);
    assert_eq!(map_one("function (doc) { throw undefined; }", "{}"), "dropped undefined");
    assert_eq!(map_one("function (doc) { throw 'x'; }", "{}"), "dropped x");
    let hostile =
        "function (doc) { throw {get name() { throw 1; }, get message() { throw 2; }, toJSON: 1}; }";
    assert!(map_one(hostile, "{}").starts_with("dropped"));
}

#[test]
fn a_free_variable_lives_on_between_documents_and_is_not_shared() {
    let f = "function (doc) { if (typeof n === 'undefined') n = 0; n++; emit(n, null); }";
    assert_eq!(map_all(&[f, f], &["{}", "{}"]), ["1:null", "1:null", "2:null", "2:null"]);
}

#[test]
fn documents_and_rows_are_canonical_json() {
    let f = "function (doc) { emit(doc, null); }";
    // Duplicates: the first place, the last value. Names that are integers come first.
    assert_eq!(map_one(f, r#"{"b":1,"a":2,"b":3,"10":4,"2":5}"#), r#"{"2":5,"10":4,"b":3,"a":2}:null"#);
    let proto = r#"{"__proto__":{"x":1},"a":1}"#;
    assert_eq!(map_one(f, proto), r#"{"__proto__":{"x":1},"a":1}:null"#);
    assert_eq!(
        map_one("function (doc) { emit(doc.x, Object.keys(doc)); }", proto),
        r#"null:["__proto__","a"]"#
    );
    let text = r#"{"s":"a\u0000\u001f\"\\\/\n\u00e9\ud83d\ude00\ud800"}"#;
    assert_eq!(
        map_one("function (doc) { emit(doc.s, null); }", text),
        "\"a\\u0000\\u001f\\\"\\\\/\\n\u{e9}\u{1f600}\\ud800\":null"
    );
    let sliced = "function (doc) { emit(doc.s.slice(0, 1), [doc.s.slice(1)]); }";
    assert_eq!(map_one(sliced, r#"{"s":"😀"}"#), r#""\ud83d":["\ude00"]"#);
}

#[test]
fn rows_with_every_json_syntax_are_split() {
    let f =
        "function (doc) { emit('],[\"}{', '\\\\'); emit(['\"', {'],': '}'}], [[[]], {}]); emit('', ''); }";
    assert_eq!(map_one(f, "{}"), r#""],[\"}{":"\\" ["\"",{"],":"}"}]:[[[]],{}] "":"""#);
}

#[test]
fn globals_are_those_of_couchdb() {
    let f = "function (doc) { emit(isArray(doc.l), [sum([1, 2, 3]), toJSON({a: 1}), JSON.stringify([1]),
             doc.l instanceof Array, typeof require, typeof print, typeof readline, typeof std, typeof os,
             typeof Promise, typeof Proxy, typeof settee, typeof console]); }";
    assert_eq!(
        map_one(f, r#"{"l":[]}"#),
        r#"true:[6,"{\"a\":1}","[1]",false,"function","undefined","undefined","undefined","undefined","undefined","undefined","undefined","undefined"]"#
    );
}

#[test]
fn logs_are_collected_up_to_a_limit() {
    let f = "function (doc) { log('x'); log({a: 1}); for (var i = 0; i < 1000; i++) log(i); }";
    let mut context = MapContext::new(None, &[f], Limits::default()).expect("compiles");
    let batch = context.map(&[b"{}"]).expect("maps");
    assert_eq!(batch.logs()[..3], ["x", r#"{"a":1}"#, "0"]);
    assert_eq!(batch.logs().len(), 100);
}

#[test]
fn require_reaches_the_library_only() {
    let lib = r#"{"m":"exports.n = (exports.n || 0) + 1; exports.id = module.id; exports.o = require('./o').v;",
                  "o":"exports.v = 5 // c",
                  "d":{"p":"module.exports = require('../m').o + 1"},
                  "a":"exports.early = 1; exports.b = require('./b').seen",
                  "b":"exports.seen = require('./a').early"}"#;
    let run = |body: &str| {
        let f = format!("function (doc) {{ {body} }}");
        let mut context = MapContext::new(Some(lib), &[&f], Limits::default()).expect("compiles");
        let batch = context.map(&[b"{}"]).expect("maps");
        shown(&batch, 0, 0)
    };
    assert_eq!(run("var m = require('views/lib/m'); emit(m.id, [m.n, m.o])"), r#""views/lib/m":[1,5]"#);
    assert_eq!(run("require('views/lib/m'); emit(require('views/lib/m').n, 0)"), "1:0");
    assert_eq!(run("emit(require('views/lib/d/p'), 0)"), "6:0");
    assert_eq!(run("emit(require('views/lib/a'), 0)"), r#"{"early":1,"b":1}:0"#);
    assert!(run("require('lib/m')").starts_with("dropped [\"error\",\"invalid_require_path\""));
    assert!(run("require('./m')").starts_with("dropped"));
    assert!(run("require('views/lib/toString')").starts_with("dropped"));
    assert!(run("require('views/lib/d')").contains("not: object"));
}

#[test]
fn many_and_large_rows_come_out() {
    let f = "function (doc) { for (var i = 0; i < 100000; i++) emit(i, doc._id); }";
    let mut context = MapContext::new(None, &[f], Limits::default()).expect("compiles");
    let batch = context.map(&[br#"{"_id":"a"}"#, br#"{"_id":"b"}"#]).expect("maps");
    assert_eq!(batch.row_count(), 200_000);
    let large = "function (doc) { emit(1, 'x'.repeat(10e6)); }";
    assert_eq!(map_one(large, "{}").len(), 10_000_004);
    assert_eq!(map_all(&[large], &["{}"; 8]).iter().map(String::len).sum::<usize>(), 80_000_032);
}

#[test]
fn an_unreadable_document_is_dropped_alone() {
    let f = "function (doc) { emit(doc.a, 1); }";
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = format!(r#"{{"a":{deep}}}"#);
    for bad in ["{", "{}],[{}", "{},{}", &deep] {
        let shown = map_all(&[f, f], &[r#"{"a":1}"#, bad, r#"{"a":2}"#]);
        assert_eq!(
            (&*shown[0], &*shown[1], &*shown[4], &*shown[5]),
            ("1:1", "1:1", "2:1", "2:1"),
            "{bad:.20}"
        );
        assert!(shown[2].starts_with("dropped") && shown[3].starts_with("dropped"), "{}", shown[2]);
    }
}
