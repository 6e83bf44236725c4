//! Prints what mapping a document of 1 KiB by a plan costs: `cargo run --release -p settee-map --example speed`.
//! The aim is well under a microsecond beyond one pass over its text.

use std::hint::black_box;
use std::time::Instant;

use settee_map::{Document, DocumentBuffer, Outcome, Plan, Rows, Scratch};

struct Sum(usize);

impl Rows for Sum {
    fn row(&mut self, key: &[u8], value: &[u8]) {
        self.0 += key.len() + value.len();
    }
}

const FUNCTIONS: [(&str, &str); 4] = [
    (
        "condition and member",
        "function (doc) { if (doc.type === 'post' && doc.author) emit(doc.author.name, null); }",
    ),
    (
        "composite key, object value",
        "function (doc) { if (doc.type == 'post') emit([doc.type, doc.created_at, doc.n, doc.score], {title: doc.title, tags: doc.tags}); }",
    ),
    (
        "a row per tag",
        "function (doc) { if (doc.tags) for (var i = 0; i < doc.tags.length; i++) emit(doc.tags[i], 1); }",
    ),
    ("the whole document", "function (doc) { emit(doc._id, doc); }"),
];

fn document() -> String {
    let mut text = String::from(
        r#"{"_id":"post-00001234","_rev":"3-0123456789abcdef0123456789abcdef","type":"post","title":"A title of some words","author":{"name":"Ann Example","email":"ann@example.org","age":30},"created_at":"2026-11-23T10:00:00Z","n":12345,"score":4.25,"tags":["red","green","blue","yellow","black"],"published":true,"parent":null,"#,
    );
    for index in 0..8 {
        text.push_str(&format!(r#""field{index}":"value {index} of the document","#));
    }
    text.push_str(&format!(r#""body":"{}"}}"#, "Some prose with \\\"quotes\\\" and lines.\\n".repeat(10)));
    text
}

fn nanoseconds(count: u32, mut run: impl FnMut()) -> f64 {
    (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..count).for_each(|_| run());
            start.elapsed().as_nanos() as f64 / f64::from(count)
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    let text = document();
    const COUNT: u32 = 50_000;
    println!("document of {} bytes, nanoseconds per document:", text.len());
    let check = nanoseconds(COUNT, || {
        black_box(std::str::from_utf8(black_box(text.as_bytes())).is_ok());
    });
    println!("{check:8.0} UTF-8 check alone");
    let compile = nanoseconds(100, || {
        black_box(Plan::compile(FUNCTIONS[1].1).is_ok());
    });
    println!("{compile:8.0} compiling a function");
    let mut buffer = DocumentBuffer::default();
    let index = nanoseconds(COUNT, || {
        let document = Document::with_buffer(black_box(text.as_bytes()), std::mem::take(&mut buffer))
            .expect("a document");
        buffer = black_box(document).into_buffer();
    });
    println!("{index:8.0} index, shared by all plans");
    let document = Document::new(text.as_bytes()).expect("a document");
    let mut scratch = Scratch::new();
    for (name, source) in FUNCTIONS {
        let plan = Plan::compile(source).expect("a plan");
        let mut sum = Sum(0);
        let run = nanoseconds(COUNT, || {
            assert_eq!(plan.run(black_box(&document), &mut scratch, &mut sum), Outcome::Rows);
        });
        assert!(sum.0 > 0, "no rows");
        println!("{run:8.0} {name}");
    }
}
