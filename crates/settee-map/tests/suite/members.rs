//! Goal: members are found where JavaScript finds them: own ones first, then the prototype's.
//! Method: names that prototypes have, strings and arrays as receivers, compared with the engine.

use rquickjs::{Context, Runtime};

use crate::reference::{assert_dropped, assert_mapped_alike, assert_needs_engine, assert_rows};

#[test]
fn missing_members_come_from_the_prototype_so_from_the_engine() {
    for source in [
        "function (doc) { if (doc.constructor) emit(1); }",
        "function (doc) { emit('toString' in doc); }",
        "function (doc) { emit(doc.valueOf); }",
        "function (doc) { emit(typeof doc.hasOwnProperty); }",
        "function (doc) { emit(typeof doc['to' + 'String']); }",
        "function (doc) { emit(doc.toString()); }",
    ] {
        assert_needs_engine(source, "{}");
    }
    assert_rows(
        "function (doc) { emit(doc.constructor, 'toString' in doc); }",
        r#"{"constructor":1,"toString":2}"#,
        &[("1", "true")],
    );
}

#[test]
fn own_members_shadow_methods() {
    assert_dropped("function (doc) { if (doc.hasOwnProperty('a')) emit(1); }", r#"{"hasOwnProperty":1}"#);
    assert_dropped("function (doc) { doc.tags.map(function (t) { emit(t); }); }", r#"{"tags":{"map":1}}"#);
    assert_dropped("function (doc) { doc.tags.forEach(function (t) { emit(t); }); }", r#"{"tags":{"a":1}}"#);
    assert_dropped("function (doc) { emit(doc.x.slice(1)); }", r#"{"x":{"slice":"y"}}"#);
    assert_rows(
        "function (doc) { emit(doc.length, doc.tags.length); }",
        r#"{"length":"x","tags":{"length":[2]}}"#,
        &[(r#""x""#, "[2]")],
    );
    assert_rows(
        "function (doc) { for (var i = 0; i < doc.tags.length; i++) emit(doc.tags[i]); }",
        r#"{"tags":{"length":2,"1":"x"}}"#,
        &[("null", "null"), (r#""x""#, "null")],
    );
}

#[test]
fn names_of_other_prototypes_are_ordinary_members() {
    let source = "function (doc) { emit([doc.link, doc.values, doc.map, doc.at, doc.search, doc.toFixed], doc.list.link); emit(doc.s.map, doc.n.link); }";
    assert_mapped_alike(
        source,
        &[r#"{"list":[],"s":"x","n":1}"#, r#"{"list":[],"s":"x","n":1,"link":"l","map":[1],"search":null}"#],
    );
}

#[test]
fn strings_are_indexed_by_units() {
    let source = "function (doc) { emit([doc.s.length, doc.s[0], doc.s[1], doc.s[2], doc.s[9], doc.s['1'], doc.s[-1], doc.s['x']]); for (var i in doc.s) emit(i, doc.s[i]); }";
    assert_mapped_alike(
        source,
        &[r#"{"s":"abc"}"#, r#"{"s":"é😀"}"#, r#"{"s":""}"#, r#"{"s":"\ud83d\ude00\n"}"#],
    );
}

#[test]
fn a_member_of_null_or_undefined_throws() {
    for source in [
        "function (doc) { emit(doc.a.b); }",
        "function (doc) { emit(doc.a['b']); }",
        "function (doc) { doc.a.b = 1; }",
        "function (doc) { doc.a['b'] = 1; }",
        "function (doc) { doc.a[doc.c] = 1; }",
        "function (doc) { doc.a.b++; }",
        "function (doc) { doc.a.b += 1; }",
        "function (doc) { doc.a['b'] += 1; }",
        "function (doc) { doc.a['b']++; }",
        "function (doc) { doc.a[1]++; }",
        "function (doc) { doc.a[doc.c] += 1; }",
        "function (doc) { doc.a[doc.c] ||= 1; }",
        "function (doc) { emit(doc.a.indexOf('x')); }",
        "function (doc) { emit('x' in doc.a); }",
        "function (doc) { emit(Object.keys(doc.a)); }",
        "function (doc) { for (var x of doc.a) emit(x); }",
        "function (doc) { emit(delete doc.a.b); }",
    ] {
        assert_dropped(source, "{}");
        assert_dropped(source, r#"{"a":null}"#);
    }
    assert_rows(
        "function (doc) { for (var k in doc.a) emit(k); emit(doc.a && doc.a.b); }",
        r#"{"a":null}"#,
        &[("null", "null")],
    );
}

#[test]
fn members_of_other_primitives_are_undefined() {
    assert_mapped_alike(
        "function (doc) { emit([doc.a.b, doc.a.length, doc.a[0]]); doc.a.x = 1; emit(doc.a.x); }",
        &[r#"{"a":1}"#, r#"{"a":true}"#],
    );
    assert_dropped("function (doc) { emit('b' in doc.a); }", r#"{"a":1}"#);
}

#[test]
fn members_that_couchdb_adds_are_there() {
    let document = r#"{"_id":"a","_rev":"2-b","_conflicts":["2-a"],"_deleted_conflicts":["3-d"],"_local_seq":7,"_attachments":{"f":{"stub":true}}}"#;
    let source = "function (doc) { if (doc._conflicts) emit(doc._conflicts, [doc._deleted_conflicts, doc._local_seq]); for (var f in doc._attachments) emit(f, doc._attachments[f].stub); }";
    assert_rows(source, document, &[(r#"["2-a"]"#, r#"[["3-d"],7]"#), (r#""f""#, "true")]);
}

#[test]
fn an_array_s_members_are_its_elements_and_its_length() {
    let source = "function (doc) { var a = doc.a; emit([a[0], a['0'], a['00'], a[1.5], a[-1], a.length, a['length'], a.x, a[9], 0 in a, '1' in a, 'length' in a, 9 in a]); }";
    assert_mapped_alike(source, &[r#"{"a":[5,6]}"#, r#"{"a":[]}"#, r#"{"a":[[1],{}]}"#]);
    assert_mapped_alike(
        "function (doc) { for (var i = 9; i >= 0; i--) emit(doc.a[i]); }",
        &[r#"{"a":[1,[2,2],{"x":3},"4"]}"#],
    );
}

#[test]
fn elements_of_several_arrays_are_read_alternately() {
    let source = "function (doc) { emit([doc.b[1], doc.a[1], doc.b[2], doc.a[0], doc.c[1][1], doc.c[2], doc.c[1][0]]); for (var i in doc.a) for (var j in doc.b) emit(doc.a[i], doc.b[j]); }";
    assert_mapped_alike(
        source,
        &[
            r#"{"a":[1,[2],3],"b":[4,{"x":5},6],"c":[7,[8,9],10]}"#,
            r#"{"b":["x","y"],"c":[0,[]],"a":[[[]]]}"#,
        ],
    );
}

/// The lists of inherited names have all that the engine's prototypes have.
#[test]
fn every_name_that_a_prototype_has_needs_the_engine() {
    let runtime = Runtime::new().expect("a runtime");
    let context = Context::full(&runtime).expect("a context");
    let receivers = [
        ("Object", r#"{"v":{}}"#),
        ("Array", r#"{"v":[]}"#),
        ("String", r#"{"v":""}"#),
        ("Number", r#"{"v":1}"#),
        ("Boolean", r#"{"v":true}"#),
    ];
    for (prototype, document) in receivers {
        let script = format!(
            "Object.getOwnPropertyNames({prototype}.prototype).concat(Object.getOwnPropertyNames(Object.prototype)).join('\\n')"
        );
        let names: String = context.with(|ctx| ctx.eval(script)).expect("names");
        assert!(names.lines().count() > 10, "{prototype}: {names}");
        for name in names.lines().filter(|name| *name != "length") {
            assert_needs_engine(&format!("function (doc) {{ emit(doc.v['{name}']); }}"), document);
            let computed =
                document.replace('}', "").replace(r#""v":{"#, r#""v":{}"#) + &format!(r#","k":"{name}"}}"#);
            assert_needs_engine("function (doc) { emit(doc.v[doc.k]); }", &computed);
        }
    }
}
