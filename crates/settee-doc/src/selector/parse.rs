//! Parsing of selectors into conditions on fields and their combinations.

use std::borrow::Cow;
use std::collections::HashMap;

use regex_automata::meta::{BuildError, Regex};
use regex_automata::util::syntax;
use serde_json::value::RawValue;

use super::condition::{Comparison, Node, Path, Test};
use super::constant::Constant;
use super::constants::Constants;
use super::error::SelectorError;
use super::limits::{
    CONDITIONS_MAX, LISTED_MAX, NESTING_MAX, PATH_BYTES_MAX, PATTERN_BYTES_MAX, REGEX_CACHE_BYTES_MAX,
    REGEXES_BYTES_MAX, REGEXES_MAX, SELECTOR_BYTES_MAX, WALKS_MAX,
};
use super::paths::parse_path;
use super::raw::{Number, Raw, ValueKind};

/// The context of a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// No negation.
    Plain,
    /// A negation around it is pushed down to it.
    Negated,
    /// Within `$elemMatch` or a similar operator, where negations aren't pushed down.
    Inside,
}

/// Parses a selector into its condition; `None`: every document matches. With `allows_text`, `$text` matches
/// every document instead of being refused.
/// Returns also the total size in bytes of its compiled regular expressions.
pub(super) fn condition(text: &str, allows_text: bool) -> Result<Option<(Node, usize)>, SelectorError> {
    if text.len() > SELECTOR_BYTES_MAX {
        let reason = format!("A selector has at most {SELECTOR_BYTES_MAX} bytes.");
        return Err(SelectorError::new("invalid_selector", reason));
    }
    let raw = serde_json::from_str::<&RawValue>(text).map_err(|_| SelectorError::bad_json())?;
    let raw = Raw::new(raw.get());
    if raw.kind() != ValueKind::Object {
        let reason = format!("Selector must be a JSON object, not: {}", raw.0);
        return Err(SelectorError::new("invalid_selector_json", reason));
    }
    if raw.members().next().is_none() {
        return Ok(None);
    }
    let mut parser = Parser { allows_text, ..Parser::default() };
    let root = parser.node(raw, "", Mode::Plain, 0)?;
    if matches!(&root, Node::Field { path, .. } if path.parts.is_empty()) {
        let reason = "One or more conditions is missing a field name.";
        return Err(SelectorError::new("invalid_selector", reason));
    }
    Ok(Some((root, parser.regex_bytes)))
}

#[derive(Default)]
struct Parser {
    allows_text: bool,
    condition_count: usize,
    path_bytes: usize,
    regex_count: usize,
    pattern_bytes: usize,
    regex_bytes: usize,
    walk_count: usize,
    listed_count: usize,
}

impl Parser {
    /// Parses the condition `value` on the field at `path`.
    fn node(&mut self, value: Raw<'_>, path: &str, mode: Mode, depth: usize) -> Result<Node, SelectorError> {
        if depth > NESTING_MAX {
            return Err(SelectorError::too_deep());
        }
        self.condition_count += 1;
        if self.condition_count > CONDITIONS_MAX {
            let reason = format!("A selector has at most {CONDITIONS_MAX} conditions.");
            return Err(SelectorError::new("invalid_selector", reason));
        }
        let mut members = members_of(value)?;
        // The path counts once per member, or once if there is none.
        self.path_bytes = self.path_bytes.saturating_add(path.len().saturating_mul(members.len().max(1)));
        if self.path_bytes > PATH_BYTES_MAX {
            let reason = format!("The names in a selector have at most {PATH_BYTES_MAX} bytes.");
            return Err(SelectorError::new("invalid_selector", reason));
        }
        match members.len() {
            0 => {
                let constant = Constant::parse(value, depth)?;
                self.leaf(Test::Compare(Comparison::Equal, constant), path, mode)
            }
            1 => {
                let (name, value) = members.remove(0);
                self.member(&name, value, path, mode, depth)
            }
            _ => {
                let nodes = members.iter().map(|(name, value)| self.member(name, *value, path, mode, depth));
                let nodes = nodes.collect::<Result<_, _>>()?;
                Ok(if mode == Mode::Negated { Node::Or(nodes) } else { Node::And(nodes) })
            }
        }
    }

    /// Parses the condition of a selector's member.
    fn member(
        &mut self,
        name: &str,
        value: Raw<'_>,
        path: &str,
        mode: Mode,
        depth: usize,
    ) -> Result<Node, SelectorError> {
        match name {
            "$and" | "$or" | "$nor" => self.combination(name, value, path, mode, depth),
            "$not" if value.kind() != ValueKind::Object => Err(SelectorError::bad_argument(name, value)),
            "$not" => match mode {
                Mode::Plain => self.node(value, path, Mode::Negated, depth + 1),
                Mode::Negated => self.node(value, path, Mode::Plain, depth + 1),
                Mode::Inside => Ok(Node::Not(Box::new(self.node(value, path, mode, depth + 1)?))),
            },
            "$text" if self.allows_text => text_search(value, path, mode),
            name if name.starts_with('$') => {
                let test = self.test(name, value, depth)?;
                self.leaf(test, path, mode)
            }
            name if path.is_empty() => self.node(value, name, mode, depth + 1),
            name => self.node(value, &format!("{path}.{name}"), mode, depth + 1),
        }
    }

    fn combination(
        &mut self,
        name: &str,
        list: Raw<'_>,
        path: &str,
        mode: Mode,
        depth: usize,
    ) -> Result<Node, SelectorError> {
        if list.kind() != ValueKind::Array {
            return Err(SelectorError::bad_argument(name, list));
        }
        let within = match (name, mode) {
            ("$nor", Mode::Plain) => Mode::Negated,
            ("$nor", Mode::Negated) => Mode::Plain,
            (_, mode) => mode,
        };
        let mut nodes = Vec::new();
        for value in list.elements() {
            let node = self.node(value, path, within, depth + 1)?;
            let inverted = name == "$nor" && mode == Mode::Inside;
            nodes.push(if inverted { Node::Not(Box::new(node)) } else { node });
        }
        // None of them; negated: not all of them.
        let all = match name {
            "$or" => mode == Mode::Negated,
            _ => mode != Mode::Negated,
        };
        Ok(if all { Node::And(nodes) } else { Node::Or(nodes) })
    }

    fn test(&mut self, name: &str, value: Raw<'_>, depth: usize) -> Result<Test, SelectorError> {
        let bad = || SelectorError::bad_argument(name, value);
        let constant = || Constant::parse(value, depth + 1);
        let compare = |comparison| Ok(Test::Compare(comparison, constant()?));
        match name {
            "$lt" => compare(Comparison::Less),
            "$lte" => compare(Comparison::LessOrEqual),
            "$eq" => compare(Comparison::Equal),
            "$ne" => compare(Comparison::NotEqual),
            "$gte" => compare(Comparison::GreaterOrEqual),
            "$gt" => compare(Comparison::Greater),
            "$in" | "$nin" | "$all" => {
                let Constant::Array(constants) = constant()? else { return Err(bad()) };
                self.listed_count += constants.len();
                if self.listed_count > LISTED_MAX {
                    let reason = format!("A selector's lists have at most {LISTED_MAX} values.");
                    return Err(SelectorError::new("invalid_selector", reason));
                }
                let constants = Constants::new(constants);
                Ok(match name {
                    "$in" => Test::In(constants),
                    "$nin" => Test::NotIn(constants),
                    _ => Test::All(constants),
                })
            }
            "$exists" => match value.kind() {
                ValueKind::True => Ok(Test::Exists(true)),
                ValueKind::False => Ok(Test::Exists(false)),
                _ => Err(bad()),
            },
            "$type" => Ok(Test::Type(value.text().ok_or_else(bad)?.into_owned())),
            "$size" => match integer(value) {
                Some(size) if size >= 0 => Ok(Test::Size(size)),
                _ => Err(bad()),
            },
            "$mod" => {
                let numbers: Vec<_> = value.elements().take(3).map(integer).collect();
                match numbers[..] {
                    [Some(divisor), Some(rest)] if divisor != 0 => Ok(Test::Remainder { divisor, rest }),
                    _ => Err(bad()),
                }
            }
            "$elemMatch" | "$allMatch" | "$keyMapMatch" => {
                if value.kind() != ValueKind::Object {
                    return Err(bad());
                }
                let node = Box::new(self.node(value, "", Mode::Inside, depth + 1)?);
                Ok(match name {
                    "$elemMatch" => Test::AnyElement(node),
                    "$allMatch" => Test::EachElement(node),
                    _ => Test::AnyKey(node),
                })
            }
            // For a value that isn't a string, CouchDB reports an unknown operator.
            "$regex" if value.kind() == ValueKind::Text => self.regex(value).map(Test::Regex),
            "$beginsWith" if value.kind() == ValueKind::Text => {
                Ok(Test::BeginsWith(value.text().ok_or_else(SelectorError::bad_json)?.into_owned()))
            }
            "$text" | "$where" | "$geoWithin" | "$geoIntersects" | "$near" | "$nearSphere" => {
                Err(SelectorError::new("not_supported", format!("Unsupported operator: {name}")))
            }
            _ => Err(SelectorError::new("invalid_operator", format!("Invalid operator: {name}"))),
        }
    }

    fn leaf(&mut self, test: Test, path: &str, mode: Mode) -> Result<Node, SelectorError> {
        self.walk_count += usize::from(mode == Mode::Inside || test.walks());
        if self.walk_count > WALKS_MAX {
            let reason =
                format!("A selector has at most {WALKS_MAX} conditions that look into arrays and objects.");
            return Err(SelectorError::new("invalid_selector", reason));
        }
        let test = if mode == Mode::Negated { test.negated() } else { test };
        let path = Path { parts: parse_path(path)?, is_id: path == "_id", place: 0 };
        Ok(Node::Field { path, test })
    }

    /// Matches bytes, as PCRE does for CouchDB; characters if the expression requires it.
    fn regex(&mut self, value: Raw<'_>) -> Result<Regex, SelectorError> {
        let too_much = |reason| Err(SelectorError::new("invalid_selector", reason));
        self.regex_count += 1;
        if self.regex_count > REGEXES_MAX {
            return too_much(format!("A selector has at most {REGEXES_MAX} regular expressions."));
        }
        let pattern = value.text().ok_or_else(SelectorError::bad_json)?;
        self.pattern_bytes += pattern.len();
        if self.pattern_bytes > PATTERN_BYTES_MAX {
            let reason =
                format!("The regular expressions of a selector have at most {PATTERN_BYTES_MAX} bytes.");
            return too_much(reason);
        }
        let bytes_max = REGEXES_BYTES_MAX - self.regex_bytes;
        let is_syntax = |error: &BuildError| error.syntax_error().is_some();
        let regex = match compile(&pattern, false, bytes_max) {
            Err(error) if is_syntax(&error) => compile(&pattern, true, bytes_max),
            compiled => compiled,
        };
        match regex {
            Ok(regex) if regex.memory_usage() <= bytes_max => {
                self.regex_bytes += regex.memory_usage();
                Ok(regex)
            }
            Err(error) if error.size_limit().is_none() => Err(SelectorError::bad_argument("$regex", value)),
            _ => too_much(format!(
                "The regular expressions of a selector have at most {REGEXES_BYTES_MAX} bytes when compiled."
            )),
        }
    }
}

/// Compiles a regular expression for matching only. Each of its programs has at most `bytes_max` bytes.
fn compile(pattern: &str, unicode: bool, bytes_max: usize) -> Result<Regex, Box<BuildError>> {
    let config = Regex::config()
        .utf8_empty(false)
        .nfa_size_limit(Some(bytes_max))
        .hybrid_cache_capacity(REGEX_CACHE_BYTES_MAX);
    let syntax = syntax::Config::new().unicode(unicode).utf8(false);
    Regex::builder().configure(config).syntax(syntax).build(pattern).map_err(Box::new)
}

/// The condition `$text` without a text index, which every document meets. It can't be on a field, or negated.
fn text_search(argument: Raw<'_>, path: &str, mode: Mode) -> Result<Node, SelectorError> {
    let is_scalar = !matches!(argument.kind(), ValueKind::Null | ValueKind::Array | ValueKind::Object);
    if !is_scalar {
        return Err(SelectorError::bad_argument("$text", argument));
    }
    if !path.is_empty() {
        let reason = format!("Invalid field normalization on selector: {{\"$text\":{}}}", argument.0);
        return Err(SelectorError::new("bad_field", reason));
    }
    match mode {
        Mode::Negated => Err(SelectorError::bad_argument("$not", argument)),
        Mode::Plain | Mode::Inside => Ok(Node::And(Vec::new())),
    }
}

fn integer(value: Raw<'_>) -> Option<i128> {
    match value.number()? {
        Number::Integer(integer) => Some(integer),
        Number::Float(_) => None,
    }
}

/// An object's members; of repeated names the last.
fn members_of(object: Raw<'_>) -> Result<Vec<(Cow<'_, str>, Raw<'_>)>, SelectorError> {
    let mut members: Vec<(Cow<'_, str>, Raw<'_>)> = Vec::new();
    let mut places = HashMap::new();
    for (name, value) in object.members() {
        let name = name.text().ok_or_else(SelectorError::bad_json)?;
        let place = *places.entry(name.clone()).or_insert(members.len());
        match members.get_mut(place) {
            Some(member) => member.1 = value,
            None => members.push((name, value)),
        }
    }
    Ok(members)
}
