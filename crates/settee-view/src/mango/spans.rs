//! Sets of values in an order: what a column's values are limited to by a selector.

use std::cmp::Ordering;

use settee_collate::{Collation, write_sort_key};

use super::limits::RANGES_MAX;
use super::normal::{Condition, Normal, listed};
use super::text::{self, Kind};

/// Digits of an integer that a double surely represents.
const EXACT_DIGITS_MAX: usize = 15;

/// An order of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// That of views, in which `_id` is compared like other strings.
    Views,
    /// Ids by their bytes; other values come before all of them.
    Ids,
}

/// A position in an order: below or above all values that equal one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edge {
    /// Sort key of the value.
    key: Vec<u8>,
    above: bool,
    /// The value's JSON text; `None` for the two ends of the order.
    pub(super) value: Option<String>,
}

impl Edge {
    pub(super) fn new(value: &str, above: bool, order: Order) -> Edge {
        Edge { key: sort_key(value, order), above, value: Some(value.to_owned()) }
    }

    fn first() -> Edge {
        Edge { key: Vec::new(), above: false, value: None }
    }

    fn last() -> Edge {
        Edge { key: vec![u8::MAX], above: true, value: None }
    }

    /// Whether it is above the values that equal its value.
    pub(super) fn is_above(&self) -> bool {
        self.above
    }

    fn order(&self, other: &Edge) -> Ordering {
        self.key.cmp(&other.key).then(self.above.cmp(&other.above))
    }
}

/// The values between two positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) low: Edge,
    pub(super) high: Edge,
}

impl Span {
    /// Whether it has only values that equal one.
    pub(super) fn is_point(&self) -> bool {
        self.low.key == self.high.key && !self.low.above && self.high.above
    }
}

/// Disjoint spans, ascending. At most [`RANGES_MAX`]; more are replaced by one that encloses them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spans(Vec<Span>);

impl Spans {
    pub(super) fn all() -> Spans {
        Spans(vec![Span { low: Edge::first(), high: Edge::last() }])
    }

    fn none() -> Spans {
        Spans(Vec::new())
    }

    pub(super) fn between(low: Option<Edge>, high: Option<Edge>) -> Spans {
        let (low, high) = (low.unwrap_or_else(Edge::first), high.unwrap_or_else(Edge::last));
        match low.order(&high) {
            Ordering::Less => Spans(vec![Span { low, high }]),
            Ordering::Equal | Ordering::Greater => Spans::none(),
        }
    }

    fn point(value: &str, order: Order) -> Spans {
        Spans::between(Some(Edge::new(value, false, order)), Some(Edge::new(value, true, order)))
    }

    pub(super) fn as_slice(&self) -> &[Span] {
        &self.0
    }

    pub(super) fn is_all(&self) -> bool {
        matches!(&self.0[..], [span] if span.low.value.is_none() && span.high.value.is_none())
    }

    /// One span that encloses all.
    pub(super) fn hull(&self) -> Option<Span> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        Some(Span { low: first.low.clone(), high: last.high.clone() })
    }

    pub(super) fn intersect(&self, other: &Spans) -> Spans {
        let (mut one, mut other) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
            let low = if a.low.order(&b.low).is_ge() { &a.low } else { &b.low };
            let high = if a.high.order(&b.high).is_le() { &a.high } else { &b.high };
            if low.order(high).is_lt() {
                both.push(Span { low: low.clone(), high: high.clone() });
            }
            match a.high.order(&b.high) {
                Ordering::Less => drop(one.next()),
                Ordering::Equal | Ordering::Greater => drop(other.next()),
            }
        }
        Spans(both).limited()
    }

    /// The union of any spans.
    fn union(mut spans: Vec<Span>) -> Spans {
        spans.sort_by(|one, other| one.low.order(&other.low));
        let mut joined: Vec<Span> = Vec::new();
        for span in spans {
            match joined.last_mut() {
                Some(last) if last.high.order(&span.low).is_ge() => {
                    if span.high.order(&last.high).is_gt() {
                        last.high = span.high;
                    }
                }
                _ => joined.push(span),
            }
        }
        Spans(joined).limited()
    }

    fn limited(self) -> Spans {
        match self.0.len() > RANGES_MAX {
            true => Spans(self.hull().into_iter().collect()),
            false => self,
        }
    }
}

/// The values of the field `column` in documents that match. Each of them has the field.
pub(super) fn of_column(selector: &Normal, column: &str, order: Order) -> Spans {
    match selector {
        Normal::And(nodes) => {
            let each = nodes.iter().map(|node| of_column(node, column, order));
            each.fold(Spans::all(), |one, other| one.intersect(&other))
        }
        // An empty list of alternatives is no condition.
        Normal::Or(nodes) if !nodes.is_empty() => {
            let mut spans = Vec::new();
            for node in nodes {
                let found = of_column(node, column, order);
                if found.is_all() {
                    return found;
                }
                spans.extend(found.0);
            }
            Spans::union(spans)
        }
        Normal::Field { name, condition: Condition::Plain { operator, argument } } if name == column => {
            of_operator(operator, argument, column == "_id", order)
        }
        Normal::Field { name, condition: Condition::Inner { operator, .. } } if name == column => {
            of_operator(operator, "", column == "_id", order)
        }
        _ => Spans::all(),
    }
}

fn of_operator(operator: &str, argument: &str, is_id: bool, order: Order) -> Spans {
    let edge = |above| Some(Edge::new(argument, above, order));
    match operator {
        "$eq" => Spans::point(argument, order),
        "$in" => {
            // An array matches by its elements.
            let values = listed(argument).into_iter().filter(|value| text::kind(value) != Kind::Array);
            let mut spans: Vec<Span> = values.flat_map(|value| Spans::point(value, order).0).collect();
            if order == Order::Views {
                spans.extend(of_kind(Kind::Array).0);
            }
            Spans::union(spans)
        }
        // Documents are matched with an id by its bytes, which an index in the order of views doesn't know.
        _ if is_id && order == Order::Views => Spans::all(),
        "$lt" => Spans::between(None, edge(!is_exact(argument))),
        "$lte" => Spans::between(None, edge(true)),
        "$gte" => Spans::between(edge(false), None),
        "$gt" => Spans::between(edge(is_exact(argument)), None),
        _ if order == Order::Ids => Spans::all(),
        "$elemMatch" | "$allMatch" | "$all" | "$size" => of_kind(Kind::Array),
        "$keyMapMatch" => of_kind(Kind::Object),
        "$regex" | "$beginsWith" => of_kind(Kind::Text),
        "$mod" => of_kind(Kind::Number),
        "$type" => match argument {
            "\"null\"" => of_kind(Kind::Null),
            "\"boolean\"" => of_kind(Kind::Boolean),
            "\"number\"" => of_kind(Kind::Number),
            "\"string\"" => of_kind(Kind::Text),
            "\"array\"" => of_kind(Kind::Array),
            "\"object\"" => of_kind(Kind::Object),
            _ => Spans::all(),
        },
        _ => Spans::all(),
    }
}

/// The values of a type, in the order of views.
fn of_kind(kind: Kind) -> Spans {
    let edge = |value, above| Some(Edge::new(value, above, Order::Views));
    match kind {
        Kind::Null => Spans::between(edge("null", false), edge("null", true)),
        Kind::Boolean => Spans::between(edge("false", false), edge("true", true)),
        Kind::Number => Spans::between(edge("true", true), edge("\"\"", false)),
        Kind::Text => Spans::between(edge("\"\"", false), edge("[]", false)),
        Kind::Array => Spans::between(edge("[]", false), edge("{}", false)),
        Kind::Object => Spans::between(edge("{}", false), None),
    }
}

/// Whether two values that collate as equal to this one also compare as equal in a selector. A large integer
/// doesn't: sort keys have doubles, selectors integers.
fn is_exact(value: &str) -> bool {
    match text::kind(value) {
        Kind::Null | Kind::Boolean | Kind::Text => true,
        Kind::Number => {
            value.bytes().filter(u8::is_ascii_digit).count() <= EXACT_DIGITS_MAX
                && !value.contains(['e', 'E'])
        }
        Kind::Array | Kind::Object => false,
    }
}

/// A value's sort key. What isn't a value of the order sorts before all that is.
pub(super) fn sort_key(value: &str, order: Order) -> Vec<u8> {
    let mut key = Vec::new();
    match order {
        Order::Views => {
            let written = write_sort_key(value, Collation::Unicode, &mut key);
            assert!(written.is_ok(), "a selector's values are checked");
        }
        Order::Ids => {
            key.push(u8::from(text::kind(value) == Kind::Text));
            key.extend(text::string(value).unwrap_or_default().into_bytes());
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The spans of `a`, as text.
    fn shown(selector: &str, order: Order) -> String {
        let column = if order == Order::Ids { "_id" } else { "a" };
        let end = |edge: &Edge| edge.value.clone().unwrap_or_default();
        let spans = of_column(&Normal::of(selector), column, order);
        let texts = spans.0.iter().map(|span| {
            let (open, close) =
                (if span.low.above { '(' } else { '[' }, if span.high.above { ']' } else { ')' });
            format!("{open}{}..{}{close}", end(&span.low), end(&span.high))
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comparisons_are_rays_and_points() {
        let of = |condition: &str| shown(&format!("{{\"a\":{condition}}}"), Order::Views);
        assert_eq!(of("1"), "[1..1]");
        assert_eq!(of(r#"{"$gt":1,"$lte":"x"}"#), r#"(1.."x"]"#);
        assert_eq!(of(r#"{"$gte":1,"$lt":5}"#), "[1..5)");
        assert_eq!(of(r#"{"$gt":[1],"$lt":{}}"#), "[[1]..{}]");
        assert_eq!(of(r#"{"$gt":9007199254740993}"#), "[9007199254740993..]");
        assert_eq!(of(r#"{"$gt":5,"$lt":3}"#), "");
        assert_eq!(of(r#"{"$ne":5}"#), "[..]");
        assert_eq!(of(r#"{"$not":{"$gt":5}}"#), "[..5]");
    }

    #[test]
    fn alternatives_are_joined() {
        let of = |selector: &str| shown(selector, Order::Views);
        assert_eq!(of(r#"{"a":{"$in":[3,1,[7],3.0]}}"#), "[1..1] [3..3] [[]..{})");
        assert_eq!(of(r#"{"$or":[{"a":{"$lt":3}},{"a":{"$gte":2,"$lt":5}},{"a":9}]}"#), "[..5) [9..9]");
        assert_eq!(of(r#"{"$or":[{"a":1},{"b":1}]}"#), "[..]");
        assert_eq!(of(r#"{"$or":[],"a":1}"#), "[1..1]");
        assert_eq!(of(r#"{"a":{"$in":[1,2,3],"$gt":1}}"#), "[2..2] [3..3] [[]..{})");
    }

    #[test]
    fn operators_that_need_a_type_are_its_values() {
        let of = |condition: &str| shown(&format!("{{\"a\":{condition}}}"), Order::Views);
        assert_eq!(of(r#"{"$elemMatch":{"$gt":1}}"#), "[[]..{})");
        assert_eq!(of(r#"{"$size":1}"#), "[[]..{})");
        assert_eq!(of(r#"{"$regex":"x"}"#), r#"[""..[])"#);
        assert_eq!(of(r#"{"$mod":[2,1]}"#), r#"(true..""#.to_owned() + r#"")"#);
        assert_eq!(of(r#"{"$type":"boolean"}"#), "[false..true]");
        assert_eq!(of(r#"{"$keyMapMatch":{"$eq":"x"}}"#), "[{}..]");
        assert_eq!(of(r#"{"$not":{"$regex":"x"}}"#), "[..]");
        assert_eq!(of(r#"{"$exists":true}"#), "[..]");
    }

    #[test]
    fn ids_are_ordered_by_bytes_and_other_values_precede_them() {
        let of = |condition: &str| shown(&format!("{{\"_id\":{condition}}}"), Order::Ids);
        assert_eq!(of(r#"{"$gt":"B","$lt":"a"}"#), r#"("B".."a")"#);
        assert_eq!(of(r#"{"$gt":"a","$lt":"B"}"#), "");
        assert_eq!(of(r#"{"$in":["b","a"]}"#), r#"["a".."a"] ["b".."b"]"#);
        assert_eq!(of(r#"{"$regex":"x"}"#), "[..]");
    }

    #[test]
    fn an_index_in_the_order_of_views_narrows_no_comparison_of_ids() {
        let spans = of_column(&Normal::of(r#"{"_id":{"$gt":"B"}}"#), "_id", Order::Views);
        assert!(spans.is_all());
    }

    #[test]
    fn more_alternatives_than_the_limit_become_one_range() {
        let values: Vec<String> = (0..=RANGES_MAX).map(|n| n.to_string()).collect();
        let alternatives: Vec<String> = values.iter().map(|n| format!("{{\"a\":{n}}}")).collect();
        let selector = format!("{{\"$or\":[{}]}}", alternatives.join(","));
        assert_eq!(shown(&selector, Order::Views), format!("[0..{RANGES_MAX}]"));
    }
}
