//! Ranges of an index's keys, or of ids.

use settee_collate::{Collation, raise, write_array_start, write_sort_key};

use super::limits::RANGES_MAX;
use super::spans::{Edge, Span, Spans};
use super::text;

/// A position among an index's keys: below, or above, all keys that begin with some elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyBound {
    /// The elements, each a JSON text.
    pub elements: Vec<String>,
    /// Whether it is above these keys.
    pub above: bool,
}

/// The keys between two positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The lower position.
    pub low: KeyBound,
    /// The upper position.
    pub high: KeyBound,
}

/// Ids in the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdRange {
    /// The least id, inclusive.
    pub first: Option<String>,
    /// The greatest id, inclusive.
    pub last: Option<String>,
}

impl KeyBound {
    /// The elements as a JSON array.
    pub fn json(&self) -> String {
        text::array(&self.elements)
    }

    /// The position as a byte string: the sort keys (see [`settee_collate`]) of the keys above it, and no others,
    /// are greater than or equal to it.
    pub fn sort_key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        write_array_start(Collation::Unicode, &mut key);
        for element in &self.elements {
            let written = write_sort_key(element, Collation::Unicode, &mut key);
            assert!(written.is_ok(), "a selector's values are checked");
        }
        if self.above {
            raise(&mut key);
        }
        key
    }
}

impl KeyRange {
    /// All keys.
    pub fn all() -> KeyRange {
        let bound = |above| KeyBound { elements: Vec::new(), above };
        KeyRange { low: bound(false), high: bound(true) }
    }
}

/// A part of an index's keys.
enum Part {
    /// The keys that begin with these elements.
    Prefix(Vec<String>),
    Range(KeyRange),
}

/// The ranges of keys whose columns have values in `columns`, one set for each of the first columns. Ascending
/// and disjoint; at most [`RANGES_MAX`].
pub(super) fn key_ranges(columns: impl IntoIterator<Item = Spans>) -> Vec<KeyRange> {
    let mut parts = vec![Part::Prefix(Vec::new())];
    for spans in columns {
        let prefix_count = parts.iter().filter(|part| matches!(part, Part::Prefix(_))).count();
        if prefix_count == 0 {
            break;
        }
        let hull;
        let count = parts.len() - prefix_count + prefix_count * spans.as_slice().len();
        let spans = match count <= RANGES_MAX {
            true => spans.as_slice(),
            false => {
                hull = spans.hull();
                hull.as_slice()
            }
        };
        let split = |part: Part| match part {
            Part::Prefix(prefix) => spans.iter().map(|span| narrowed(&prefix, span)).collect(),
            part @ Part::Range(_) => vec![part],
        };
        parts = parts.into_iter().flat_map(split).collect();
    }
    let bound = |elements: &[String], above| KeyBound { elements: elements.to_vec(), above };
    let range = |part| match part {
        Part::Prefix(prefix) => KeyRange { low: bound(&prefix, false), high: bound(&prefix, true) },
        Part::Range(range) => range,
    };
    parts.into_iter().map(range).collect()
}

/// The keys that begin with `prefix` and have a value of `span` next.
fn narrowed(prefix: &[String], span: &Span) -> Part {
    match &span.low.value {
        Some(value) if span.is_point() => Part::Prefix(prefix.iter().chain([value]).cloned().collect()),
        _ => Part::Range(KeyRange { low: bound(prefix, &span.low), high: bound(prefix, &span.high) }),
    }
}

/// The position of an edge behind the elements of `prefix`.
fn bound(prefix: &[String], edge: &Edge) -> KeyBound {
    let elements = prefix.iter().chain(&edge.value).cloned().collect();
    KeyBound { elements, above: edge.is_above() }
}

/// The ranges of ids in `spans`, which are in the order of ids ([`Order::Ids`](super::spans::Order)).
pub(super) fn id_ranges(spans: &Spans) -> Vec<IdRange> {
    let range = |span: &Span| {
        let last = match &span.high.value {
            None => None,
            // Ids are strings, and other values come before them.
            Some(value) => Some(text::string(value)?),
        };
        Some(IdRange { first: span.low.value.as_deref().and_then(text::string), last })
    };
    spans.as_slice().iter().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mango::normal::Normal;
    use crate::mango::spans::{Order, of_column};

    fn ranges(selector: &str, columns: &[&str]) -> Vec<KeyRange> {
        let normal = Normal::of(selector);
        key_ranges(columns.iter().map(|column| of_column(&normal, column, Order::Views)))
    }

    fn shown(selector: &str, columns: &[&str]) -> Vec<String> {
        let show = |range: KeyRange| {
            let (open, close) =
                (if range.low.above { '(' } else { '[' }, if range.high.above { ']' } else { ')' });
            format!("{open}{} {}{close}", range.low.json(), range.high.json())
        };
        ranges(selector, columns).into_iter().map(show).collect()
    }

    #[test]
    fn equal_columns_are_prefixes_and_the_next_one_is_a_range() {
        assert_eq!(shown(r#"{"a":1,"b":{"$gt":2}}"#, &["a", "b"]), ["([1,2] [1]]"]);
        assert_eq!(shown(r#"{"a":1}"#, &["a"]), ["[[1] [1]]"]);
        assert_eq!(shown(r#"{"a":{"$lt":5},"b":2}"#, &["a", "b"]), ["[[] [5])"]);
        assert_eq!(shown(r#"{"a":{"$in":[1]},"b":2}"#, &["a", "b"]), ["[[1,2] [1,2]]", "[[[]] [{}])"]);
        assert_eq!(shown("{}", &["a"]), ["[[] []]"]);
        assert_eq!(shown("{}", &[]), ["[[] []]"]);
        assert_eq!(shown(r#"{"a":{"$gt":2,"$lt":1}}"#, &["a"]), Vec::<String>::new());
    }

    #[test]
    fn alternatives_are_several_ranges_in_order() {
        let selector = r#"{"$or":[{"a":2},{"a":1}],"b":{"$in":["y","x"]}}"#;
        let found = shown(selector, &["a", "b"]);
        let expected = [
            r#"[[1,"x"] [1,"x"]]"#,
            r#"[[1,"y"] [1,"y"]]"#,
            "[[1,[]] [1,{}])",
            r#"[[2,"x"] [2,"x"]]"#,
            r#"[[2,"y"] [2,"y"]]"#,
            "[[2,[]] [2,{}])",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_number_of_ranges_is_limited() {
        let list: Vec<String> = (0..100).map(|n| format!("{{\"a\":{n}}}")).collect();
        let other = list.iter().map(|item| item.replace('a', "b")).collect::<Vec<_>>().join(",");
        let selector = format!("{{\"$and\":[{{\"$or\":[{}]}},{{\"$or\":[{other}]}}]}}", list.join(","));
        let found = ranges(&selector, &["a", "b"]);
        assert_eq!(found.len(), 100);
        assert_eq!((found[7].low.json(), found[7].high.json()), ("[7,0]".into(), "[7,99]".into()));
    }

    #[test]
    fn ids_that_are_no_strings_are_below_all_ids() {
        let of = |selector: &str| id_ranges(&of_column(&Normal::of(selector), "_id", Order::Ids));
        let range = |first: Option<&str>, last: Option<&str>| IdRange {
            first: first.map(String::from),
            last: last.map(String::from),
        };
        assert_eq!(of(r#"{"_id":{"$gt":null}}"#), [range(None, None)]);
        assert_eq!(of(r#"{"_id":{"$lt":{}}}"#), []);
        assert_eq!(of(r#"{"_id":{"$gte":"a","$lt":"b"}}"#), [range(Some("a"), Some("b"))]);
        assert_eq!(
            of(r#"{"_id":{"$in":["b","a",1]}}"#),
            [range(Some("a"), Some("a")), range(Some("b"), Some("b"))]
        );
    }

    const VALUES: [&str; 12] =
        ["null", "false", "1", "2", "2.5", "\"a\"", "\"B\"", "\"\"", "[]", "[1]", "{}", "{\"x\":1}"];

    fn condition(field: &'static str) -> impl Strategy<Value = String> {
        let value = || proptest::sample::select(&VALUES[..]);
        let operator = proptest::sample::select(&["$lt", "$lte", "$eq", "$ne", "$gte", "$gt"][..]);
        prop_oneof![
            (operator, value())
                .prop_map(move |(operator, value)| format!("{{\"{field}\":{{\"{operator}\":{value}}}}}")),
            (value(), value())
                .prop_map(move |(one, other)| format!("{{\"{field}\":{{\"$in\":[{one},{other}]}}}}")),
            value().prop_map(move |value| format!("{{\"{field}\":{{\"$elemMatch\":{{\"$eq\":{value}}}}}}}")),
            value().prop_map(move |value| format!("{{\"{field}\":{{\"$not\":{{\"$gt\":{value}}}}}}}")),
            Just(format!("{{\"{field}\":{{\"$type\":\"string\"}}}}")),
            Just(format!("{{\"{field}\":{{\"$size\":1}}}}")),
        ]
    }

    fn selector() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![condition("a"), condition("b")];
        leaf.prop_recursive(3, 12, 3, |inner| {
            (proptest::sample::select(&["$and", "$or", "$nor"][..]), proptest::collection::vec(inner, 1..4))
                .prop_map(|(name, list)| format!("{{\"{name}\":[{}]}}", list.join(",")))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

        /// The keys of all matching documents are in a range; ranges ascend and are disjoint.
        #[test]
        fn ranges_hold_the_keys_of_all_matching_documents(text in selector()) {
            let found = ranges(&text, &["a", "b"]);
            let keys: Vec<(Vec<u8>, Vec<u8>)> =
                found.iter().map(|range| (range.low.sort_key(), range.high.sort_key())).collect();
            prop_assert!(keys.iter().all(|(low, high)| low < high), "{text}");
            prop_assert!(keys.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{text}: {found:?}");
            let matcher = settee_doc::Selector::parse(&text).unwrap();
            for (a, b) in VALUES.iter().flat_map(|a| VALUES.iter().map(move |b| (a, b))) {
                if !matcher.matches_json(&format!("{{\"a\":{a},\"b\":{b}}}")) {
                    continue;
                }
                let mut key = Vec::new();
                write_sort_key(&format!("[{a},{b}]"), Collation::Unicode, &mut key).unwrap();
                let is_in = keys.iter().any(|(low, high)| *low <= key && key < *high);
                prop_assert!(is_in, "[{a},{b}] of {text} is in none of {found:?}");
            }
        }
    }
}
