//! Goal: the functions of a design document get, answer and raise what they do in CouchDB.
//! Method: one design document for each property.

use std::sync::{Arc, Mutex};

use settee_js::{DesignContext, Error, Limits, ListChunk, Refusal, Updated};

const QUICK: Limits = Limits { memory_bytes: 8 << 20, stack_bytes: 256 << 10, ticks: 50 };

/// A design document with `functions` as `member`'s, and two modules.
fn design(member: &str, functions: &[(&str, &str)]) -> DesignContext {
    let functions: serde_json::Map<String, serde_json::Value> =
        functions.iter().map(|&(name, source)| (name.to_owned(), source.into())).collect();
    let design = serde_json::json!({
        "_id": "_design/d",
        "lib": {"m": "exports.v = require('./n').v", "n": "exports.v = 7"},
        member: functions,
    });
    DesignContext::new(&design.to_string(), QUICK).expect("an object")
}

fn raised<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.expect_err("raised");
    format!("{}: {}", error.error(), error.reason())
}

#[test]
fn filters_pass_what_is_truthy() {
    let mut d = design(
        "filters",
        &[
            ("f", "function (doc, req) { return doc.n > req.query.min && require('lib/m').v; }"),
            ("this", "function (doc) { return this._id === '_design/d'; }"),
            ("throws", "function (doc) { return missing.name; }"),
            ("odd", "function (doc) { throw 'x'; }"),
            ("pair", "function (doc) { throw ['error', 'e', 'r']; }"),
            ("syntax", "function (doc) {"),
            ("empty", ""),
            ("loops", "function (doc) { for (;;); }"),
        ],
    );
    let f = |d: &mut DesignContext, name| {
        d.filter(&["filters", name], &[r#"{"n":1}"#, r#"{"n":3}"#], r#"{"query":{"min":2}}"#)
    };
    assert_eq!(f(&mut d, "f"), Ok(vec![false, true]));
    assert_eq!(f(&mut d, "this"), Ok(vec![true, true]));
    assert_eq!(raised(f(&mut d, "throws")), "ReferenceError: {[]}");
    assert_eq!(raised(f(&mut d, "odd")), "unnamed_error: null");
    assert_eq!(raised(f(&mut d, "pair")), "e: r");
    assert!(raised(f(&mut d, "syntax")).starts_with("compilation_error: SyntaxError"));
    assert_eq!(raised(f(&mut d, "none")), "not_found: missing json key: none");
    assert_eq!(raised(d.filter(&["shows", "f"], &[], "{}")), "not_found: missing json key: shows");
    assert_eq!(raised(d.filter(&["_id", "f"], &[], "{}")), "not_found: json_mismatch");
    assert_eq!(
        raised(f(&mut d, "empty")),
        "not_found: missing filters function empty on design doc _design/d"
    );
    assert_eq!(raised(f(&mut d, "loops")), "os_process_error: OS process timed out.");
    assert_eq!(f(&mut d, "f"), Ok(vec![false, true]), "usable after a loop");
    assert!(matches!(d.filter(&["filters", "f"], &["{"], "{}"), Err(Error::NotJson(_))));
}

#[test]
fn ticks_of_a_filter_are_per_document() {
    let mut d = design("filters", &[("f", "function () { for (var i = 0; i < 100000; i++); return true; }")]);
    assert_eq!(d.filter(&["filters", "f"], &["{}"; 20], "{}"), Ok(vec![true; 20]));
}

#[test]
fn a_view_as_filter_passes_what_it_emits() {
    let design = r#"{"_id":"_design/d","views":{"v":{"map":"function (doc) { if (doc.a) emit(1); }"}}}"#;
    let mut d = DesignContext::new(design, QUICK).expect("an object");
    assert_eq!(d.filter_view("v", &[r#"{"a":1}"#, "{}", r#"{"a":1}"#]), Ok(vec![true, false, true]));
    assert_eq!(raised(d.filter_view("w", &["{}"])), "not_found: missing json key: w");
}

#[test]
fn validation_refuses_by_what_is_thrown() {
    let validate = |body: &str| {
        let source = format!("function (doc, old, user, security) {{ {body} }}");
        let design = serde_json::json!({"_id": "_design/d", "validate_doc_update": source}).to_string();
        let mut d = DesignContext::new(&design, QUICK).expect("an object");
        d.validate(r#"{"a":1}"#, "null", r#"{"name":"u"}"#, r#"{"admins":{}}"#)
    };
    let text = |body: &str| validate(body).expect_err("refused").to_string();
    assert_eq!(validate(""), Ok(()));
    assert_eq!(
        validate("if (doc.a !== 1 || old !== null || user.name !== 'u' || !security.admins) throw 'x';"),
        Ok(())
    );
    assert_eq!(
        validate("throw {forbidden: {a: [1]}}"),
        Err(Refusal::Forbidden { reason: r#"{"a":[1]}"#.into() })
    );
    assert_eq!(
        validate("throw {unauthorized: 'no'}"),
        Err(Refusal::Unauthorized { reason: r#""no""#.into() })
    );
    assert_eq!(text("throw 'm'"), r#"unknown_error: "m""#);
    assert_eq!(text("throw {x: 'm'}"), r#"unknown_error: "m""#);
    assert_eq!(text("missing()"), "ReferenceError: {[]}");
    assert_eq!(text("throw ['error', 'e', 'r']"), "e: r");
    assert_eq!(text("for (;;);"), "function exceeded 50 ticks");
    assert!(text("(").starts_with("SyntaxError"), "{}", text("("));
}

#[test]
fn updates_give_a_document_and_a_response() {
    let mut d = design(
        "updates",
        &[
            ("new", "function (doc, req) { return [{_id: req.uuid, old: doc}, 'ok']; }"),
            ("none", "function (doc, req) { return [null, {json: {a: 1}, code: 202}]; }"),
            ("nothing", "function () { return [null]; }"),
            ("throws", "function () { throw new Error('x'); }"),
            ("pair", "function () { throw ['error', 'e', 'r']; }"),
            ("object", "function () { throw {error: 'e', reason: 'r'}; }"),
        ],
    );
    let mut run = |name, request| d.update(&["updates", name], r#"{"a":1}"#, request);
    let post = r#"{"method":"POST","uuid":"u"}"#;
    let stored = Updated {
        document: Some(r#"{"_id":"u","old":{"a":1}}"#.into()),
        response: r#"{"body":"ok"}"#.into(),
    };
    assert_eq!(run("new", post), Ok(stored));
    let response = r#"{"json":{"a":1},"code":202}"#.into();
    assert_eq!(run("none", post), Ok(Updated { document: None, response }));
    assert_eq!(raised(run("nothing", post)), "render_error: undefined response from update function");
    assert!(
        raised(run("throws", post))
            .starts_with("render_error: function raised error: Error: x \nstacktrace: ")
    );
    assert_eq!(raised(run("pair", post)), "e: r");
    assert_eq!(raised(run("object", post)), "e: r");
    let get = raised(run("new", r#"{"method":"GET"}"#));
    assert_eq!(get, "method_not_allowed: Update functions do not allow GET");
}

#[test]
fn shows_choose_a_provided_type() {
    let provides = "function (doc, req) { provides('html', function () { return '<b>' + this._id; });
                    provides('json', function () { return {json: {a: 1}}; }); }";
    let mut d = design(
        "shows",
        &[
            ("text", "function (doc) { return 'a ' + (doc && doc._id); }"),
            ("sent", "function () { start({'X-A': '1'}); send('a'); send(1); return 'z'; }"),
            ("provides", provides),
            (
                "custom",
                "function () { registerType('foo', 'text/foo'); provides('foo', function () { return 'f'; }); }",
            ),
            ("throws", "function (doc) { return doc.x; }"),
            ("rows", "function () { getRow(); }"),
            ("none", "function () {}"),
        ],
    );
    let path = r#"["db","_design","d","_show","s"]"#;
    let mut run = |name, more: &str| {
        d.show(&["shows", name], "null", &format!(r#"{{"path":{path},"headers":{{}}{more}}}"#))
    };
    assert_eq!(run("text", "").as_deref(), Ok(r#"{"body":"a null"}"#));
    assert_eq!(run("sent", "").as_deref(), Ok(r#"{"body":"a1z","headers":{"X-A":"1"}}"#));
    let html = r#"{"body":"<b>_design/d","headers":{"Content-Type":"text/html; charset=utf-8"}}"#;
    assert_eq!(run("provides", "").as_deref(), Ok(html));
    let accept = |types: &str| format!(r#","headers":{{"Accept":"{types}"}}"#);
    assert_eq!(run("provides", &accept("text/html;q=0.9, application/json;q=0.1")).as_deref(), Ok(html));
    let json = run("provides", &accept("application/json, text/html;q=0.5")).expect("acceptable");
    assert!(json.contains("application/json"), "{json}");
    assert!(run("provides", r#","query":{"format":"json"}"#).expect("known").contains("application/json"));
    assert!(
        raised(run("provides", &accept("image/png"))).starts_with("not_acceptable: Content-Type image/png")
    );
    assert!(run("custom", "").expect("registered").contains("text/foo"));
    assert!(raised(run("throws", "")).starts_with("render_error: "));
    assert_eq!(run("none", "").as_deref(), Ok("{}"));
    assert!(raised(run("rows", "")).starts_with("render_error: "));
    let missing = d.show(&["shows", "throws"], "null", r#"{"path":["db","_design","d","_show","s","id"]}"#);
    assert_eq!(raised(missing), "not_found: document not found");
}

/// Runs a list function over rows 0, 1, …; returns the chunks, the number of rows read, and the result.
fn list(
    source: &str,
    row_count: usize,
    chunk_count_max: usize,
) -> (Vec<ListChunk>, usize, Result<(), Error>) {
    let mut d = design("lists", &[("l", source)]);
    let read = Arc::new(Mutex::new(0));
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (reader, sender) = (Arc::clone(&read), Arc::clone(&sent));
    let rows = Box::new(move || {
        let mut read = reader.lock().expect("not poisoned");
        (*read < row_count).then(|| {
            *read += 1;
            format!(r#"{{"key":{}}}"#, *read - 1)
        })
    });
    let output = Box::new(move |chunk| {
        let mut sent = sender.lock().expect("not poisoned");
        sent.push(chunk);
        sent.len() < chunk_count_max
    });
    let result = d.list(&["lists", "l"], r#"{"total_rows":3}"#, r#"{"headers":{}}"#, rows, output);
    assert_eq!(Arc::strong_count(&sent), 1, "the callbacks are dropped");
    let sent = sent.lock().expect("not poisoned").clone();
    let read = *read.lock().expect("not poisoned");
    (sent, read, result)
}

fn chunks(texts: &[&str]) -> ListChunk {
    ListChunk::Chunks(texts.iter().map(|&t| t.to_owned()).collect())
}

fn start(response: &str, texts: &[&str]) -> ListChunk {
    ListChunk::Start { response: response.to_owned(), chunks: texts.iter().map(|&t| t.to_owned()).collect() }
}

#[test]
fn a_list_sends_before_it_reads_the_next_row() {
    let source = "function (head, req) { start({code: 201, headers: {A: 'b'}}); send('n' + head.total_rows);
                  var row; while ((row = getRow())) send(row.key); return 'end'; }";
    let (sent, read, result) = list(source, 2, 100);
    assert_eq!(result, Ok(()));
    assert_eq!(read, 2);
    let first = start(r#"{"code":201,"headers":{"A":"b"}}"#, &["n3"]);
    assert_eq!(sent, [first, chunks(&["0"]), chunks(&["1"]), chunks(&["end"])]);
}

#[test]
fn a_list_without_rows_or_with_provides_starts_too() {
    let (sent, read, _) = list("function () { send('a'); return 'b'; }", 5, 100);
    assert_eq!((sent, read), (vec![start(r#"{"headers":{}}"#, &["a"]), chunks(&["b"])], 1));
    let source = "function () { provides('text', function () { var r; while ((r = getRow())) send(r.key); return 'z'; }); }";
    let (sent, _, _) = list(source, 1, 100);
    let headers = r#"{"headers":{"Content-Type":"text/plain; charset=utf-8"}}"#;
    assert_eq!(sent, [start(headers, &[]), chunks(&["0"]), chunks(&["z"])]);
}

#[test]
fn a_list_ends_early_when_its_receiver_is_gone_or_it_raises() {
    let endless = "function () { var r; while ((r = getRow())) send('x'); }";
    let (sent, read, result) = list(endless, usize::MAX, 10);
    assert_eq!((sent.len(), read, result), (10, 9, Ok(())));
    let (sent, _, result) = list("function () { getRow(); throw new Error('x'); }", 5, 10);
    assert_eq!(sent.len(), 1);
    assert!(raised(result).starts_with("render_error: "));
    let (_, _, result) = list("function () { getRow(); for (;;); }", 5, 10);
    assert_eq!(raised(result), "os_process_error: OS process timed out.");
}

#[test]
fn a_thrown_null_is_an_exception_and_the_context_stays_usable() {
    // The second time null is thrown for want of memory, which free variables occupy.
    let source = "(function () { var kept = null; return function (doc) {
                  if (doc.full) for (;;) kept = {a: kept}; if (doc.bad) throw null; return true; }; })()";
    let mut d = DesignContext::new(
        &serde_json::json!({"_id": "_design/d", "filters": {"f": source}, "shows": {"f": source},
                            "validate_doc_update": source})
        .to_string(),
        Limits { ticks: 2000, ..QUICK },
    )
    .expect("an object");
    for document in [r#"{"bad":1}"#, r#"{"full":1}"#] {
        let error = d.filter(&["filters", "f"], &["{}", document], "{}").expect_err(document);
        assert!(!matches!(error, Error::Engine(_)), "{error}");
        assert_eq!(d.filter(&["filters", "f"], &["{}"], "{}"), Ok(vec![true]), "{document}");
        assert!(d.show(&["shows", "f"], document, r#"{"path":[]}"#).is_err());
        assert!(d.validate(document, "null", "{}", "{}").is_err());
        assert_eq!(d.validate("{}", "null", "{}", "{}"), Ok(()), "{document}");
    }
    let refusal = d.validate(r#"{"bad":1}"#, "null", "{}", "{}").expect_err("null");
    assert_eq!(refusal, Refusal::Unknown { reason: "null".into() });
}

#[test]
fn a_lone_surrogate_is_sent_as_the_replacement_character() {
    let (sent, _, result) = list("function () { send('a\\ud800'); return '\\udc00b'; }", 0, 10);
    assert_eq!(result, Ok(()));
    assert_eq!(sent, [start(r#"{"headers":{}}"#, &["a\u{fffd}"]), chunks(&["\u{fffd}b"])]);
}

#[test]
fn a_rewrite_gives_a_request_or_none() {
    let rewrite = |body: &str| {
        let design =
            serde_json::json!({"_id": "_design/d", "rewrites": format!("function (req) {{ {body} }}")});
        let mut d = DesignContext::new(&design.to_string(), QUICK).expect("an object");
        d.rewrite(r#"{"method":"GET","path":["a"]}"#)
    };
    assert_eq!(rewrite("return '/x'"), Ok(Some(r#"{"path":"/x","method":"GET"}"#.into())));
    assert_eq!(rewrite("return {path: req.path[0]}"), Ok(Some(r#"{"path":"a"}"#.into())));
    assert_eq!(rewrite(""), Ok(None));
    assert!(raised(rewrite("throw new Error('x')")).starts_with("render_error: "));
}

#[test]
fn a_context_moves_between_threads_and_reports_its_log() {
    let mut d = design("filters", &[("f", "function (doc) { log('x'); return true; }")]);
    let logs = std::thread::spawn(move || {
        d.filter(&["filters", "f"], &["{}"], "{}").expect("passes");
        d.take_logs()
    });
    assert_eq!(logs.join().expect("no panic"), ["x"]);
    assert!(DesignContext::new("[]", QUICK).is_err());
}
