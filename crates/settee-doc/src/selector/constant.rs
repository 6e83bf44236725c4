//! Constants in a selector, and their comparison with a document's values.

use std::cmp::Ordering;
use std::sync::LazyLock;

use icu_collator::options::CollatorOptions;
use icu_collator::{Collator, CollatorBorrowed, CollatorPreferences};

use super::error::SelectorError;
use super::limits::NESTING_MAX;
use super::raw::{Number, Raw, ValueKind};

/// Unicode's root collation, which CouchDB's views use too.
static COLLATOR: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| {
    Collator::try_new(CollatorPreferences::default(), CollatorOptions::default())
        .expect("the root collation is compiled in")
});

/// An order of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The order of views: null, false, true, numbers, strings by collation, arrays, objects.
    Collated,
    /// Erlang's order of terms, strings by their bytes: Mango uses it for `_id`.
    Bytes,
    /// As `Bytes`, with 1 before 1.0: only identical values are equal.
    Exact,
}

/// A constant of a selector.
#[derive(Debug, Clone)]
pub(super) enum Constant {
    Null,
    Boolean(bool),
    Number(Number),
    Text(String),
    Array(Vec<Constant>),
    Object(Vec<(String, Constant)>),
}

impl Constant {
    /// Parses a constant at nesting depth `depth`.
    pub(super) fn parse(raw: Raw<'_>, depth: usize) -> Result<Constant, SelectorError> {
        if depth > NESTING_MAX {
            return Err(SelectorError::too_deep());
        }
        Ok(match raw.kind() {
            ValueKind::Null => Constant::Null,
            ValueKind::False => Constant::Boolean(false),
            ValueKind::True => Constant::Boolean(true),
            ValueKind::Number => Constant::Number(raw.number().ok_or_else(SelectorError::bad_json)?),
            ValueKind::Text => Constant::Text(raw.text().ok_or_else(SelectorError::bad_json)?.into_owned()),
            ValueKind::Array => {
                let elements = raw.elements().map(|element| Constant::parse(element, depth + 1));
                Constant::Array(elements.collect::<Result<_, _>>()?)
            }
            ValueKind::Object => {
                let members = raw.members().map(|(name, value)| {
                    let name = name.text().ok_or_else(SelectorError::bad_json)?;
                    Ok((name.into_owned(), Constant::parse(value, depth + 1)?))
                });
                Constant::Object(members.collect::<Result<_, _>>()?)
            }
        })
    }

    fn kind(&self) -> ValueKind {
        match self {
            Constant::Null => ValueKind::Null,
            Constant::Boolean(false) => ValueKind::False,
            Constant::Boolean(true) => ValueKind::True,
            Constant::Number(_) => ValueKind::Number,
            Constant::Text(_) => ValueKind::Text,
            Constant::Array(_) => ValueKind::Array,
            Constant::Object(_) => ValueKind::Object,
        }
    }

    /// Compares `value` with this constant.
    pub(super) fn order_of(&self, value: Raw<'_>, order: Order) -> Ordering {
        #[cfg(test)]
        super::work::count();
        let by_kind = order_kinds(value.kind(), self.kind(), order);
        by_kind.then_with(|| self.order_within(value, order))
    }

    /// Compares this constant with another one.
    pub(super) fn order(&self, other: &Constant, order: Order) -> Ordering {
        let pairs = |one: &[Constant], other: &[Constant]| {
            let mut pairs = one.iter().zip(other).map(|(one, other)| one.order(other, order));
            pairs.find(|unequal| unequal.is_ne())
        };
        order_kinds(self.kind(), other.kind(), order).then_with(|| match (self, other) {
            (Constant::Number(one), Constant::Number(other)) => order_numbers(*one, *other, order),
            (Constant::Text(one), Constant::Text(other)) => order_text(one, other, order),
            (Constant::Array(one), Constant::Array(other)) => {
                pairs(one, other).unwrap_or_else(|| one.len().cmp(&other.len()))
            }
            (Constant::Object(one), Constant::Object(other)) => {
                let mut pairs = one.iter().zip(other).map(|(one, other)| {
                    order_text(&one.0, &other.0, order).then_with(|| one.1.order(&other.1, order))
                });
                let unequal = pairs.find(|unequal| unequal.is_ne());
                unequal.unwrap_or_else(|| one.len().cmp(&other.len()))
            }
            _ => Ordering::Equal,
        })
    }

    /// Compares a value of the same type with this constant.
    fn order_within(&self, value: Raw<'_>, order: Order) -> Ordering {
        match self {
            Constant::Null | Constant::Boolean(_) => Ordering::Equal,
            Constant::Number(own) => {
                value.number().map_or(Ordering::Less, |number| order_numbers(number, *own, order))
            }
            Constant::Text(own) => order_text(&value.text().unwrap_or_default(), own, order),
            Constant::Array(own) => {
                let mut values = value.elements();
                for constant in own {
                    let Some(value) = values.next() else { return Ordering::Less };
                    match constant.order_of(value, order) {
                        Ordering::Equal => {}
                        unequal => return unequal,
                    }
                }
                if values.next().is_some() { Ordering::Greater } else { Ordering::Equal }
            }
            Constant::Object(own) => {
                let mut members = value.members();
                for (own_name, constant) in own {
                    let Some((name, value)) = members.next() else { return Ordering::Less };
                    let by_name = order_text(&name.text().unwrap_or_default(), own_name, order);
                    match by_name.then_with(|| constant.order_of(value, order)) {
                        Ordering::Equal => {}
                        unequal => return unequal,
                    }
                }
                if members.next().is_some() { Ordering::Greater } else { Ordering::Equal }
            }
        }
    }

    /// Whether `value` is identical: strings byte by byte, members in the same order; `strict`: 1 differs
    /// from 1.0.
    pub(super) fn is(&self, value: Raw<'_>, strict: bool) -> bool {
        if value.kind() != self.kind() {
            return false;
        }
        match self {
            Constant::Null | Constant::Boolean(_) => true,
            Constant::Number(own) => value.number().is_some_and(|number| match strict {
                true => number.is_exactly(*own),
                false => number.order(*own) == Ordering::Equal,
            }),
            Constant::Text(own) => value.is_text(own),
            Constant::Array(own) => {
                let mut values = value.elements();
                let alike = own.iter().all(|own| values.next().is_some_and(|value| own.is(value, strict)));
                alike && values.next().is_none()
            }
            Constant::Object(own) => {
                let mut members = value.members();
                let alike = own.iter().all(|(own_name, own)| {
                    let member = members.next();
                    member.is_some_and(|(name, value)| name.is_text(own_name) && own.is(value, strict))
                });
                alike && members.next().is_none()
            }
        }
    }
}

fn order_kinds(one: ValueKind, other: ValueKind, order: Order) -> Ordering {
    match order {
        Order::Collated => one.cmp(&other),
        Order::Bytes | Order::Exact => term_rank(one).cmp(&term_rank(other)),
    }
}

fn order_numbers(one: Number, other: Number, order: Order) -> Ordering {
    let is_float = |number| matches!(number, Number::Float(_));
    match order {
        Order::Collated | Order::Bytes => one.order(other),
        Order::Exact => one.order(other).then_with(|| is_float(one).cmp(&is_float(other))),
    }
}

fn order_text(one: &str, other: &str, order: Order) -> Ordering {
    match order {
        Order::Collated if one == other => Ordering::Equal,
        Order::Collated => COLLATOR.compare(one, other),
        Order::Bytes | Order::Exact => one.cmp(other),
    }
}

/// The rank in Erlang's order of terms, as CouchDB represents JSON.
fn term_rank(kind: ValueKind) -> u8 {
    match kind {
        ValueKind::Number => 0,
        ValueKind::False => 1,
        ValueKind::Null => 2,
        ValueKind::True => 3,
        ValueKind::Object => 4,
        ValueKind::Array => 5,
        ValueKind::Text => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each sorts before the next.
    const COLLATED: [&str; 24] = [
        "null",
        "false",
        "true",
        "-2",
        "1",
        "1.5",
        "20",
        "\"\"",
        "\"_\"",
        "\"1\"",
        "\"a\"",
        "\"A\"",
        "\"á\"",
        "\"aa\"",
        "\"b\"",
        "\"B\"",
        "\"ba\"",
        "\"z\"",
        "[]",
        "[1]",
        "[1,2]",
        "[\"a\"]",
        "{}",
        "{\"a\":1}",
    ];

    #[test]
    fn values_are_collated_as_in_views() {
        for (one_index, one) in COLLATED.iter().enumerate() {
            for (other_index, other) in COLLATED.iter().enumerate() {
                let constant = Constant::parse(Raw(other), 0).unwrap();
                let found = constant.order_of(Raw(one), Order::Collated);
                assert_eq!(found, one_index.cmp(&other_index), "{one} and {other}");
            }
        }
    }

    #[test]
    fn constants_are_ordered_like_values() {
        let more = ["1.0", "[1.0]", "{\"a\":1.0}", "{\"a\":2}", "{\"a\":1,\"b\":1}", "1e300", "[[],{}]"];
        let texts = [&COLLATED[..], &more].concat();
        for (one, other) in texts.iter().flat_map(|one| texts.iter().map(move |other| (one, other))) {
            for order in [Order::Collated, Order::Bytes, Order::Exact] {
                let constants = [one, other].map(|text| Constant::parse(Raw(text), 0).unwrap());
                let found = constants[0].order(&constants[1], order);
                assert_eq!(found, constants[1].order_of(Raw(one), order), "{one} and {other} by {order:?}");
                assert_eq!(found, constants[1].order(&constants[0], order).reverse(), "{one} and {other}");
            }
            let is_same = Constant::parse(Raw(one), 0).unwrap().is(Raw(other), true);
            let exact = Constant::parse(Raw(one), 0).unwrap().order_of(Raw(other), Order::Exact);
            assert_eq!(is_same, exact.is_eq(), "{one} and {other}");
        }
    }

    #[test]
    fn ids_are_compared_by_bytes_and_sort_behind_other_types() {
        let constant = |text| Constant::parse(Raw(text), 0).unwrap();
        assert_eq!(constant("\"a\"").order_of(Raw("\"B\""), Order::Bytes), Ordering::Less);
        for other in ["null", "true", "7", "[\"z\"]", "{\"z\":1}"] {
            assert_eq!(constant(other).order_of(Raw("\"\""), Order::Bytes), Ordering::Greater, "{other}");
        }
    }

    #[test]
    fn identity_depends_on_member_order_and_number_form() {
        let is = |constant, value, strict| Constant::parse(Raw(constant), 0).unwrap().is(Raw(value), strict);
        assert!(is("{\"a\":[1,\"x\"],\"b\":null}", "{\"a\":[1,\"\\u0078\"],\"b\":null}", true));
        assert!(!is("{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}", false));
        assert!(!is("1", "1.0", true) && is("1", "1.0", false));
        assert!(!is("[1]", "[1,2]", false) && !is("[1,2]", "[1]", false) && !is("\"1\"", "1", false));
    }
}
