//! Mango's selectors: conditions on documents, as `_find` and `_changes` take them.
//!
//! A selector is parsed once, into a tree. A document is matched as the text that it is stored as:
//! one walk over its members finds those that the selector names, and conditions are then decided
//! in their text. Nothing is built of what the selector doesn't ask about.
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
mod fields;
#[cfg(test)]
pub(crate) mod fuzz;
mod parse;
mod raw;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

pub use fields::Fields;

use self::constant::{Constant, Order};
use self::raw::{Kind, Members, Raw};
use crate::document::{Document, Extras};

/// How deep a selector may nest, its values included.
const NESTING_MAX: usize = 100;

/// Bytes of a selector's text.
pub const SELECTOR_BYTES_MAX: usize = 1 << 20;

/// Conditions of a selector: each may walk a document's value.
const CONDITIONS_MAX: usize = 10_000;

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
}

/// What a field's value is asked.
#[derive(Debug, Clone)]
enum Test {
    Compare(Comparison, Constant),
    In(Vec<Constant>),
    NotIn(Vec<Constant>),
    Exists(bool),
    Type(String),
    Size(i128),
    Remainder { divisor: i128, rest: i128 },
    Regex(regex::bytes::Regex),
    BeginsWith(String),
    All(Vec<Constant>),
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
    /// A document: what it has of the members that the selector names, and its text where that is
    /// looked at as a whole.
    Document(&'a [(&'a str, Option<Raw<'a>>)], Option<Raw<'a>>),
    Value(Raw<'a>),
}

/// What was found at a path.
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
        if self.root.is_none() {
            return true;
        }
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
        let whole = self.needs_whole.then(|| Raw::new(text(&whole)));
        match whole {
            Some(whole) => self.matches_members(whole.members(), Some(whole)),
            None => self.matches_members(members.chain(reserved), None),
        }
    }

    /// Whether an object, as JSON text, matches.
    pub fn matches_json(&self, object: &str) -> bool {
        let whole = Raw::new(object);
        self.matches_members(whole.members(), Some(whole))
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

    fn matches_members<'a>(
        &'a self,
        members: impl Iterator<Item = (Raw<'a>, Raw<'a>)>,
        whole: Option<Raw<'a>>,
    ) -> bool {
        let Some(root) = &self.root else { return true };
        let mut found: Vec<(&str, Option<Raw<'_>>)> =
            self.names.iter().map(|name| (name.as_str(), None)).collect();
        for (name, value) in members {
            let Some(name) = name.text() else { continue };
            // The last of two of the same name counts.
            if let Ok(place) = found.binary_search_by(|(wanted, _)| (*wanted).cmp(&name)) {
                found[place].1 = Some(value);
            }
        }
        root.holds(Subject::Document(&found, whole), Order::Collated)
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
                match subject.find(&path.parts) {
                    Found::Value(value) => test.holds(value, order),
                    Found::Missing => matches!(test, Test::Exists(false)),
                    Found::NoPath => false,
                }
            }
        }
    }
}

impl<'a> Subject<'a> {
    fn find(self, parts: &[String]) -> Found<'a> {
        let (value, rest) = match (self, parts) {
            (Subject::Value(value), parts) => (value, parts),
            (Subject::Document(_, whole), []) => return whole.map_or(Found::Missing, Found::Value),
            (Subject::Document(members, _), [first, rest @ ..]) => {
                let place = members.binary_search_by(|(name, _)| (*name).cmp(first));
                match place.ok().and_then(|place| members[place].1) {
                    Some(value) => (value, rest),
                    None => return Found::Missing,
                }
            }
        };
        find_within(value, rest)
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
            Test::All(constants) => is_array() && has_all(value, constants),
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
fn is_in(value: Raw<'_>, constants: &[Constant], order: Order) -> bool {
    let is_one = |value| constants.iter().any(|constant| constant.order_of(value, order).is_eq());
    match value.kind() {
        Kind::Array => value.elements().any(is_one),
        _ => is_one(value),
    }
}

/// Whether an array has all `constants`, or is the only one.
fn has_all(array: Raw<'_>, constants: &[Constant]) -> bool {
    match constants {
        [] => false,
        [only @ Constant::Array(_)] if only.is(array, false) => true,
        constants => {
            constants.iter().all(|constant| array.elements().any(|element| constant.is(element, true)))
        }
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
