//! Goal: sort keys have the order of CouchDB's views, and the structure that their readers rely on.
//! Method: the documented order, value by value; then random values, whose keys are compared with a comparison
//! that applies the rules literally, strings by ICU4X's comparison.

use std::cmp::Ordering;

use icu_collator::options::CollatorOptions;
use icu_collator::{Collator, CollatorBorrowed, CollatorPreferences};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use settee_collate::{Collation, END, array_prefix, raise, write_array_start, write_sort_key};

fn key(value: &Value, collation: Collation) -> Vec<u8> {
    text_key(&value.to_string(), collation)
}

fn text_key(json: &str, collation: Collation) -> Vec<u8> {
    let mut out = Vec::new();
    write_sort_key(json, collation, &mut out).unwrap_or_else(|error| panic!("{json}: {error}"));
    out
}

/// Checks that the values ascend.
fn check_ascending(values: &[Value], collation: Collation) {
    for pair in values.windows(2) {
        assert!(key(&pair[0], collation) < key(&pair[1], collation), "{} < {}", pair[0], pair[1]);
    }
}

#[test]
fn values_have_the_documented_order_of_couchdb() {
    let order = [
        json!(null),
        json!(false),
        json!(true),
        json!(-1e300),
        json!(-2),
        json!(-0.5),
        json!(0),
        json!(1),
        json!(2),
        json!(3.0),
        json!(4),
        json!(10),
        json!(1e21),
        json!(""),
        json!("1"),
        json!("10"),
        json!("2"),
        json!("a"),
        json!("A"),
        json!("á"),
        json!("Á"),
        json!("à"),
        json!("ä"),
        json!("aa"),
        json!("aB"),
        json!("Ab"),
        json!("AB"),
        json!("b"),
        json!("B"),
        json!("ba"),
        json!("bb"),
        json!([]),
        json!([null]),
        json!(["a"]),
        json!(["b"]),
        json!(["b", "c"]),
        json!(["b", "c", "a"]),
        json!(["b", "d"]),
        json!(["b", "d", "e"]),
        json!([["x"]]),
        json!([{}]),
        json!({}),
        json!({"a": 1}),
        json!({"a": 1, "b": 2}),
        json!({"a": 2}),
        json!({"b": 1}),
        json!({"b": 2}),
        json!({"b": 2, "a": 1}),
        json!({"b": 2, "c": 2}),
    ];
    check_ascending(&order, Collation::Unicode);
}

#[test]
fn punctuation_is_not_ignored_and_precedes_digits() {
    let marks = "_-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$12aAáÁàäbB";
    let strings: Vec<Value> =
        std::iter::once(' ').chain(marks.chars()).map(|one| json!(one.to_string())).collect();
    check_ascending(&strings, Collation::Unicode);
    check_ascending(&["co op", "co-op", "coop"].map(|text| json!(text)), Collation::Unicode);
    check_ascending(&["ss", "ß"].map(|text| json!(text)), Collation::Unicode);
    check_ascending(
        &["\u{fffe}", " ", "a", "\u{10fffd}", "\u{ffff}"].map(|text| json!(text)),
        Collation::Unicode,
    );
}

#[test]
fn the_raw_order_is_that_of_erlang() {
    let order = [
        json!(-1),
        json!(2.5),
        json!(10),
        json!(false),
        json!(null),
        json!(true),
        json!({}),
        json!({"a": 1}),
        json!({"a": 1, "b": 0}),
        json!({"b": 0}),
        json!([]),
        json!([1]),
        json!([1, 0]),
        json!([2]),
        json!(""),
        json!("\0"),
        json!("\0a"),
        json!("A"),
        json!("A\0"),
        json!("AB"),
        json!("a"),
        json!("á"),
    ];
    check_ascending(&order, Collation::Raw);
}

#[test]
fn equal_values_have_equal_keys() {
    let pairs = [
        ("1", "1.0"),
        ("0", "-0.0"),
        ("100", "1e2"),
        (r#""a""#, r#""\u0061""#),
        (r#""é""#, r#""e\u0301""#),
        (r#""""#, r#""\u0000""#),
        (r#""""#, r#""\u200b""#),
        (r#""ab""#, r#""a\u0000b""#),
        (r#"{"a": [1, 2]}"#, r#" { "a":[1,2] } "#),
        ("9007199254740993", "9007199254740992"),
    ];
    for (one, other) in pairs {
        assert_eq!(text_key(one, Collation::Unicode), text_key(other, Collation::Unicode), "{one} = {other}");
    }
    assert_ne!(text_key(r#""é""#, Collation::Raw), text_key(r#""e\u0301""#, Collation::Raw));
}

#[test]
fn what_is_not_one_json_value_is_refused() {
    for text in [
        "", " ", "nul", "[1", "[1 2]", "{\"a\"}", "{1:2}", "1 2", "\"a", "\"a\\", "]", "[,]", "{\"a\":1", "x",
    ] {
        let mut out = Vec::new();
        assert!(write_sort_key(text, Collation::Unicode, &mut out).is_err(), "{text}");
    }
    let deep = |count: usize| "[".repeat(count) + &"]".repeat(count);
    let mut out = Vec::new();
    assert!(write_sort_key(&deep(settee_collate::NESTING_MAX), Collation::Unicode, &mut out).is_ok());
    assert!(write_sort_key(&deep(settee_collate::NESTING_MAX + 1), Collation::Unicode, &mut out).is_err());
}

#[test]
fn the_version_names_the_data_that_is_linked() {
    let lock = include_str!("../../../Cargo.lock");
    let package =
        lock.split("[[package]]").find(|text| text.contains("name = \"icu_collator_data\"")).unwrap();
    let linked = settee_collate::VERSION.rsplit('-').next().unwrap();
    assert!(package.contains(&format!("version = \"{linked}\"")), "{package}");
}

#[test]
fn a_raised_prefix_is_just_above_what_begins_with_it() {
    let mut bound = vec![1, 255, 255];
    raise(&mut bound);
    assert_eq!(bound, [2]);
    bound = vec![255];
    raise(&mut bound);
    assert_eq!(bound, [0; 0]);
}

fn collator() -> CollatorBorrowed<'static> {
    Collator::try_new(CollatorPreferences::default(), CollatorOptions::default()).unwrap()
}

/// The rules, literally.
fn compare(one: &Value, other: &Value, collator: &CollatorBorrowed<'_>) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Null => 0,
        Value::Bool(false) => 1,
        Value::Bool(true) => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Array(_) => 5,
        Value::Object(_) => 6,
    };
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one.as_f64().unwrap().partial_cmp(&other.as_f64().unwrap()).unwrap()
        }
        (Value::String(one), Value::String(other)) => collator.compare(one, other),
        (Value::Array(one), Value::Array(other)) => {
            let pairs = one.iter().zip(other).map(|(one, other)| compare(one, other, collator));
            pairs.fold(Ordering::Equal, Ordering::then).then(one.len().cmp(&other.len()))
        }
        (Value::Object(one), Value::Object(other)) => {
            let pairs = one.iter().zip(other).map(|((name, one), (other_name, other))| {
                collator.compare(name, other_name).then_with(|| compare(one, other, collator))
            });
            pairs.fold(Ordering::Equal, Ordering::then).then(one.len().cmp(&other.len()))
        }
        _ => rank(one).cmp(&rank(other)),
    }
}

fn text() -> impl Strategy<Value = String> {
    let letters = "[ab AB12_áÁéñß\u{301}\u{0}\u{200b}\u{fffe}日本😀-]{0,5}";
    prop_oneof![4 => letters, 1 => any::<String>()]
}

fn value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        (-3_i64..3).prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1e3_f64..1e3).prop_map(Value::from)
    ];
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        text().prop_map(Value::from)
    ];
    scalar.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::vec((text(), inner), 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn keys_order_as_values_compare(one in value(), other in value()) {
        let expected = compare(&one, &other, &collator());
        let keys = (key(&one, Collation::Unicode), key(&other, Collation::Unicode));
        prop_assert_eq!(keys.0.cmp(&keys.1), expected, "{} and {}", one, other);
        // Self-delimiting: neither is a prefix of the other.
        prop_assert!(keys.0 == keys.1 || !keys.0.starts_with(&keys.1) && !keys.1.starts_with(&keys.0));
    }

    #[test]
    fn strings_order_as_icu_compares_them(one in any::<String>(), other in any::<String>()) {
        let keys = [&one, &other].map(|text| key(&json!(text), Collation::Unicode));
        prop_assert_eq!(keys[0].cmp(&keys[1]), collator().compare(&one, &other));
    }

    #[test]
    fn the_prefix_of_an_array_is_that_of_its_first_elements(
        elements in proptest::collection::vec(value(), 0..4),
        count in 0_usize..5,
        is_raw in any::<bool>(),
    ) {
        let collation = if is_raw { Collation::Raw } else { Collation::Unicode };
        let mut expected = Vec::new();
        write_array_start(collation, &mut expected);
        for element in elements.iter().take(count) {
            write_sort_key(&element.to_string(), collation, &mut expected).unwrap();
        }
        if count > elements.len() {
            expected.push(END);
        }
        let whole = key(&json!(elements), collation);
        for cut in 0..whole.len() {
            let prefix = array_prefix(&whole[..cut], count, collation);
            prop_assert_eq!(prefix, (cut >= expected.len()).then_some(&expected[..]));
        }
        prop_assert_eq!(array_prefix(&whole, count, collation), Some(&expected[..]));
        prop_assert_eq!(whole.last(), Some(&END));
        let string = key(&json!("x"), collation);
        prop_assert_eq!(array_prefix(&string, count, collation), None);
    }
}
