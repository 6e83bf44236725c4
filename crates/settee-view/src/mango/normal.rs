//! Selectors in CouchDB's normal form, which plans and explanations are made from.
//!
//! Names of nested fields are joined, several conditions are an `$and`, plain values an `$eq`, and negations are
//! pushed down to the conditions on fields. The selector that documents are matched with is
//! [`settee_doc::Selector`], which has accepted the text before, and limits its size and depth.

use super::text::{self, Kind};

/// A selector in normal form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Normal {
    /// The empty selector.
    All,
    /// All of them.
    And(Vec<Normal>),
    /// One of them.
    Or(Vec<Normal>),
    /// None of them. Only within `$elemMatch` and similar operators.
    Nor(Vec<Normal>),
    /// The opposite. Only within `$elemMatch` and similar operators.
    Not(Box<Normal>),
    /// A condition on a field.
    Field {
        /// The field's name; empty: the value itself.
        name: String,
        /// The condition.
        condition: Condition,
    },
    /// `$text`: the argument's JSON text.
    Text(String),
}

/// A condition on a field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// An operator and its argument's JSON text.
    Plain {
        /// `$eq`, `$in`, ….
        operator: String,
        /// JSON text without white space.
        argument: String,
    },
    /// `$elemMatch`, `$allMatch` or `$keyMapMatch` and their selector.
    Inner {
        /// The operator.
        operator: String,
        /// The selector that values in the field's value are matched with.
        selector: Box<Normal>,
    },
    /// The opposite of a condition that has no opposite operator.
    Not(Box<Condition>),
}

/// Where a part of a selector is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Negated,
    /// Within `$elemMatch` or a similar operator, where negations stay.
    Inside,
}

impl Normal {
    /// Brings a selector, which [`settee_doc::Selector`] has accepted, into normal form.
    pub fn of(selector: &str) -> Normal {
        match text::members(selector) {
            Some(members) if members.is_empty() => Normal::All,
            _ => node(selector, "", Mode::Plain),
        }
    }

    /// Appends its JSON text.
    pub fn write(&self, out: &mut String) {
        let list = |operator: &str, nodes: &[Normal], out: &mut String| {
            out.push_str(&format!("{{\"{operator}\":["));
            for (index, node) in nodes.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                node.write(out);
            }
            out.push_str("]}");
        };
        match self {
            Normal::All => out.push_str("{}"),
            Normal::And(nodes) => list("$and", nodes, out),
            Normal::Or(nodes) => list("$or", nodes, out),
            Normal::Nor(nodes) => list("$nor", nodes, out),
            Normal::Not(node) => {
                out.push_str("{\"$not\":");
                node.write(out);
                out.push('}');
            }
            Normal::Field { name, condition } => {
                out.push('{');
                out.push_str(&text::quoted(name));
                out.push(':');
                condition.write(out);
                out.push('}');
            }
            Normal::Text(argument) => out.push_str(&format!("{{\"$default\":{{\"$text\":{argument}}}}}")),
        }
    }

    /// Its JSON text.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    /// The names of its fields, sorted.
    pub fn fields(&self) -> Vec<&str> {
        let mut fields = Vec::new();
        self.add_fields(&mut fields);
        fields.sort_unstable();
        fields.dedup();
        fields
    }

    fn add_fields<'a>(&'a self, fields: &mut Vec<&'a str>) {
        match self {
            Normal::All => {}
            Normal::And(nodes) | Normal::Or(nodes) | Normal::Nor(nodes) => {
                nodes.iter().for_each(|node| node.add_fields(fields));
            }
            Normal::Not(node) => node.add_fields(fields),
            Normal::Field { name, .. } => fields.push(name),
            Normal::Text(_) => fields.push("$default"),
        }
    }

    /// Whether it contains `$text`.
    pub fn is_text_search(&self) -> bool {
        match self {
            Normal::All | Normal::Field { .. } => false,
            Normal::And(nodes) | Normal::Or(nodes) | Normal::Nor(nodes) => {
                nodes.iter().any(Normal::is_text_search)
            }
            Normal::Not(node) => node.is_text_search(),
            Normal::Text(_) => true,
        }
    }
}

impl Condition {
    fn write(&self, out: &mut String) {
        match self {
            Condition::Plain { operator, argument } => {
                out.push_str(&format!("{{\"{operator}\":{argument}}}"));
            }
            Condition::Inner { operator, selector } => {
                out.push_str(&format!("{{\"{operator}\":"));
                selector.write(out);
                out.push('}');
            }
            Condition::Not(condition) => {
                out.push_str("{\"$not\":");
                condition.write(out);
                out.push('}');
            }
        }
    }

    /// The condition that holds for the existing values for which this one doesn't.
    fn negated(self) -> Condition {
        let Condition::Plain { operator, argument } = self else { return Condition::Not(Box::new(self)) };
        let opposite = match operator.as_str() {
            "$lt" => "$gte",
            "$lte" => "$gt",
            "$eq" => "$ne",
            "$ne" => "$eq",
            "$gte" => "$lt",
            "$gt" => "$lte",
            "$in" => "$nin",
            "$nin" => "$in",
            "$exists" => {
                let argument = if argument == "true" { "false" } else { "true" };
                return Condition::Plain { operator, argument: argument.to_owned() };
            }
            _ => return Condition::Not(Box::new(Condition::Plain { operator, argument })),
        };
        Condition::Plain { operator: opposite.to_owned(), argument }
    }
}

/// The normal form of `value`, a condition on the field at `path`.
fn node(value: &str, path: &str, mode: Mode) -> Normal {
    let members = text::members(value).unwrap_or_default();
    match &members[..] {
        [] => leaf(plain("$eq", value), path, mode),
        [(name, value)] => member(name, value, path, mode),
        _ => {
            let nodes = members.iter().map(|(name, value)| member(name, value, path, mode)).collect();
            if mode == Mode::Negated { Normal::Or(nodes) } else { Normal::And(nodes) }
        }
    }
}

fn member(name: &str, value: &str, path: &str, mode: Mode) -> Normal {
    match name {
        "$and" | "$or" | "$nor" => combination(name, value, path, mode),
        "$not" => match mode {
            Mode::Plain => node(value, path, Mode::Negated),
            Mode::Negated => node(value, path, Mode::Plain),
            Mode::Inside => Normal::Not(Box::new(node(value, path, mode))),
        },
        "$text" => Normal::Text(text::compact(value)),
        "$elemMatch" | "$allMatch" | "$keyMapMatch" => {
            let selector = match text::members(value) {
                Some(members) if members.is_empty() => Normal::All,
                _ => node(value, "", Mode::Inside),
            };
            leaf(Condition::Inner { operator: name.to_owned(), selector: Box::new(selector) }, path, mode)
        }
        _ if name.starts_with('$') => leaf(plain(name, value), path, mode),
        _ if path.is_empty() => node(value, name, mode),
        _ => node(value, &format!("{path}.{name}"), mode),
    }
}

fn combination(name: &str, list: &str, path: &str, mode: Mode) -> Normal {
    let within = match (name, mode) {
        ("$nor", Mode::Plain) => Mode::Negated,
        ("$nor", Mode::Negated) => Mode::Plain,
        (_, mode) => mode,
    };
    let elements = text::elements(list, usize::MAX).unwrap_or_default();
    let nodes = elements.into_iter().map(|element| node(element, path, within)).collect();
    match (name, mode) {
        ("$nor", Mode::Inside) => Normal::Nor(nodes),
        ("$or", Mode::Negated) | ("$and" | "$nor", Mode::Plain) | ("$and", Mode::Inside) => {
            Normal::And(nodes)
        }
        _ => Normal::Or(nodes),
    }
}

fn plain(operator: &str, argument: &str) -> Condition {
    Condition::Plain { operator: operator.to_owned(), argument: text::compact(argument) }
}

fn leaf(condition: Condition, path: &str, mode: Mode) -> Normal {
    let condition = if mode == Mode::Negated { condition.negated() } else { condition };
    Normal::Field { name: path.to_owned(), condition }
}

/// The elements of a list operator's argument.
pub(super) fn listed(argument: &str) -> Vec<&str> {
    match text::kind(argument) {
        Kind::Array => text::elements(argument, usize::MAX).unwrap_or_default(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(selector: &str, expected: &str) {
        settee_doc::Selector::parse_for_find(selector).unwrap();
        assert_eq!(Normal::of(selector).to_json(), expected, "{selector}");
    }

    #[test]
    fn conditions_are_joined_and_made_explicit() {
        check("{ }", "{}");
        check(r#"{"a": 1}"#, r#"{"a":{"$eq":1}}"#);
        check(r#"{"a": {}}"#, r#"{"a":{"$eq":{}}}"#);
        check(r#"{"a":{"b":{"$gt": [1, 2]}}}"#, r#"{"a.b":{"$gt":[1,2]}}"#);
        check(
            r#"{"a":{"$gt":1,"$lt":2},"b":"x y"}"#,
            r#"{"$and":[{"$and":[{"a":{"$gt":1}},{"a":{"$lt":2}}]},{"b":{"$eq":"x y"}}]}"#,
        );
        check(r#"{"a":{"$or":[1,{"$gt":2}]}}"#, r#"{"$or":[{"a":{"$eq":1}},{"a":{"$gt":2}}]}"#);
        check(r#"{"$or":[]}"#, r#"{"$or":[]}"#);
        check(r#"{"$text":"x"}"#, r#"{"$default":{"$text":"x"}}"#);
    }

    #[test]
    fn negations_are_pushed_down_to_fields() {
        check(r#"{"$not":{"a":1}}"#, r#"{"a":{"$ne":1}}"#);
        check(
            r#"{"$not":{"a":{"$lt":1},"b":{"$exists":true}}}"#,
            r#"{"$or":[{"a":{"$gte":1}},{"b":{"$exists":false}}]}"#,
        );
        check(
            r#"{"$nor":[{"a":{"$in":[1]}},{"$not":{"b":2}}]}"#,
            r#"{"$and":[{"a":{"$nin":[1]}},{"b":{"$eq":2}}]}"#,
        );
        check(r#"{"a":{"$not":{"$regex":"x"}}}"#, r#"{"a":{"$not":{"$regex":"x"}}}"#);
        check(r#"{"$not":{"$and":[{"a":1},{"b":1}]}}"#, r#"{"$or":[{"a":{"$ne":1}},{"b":{"$ne":1}}]}"#);
    }

    #[test]
    fn conditions_on_elements_keep_their_negations() {
        check(
            r#"{"a":{"$elemMatch":{"b":{"$not":{"$gt":1}},"$nor":[{"c":1}]}}}"#,
            r#"{"a":{"$elemMatch":{"$and":[{"$not":{"b":{"$gt":1}}},{"$nor":[{"c":{"$eq":1}}]}]}}}"#,
        );
        check(r#"{"a":{"$allMatch":{"$gte":80}}}"#, r#"{"a":{"$allMatch":{"":{"$gte":80}}}}"#);
        check(r#"{"a":{"$elemMatch":{}}}"#, r#"{"a":{"$elemMatch":{}}}"#);
    }

    #[test]
    fn fields_are_listed_once() {
        let normal = Normal::of(r#"{"b":{"c":1},"$or":[{"a":1},{"b.c":2}],"d":{"$elemMatch":{"x":1}}}"#);
        assert_eq!(normal.fields(), ["a", "b.c", "d"]);
        assert!(!normal.is_text_search() && Normal::of(r#"{"a":1,"$text":"x"}"#).is_text_search());
    }
}
