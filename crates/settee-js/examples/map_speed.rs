//! Time per document of one map function over documents of 1 KiB, and per reduction of 100 rows.
//!
//! `cargo run --release -p settee-js --example map_speed`

use std::time::Instant;

use settee_js::{Limits, MapContext, ReduceContext};

const DOCUMENT_COUNT: usize = 1000;
const ROUND_COUNT: usize = 20;

fn main() {
    let documents: Vec<String> = (0..DOCUMENT_COUNT).map(document).collect();
    let sources = [
        "function (doc) { emit(doc.x, null); }",
        "function (doc) { emit(doc.x, doc.list); }",
        "function (doc) { doc.y = 1; emit(doc.x, null); }",
        "function (doc) { for (var i = 0; i < doc.list.length; i++) emit([doc.x, doc.list[i]], 1); }",
        "function (doc) {}",
    ];
    for source in sources {
        for batch_size in [1, 10, 100, 1000] {
            let mut context = MapContext::new(None, &[source], Limits::default()).expect("compiles");
            let mut best = f64::MAX;
            let mut row_count = 0;
            for _ in 0..ROUND_COUNT {
                let begin = Instant::now();
                for batch in documents.chunks(batch_size) {
                    let texts: Vec<&[u8]> = batch.iter().map(|d| d.as_bytes()).collect();
                    row_count += context.map(&texts).expect("maps").row_count();
                }
                best = best.min(begin.elapsed().as_secs_f64());
            }
            let micros = best * 1e6 / DOCUMENT_COUNT as f64;
            println!("{micros:6.2} us/document  batch {batch_size:4}  {source}  ({row_count} rows)");
        }
    }
    reduce();
}

/// Time per reduction of 100 numbers.
fn reduce() {
    let source = "function (keys, values) { return sum(values); }";
    let mut context = ReduceContext::new(&[source], Limits::default()).expect("compiles");
    let keys = format!("[{}]", vec![r#"["key","document-00000001"]"#; 100].join(","));
    let values = format!("[{}]", vec!["12"; 100].join(","));
    let begin = Instant::now();
    for _ in 0..DOCUMENT_COUNT {
        context.reduce(0, &keys, &values).expect("reduces");
    }
    let micros = begin.elapsed().as_secs_f64() * 1e6 / DOCUMENT_COUNT as f64;
    println!("{micros:6.2} us/reduction of 100 rows  {source}");
}

/// A document of about 1 KiB with strings, numbers and an array.
fn document(i: usize) -> String {
    let mut text =
        format!(r#"{{"_id":"document-{i:08}","_rev":"1-967a00dff5e02add41819138abb3284d","x":{i}"#);
    for member in 0..8 {
        text += &format!(r#","member{member}":"{}""#, "abcdefghij".repeat(8));
    }
    text + r#","list":[1,2,3,4],"nested":{"a":true,"b":null}}"#
}
