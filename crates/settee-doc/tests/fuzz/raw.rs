//! Goal: the walk over JSON text finds its values, and ends in anything else.
//! Method: as in `crate::fuzz`; another parser provides the expected values.

use std::cmp::Ordering;

use serde_json::Value;
use settee_sim::fuzz::{Target, check_json};

use super::constant::{Constant, Order};
use super::raw::{Number, Raw, ValueKind};

pub(crate) const RAW: Target = Target {
    name: "raw",
    check: raw,
    corpus: &[
        b"{\"a\":[1,{\"x\": \"]}\\\"\\\\\"}, \"}\"] , \"b\":\"\\u00e9\" ,\"c\":{},\"d\" : -1.5e3}\0{\"a\":[2]}",
        b"[0,-0,1.0,9007199254740993,18446744073709551616,1e308,\"\",\"\\\\\",[[]],null,true]\0[0,-0.0]",
        b"{\"a\":1,\"\\u0061\":2,\"b\\\\\":3}\0{\"b\":1}",
        b"\"text\"\0\"Text\"",
        b"-12\0-12.5",
        b"[{\"k\":[{\"k\":[{\"k\":[]}]}]}]\0null",
    ],
    words: &[
        "{", "}", "[", "]", "\"", ":", ",", "\\\"", "\\\\", "a", "A", "null", "true", "1", "\"a\":", "\\u0061",
        "\0", "é", "e\u{301}",
    ],
    generate: |source| format!("{}\0{}", source.json(), source.json()).into_bytes(),
};

/// Largest depth of a walk through junk.
const WALK_DEPTH_MAX: usize = 20;

/// In valid JSON the walk finds the values that another parser finds; two values have one order, each equals
/// itself; invalid JSON ends the walk.
fn raw(input: &[u8]) -> bool {
    let mut texts = input.split(|byte| *byte == 0).map(std::str::from_utf8);
    let Some(Ok(one)) = texts.next() else { return false };
    let other = texts.next().and_then(Result::ok).unwrap_or("null");
    assert!(walk(Raw::new(one), 0) <= one.len() * WALK_DEPTH_MAX + 1);
    if check_json(one.as_bytes()).is_none() {
        return false;
    }
    let whole = Raw::new(one);
    // Input that the other parser refuses: unpaired surrogates, numbers beyond a double, deep nesting.
    if let Ok(value) = serde_json::from_str::<Value>(one) {
        same(whole, &value);
    }
    let Ok(constant) = Constant::parse(whole, 0) else { return true };
    assert!(constant.is(whole, true) && constant.is(whole, false), "it isn't itself");
    let orders = [Order::Collated, Order::Bytes];
    assert!(orders.iter().all(|order| constant.order_of(whole, *order) == Ordering::Equal));
    if check_json(other.as_bytes()).is_some()
        && let Ok(second) = Constant::parse(Raw::new(other), 0)
    {
        for order in orders {
            let found = second.order_of(whole, order);
            assert_eq!(found, constant.order_of(Raw::new(other), order).reverse(), "{order:?}");
        }
    }
    true
}

/// Number of values visited.
fn walk(raw: Raw<'_>, depth: usize) -> usize {
    let _ = (raw.kind(), raw.text(), raw.number(), raw.member("a"), raw.is_text("a"));
    if depth == WALK_DEPTH_MAX {
        return 1;
    }
    let members = raw.members().map(|(name, value)| walk(name, depth + 1) + walk(value, depth + 1));
    let elements = raw.elements().map(|element| walk(element, depth + 1));
    1 + members.sum::<usize>() + elements.sum::<usize>()
}

fn same(raw: Raw<'_>, value: &Value) {
    match value {
        Value::Null => assert_eq!(raw.kind(), ValueKind::Null),
        Value::Bool(false) => assert_eq!(raw.kind(), ValueKind::False),
        Value::Bool(true) => assert_eq!(raw.kind(), ValueKind::True),
        Value::Number(number) => {
            let expected = number.as_f64().expect("there are doubles alone");
            match raw.number().expect("a number") {
                Number::Integer(integer) if number.is_f64() => near(integer as f64, expected),
                Number::Integer(integer) => assert_eq!(integer.to_string(), number.to_string()),
                Number::Float(float) => near(float, expected),
            }
        }
        Value::String(text) => {
            assert_eq!(raw.text().as_deref(), Some(text.as_str()));
            assert!(raw.is_text(text));
        }
        Value::Array(values) => {
            let elements: Vec<_> = raw.elements().collect();
            assert_eq!(elements.len(), values.len());
            elements.into_iter().zip(values).for_each(|(element, value)| same(element, value));
        }
        Value::Object(members) => {
            for (name, _) in raw.members() {
                assert!(members.contains_key(&*name.text().expect("a name is a string")));
            }
            for (name, value) in members {
                same(raw.member(name).expect("the member is there"), value);
            }
        }
    }
}

/// The other parser may round the last bit differently.
fn near(one: f64, other: f64) {
    assert!(one == other || (one - other).abs() <= other.abs() * 1e-14, "{one:e} is not {other:e}");
}
