//! Goal: what the issue leaves to the engine has no plan.
//! Method: one source per construct.

use crate::reference::{Engine, assert_mapped_alike, assert_outside};

#[track_caller]
fn assert_all_outside(reason: &str, expressions: &[&str]) {
    for expression in expressions {
        assert_outside(&format!("function (doc) {{ emit({expression}); }}"), reason);
    }
}

#[test]
fn regular_expressions() {
    assert_all_outside("a regular expression", &["/x/", "doc.a || /x/g"]);
    assert_all_outside(
        "",
        &[
            "/x/.test(doc.a)",
            "doc.a.match(/x/)",
            "doc.a.replace('x', 'y')",
            "doc.a.search('x')",
            "doc.a.split(/,/)",
            "doc.a.matchAll('x')",
        ],
    );
}

#[test]
fn dates_and_randomness() {
    assert_all_outside(
        "",
        &[
            "new Date()",
            "Date.now()",
            "Date.parse(doc.a)",
            "Date.UTC(2020, 1)",
            "Math.random()",
            "new Date(doc.a).getTime()",
            "Date",
        ],
    );
}

#[test]
fn case_and_locale() {
    assert_all_outside(
        "the method",
        &[
            "doc.a.toLowerCase()",
            "doc.a.toUpperCase()",
            "doc.a.toLocaleLowerCase()",
            "doc.a.localeCompare('x')",
            "doc.a.normalize()",
            "doc.n.toLocaleString()",
        ],
    );
}

#[test]
fn sorting() {
    assert_all_outside("the method", &["doc.a.sort()", "[1].sort()", "doc.a.reverse()", "doc.a.toSorted()"]);
}

#[test]
fn json_and_number_parsers() {
    assert_all_outside(
        "",
        &[
            "JSON.stringify(doc)",
            "JSON.parse(doc.a)",
            "parseInt(doc.a)",
            "parseInt(doc.a, 10)",
            "parseFloat(doc.a)",
            "Number.parseFloat(doc.a)",
            "isNaN(doc.a)",
            "toJSON(doc)",
        ],
    );
}

#[test]
fn number_formats() {
    assert_all_outside(
        "the method",
        &["doc.n.toFixed(2)", "doc.n.toPrecision(3)", "doc.n.toExponential()", "(1).toFixed()"],
    );
    crate::reference::assert_needs_engine("function (doc) { emit(doc.n.toString(2)); }", r#"{"n":5}"#);
}

#[test]
fn accessors_methods_and_classes() {
    assert_all_outside(
        "",
        &[
            "{get a() { return 1; }}",
            "{set a(x) {}}",
            "{a() {}}",
            "{[doc.a]: 1}",
            "{...doc}",
            "class {}",
            "new Object()",
            "this",
            "new.target",
        ],
    );
}

#[test]
fn exceptions() {
    for statement in [
        "try { emit(1); } catch (e) {}",
        "try { emit(1); } finally {}",
        "throw 'fatal_error';",
        "if (doc.a) throw new Error('x');",
    ] {
        assert_outside(&format!("function (doc) {{ {statement} }}"), "a statement");
    }
}

#[test]
fn closures() {
    for body in [
        "var f = function () { return 1; }; emit(f());",
        "var f = () => 1; emit(f());",
        "(function () { emit(1); })();",
        "emit([function () {}]);",
        "doc.l.forEach(doc.f);",
        "var e = emit; e(1);",
        "emit.call(null, 1);",
        "emit.apply(null, [1]);",
        "function f() { return f; } emit(f());",
        "function f(n) { return n ? f(n - 1) : 0; } emit(f(2));",
        "function f() { return g(); } function g() { return f(); } emit(f());",
        "function f() { doc.l.forEach(f); } f();",
        "doc.l.forEach(function f(x) { emit(f); });",
    ] {
        assert_outside(&format!("function (doc) {{ {body} }}"), "");
    }
}

#[test]
fn code_as_data_and_modules() {
    assert_all_outside(
        "",
        &[
            "eval('1')",
            "Function('return 1')()",
            "new Function('')",
            "require('views/lib/x')",
            "arguments",
            "arguments[0]",
            "import('x')",
            "globalThis",
            "globalThis.x",
        ],
    );
    assert_outside("function (doc) { with (doc) { emit(a); } }", "a statement");
    assert_outside("function (doc) { eval('var x = 1'); emit(x); }", "`eval`");
}

#[test]
fn a_source_that_is_a_function_only_within_parentheses() {
    for source in ["doc)=>emit(doc.a", "doc)=>(emit(doc.a)", "function (doc) {}), (function (doc) {}"] {
        assert!(Engine::compile(source).is_err(), "{source}");
        assert_outside(source, "source that isn't one function");
    }
}

#[test]
fn a_function_named_like_a_constant() {
    for name in ["undefined", "NaN", "Infinity"] {
        let source = format!("function {name}(doc) {{ emit(doc.a); }}");
        assert!(Engine::compile(&source).is_err(), "{source}");
        assert_outside(&source, "a function with the name of a constant");
    }
    assert_mapped_alike("function f(doc) { emit(doc.a); }", &[r#"{"a":1}"#]);
}

#[test]
fn numbers_and_strings_of_other_forms() {
    assert_all_outside(
        "",
        &[
            "1n",
            "doc.a + 1n",
            "0x10",
            "010",
            "1_000",
            "0b1",
            "'\\101'",
            "'\\0'",
            "'\\ud83d'",
            "`\\n`",
            "`a\\u0041`",
            "doc.a ** 2",
            "doc instanceof Object",
            "String.raw`x`",
        ],
    );
}

#[test]
fn strict_mode() {
    assert_outside("function (doc) { 'use strict'; doc.a = 1; emit(1); }", "a directive");
    assert_outside(
        "function (doc) { doc.l.forEach(function (x) { 'use strict'; x.a = 1; }); }",
        "a directive",
    );
}

#[test]
fn source_that_is_not_one_function() {
    for source in [
        "",
        ";",
        "1",
        "doc",
        "({})",
        "function (doc) {}, function (doc) {}",
        "function (doc) {}); (function (doc) {}",
        "function (doc) {}) + (1",
        "var f = function (doc) {}",
        "function (doc) {} function (doc) {}",
        "function (doc) {",
        "function (doc) { emit( }",
        "class {}",
        "async function (doc) { emit(1); }",
        "function* (doc) { emit(1); }",
        "async (doc) => emit(1)",
        "function (doc) {} // \n) , (1",
        "function (doc) { <!-- x\n emit(1); }",
        "(function () { return function (doc) {}; })()",
        "function (...docs) { emit(1); }",
        "function ({a}) { emit(a); }",
        "function (doc = {}) { emit(1); }",
        "function (arguments) { emit(1); }",
    ] {
        assert_outside(source, "");
    }
}

/// Errors that the parser leaves to later passes.
#[test]
fn sources_that_only_the_engine_refuses() {
    assert_all_outside(
        "",
        &[
            "1 || 2 ?? 3",
            "1 ?? 2 && 3",
            "1 && 2 ?? 3",
            "1 ?? 2 || 3",
            "(1) || 2 ?? (3)",
            "1 || 2 ?? (3)",
            "(1) || 2 ?? 3",
            "(1) ?? 2 || (3)",
            "(1) && {}.n ?? (3)",
            "(1) || {}.n ?? (3)",
            "1 ?? (2) && (3)",
        ],
    );
    assert_mapped_alike("function (doc) { emit((1 || 2) ?? 3, 1 ?? (2 && 3)); }", &["{}"]);
    for body in [
        "switch (1) { default: default: emit(1); }",
        "doc?.a = 1;",
        "doc?.a++;",
        "doc?.a.b += 1;",
        "for (doc?.a of doc.l) ;",
        "({a = 1});",
        "const x;",
        "for (const x; ; ) ;",
        "for (let x, y of doc.l) ;",
        "for (const x = 1 of doc.l) ;",
        "let let = 1;",
        "for (let let of doc.l) ;",
        "doc.l.forEach((x, x) => emit(x));",
        "doc.l.forEach(function (x) { let x; });",
        "for (let x of doc.l) { var x; }",
        "for (let x = 0; x < 1; x++) { var x; }",
        "while (0) function f() {}",
        "emit(`${}`);",
        "emit(1 +);",
        "1 = 2;",
        "doc.a() = 1;",
        "++1;",
        "emit() ++;",
        "for (1 of doc.l) ;",
        "x: x: ;",
        "break x;",
        "emit('\n');",
        "emit(1a);",
        "emit(\"\\u{110000}\");",
        "emit(doc.#a);",
        "emit(#a in doc);",
        "emit(super.a);",
        "emit(await doc);",
        "emit(import.meta);",
        "var a\u{2e}b;",
        "emit(1)) ((2);",
        "emit(a => {}());",
        "emit(doc => 1 ? 2);",
        "emit((doc, ) => 1)(,);",
    ] {
        let source = format!("function (doc) {{ {body} }}");
        assert_outside(&source, "");
        assert!(Engine::compile(&source).is_err(), "{body}");
    }
}

#[test]
fn labels_spreads_and_patterns() {
    for body in [
        "x: for (;;) { break x; }",
        "emit(...doc.l);",
        "emit([...doc.l]);",
        "var {a} = doc; emit(a);",
        "var [a] = doc.l; emit(a);",
        "for (var [k, v] of Object.entries(doc)) emit(k);",
        "for (var i = 0 in doc) emit(i);",
        "debugger;",
    ] {
        assert_outside(&format!("function (doc) {{ {body} }}"), "");
    }
}

#[test]
fn deep_and_long_sources_are_refused_without_overflow() {
    for (open, close) in
        [("(", ")"), ("[", "]"), ("!", ""), ("-", " "), ("a=>", ""), ("a?", ":1"), ("{a:", "}"), ("x=", "")]
    {
        for count in [150, 2_000, 7_000] {
            let source =
                format!("function (doc) {{ emit({}1{}); }}", open.repeat(count), close.repeat(count));
            assert_outside(&source, "");
        }
    }
    for (open, close) in [
        ("if(1)", ";"),
        ("{", "}"),
        ("for(;;)", ";"),
        ("do ", ";while(1)"),
        ("if(1);else ", ";"),
        ("typeof ", ""),
    ] {
        for count in [150, 1_200] {
            let source = format!("function (doc) {{ {}1{} }}", open.repeat(count), close.repeat(count));
            assert_outside(&source, "");
        }
    }
    let long_chain = format!("function (doc) {{ emit(1{}); }}", "+1".repeat(5_000));
    assert_outside(&long_chain, "");
    assert_outside(&" ".repeat(settee_map::SOURCE_BYTES_MAX + 1), "a long source");
}

/// The deepest functions that have plans take little stack.
#[test]
fn the_deepest_plans_run_in_a_small_stack() {
    let calls = |callee: &str, count: usize| format!("{}{callee}{}", "!(x,".repeat(count), ")".repeat(count));
    let mut source = String::from("function (doc) { var x = 1;");
    for helper in 0..4 {
        let callee = if helper == 3 { "doc.a".to_owned() } else { format!("h{}()", helper + 1) };
        source.push_str(&format!("function h{helper}() {{ return {}; }}", calls(&callee, 28)));
    }
    let blocks = "if (!doc.b) [1].forEach(function () {".repeat(8);
    source.push_str(&format!("{blocks} emit(h0()); {} }}", "});".repeat(8)));
    let plan = settee_map::Plan::compile(&source).expect("a plan");
    let run = move || {
        let mut scratch = settee_map::Scratch::new();
        crate::reference::map_by_plan(&plan, r#"{"a":1}"#, &mut scratch)
    };
    let small = std::thread::Builder::new().stack_size(512 << 10).spawn(run).expect("a thread");
    let mapped = small.join().expect("no overflow");
    assert!(matches!(mapped, crate::reference::Mapped::Rows(rows) if rows.len() == 1));
}

/// What functions in the engine may do to the plans beside them.
#[test]
fn functions_that_may_change_globals_are_known() {
    use settee_map::may_change_globals;
    for harmless in [
        "function (doc) { emit(doc.name.toLowerCase(), 1); }",
        "function (doc) { emit(new Date(doc.at).getTime()); }",
        "function (doc) { for (i = 0; i < doc.l.length; i++) emit(doc.l[i]); }",
        "function (doc) { if (/x/.test(doc.a)) emit(doc.Array = 1, doc.Number); }",
        "function (doc) { if (doc.tags instanceof Array) emit(Object.keys(doc).length, Math.max(1, 2)); }",
        "function (doc) { if (Object.prototype.toString.call(doc.a) === '[object Array]') emit(1); }",
        "function (doc) { doc.tags.forEach(emit); emit(doc.l.map(String), [new Array(2)]); }",
        "function (doc) { try { emit(JSON.parse(doc.a)); } catch (e) { log(e); } }",
    ] {
        assert!(!may_change_globals(harmless), "{harmless}");
    }
    for harmful in [
        "function (doc) { emit = function () {}; }",
        "function (doc) { isArray = doc.a; }",
        "function (doc) { Number += 1; }",
        "function (doc) { ++String; emit(1); }",
        "function (doc) { Math.floor = function () { return 1; }; }",
        "function (doc) { Math['floor'] = null; }",
        "function (doc) { Object.keys = doc.f; }",
        "function (doc) { var m = Math; m.floor = 1; }",
        "function (doc) { Object.assign(Math, {floor: 1}); }",
        "function (doc) { Array.prototype.map = 1; }",
        "function (doc) { Array['prototype'].map = 1; }",
        "function (doc) { [].__proto__.map = 1; }",
        "function (doc) { 'x'.constructor.prototype.slice = 1; }",
        "function (doc) { this.emit = 1; }",
        "function (doc) { eval('x'); }",
        "function (doc) { require('views/lib/x'); }",
        "function (doc) { em\\u0069t = 1; }",
        "function (doc) { [emit] = doc.l; }",
        "function emit(doc) {}",
    ] {
        assert!(may_change_globals(harmful), "{harmful}");
    }
}
