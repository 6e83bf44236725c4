//! What CouchDB's planner sees in a selector: the fields it compares, their ranges, and whether an index fits.

use super::index::IndexDefinition;
use super::normal::{Condition, Normal};
use super::plan::Reason;
use super::spans::{Edge, Order, Spans, sort_key};

/// The range of a field that CouchDB derives from comparisons outside of alternatives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldRange {
    pub(super) low: Option<(String, Low)>,
    pub(super) high: Option<(String, High)>,
}

/// How a range begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Low {
    Above,
    From,
    Equal,
}

/// How a range ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum High {
    Below,
    To,
    Equal,
}

/// Where a value lies in a range.
enum Place {
    Below,
    AtLow,
    Between,
    AtHigh,
    Above,
}

impl FieldRange {
    pub(super) fn all() -> FieldRange {
        FieldRange { low: None, high: None }
    }

    /// The range narrowed by a comparison; `None` if nothing is left.
    fn narrowed(self, operator: &str, value: &str) -> Option<FieldRange> {
        let place = self.place_of(value);
        let at_low = || self.low.as_ref().is_some_and(|(_, low)| *low != Low::Above);
        let at_high = || self.high.as_ref().is_some_and(|(_, high)| *high != High::Below);
        let value = || value.to_owned();
        let equal = || FieldRange { low: Some((value(), Low::Equal)), high: Some((value(), High::Equal)) };
        Some(match (operator, place) {
            ("$lt" | "$lte", Place::Above) | ("$lte", Place::AtHigh) => self,
            ("$gt" | "$gte", Place::Below) | ("$gte", Place::AtLow) => self,
            // CouchDB fails here.
            ("$gt", Place::AtLow) if matches!(self.low, Some((_, Low::Equal))) => return None,
            ("$lt", Place::Between | Place::AtHigh) => {
                FieldRange { high: Some((value(), High::Below)), ..self }
            }
            ("$lte", Place::Between) => FieldRange { high: Some((value(), High::To)), ..self },
            ("$gte", Place::Between) => FieldRange { low: Some((value(), Low::From)), ..self },
            ("$gt", Place::Between | Place::AtLow) => FieldRange { low: Some((value(), Low::Above)), ..self },
            ("$eq", Place::Between) => equal(),
            ("$lte" | "$eq", Place::AtLow) if at_low() => equal(),
            ("$gte" | "$eq", Place::AtHigh) if at_high() => equal(),
            _ => return None,
        })
    }

    fn place_of(&self, value: &str) -> Place {
        let key = sort_key(value, Order::Views);
        let order = |bound: &str| key.cmp(&sort_key(bound, Order::Views));
        match &self.low {
            Some((low, _)) if order(low).is_lt() => return Place::Below,
            Some((low, _)) if order(low).is_eq() => return Place::AtLow,
            _ => {}
        }
        match self.high.as_ref().map(|(high, _)| order(high)) {
            Some(order) if order.is_eq() => Place::AtHigh,
            Some(order) if order.is_gt() => Place::Above,
            _ => Place::Between,
        }
    }

    /// Its values, its ends included.
    pub(super) fn spans(&self, order: Order) -> Spans {
        let low = self.low.as_ref().map(|(value, _)| Edge::new(value, false, order));
        let high = self.high.as_ref().map(|(value, _)| Edge::new(value, true, order));
        Spans::between(low, high)
    }
}

/// The fields that a selector compares outside of alternatives, sorted, with their ranges; `None`: no value can
/// match, and other fields are left out.
pub(super) fn field_ranges(selector: &Normal) -> Vec<(&str, Option<FieldRange>)> {
    let mut ranges = Vec::new();
    for field in compared_fields(selector) {
        match range_of(selector, field, Some(FieldRange::all())) {
            Some(range) => ranges.push((field, Some(range))),
            None => return vec![(field, None)],
        }
    }
    ranges
}

/// The fields that a selector compares outside of alternatives, sorted.
pub(super) fn compared_fields(selector: &Normal) -> Vec<&str> {
    fn add<'a>(selector: &'a Normal, fields: &mut Vec<&'a str>) {
        match selector {
            Normal::And(nodes) => nodes.iter().for_each(|node| add(node, fields)),
            Normal::Field { name, condition: Condition::Plain { operator, .. } }
                if is_comparison(operator) =>
            {
                fields.push(name);
            }
            _ => {}
        }
    }
    let mut fields = Vec::new();
    add(selector, &mut fields);
    fields.sort_unstable();
    fields.dedup();
    fields
}

fn is_comparison(operator: &str) -> bool {
    ["$lt", "$lte", "$eq", "$gt", "$gte"].contains(&operator)
}

fn range_of(selector: &Normal, field: &str, range: Option<FieldRange>) -> Option<FieldRange> {
    match selector {
        Normal::And(nodes) => nodes.iter().fold(range, |range, node| range_of(node, field, range)),
        Normal::Field { name, condition: Condition::Plain { operator, argument } }
            if name == field && is_comparison(operator) =>
        {
            range?.narrowed(operator, argument)
        }
        _ => range,
    }
}

/// Why an index can't serve a selector and a sort; none if it can.
pub(super) fn unusable_reasons(index: &IndexDefinition, selector: &Normal, sort: &[String]) -> Vec<Reason> {
    let implied =
        |column: &&str| ["_id", "_rev"].contains(column) || sort.iter().any(|field| field == column);
    let required: Vec<&str> = index.columns().filter(|column| !implied(column)).collect();
    let columns: Vec<&str> = index.columns().collect();
    let checks = [
        (required.iter().all(|column| requires(selector, column)), Reason::FieldMismatch),
        (!selector.is_text_search(), Reason::NeedsTextSearch),
        (serves_sort(&columns, sort, selector), Reason::SortOrderMismatch),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, reason)| reason).collect()
}

/// Whether each document that matches has the field.
fn requires(selector: &Normal, field: &str) -> bool {
    match selector {
        Normal::And(nodes) => nodes.iter().any(|node| requires(node, field)),
        Normal::Or(nodes) => !nodes.is_empty() && nodes.iter().all(|node| requires(node, field)),
        Normal::Field { name, condition } => {
            let may_be_absent = Condition::Plain { operator: "$exists".into(), argument: "false".into() };
            name == field && *condition != may_be_absent
        }
        Normal::All | Normal::Nor(_) | Normal::Not(_) | Normal::Text(_) => false,
    }
}

/// Whether the order of an index with these columns is that of a sort.
fn serves_sort(columns: &[&str], sort: &[String], selector: &Normal) -> bool {
    let Some(first) = sort.first() else { return true };
    let constant = columns.iter().take_while(|column| *column != first && is_constant(selector, column));
    let columns = &columns[constant.count()..];
    sort.len() <= columns.len() && sort.iter().zip(columns).all(|(field, column)| field == column)
}

/// Whether all documents that match have the same value in the field.
fn is_constant(selector: &Normal, field: &str) -> bool {
    match selector {
        Normal::And(nodes) => nodes.iter().any(|node| is_constant(node, field)),
        Normal::Field { name, condition: Condition::Plain { operator, .. } } => {
            name == field && operator == "$eq"
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mango::NewIndex;

    fn index(fields: &str) -> IndexDefinition {
        NewIndex::parse(format!("{{\"index\":{{\"fields\":{fields}}}}}").as_bytes(), false)
            .unwrap()
            .definition
    }

    fn reasons(fields: &str, selector: &str, sort: &[&str]) -> Vec<Reason> {
        let sort: Vec<String> = sort.iter().map(|field| (*field).to_owned()).collect();
        unusable_reasons(&index(fields), &Normal::of(selector), &sort)
    }

    #[test]
    fn each_column_must_be_in_the_selector_or_the_sort() {
        assert_eq!(reasons(r#"["a"]"#, r#"{"a":1}"#, &[]), []);
        assert_eq!(reasons(r#"["a","b"]"#, r#"{"a":1}"#, &[]), [Reason::FieldMismatch]);
        assert_eq!(reasons(r#"["a","b"]"#, r#"{"a":1}"#, &["b"]), []);
        assert_eq!(reasons(r#"["a"]"#, "{}", &["a"]), []);
        assert_eq!(reasons(r#"["a"]"#, "{}", &[]), [Reason::FieldMismatch]);
        assert_eq!(reasons(r#"["a","_id"]"#, r#"{"a":{"$exists":true}}"#, &[]), []);
        assert_eq!(reasons(r#"["a"]"#, r#"{"a":{"$exists":false}}"#, &[]), [Reason::FieldMismatch]);
        assert_eq!(reasons(r#"["a"]"#, r#"{"a":{"$regex":"x"}}"#, &[]), []);
        assert_eq!(reasons("[]", r#"{"a":1}"#, &[]), []);
    }

    #[test]
    fn each_alternative_must_have_the_columns() {
        assert_eq!(reasons(r#"["a"]"#, r#"{"$or":[{"a":1},{"a":{"$gt":3},"b":1}]}"#, &[]), []);
        assert_eq!(reasons(r#"["a"]"#, r#"{"$or":[{"a":1},{"b":1}]}"#, &[]), [Reason::FieldMismatch]);
        assert_eq!(reasons(r#"["a"]"#, r#"{"$or":[]}"#, &[]), [Reason::FieldMismatch]);
    }

    #[test]
    fn a_sort_is_a_prefix_of_the_columns_behind_constant_ones() {
        let selector = r#"{"a":1,"b":{"$gt":0},"c":1}"#;
        assert_eq!(reasons(r#"["a","b","c"]"#, selector, &["a"]), []);
        assert_eq!(reasons(r#"["a","b","c"]"#, selector, &["b"]), []);
        assert_eq!(reasons(r#"["a","b","c"]"#, selector, &["b", "c"]), []);
        assert_eq!(reasons(r#"["a","b","c"]"#, selector, &["c"]), [Reason::SortOrderMismatch]);
        assert_eq!(reasons(r#"["b","a"]"#, selector, &["a"]), [Reason::SortOrderMismatch]);
        assert_eq!(reasons(r#"["a"]"#, selector, &["a", "b"]), [Reason::SortOrderMismatch]);
        let none = reasons(r#"["x"]"#, r#"{"$text":"t"}"#, &["b"]);
        assert_eq!(none, [Reason::FieldMismatch, Reason::NeedsTextSearch, Reason::SortOrderMismatch]);
    }

    #[test]
    fn ranges_are_those_of_comparisons_outside_of_alternatives() {
        let normal = Normal::of(r#"{"a":{"$gt":1,"$lte":5},"b":{"$in":[1]},"$or":[{"c":1}],"d":2}"#);
        let ranges = field_ranges(&normal);
        let names: Vec<&str> = ranges.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["a", "d"]);
        let a = ranges[0].1.as_ref().unwrap();
        assert_eq!(a.low, Some(("1".to_owned(), Low::Above)));
        assert_eq!(a.high, Some(("5".to_owned(), High::To)));
        let d = ranges[1].1.as_ref().unwrap();
        assert_eq!(d.low, Some(("2".to_owned(), Low::Equal)));
    }

    #[test]
    fn contradictions_leave_nothing() {
        let is_empty = |condition: &str| {
            let normal = Normal::of(&format!("{{\"z\":{condition}}}"));
            field_ranges(&normal) == [("z", None)]
        };
        for empty in [
            r#"{"$gt":5,"$lt":5}"#,
            r#"{"$gt":5,"$lt":3}"#,
            r#"{"$eq":1,"$gt":1}"#,
            r#"{"$lt":1,"$gte":1}"#,
            r#"{"$lt":1,"$eq":1}"#,
            r#"{"$gt":1,"$lte":1}"#,
        ] {
            assert!(is_empty(empty), "{empty}");
        }
        for fine in [r#"{"$gte":5,"$lte":5}"#, r#"{"$eq":1,"$gte":1,"$lte":1}"#, r#"{"$gt":5,"$lt":"x"}"#] {
            assert!(!is_empty(fine), "{fine}");
        }
    }
}
