//! Document ids, assigned so that loading the same input again yields the same ids.
//!
//! The id is the document's `_id`, else the member that the user named, else a hash of the content. Equal
//! documents of one input are numbered: the second gets the hash followed by `-2`. The counts are kept in a
//! sketch of fixed size. It may overestimate a count if hashes share counters; it never underestimates one
//! and never returns the same count twice for equal documents. So ids are distinct, and deterministic for the
//! same input, for any number of documents.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// Number of rows of the sketch. A count is overestimated only if the hash collides in every row.
const SKETCH_ROWS: usize = 4;

/// Number of counters in a row. The sketch has 8 MiB in all.
const SKETCH_WIDTH: usize = 1 << 19;

/// Prefix of local documents' ids.
const LOCAL_PREFIX: &str = "_local/";

/// A document to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputDocument {
    /// Line of the input where it begins.
    pub(crate) line: u64,
    pub(crate) id: String,
    /// Whether the id is derived from the content, so that an existing document with the id is equal.
    pub(crate) is_derived: bool,
    /// The value of `_rev`, which is kept.
    pub(crate) revision: Option<String>,
    /// Whether it has `_revisions`. Such a document is merged into its revision tree as in replication.
    pub(crate) has_history: bool,
    /// Whether the text contains attachments.
    pub(crate) has_attachments: bool,
    /// The JSON text, including `_id`.
    pub(crate) text: Vec<u8>,
}

/// Assigns ids to documents.
#[derive(Debug)]
pub(crate) struct Identifier {
    member: Option<String>,
    sketch: Sketch,
    minified: Vec<u8>,
}

impl InputDocument {
    /// Whether it is a local document, which isn't in the changes feed and isn't replicated.
    pub(crate) fn is_local(&self) -> bool {
        self.id.starts_with(LOCAL_PREFIX)
    }

    /// Returns the key that must be unique within a batch: the id, and the revision of a document with
    /// history.
    pub(crate) fn key(&self) -> (String, Option<String>) {
        (self.id.clone(), self.revision.clone().filter(|_| self.has_history))
    }
}

impl Identifier {
    /// Creates an identifier that reads ids from `member`, or derives them from the content if it is None.
    pub(crate) fn new(member: Option<String>) -> Identifier {
        Identifier { member, sketch: Sketch::default(), minified: Vec::new() }
    }

    /// Checks that `text` is a JSON object and determines its id. `text` must have no surrounding white
    /// space, and begins at `line` of the input.
    ///
    /// # Errors
    /// The line of the error, which may follow `line`, and its description.
    pub(crate) fn identify(&mut self, line: u64, text: &[u8]) -> Result<InputDocument, (u64, String)> {
        let here = |reason: String| (line, reason);
        let utf8 = std::str::from_utf8(text).map_err(|error| here(format!("not UTF-8: {error}")))?;
        let members =
            IdMembers::parse(utf8, self.member.as_deref()).map_err(|error| at_line(line, &error))?;
        let text_id = |value: Value, name: &str| match value {
            Value::String(id) if !id.is_empty() => Ok(id),
            Value::Number(number) if name != "_id" => Ok(number.to_string()),
            _ => Err(here(format!("the member \"{name}\" is not a valid id"))),
        };
        let revision = match members.revision {
            None => None,
            Some(Value::String(revision)) => Some(revision),
            Some(_) => return Err(here("the member \"_rev\" is not a revision".to_owned())),
        };
        if members.has_history && revision.is_none() {
            return Err(here("the document has \"_revisions\" but no \"_rev\"".to_owned()));
        }
        if let Some(name) = members.attachments.as_ref().and_then(Attachments::without_content) {
            return Err(here(format!(
                "attachment {name:?} is a stub without content: use `settee dump --attachments`, or \
                 _all_docs with attachments=true"
            )));
        }
        let has_id = members.id.is_some();
        let (has_history, has_attachments) = (members.has_history, members.attachments.is_some());
        let (id, is_derived) = match (members.id, &self.member) {
            (Some(id), _) => (text_id(id, "_id")?, false),
            (None, _) if revision.is_some() => {
                return Err(here("the document has a \"_rev\" but no \"_id\"".to_owned()));
            }
            (None, Some(name)) => {
                let value = members.named.ok_or_else(|| here(format!("there is no member \"{name}\"")))?;
                (text_id(value, name)?, false)
            }
            (None, None) => (self.derive(text), true),
        };
        let text = if has_id { text.to_vec() } else { with_id(&id, text) };
        Ok(InputDocument { line, id, is_derived, revision, has_history, has_attachments, text })
    }

    fn derive(&mut self, text: &[u8]) -> String {
        self.minified.clear();
        minify(text, &mut self.minified);
        let hash = blake3::hash(&self.minified);
        let count = self.sketch.count(hash.as_bytes());
        let id = &hash.to_hex()[..32];
        if count == 1 { id.to_owned() } else { format!("{id}-{count}") }
    }
}

fn with_id(id: &str, text: &[u8]) -> Vec<u8> {
    let rest = text[1..].trim_ascii_start();
    let comma = if rest == b"}" { "" } else { "," };
    let mut out = format!("{{\"_id\":{}{comma}", Value::from(id)).into_bytes();
    out.extend_from_slice(rest);
    out
}

/// Converts a parser's error: the line in the document becomes the line in the input.
fn at_line(line: u64, error: &serde_json::Error) -> (u64, String) {
    let text = error.to_string();
    let reason = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    (line + (error.line() as u64).saturating_sub(1), format!("{reason} at column {}", error.column()))
}

/// Appends JSON text to `out` without white space outside of strings. `text` must be valid JSON.
pub(crate) fn minify(text: &[u8], out: &mut Vec<u8>) {
    let (mut in_string, mut is_escaped) = (false, false);
    for &byte in text {
        if !in_string && matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            continue;
        }
        out.push(byte);
        match (in_string, is_escaped, byte) {
            (true, true, _) => is_escaped = false,
            (true, false, b'\\') => is_escaped = true,
            (_, _, b'"') => in_string = !in_string,
            _ => {}
        }
    }
}

/// The members that determine a document's id, revision and attachments.
#[derive(Debug, Default)]
struct IdMembers {
    id: Option<Value>,
    revision: Option<Value>,
    named: Option<Value>,
    has_history: bool,
    attachments: Option<Attachments>,
}

/// A document's attachments without their content.
#[derive(Debug, Deserialize)]
struct Attachments(BTreeMap<String, Attachment>);

#[derive(Debug, Deserialize)]
struct Attachment {
    #[serde(default)]
    stub: bool,
    #[serde(default)]
    follows: bool,
}

impl Attachments {
    /// Returns the name of an attachment whose content isn't in the document.
    fn without_content(&self) -> Option<&str> {
        let missing = self.0.iter().find(|(_, attachment)| attachment.stub || attachment.follows);
        missing.map(|(name, _)| name.as_str())
    }
}

impl IdMembers {
    /// Parses the whole text and keeps only these members. `name` is the member that the user named.
    fn parse(text: &str, name: Option<&str>) -> serde_json::Result<IdMembers> {
        let mut parser = serde_json::Deserializer::from_str(text);
        let members = IdMembersSeed(name).deserialize(&mut parser)?;
        parser.end()?;
        Ok(members)
    }
}

struct IdMembersSeed<'a>(Option<&'a str>);

impl<'de> DeserializeSeed<'de> for IdMembersSeed<'_> {
    type Value = IdMembers;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<IdMembers, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IdMembersSeed<'_> {
    type Value = IdMembers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a document, which is a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IdMembers, A::Error> {
        let mut members = IdMembers::default();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            let member = match key.as_ref() {
                "_id" => &mut members.id,
                "_rev" => &mut members.revision,
                "_attachments" => {
                    members.attachments = Some(map.next_value()?);
                    continue;
                }
                key if Some(key) == self.0 => &mut members.named,
                _ => {
                    members.has_history |= key == "_revisions";
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if member.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom(format!("the member \"{key}\" comes twice")));
            }
        }
        Ok(members)
    }
}

/// Deserializes a key, borrowed from the text unless it contains escapes.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

/// Counts occurrences of hashes in fixed memory: a count-min sketch with conservative update.
///
/// Successive counts of one hash increase strictly: raising the smallest of its counters raises the smallest
/// value that the next count can read.
///
/// Source: Cormode and Muthukrishnan 2005; Estan and Varghese 2002.
#[derive(Debug, Default)]
struct Sketch {
    counters: Vec<u32>,
}

impl Sketch {
    /// Counts an occurrence of `hash`. Returns the number of occurrences so far including this one, or more.
    fn count(&mut self, hash: &[u8; 32]) -> u32 {
        if self.counters.is_empty() {
            self.counters = vec![0; SKETCH_ROWS * SKETCH_WIDTH];
        }
        let cells: [usize; SKETCH_ROWS] = std::array::from_fn(|row| {
            // The first half of the hash is the id; the sketch uses the second half.
            let part = [0, 1, 2, 3].map(|byte| hash[16 + 4 * row + byte]);
            row * SKETCH_WIDTH + u32::from_le_bytes(part) as usize % SKETCH_WIDTH
        });
        let lowest = cells.iter().map(|&cell| self.counters[cell]).min().expect("there are rows");
        let count = lowest.saturating_add(1);
        for cell in cells {
            self.counters[cell] = self.counters[cell].max(count);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn identify(identifier: &mut Identifier, text: &str) -> InputDocument {
        identifier.identify(1, text.as_bytes()).unwrap_or_else(|(_, reason)| panic!("{text}: {reason}"))
    }

    #[test]
    fn an_id_from_the_content_is_stable_and_ignores_white_space() {
        let spaced = identify(&mut Identifier::new(None), "{ \"a\" : \"x \\\" y\" }");
        let dense = identify(&mut Identifier::new(None), "{\"a\":\"x \\\" y\"}");
        assert_eq!(spaced.id, dense.id);
        assert_eq!(dense.text, format!("{{\"_id\":\"{}\",\"a\":\"x \\\" y\"}}", dense.id).into_bytes());
        assert_ne!(dense.id, identify(&mut Identifier::new(None), "{\"a\":\"x\\\" y\"}").id);
    }

    #[test]
    fn equal_documents_of_one_input_get_distinct_deterministic_ids() {
        let ids = || -> Vec<String> {
            let mut identifier = Identifier::new(None);
            let texts = ["{}", "{\"a\":1}", "{}", "{}", "{\"a\":1}"];
            texts.iter().map(|text| identify(&mut identifier, text).id).collect()
        };
        let first = ids();
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), 5);
        assert_eq!(first, ids());
        assert_eq!(first[2], format!("{}-2", first[0]));
    }

    #[test]
    fn a_sketch_with_collisions_returns_distinct_counts_for_equal_hashes() {
        // Hashes that differ only in the first half share all counters.
        let mut sketch = Sketch::default();
        let mut seen = HashSet::new();
        for round in 0..1000_u32 {
            let mut hash = [0; 32];
            hash[0] = (round % 7) as u8;
            hash[16] = (round % 3) as u8;
            assert!(seen.insert((hash, sketch.count(&hash))), "same count twice: round {round}");
        }
    }

    #[test]
    fn own_ids_take_precedence_over_named_members_and_these_over_hashes() {
        let mut named = Identifier::new(Some("name".to_owned()));
        assert_eq!(identify(&mut named, "{\"_id\":\"x\",\"name\":\"y\"}").id, "x");
        let item = identify(&mut named, "{\"na\\u006de\":\"y\\n\"}");
        assert_eq!((item.id.as_str(), item.is_derived), ("y\n", false));
        assert_eq!(item.text, b"{\"_id\":\"y\\n\",\"na\\u006de\":\"y\\n\"}");
        assert_eq!(identify(&mut named, "{\"name\":17}").id, "17");
        assert_eq!(identify(&mut Identifier::new(None), "{}").text.last_chunk(), Some(b"\"}"));
    }

    #[test]
    fn revisions_are_kept() {
        let item = identify(&mut Identifier::new(None), "{\"_id\":\"x\",\"_rev\":\"1-a\"}");
        assert_eq!(item.revision.as_deref(), Some("1-a"));
    }

    #[test]
    fn a_document_without_a_valid_id_is_refused_with_its_line() {
        let cases = [
            ("{\"name\":{}}", "the member \"name\" is not a valid id"),
            ("{\"name\":\"\"}", "the member \"name\" is not a valid id"),
            ("{\"a\":1}", "there is no member \"name\""),
            ("{\"_id\":1}", "the member \"_id\" is not a valid id"),
            ("{\"_id\":\"x\",\"_rev\":1}", "the member \"_rev\" is not a revision"),
            ("{\"_rev\":\"1-a\",\"name\":\"x\"}", "the document has a \"_rev\" but no \"_id\""),
            ("{\"_id\":\"x\",\"_revisions\":{}}", "has \"_revisions\" but no \"_rev\""),
            ("{\"_id\":\"x\",\"_attachments\":{\"a\":{\"stub\":true}}}", "\"a\" is a stub without content"),
            ("[]", "expected a document, which is a JSON object"),
        ];
        for (text, message) in cases {
            let (line, reason) =
                Identifier::new(Some("name".to_owned())).identify(9, text.as_bytes()).unwrap_err();
            assert_eq!(line, 9, "{text}");
            assert!(reason.contains(message), "{text}: {reason}");
        }
    }

    #[test]
    fn invalid_json_is_refused_with_its_line_and_column() {
        let (line, reason) = Identifier::new(None).identify(5, b"{\"a\":1,\n \"b\":x}").unwrap_err();
        assert_eq!((line, reason.as_str()), (6, "expected value at column 6"));
        for text in [
            b"{\"a\":1".as_slice(),
            b"{\"a\":\"\xff\"}",
            b"{\"a\":01}",
            b"{}{}",
            b"{\"_id\":\"a\",\"_id\":\"b\"}",
        ] {
            let found = Identifier::new(None).identify(5, text);
            assert!(matches!(found, Err((5, _))), "{found:?}");
        }
    }
}
