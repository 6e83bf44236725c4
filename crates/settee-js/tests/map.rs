//! Goal: map functions see documents, and their rows come out, as in CouchDB's loop.
//! Method: one test for each property, over literal functions and documents.

use settee_js::{Error, Kind, Limits, MapContext, Outcome, Stop, check};

/// The rows of `function` over `document`, as `key:value`, or the outcome's name.
fn map_one(function: &str, document: &str) -> String {
    map_all(&[function], &[document]).remove(0)
}

fn map_all(functions: &[&str], documents: &[&str]) -> Vec<String> {
    let mut context = MapContext::new(None, functions, Limits::default()).expect("functions compile");
    map_in(&mut context, functions.len(), documents)
}

fn map_in(context: &mut MapContext, function_count: usize, documents: &[&str]) -> Vec<String> {
    let texts: Vec<&[u8]> = documents.iter().map(|d| d.as_bytes()).collect();
    let batch = context.map(&texts).expect("the engine works");
    let mut shown = Vec::new();
    for document in 0..documents.len() {
        for function in 0..function_count {
            shown.push(match batch.outcome(document, function) {
                Outcome::Rows(rows) => rows.map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>().join(" "),
                Outcome::Dropped { message } => format!("dropped {message}"),
                Outcome::Stopped(stop) => format!("stopped {stop}"),
                Outcome::Skipped => "skipped".to_owned(),
            });
        }
    }
    shown
}

#[test]
fn a_document_is_deeply_frozen() {
    let f = "function (doc) { doc.a = 2; doc.n.b = 3; delete doc.a; doc.l[0] = 9; doc.z = 1;
             emit(doc.a, [doc.n, doc.l, doc.z]); }";
    assert_eq!(map_one(f, r#"{"a":1,"n":{"b":2},"l":[1]}"#), r#"1:[{"b":2},[1],null]"#);
}
