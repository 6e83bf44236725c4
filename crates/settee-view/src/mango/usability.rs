//! What CouchDB's planner sees in a selector: the fields it compares, their ranges, and whether an index fits.

use std::collections::{BTreeMap, HashSet};

use super::index::IndexDefinition;
use super::normal::{Condition, Normal};
use super::reason::Reason;
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

/// What the choice of an index depends on, collected in one pass over a selector.
pub(super) struct Seen<'a> {
    /// The fields that it compares outside of alternatives, sorted, with their ranges. `None`: no value can match;
    /// other fields are then left out.
    pub(super) ranges: Vec<(&'a str, Option<FieldRange>)>,
    /// All fields that it compares so.
    compared: HashSet<&'a str>,
    /// The fields that each matching document has.
    required: HashSet<&'a str>,
    /// The fields that have the same value in all matching documents.
    constant: HashSet<&'a str>,
    is_text_search: bool,
}

impl<'a> Seen<'a> {
    pub(super) fn of(selector: &'a Normal) -> Seen<'a> {
        let mut compared = Vec::new();
        add_comparisons(selector, &mut compared);
        let is_equal = |(_, operator, _): &&(&'a str, &str, &str)| *operator == "$eq";
        let constant = compared.iter().filter(is_equal).map(|(field, ..)| *field).collect();
        let fields = compared.iter().map(|(field, ..)| *field).collect();
        let mut ranges: BTreeMap<&str, Option<FieldRange>> = BTreeMap::new();
        for (field, operator, value) in compared {
            let range = ranges.entry(field).or_insert_with(|| Some(FieldRange::all()));
            *range = range.take().and_then(|range| range.narrowed(operator, value));
        }
        let empty = ranges.iter().find(|(_, range)| range.is_none()).map(|(field, _)| *field);
        let ranges = match empty {
            Some(field) => vec![(field, None)],
            None => ranges.into_iter().collect(),
        };
        let is_text_search = selector.is_text_search();
        Seen { ranges, compared: fields, required: required_fields(selector), constant, is_text_search }
    }

    /// Whether the selector compares a field outside of alternatives.
    pub(super) fn compares(&self, field: &str) -> bool {
        self.compared.contains(field)
    }

    /// The range of a field; `None` if it isn't among [`Seen::ranges`].
    pub(super) fn range(&self, field: &str) -> Option<&Option<FieldRange>> {
        let place = self.ranges.binary_search_by(|(name, _)| (*name).cmp(field)).ok()?;
        Some(&self.ranges[place].1)
    }

    /// Why an index can't serve the selector and a sort; none if it can.
    pub(super) fn reasons_against(&self, index: &IndexDefinition, sort: &[String]) -> Vec<Reason> {
        let columns: Vec<&str> = index.columns().collect();
        let is_present = |column: &&str| {
            ["_id", "_rev"].contains(column)
                || self.required.contains(column)
                || sort.iter().any(|field| field == column)
        };
        let checks = [
            (columns.iter().all(is_present), Reason::FieldMismatch),
            (!self.is_text_search, Reason::NeedsTextSearch),
            (self.serves_sort(&columns, sort), Reason::SortOrderMismatch),
        ];
        checks.into_iter().filter(|(holds, _)| !holds).map(|(_, reason)| reason).collect()
    }

    /// Whether the order of an index with these columns is that of a sort.
    fn serves_sort(&self, columns: &[&str], sort: &[String]) -> bool {
        let Some(first) = sort.first() else { return true };
        let is_skipped = |column: &&&str| *column != first && self.constant.contains(*column);
        let columns = &columns[columns.iter().take_while(is_skipped).count()..];
        sort.len() <= columns.len() && sort.iter().zip(columns).all(|(field, column)| field == column)
    }
}

/// The fields that a selector compares outside of alternatives, sorted.
pub(super) fn compared_fields(selector: &Normal) -> Vec<&str> {
    let mut compared = Vec::new();
    add_comparisons(selector, &mut compared);
    let mut fields: Vec<&str> = compared.into_iter().map(|(field, ..)| field).collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

/// Appends field, operator and value of each comparison outside of alternatives.
fn add_comparisons<'a>(selector: &'a Normal, compared: &mut Vec<(&'a str, &'a str, &'a str)>) {
    match selector {
        Normal::And(nodes) => nodes.iter().for_each(|node| add_comparisons(node, compared)),
        Normal::Field { name, condition: Condition::Plain { operator, argument } }
            if ["$lt", "$lte", "$eq", "$gt", "$gte"].contains(&operator.as_str()) =>
        {
            compared.push((name, operator, argument));
        }
        _ => {}
    }
}

/// The fields that each matching document has.
fn required_fields(selector: &Normal) -> HashSet<&str> {
    match selector {
        Normal::And(nodes) => nodes.iter().flat_map(required_fields).collect(),
        Normal::Or(nodes) => {
            let mut each = nodes.iter().map(required_fields);
            let first = each.next().unwrap_or_default();
            each.fold(first, |common, fields| {
                common.into_iter().filter(|field| fields.contains(field)).collect()
            })
        }
        Normal::Field { condition: Condition::Plain { operator, argument }, .. }
            if operator == "$exists" && argument == "false" =>
        {
            HashSet::new()
        }
        Normal::Field { name, .. } => HashSet::from([name.as_str()]),
        Normal::All | Normal::Nor(_) | Normal::Not(_) | Normal::Text(_) => HashSet::new(),
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
        Seen::of(&Normal::of(selector)).reasons_against(&index(fields), &sort)
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
        let ranges = Seen::of(&normal).ranges;
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
            Seen::of(&normal).ranges == [("z", None)]
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
