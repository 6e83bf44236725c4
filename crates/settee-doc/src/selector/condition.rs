//! Conditions on fields and their combinations, and their evaluation.

use std::cmp::Ordering;

use super::constant::{Constant, Order};
use super::constants::Constants;
use super::paths::{Found, find_within};
use super::raw::{Number, Raw, ValueKind};

/// A condition, or a combination of conditions.
#[derive(Debug, Clone)]
pub(super) enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Field { path: Path, test: Test },
}

/// Path of a field: member names and array indexes, from the outside in. Empty: the value itself.
#[derive(Debug, Clone)]
pub(super) struct Path {
    pub(super) parts: Vec<String>,
    pub(super) is_id: bool,
    /// Index among the selector's paths, for the path of a document's field.
    pub(super) place: usize,
}

/// A condition on a field's value.
#[derive(Debug, Clone)]
pub(super) enum Test {
    Compare(Comparison, Constant),
    In(Constants),
    NotIn(Constants),
    Exists(bool),
    Type(String),
    Size(i128),
    Remainder { divisor: i128, rest: i128 },
    Regex(regex_automata::meta::Regex),
    BeginsWith(String),
    All(Constants),
    AnyElement(Box<Node>),
    EachElement(Box<Node>),
    AnyKey(Box<Node>),
    Not(Box<Test>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    GreaterOrEqual,
    Greater,
}

impl Comparison {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::GreaterOrEqual => order.is_ge(),
            Comparison::Greater => order.is_gt(),
        }
    }

    fn negated(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::GreaterOrEqual,
            Comparison::LessOrEqual => Comparison::Greater,
            Comparison::Equal => Comparison::NotEqual,
            Comparison::NotEqual => Comparison::Equal,
            Comparison::GreaterOrEqual => Comparison::Less,
            Comparison::Greater => Comparison::LessOrEqual,
        }
    }
}

/// The matched value.
#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    /// A document: its values at the selector's paths.
    Document(&'a [Found<'a>]),
    Value(Raw<'a>),
}

impl Node {
    pub(super) fn holds(&self, subject: Subject<'_>, order: Order) -> bool {
        match self {
            Node::And(nodes) => nodes.iter().all(|node| node.holds(subject, order)),
            Node::Or(nodes) => nodes.is_empty() || nodes.iter().any(|node| node.holds(subject, order)),
            Node::Not(node) => !node.holds(subject, order),
            Node::Field { path, test } => {
                let order = if path.is_id { Order::Bytes } else { order };
                match subject.find(path) {
                    Found::Value(value) => test.holds(value, order),
                    Found::Missing => matches!(test, Test::Exists(false)),
                    Found::NoPath => false,
                }
            }
        }
    }

    /// Visits the paths of the conditions on the document itself, not those on nested values.
    pub(super) fn each_path(&mut self, with: &mut impl FnMut(&mut Path)) {
        match self {
            Node::And(nodes) | Node::Or(nodes) => nodes.iter_mut().for_each(|node| node.each_path(with)),
            Node::Not(node) => node.each_path(with),
            Node::Field { path, .. } => with(path),
        }
    }
}

impl<'a> Subject<'a> {
    fn find(self, path: &Path) -> Found<'a> {
        match self {
            Subject::Document(found) => found[path.place],
            Subject::Value(value) => find_within(value, &path.parts),
        }
    }
}

impl Test {
    fn holds(&self, value: Raw<'_>, order: Order) -> bool {
        let is_array = || value.kind() == ValueKind::Array;
        match self {
            Test::Compare(comparison, constant) => comparison.holds(constant.order_of(value, order)),
            Test::In(constants) => is_in(value, constants, order),
            Test::NotIn(constants) => !is_in(value, constants, order),
            Test::Exists(wanted) => *wanted,
            Test::Type(name) => name == type_name(value.kind()),
            Test::Size(size) => is_array() && value.elements().count() as i128 == *size,
            Test::Remainder { divisor, rest } => match value.number() {
                Some(Number::Integer(integer)) => integer.wrapping_rem(*divisor) == *rest,
                _ => false,
            },
            Test::Regex(regex) => value.text().is_some_and(|text| regex.is_match(text.as_ref())),
            Test::BeginsWith(prefix) => value.text().is_some_and(|text| text.starts_with(prefix.as_str())),
            Test::All(constants) => is_array() && constants.all_in(value),
            Test::AnyElement(node) => {
                value.elements().any(|element| node.holds(Subject::Value(element), order))
            }
            Test::EachElement(node) => {
                let mut elements = value.elements().peekable();
                elements.peek().is_some()
                    && elements.all(|element| node.holds(Subject::Value(element), order))
            }
            Test::AnyKey(node) => value.members().any(|(name, _)| node.holds(Subject::Value(name), order)),
            Test::Not(test) => !test.holds(value, order),
        }
    }

    /// Whether its evaluation may walk a whole value.
    pub(super) fn walks(&self) -> bool {
        match self {
            Test::Compare(_, constant) => matches!(constant, Constant::Array(_) | Constant::Object(_)),
            Test::Exists(_) | Test::Type(_) | Test::Remainder { .. } | Test::BeginsWith(_) => false,
            Test::Not(test) => test.walks(),
            _ => true,
        }
    }

    /// The condition that holds for the existing values for which this one doesn't.
    pub(super) fn negated(self) -> Test {
        match self {
            Test::Compare(comparison, constant) => Test::Compare(comparison.negated(), constant),
            Test::In(constants) => Test::NotIn(constants),
            Test::NotIn(constants) => Test::In(constants),
            Test::Exists(wanted) => Test::Exists(!wanted),
            test => Test::Not(Box::new(test)),
        }
    }
}

/// Whether a value, or an element of an array, is among `constants`.
fn is_in(value: Raw<'_>, constants: &Constants, order: Order) -> bool {
    match value.kind() {
        ValueKind::Array => value.elements().any(|element| constants.has(element, order)),
        _ => constants.has(value, order),
    }
}

fn type_name(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Null => "null",
        ValueKind::False | ValueKind::True => "boolean",
        ValueKind::Number => "number",
        ValueKind::Text => "string",
        ValueKind::Array => "array",
        ValueKind::Object => "object",
    }
}
