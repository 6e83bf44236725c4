//! Mango selectors: conditions on documents, as in `_find` and `_changes`.
//!
//! A selector is parsed once, into a tree. A document is matched as the text that it is stored as: one walk
//! over it finds all values that the selector names, and the conditions are then evaluated on their text.
//! Nothing else of the document is parsed.
//!
//! Work is bounded by the document's size: `$in` and similar operators look a value up in sorted constants;
//! and at most `WALKS_MAX` conditions of a selector may walk a value again or be evaluated for each of its
//! elements.
//!
//! Selectors mean what they mean in CouchDB 3.5, including these peculiarities:
//! 1. A negation is pushed down to the conditions, each of which requires its field to exist: with or without
//!    `$not`, a document that lacks the field doesn't match (except for `$exists`). Within `$elemMatch`,
//!    `$allMatch` and `$keyMapMatch` a negation isn't pushed down, and is an ordinary negation.
//! 2. Values are ordered as views order them, strings by collation; values of `_id` by their bytes.
//! 3. Empty `$and` and `$or` match, an empty `$all` doesn't.
//!
//! Differences: `$regex` is matched by an automaton, without look-around and back-references (400 instead of
//! a search with unbounded time), and its `$` matches only the very end; `$nor` works within `$elemMatch` and
//! similar operators, where CouchDB fails; `$mod` by 0 and names with an empty part are refused when the
//! selector is parsed; `$text` is refused, since there are no text indexes; errors show an argument as JSON.

mod constant;
mod constants;
mod fields;
#[cfg(test)]
pub(crate) mod fuzz;
mod parse;
mod paths;
mod raw;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod work;

use std::cmp::Ordering;

pub use fields::Fields;

use self::constant::{Constant, Order};
use self::constants::Constants;
use self::paths::Paths;
use self::raw::{Members, Raw, ValueKind};
use crate::document::{Document, Extras};

/// Largest nesting depth of a selector, its values included.
const NESTING_MAX: usize = 100;

/// Largest size of a selector's text in bytes.
pub const SELECTOR_BYTES_MAX: usize = 1 << 20;

/// Largest number of conditions of a selector.
const CONDITIONS_MAX: usize = 10_000;

/// Largest number of conditions that may walk a whole value, or are evaluated for each of its elements.
const WALKS_MAX: usize = 500;

/// Largest number of values in a selector's `$in`, `$nin` and `$all` lists, which are sorted during parsing.
const LISTED_MAX: usize = 100_000;

/// Largest total size in bytes of the conditions' paths: a long name around many conditions is stored for
/// each of them.
const PATH_BYTES_MAX: usize = 1 << 20;

/// Largest number of regular expressions of a selector.
const REGEXES_MAX: usize = 64;

/// Largest size in bytes of a compiled regular expression, and of its state cache.
const REGEX_BYTES_MAX: usize = 256 << 10;

/// Largest number of bytes of an argument shown in an error.
const SHOWN_BYTES_MAX: usize = 200;

/// Why a selector is refused: CouchDB's error name, and a reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SelectorError {
    /// `bad_arg`, `invalid_operator`, `invalid_selector`, ….
    pub error: &'static str,
    /// The reason.
    pub reason: String,
}

impl SelectorError {
    fn new(error: &'static str, reason: impl Into<String>) -> SelectorError {
        SelectorError { error, reason: reason.into() }
    }

    fn bad_json() -> SelectorError {
        SelectorError::new("bad_request", "invalid UTF-8 JSON")
    }

    fn too_deep() -> SelectorError {
        SelectorError::new("invalid_selector", format!("A selector nests at most {NESTING_MAX} deep."))
    }

    fn bad_argument(operator: &str, argument: Raw<'_>) -> SelectorError {
        let mut shown = argument.0;
        if shown.len() > SHOWN_BYTES_MAX {
            shown = &shown[..shown.floor_char_boundary(SHOWN_BYTES_MAX)];
        }
        SelectorError::new("bad_arg", format!("Bad argument for operator {operator}: {shown}"))
    }
}

/// A parsed selector.
#[derive(Debug, Clone)]
pub struct Selector {
    /// `None`: every document matches.
    root: Option<Node>,
    /// The paths of the fields in its conditions.
    paths: Paths,
    /// The members of a document that it reads, sorted.
    names: Vec<String>,
    /// Whether it reads the document as a whole.
    needs_whole: bool,
}

/// A condition, or a combination of conditions.
#[derive(Debug, Clone)]
enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Field { path: Path, test: Test },
}

/// Path of a field: member names and array indexes, from the outside in. Empty: the value itself.
#[derive(Debug, Clone)]
struct Path {
    parts: Vec<String>,
    is_id: bool,
    /// Index among the selector's paths, for the path of a document's field.
    place: usize,
}

/// A condition on a field's value.
#[derive(Debug, Clone)]
enum Test {
    Compare(Comparison, Constant),
    In(Constants),
    NotIn(Constants),
    Exists(bool),
    Type(String),
    Size(i128),
    Remainder { divisor: i128, rest: i128 },
    Regex(regex::bytes::Regex),
    BeginsWith(String),
    All(Constants),
    AnyElement(Box<Node>),
    EachElement(Box<Node>),
    AnyKey(Box<Node>),
    Not(Box<Test>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
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
enum Subject<'a> {
    /// A document: its values at the selector's paths.
    Document(&'a [Found<'a>]),
    Value(Raw<'a>),
}

/// The value at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found<'a> {
    Value(Raw<'a>),
    Missing,
    /// The path leads through a value without members.
    NoPath,
}

impl Selector {
    /// Parses a selector from JSON text.
    ///
    /// # Errors
    /// CouchDB's error for an invalid selector: see [`SelectorError`]. Beyond a limit, `invalid_selector`.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        parse::selector(text)
    }

    /// Whether a document matches: its members, and `_id`, `_rev`, `_deleted`, `_attachments` and the members
    /// in `extras`.
    pub fn matches(&self, document: &Document, extras: &Extras) -> bool {
        let Some(root) = &self.root else { return true };
        let mut reserved = Vec::new();
        let mut whole = Vec::new();
        if self.needs_whole {
            document.write_json(extras, &mut whole);
        } else if self.names.iter().any(|name| name.starts_with('_')) {
            let bare = Document { body: bytes::Bytes::new(), ..document.clone() };
            bare.write_json(extras, &mut reserved);
        }
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or("");
        let reserved = Raw::new(text(&reserved)).members();
        let members = Members::of(text(&document.body));
        let found = match self.needs_whole {
            true => self.paths.find(Raw::new(text(&whole))),
            false => self.paths.find_among(members.chain(reserved)),
        };
        root.holds(Subject::Document(&found), Order::Collated)
    }

    /// Whether an object, given as JSON text, matches.
    pub fn matches_json(&self, object: &str) -> bool {
        let Some(root) = &self.root else { return true };
        root.holds(Subject::Document(&self.paths.find(Raw::new(object))), Order::Collated)
    }

    /// Whether the result depends on a document's body or attachments, and not only on the part of it in the
    /// index: `_id`, `_rev`, `_deleted` and `_conflicts`.
    pub fn needs_body(&self) -> bool {
        let in_index = |name: &String| ["_id", "_rev", "_deleted", "_conflicts"].contains(&name.as_str());
        self.needs_whole || !self.names.iter().all(in_index)
    }

    /// Whether it reads `_conflicts`.
    pub fn needs_conflicts(&self) -> bool {
        self.needs_whole || self.names.iter().any(|name| name == "_conflicts")
    }
}

impl Node {
    fn holds(&self, subject: Subject<'_>, order: Order) -> bool {
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
}

impl<'a> Subject<'a> {
    fn find(self, path: &Path) -> Found<'a> {
        match self {
            Subject::Document(found) => found[path.place],
            Subject::Value(value) => find_within(value, &path.parts),
        }
    }
}

fn find_within<'a>(mut value: Raw<'a>, parts: &[String]) -> Found<'a> {
    for part in parts {
        let next = match value.kind() {
            ValueKind::Object => match value.member(part) {
                Some(next) => next,
                None => return Found::Missing,
            },
            ValueKind::Array => {
                let place = part.parse::<i64>().ok().and_then(|place| usize::try_from(place).ok());
                match place.and_then(|place| value.elements().nth(place)) {
                    Some(next) => next,
                    None => return Found::NoPath,
                }
            }
            _ => return Found::NoPath,
        };
        value = next;
    }
    Found::Value(value)
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
                Some(raw::Number::Integer(integer)) => integer.wrapping_rem(*divisor) == *rest,
                _ => false,
            },
            Test::Regex(regex) => value.text().is_some_and(|text| regex.is_match(text.as_bytes())),
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
    fn walks(&self) -> bool {
        match self {
            Test::Compare(_, constant) => matches!(constant, Constant::Array(_) | Constant::Object(_)),
            Test::Exists(_) | Test::Type(_) | Test::Remainder { .. } | Test::BeginsWith(_) => false,
            Test::Not(test) => test.walks(),
            _ => true,
        }
    }

    /// The condition that holds for the existing values for which this one doesn't.
    fn negated(self) -> Test {
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
