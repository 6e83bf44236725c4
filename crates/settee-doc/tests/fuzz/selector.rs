//! Selectors, and lists of fields.

use serde_json::value::RawValue;
use settee_sim::fuzz::{Source, Target, check_json};

use crate::documents::{Document, Edit, Extras, Options, Revision};
use crate::json::write_compact;
use crate::selector::{Fields, SELECTOR_BYTES_MAX, Selector};

/// Separator of a selector, a document and a list of fields: no JSON contains it.
const SEPARATOR: u8 = 0;

pub(super) const SELECTOR: Target = Target {
    name: "selector",
    check: selector,
    corpus: &[
        b"{\"a\":1}\0{\"a\":1}\0[\"a\"]",
        b"{\"a\":{\"$gt\":null}}\0{\"a\":[1,2]}\0[\"_id\",\"a.1\"]",
        b"{\"$and\":[{\"a\":{\"$gte\":1}},{\"b\":{\"$lt\":\"x\"}}]}\0{\"a\":1.5,\"b\":\"c\"}\0[\"a\",\"b\"]",
        b"{\"$or\":[{\"a.b\":{\"$exists\":true}},{\"c\":{\"$type\":\"string\"}}]}\0{\"a\":{\"b\":null},\"c\":\"\"}\0[\"a.b\",\"c\"]",
        b"{\"$nor\":[{\"a\":{\"$in\":[1,\"a\",[2]]}},{\"$not\":{\"b\":{\"$nin\":[3]}}}]}\0{\"a\":\"b\",\"b\":3}\0[]",
        b"{\"l\":{\"$elemMatch\":{\"$gt\":5,\"$mod\":[2,1]}}}\0{\"l\":[4,6,7]}\0[\"l\"]",
        b"{\"l\":{\"$allMatch\":{\"n\":{\"$regex\":\"^a.*z$\"}}}}\0{\"l\":[{\"n\":\"abcz\"},{\"n\":\"az\"}]}\0[\"l.0.n\"]",
        b"{\"k\":{\"$keyMapMatch\":{\"$beginsWith\":\"a\"}}}\0{\"k\":{\"ab\":1}}\0[\"k.ab\",\"k\"]",
        b"{\"a\":{\"$all\":[1,2],\"$size\":2}}\0{\"a\":[2,1]}\0[\"a\"]",
        b"{\"_id\":{\"$gt\":\"B\"},\"x\\\\.y\":{\"z\":{\"$ne\":1e3}}}\0{\"x.y\":{\"z\":1000}}\0[\"x\\\\.y.z\"]",
        b"{\"_deleted\":{\"$exists\":false},\"_rev\":{\"$regex\":\"^1-\"}}\0{}\0[\"_rev\"]",
        b"{}\0{\"a\":1}\0[\"a\"]",
    ],
    words: &[
        "$and", "$or", "$nor", "$not", "$eq", "$ne", "$lt", "$lte", "$gt", "$gte", "$in", "$nin", "$all",
        "$exists", "$type", "$size", "$mod", "$regex", "$beginsWith", "$elemMatch", "$allMatch",
        "$keyMapMatch", "$text", "$x", "a", "b", "a.b", "l", "k", "_id", "_rev", "_deleted", "_attachments", "",
        "x\\\\.y", ".", "string", "number", "^a", "(?i)A", "a+", "\0", "{}", "[", "]", "null", "1", "[2,1]",
    ],
    generate: |source| {
        let mut text = String::new();
        write_condition(source, 0, &mut text);
        text.push('\0');
        text.push_str(&source.json_object());
        text.push_str("\0[\"a\",\"a.b\",\"l.0\"]");
        text.into_bytes()
    },
};

/// Writes conditions that are mostly valid.
fn write_condition(source: &mut Source<'_>, depth: usize, out: &mut String) {
    const FIELDS: [&str; 10] = ["a", "b", "a.b", "l", "k", "_id", "_rev", "l.0", "a.b.c", "x\\\\.y"];
    out.push('{');
    for index in 0..=source.below(2) {
        if index > 0 {
            out.push(',');
        }
        match source.below(if depth < 4 { 6 } else { 3 }) {
            0..3 => {
                out.push_str(&format!("\"{}\":", source.pick(&FIELDS)));
                write_test(source, depth, out);
            }
            3 => {
                out.push_str("\"$not\":");
                write_condition(source, depth + 1, out);
            }
            _ => {
                out.push_str(&format!("\"{}\":[", source.pick(&["$and", "$or", "$nor"])));
                for index in 0..source.below(3) {
                    if index > 0 {
                        out.push(',');
                    }
                    write_condition(source, depth + 1, out);
                }
                out.push(']');
            }
        }
    }
    out.push('}');
}

fn write_test(source: &mut Source<'_>, depth: usize, out: &mut String) {
    match source.below(12) {
        0 => out.push_str(&source.json()),
        1..5 => {
            let name = source.pick(&["$eq", "$ne", "$lt", "$lte", "$gt", "$gte"]);
            out.push_str(&format!("{{\"{name}\":{}}}", source.json()));
        }
        5 | 6 => {
            let name = source.pick(&["$in", "$nin", "$all"]);
            out.push_str(&format!("{{\"{name}\":[{},{}]}}", source.json(), source.json()));
        }
        7 => out.push_str(source.pick(&["{\"$exists\":true}", "{\"$exists\":false}", "{\"$size\":2}"])),
        8 => {
            out.push_str(source.pick(&["{\"$type\":\"string\"}", "{\"$mod\":[3,1]}", "{\"$regex\":\"^a\"}"]))
        }
        9 => {
            out.push_str("{\"$not\":");
            write_test(source, depth + 1, out);
            out.push('}');
        }
        _ => {
            let name = source.pick(&["$elemMatch", "$allMatch", "$keyMapMatch"]);
            out.push_str(&format!("{{\"{name}\":"));
            write_condition(source, depth + 2, out);
            out.push('}');
        }
    }
}

/// A text without white space; `None` if it has an unpaired surrogate, or nests too deep.
fn compacted(text: &str) -> Option<String> {
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    let mut out = Vec::new();
    write_compact(raw, &mut out, usize::MAX).ok()?;
    String::from_utf8(out).ok()
}

/// A selector is JSON, has the same meaning without white space, and matches the same documents however it is
/// wrapped and the document is written. A projection of a document is JSON.
fn selector(input: &[u8]) -> bool {
    let mut sections = input.splitn(3, |byte| *byte == SEPARATOR).map(std::str::from_utf8);
    let Some(Ok(text)) = sections.next() else { return false };
    let document = sections.next().and_then(Result::ok).unwrap_or("{}");
    let fields = sections.next().and_then(Result::ok).unwrap_or("[]");
    let facts = check_json(document.as_bytes());
    let document = document.trim_matches([' ', '\t', '\r', '\n']);
    let edit = Edit::parse(document.as_bytes(), &Options::default()).ok();
    if let (Ok(Some(fields)), Some(_)) = (Fields::parse(fields), &facts) {
        let mut shown = Vec::new();
        fields.write(document, &mut shown);
        assert!(check_json(&shown).is_some(), "what is shown is no JSON: {}", shown.escape_ascii());
    }
    let Ok(selector) = Selector::parse(text) else { return false };
    assert_eq!(check_json(text.as_bytes()).map(|facts| facts.first), Some(b'{'));
    let shown = format!("{selector:?}");
    assert!(shown.len() <= SHOWN_PER_BYTE_MAX * text.len() + 2 * SELECTOR_BYTES_MAX, "it grew");
    if let Some(compact) = compacted(text) {
        let again = Selector::parse(&compact).expect("white space means nothing");
        assert_eq!(format!("{again:?}"), shown);
    }
    let found = selector.matches_json(document);
    let Some(_) = facts.filter(|facts| facts.first == b'{') else { return true };
    if let Some(compact) = compacted(document) {
        assert_eq!(selector.matches_json(&compact), found, "white space means nothing");
    }
    if text.trim_matches(['{', '}', ' ', '\t', '\r', '\n']).is_empty() {
        assert!(found, "an empty selector matches all");
        return true;
    }
    for (front, back) in [
        ("{\"$and\":[", "]}"),
        ("{\"$or\":[", "]}"),
        ("{\"$not\":{\"$not\":", "}}"),
        ("{\"$nor\":[{\"$nor\":[", "]}]}"),
    ] {
        match Selector::parse(&format!("{front}{text}{back}")) {
            Ok(wrapped) => assert_eq!(wrapped.matches_json(document), found, "within {front}"),
            Err(error) => assert!(error.reason.contains("at most"), "{error:?} within {front}"),
        }
    }
    if let Some(edit) = edit {
        of_document(&selector, &edit);
    }
    true
}

/// A document is matched as the text that is sent for it.
fn of_document(selector: &Selector, edit: &Edit) {
    let document = Document {
        id: "Anna".to_owned(),
        revision: Revision { generation: 1, id: [7; 16].into() },
        deleted: edit.deleted,
        body: edit.body(),
        attachments: Vec::new(),
        large_body: None,
    };
    let extras = Extras { conflicts: vec![document.revision.clone()], ..Extras::default() };
    let mut text = Vec::new();
    document.write_json(&extras, &mut text);
    let text = String::from_utf8(text).expect("it is JSON");
    let found = selector.matches(&document, &extras);
    assert_eq!(found, selector.matches_json(&text), "as a document and as a text");
    if !selector.needs_body() {
        let bare = Document { body: bytes::Bytes::new(), ..document.clone() };
        assert_eq!(selector.matches(&bare, &extras), found, "by the index alone");
    }
    if !selector.needs_conflicts() {
        assert_eq!(selector.matches(&document, &Extras::default()), found, "without conflicts");
    }
}

/// Largest size of a selector's debug text per byte of its source: its memory is bounded by its input.
const SHOWN_PER_BYTE_MAX: usize = 400;

#[test]
fn the_memory_of_long_names_is_bounded() {
    let name = "x".repeat(100_000);
    let conditions = vec!["{\"$gt\":1}"; 1_000].join(",");
    for text in [
        format!("{{\"{name}\":{{\"$and\":[{conditions}]}}}}"),
        format!("{{\"{name}\":{{\"$not\":{{\"$or\":[{conditions}]}}}}}}"),
    ] {
        let error = Selector::parse(&text).expect_err("it would take a thousand times its size");
        assert_eq!(error.error, "invalid_selector");
    }
    assert!(Selector::parse(&format!("{{\"{name}\":1}}")).is_ok(), "a long name alone does no harm");
    assert_eq!(Fields::parse(&format!("[\"{}\"]", "x".repeat(1 << 20))).unwrap_err().error, "invalid_fields");
}
