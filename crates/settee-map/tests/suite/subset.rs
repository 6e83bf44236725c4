//! Goal: the functions that people write have plans.
//! Method: functions as in CouchDB's documentation and in applications, over documents of several shapes.

use rand::SeedableRng;
use rand::rngs::StdRng;
use settee_map::{Plan, Scratch};

use crate::reference::{Engine, Mapped, assert_mapped_alike, map_by_plan};

const DOCUMENTS: [&str; 8] = [
    r#"{"_id":"a","_rev":"1-x","type":"post","title":"Hello","tags":["a","b"],"date":[2026,11,23],"author":{"name":"Ann","age":30},"n":3}"#,
    r#"{"_id":"b","_rev":"1-x","type":"comment","post":"a","body":"line\n\"quoted\" \u00e9","n":2.50,"tags":[]}"#,
    r#"{"_id":"c","_rev":"2-y","type":"post","author":null,"tags":"a,b","items":[{"sku":"x","qty":2},{"sku":"y","qty":1e2}],"0":1}"#,
    r#"{"_id":"d","_rev":"1-z"}"#,
    r#"{"_id":"e","_rev":"1-z","type":"list","tags":{"a":1,"2":2,"1":3},"n":"7","_attachments":{"f.txt":{"stub":true,"length":5}}}"#,
    r#"{"_id":"😀","_rev":"1-z","type":"post","title":"","n":0,"parent":"a","children":["b",null,{"id":"c"}],"tags":["x",1,null,["y"]]}"#,
    r#"{"_id":"user:1","_rev":"1-z","type":"user","name":"Bob Smith","roles":["admin"],"created_at":"2026-11-23T10:00:00Z","deleted":false}"#,
    r#"{"_id":"f","_rev":"3-z","type":"order","lines":[{"p":1.5,"q":2},{"p":0.1,"q":3}],"total":3.3,"address":{"city":"Köln","geo":{"lat":50.9}}}"#,
];

/// Functions that run over every document without the engine.
const FUNCTIONS: [&str; 28] = [
    "function(doc) { emit(doc._id, doc); }",
    "function(doc) { emit(null, 1); }",
    "function(doc) { emit(doc._id, doc._rev) }",
    "function (doc) { if (doc.type === 'post') { emit(doc.title, null); } }",
    "function (doc) { if (doc.type == \"post\" && doc.author) emit(doc.author.name, {title: doc.title, n: doc.n}); }",
    "function (doc) {\n  if (doc.type && doc.tags && isArray(doc.tags)) {\n    for (var i = 0; i < doc.tags.length; i++) {\n      emit(doc.tags[i], 1);\n    }\n  }\n}",
    "function (doc) { if (Array.isArray(doc.tags)) doc.tags.forEach(function (tag) { emit([doc.type, tag], doc._id); }); }",
    "function (doc) { (doc.items || []).forEach(function (item) { emit(item.sku, item.qty); }); }",
    "function (doc) { for (var name in doc._attachments) { emit(name, doc._attachments[name].length); } }",
    "function (doc) { for (var k in doc) { if (doc.hasOwnProperty(k) && k[0] !== '_') emit(k, doc[k]); } }",
    "function (doc) { if (doc.type === 'post') emit([doc._id, 0], doc); else if (doc.type === 'comment') emit([doc.post, 1], doc); }",
    "function (doc) { switch (doc.type) { case 'post': emit('p', doc.n); break; case 'user': case 'order': emit('uo', null); break; default: emit('other'); } }",
    "function (doc) { emit(doc.n || 0, doc.n ? 'some' : 'none'); }",
    "function (doc) { if (typeof doc.title !== 'undefined' && doc.title.length > 0) emit(doc.title.charAt(0), doc.title.length); }",
    "function (doc) { var parts = doc._id.split(':'); if (parts.length > 1) emit(parts[0], parts[1]); }",
    "function (doc) { if (doc._id.indexOf('user:') === 0) emit(doc._id.substr(5), doc.name); }",
    "function (doc) { if (doc.created_at) emit(doc.created_at.substring(0, 10).split('-'), 1); }",
    "function (doc) { var total = 0; if (doc.lines) { for (var i in doc.lines) { total += doc.lines[i].p * doc.lines[i].q; } emit(doc._id, total); } }",
    "function (doc) { if (doc.lines) emit(doc.lines.map(function (l) { return l.p; }), doc.lines.reduce((s, l) => s + l.q, 0)); }",
    "doc => { if ('parent' in doc) emit(doc.parent, {_id: doc._id}); }",
    "(doc) => doc.address?.geo && emit([doc.address.geo.lat, doc.address.city], `${doc._id}/${doc.address.city}`)",
    "function (doc) { if (!doc.deleted && doc.type !== 'user') { emit([doc.type, doc.n], {id: doc._id, tags: doc.tags}); } }",
    "function (doc) { if (doc.children) { for (const child of doc.children) { if (child && child.id) { emit(child.id, {_id: child.id}); } } } }",
    "function (doc) { var seen = {}; if (isArray(doc.tags)) { doc.tags.forEach(function (t) { if (typeof t === 'string' && !seen[t]) { seen[t] = true; emit(t); } }); } }",
    "function (doc) { function key(d) { return [d.type, d._id]; } if (doc.type) emit(key(doc), null); }",
    "function (doc) { if (doc.date && doc.date.length >= 3) emit(doc.date.slice(0, 2).concat([doc.n]), doc.date.join('-')); }",
    "function (doc) { if (doc.n > 1) { emit(Math.floor(doc.n), Math.round(doc.n * 10) / 10); } }",
    "function(doc) {\n  // comment\n  if (doc._conflicts) { emit(doc._conflicts, null); } /* none */\n  if (doc.name) { emit(doc.name.split(' ')[1] + ', ' + doc.name.split(' ')[0]); }\n};\n",
];

#[test]
fn common_functions_have_plans_and_the_engine_s_rows() {
    for source in FUNCTIONS {
        assert_mapped_alike(source, &DOCUMENTS);
    }
}

/// The same functions over unusual documents.
#[test]
fn common_functions_have_the_engine_s_rows_over_odd_documents() {
    let mut random = StdRng::seed_from_u64(17);
    let documents: Vec<String> = (0..200).map(|_| crate::documents::document(&mut random)).collect();
    let mut scratch = Scratch::new();
    for source in FUNCTIONS {
        let plan = Plan::compile(source).expect("a plan");
        let engine = Engine::compile(source).expect("a function");
        let mut decided_count = 0;
        for document in &documents {
            let planned = map_by_plan(&plan, document, &mut scratch);
            if !matches!(planned, Mapped::Undecided(_)) {
                assert_eq!(planned, engine.map(document), "{source} over {document}");
                decided_count += 1;
            }
        }
        assert!(decided_count > documents.len() / 3, "{source}: {decided_count}");
    }
}

#[test]
fn plans_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    let plan = Plan::compile(FUNCTIONS[0]).expect("a plan");
    is_shared(&plan);
    assert_eq!(plan.explain(), "plan: 1 emit, 1 member, 0 loop, 0 inner function");
}

#[test]
fn outside_says_what_and_where() {
    let outside = Plan::compile("function (doc) { emit(doc.a.toLowerCase()); }").expect_err("outside");
    assert_eq!(outside.to_string(), "the method `toLowerCase` at byte 28");
}
