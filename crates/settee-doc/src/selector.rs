//! Mango's selectors: conditions on documents, as `_find` and `_changes` take them.
//!
//! A selector is parsed once, into a tree. A document is matched as the text that it is stored as:
//! one walk over it finds all that the selector names, and conditions are then decided in its text.
//! Nothing is built of what the selector doesn't ask about.
//!
//! Work is bounded by the document's size: a value is looked up among the constants of `$in` and its like,
//! which are sorted; and of the conditions that may walk a value anew, or are asked of each of its
//! elements, a selector has at most `WALKS_MAX`.
//!
//! What a selector means is what CouchDB 3.5 makes of it, oddities included:
//! 1. A negation is pushed down to the conditions, each of which needs its field to be there: with
//!    `$not` as without it a document that lacks the field doesn't match (`$exists` apart). Within
//!    `$elemMatch`, `$allMatch` and `$keyMapMatch` it isn't pushed, and is what it says.
//! 2. Values are ordered as views order them, strings by collation; those of `_id` by their bytes.
//! 3. Empty `$and` and `$or` match, an empty `$all` doesn't.
//!
//! Where it differs: `$regex` is an automaton's, without look-around and back-references (400, not
//! a search that may take for ever), whose `$` is the very end; `$nor` works within `$elemMatch` and
//! its like, where CouchDB fails; `$mod` by 0 and names with an empty part are refused when the
//! selector is read; `$text` is refused, for want of text indexes; an argument is shown as JSON.

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
use self::raw::{Kind, Members, Raw};
use crate::document::{Document, Extras};

/// How deep a selector may nest, its values included.
const NESTING_MAX: usize = 100;

/// Bytes of a selector's text.
pub const SELECTOR_BYTES_MAX: usize = 1 << 20;

/// Conditions of a selector.
const CONDITIONS_MAX: usize = 10_000;

/// Of these, how many may walk the whole of a value, or are asked of each of its elements.
const WALKS_MAX: usize = 500;

/// Values in the lists of a selector's `$in`, `$nin` and `$all`: they are sorted when it is read.
const LISTED_MAX: usize = 100_000;

/// Bytes of the names that lead to a selector's conditions, each with those that it lies in: a long name
/// with many conditions is kept for each of them.
const PATH_BYTES_MAX: usize = 1 << 20;

/// Regular expressions of a selector.
const REGEXES_MAX: usize = 64;

/// Bytes of a regular expression as an automaton, and of the states that are kept of it.
const REGEX_BYTES_MAX: usize = 256 << 10;

/// Bytes of an argument that an error shows.
const SHOWN_BYTES_MAX: usize = 200;

/// Why a selector is refused: CouchDB's name for it, and its reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SelectorError {
    /// `bad_arg`, `invalid_operator`, `invalid_selector`, ….
    pub error: &'static str,
    /// What is wrong with it.
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

/// A condition on documents.
#[derive(Debug, Clone)]
pub struct Selector {
    /// None: every document matches.
    root: Option<Node>,
    /// Where the fields lie that its conditions are on.
    paths: Paths,
    /// The members of a document that it looks at, sorted.
    names: Vec<String>,
    /// Whether it looks at a document as a whole.
    needs_whole: bool,
}

/// A combination of conditions, or one.
#[derive(Debug, Clone)]
enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Field { path: Path, test: Test },
}

/// Where a field lies: the names, or places in arrays, from the outside in. Empty: the value itself.
#[derive(Debug, Clone)]
struct Path {
    parts: Vec<String>,
    is_id: bool,
    /// Among those of the selector, where it is one of a document.
    place: usize,
}

/// What a field's value is asked.
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

/// What is matched.
#[derive(Clone, Copy)]
enum Subject<'a> {
    /// A document: what it has of the paths that the selector names.
    Document(&'a [Found<'a>]),
    Value(Raw<'a>),
}

/// What was found at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found<'a> {
    Value(Raw<'a>),
    Missing,
    /// The path leads through what has no members.
    NoPath,
}

impl Selector {
    /// Reads a selector from JSON text.
    ///
    /// # Errors
    /// CouchDB's for what it can't be: see [`SelectorError`]. Past a limit, `invalid_selector`.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        parse::selector(text)
    }

    /// Whether a document matches: its members, and `_id`, `_rev`, `_deleted`, `_attachments` and
    /// what `extras` adds to them.
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

    /// Whether an object, as JSON text, matches.
    pub fn matches_json(&self, object: &str) -> bool {
        let Some(root) = &self.root else { return true };
        root.holds(Subject::Document(&self.paths.find(Raw::new(object))), Order::Collated)
    }

    /// Whether what it says of a document depends on its body or its attachments, and not only on
    /// what the index has of it: `_id`, `_rev` and `_deleted`.
    pub fn needs_body(&self) -> bool {
        let in_index = |name: &String| ["_id", "_rev", "_deleted", "_conflicts"].contains(&name.as_str());
        self.needs_whole || !self.names.iter().all(in_index)
    }

    /// Whether it asks about `_conflicts`.
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
            Kind::Object => match value.member(part) {
                Some(next) => next,
                None => return Found::Missing,
            },
            Kind::Array => {
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
        let is_array = || value.kind() == Kind::Array;
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

    /// Whether deciding it may take a walk through all of a value.
    fn walks(&self) -> bool {
        match self {
            Test::Compare(_, constant) => matches!(constant, Constant::Array(_) | Constant::Object(_)),
            Test::Exists(_) | Test::Type(_) | Test::Remainder { .. } | Test::BeginsWith(_) => false,
            Test::Not(test) => test.walks(),
            _ => true,
        }
    }

    /// The condition that holds where this one doesn't, of what is there.
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

/// Whether a value, or one of an array's elements, is among `constants`.
fn is_in(value: Raw<'_>, constants: &Constants, order: Order) -> bool {
    match value.kind() {
        Kind::Array => value.elements().any(|element| constants.has(element, order)),
        _ => constants.has(value, order),
    }
}

fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Null => "null",
        Kind::False | Kind::True => "boolean",
        Kind::Number => "number",
        Kind::Text => "string",
        Kind::Array => "array",
        Kind::Object => "object",
    }
}
