//! Which id a document gets, so that loading the same input again gives the same ids.
//!
//! A document's own `_id` counts first, then a member that the user named, else a hash of its
//! content. Equal documents of one input are told apart by counting them: the second gets the
//! hash and `-2`. Counts are kept in a sketch of fixed size, which may count too high where
//! hashes share counters, never too low and never twice the same for equal documents: so ids
//! stay distinct, and the same for the same input, at any number of documents.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// Rows of the sketch: a count is too high only where all of them collide.
const SKETCH_ROWS: usize = 4;

/// Counters in a row: 8 MiB in all.
const SKETCH_WIDTH: usize = 1 << 19;

/// How local documents' ids begin.
const LOCAL_PREFIX: &str = "_local/";

/// A document on its way into the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    /// Where it begins in the input.
    pub(crate) line: u64,
    pub(crate) id: String,
    /// The id tells the content: whoever has it has the document.
    pub(crate) is_derived: bool,
    /// `_rev`, which is kept as it is.
    pub(crate) revision: Option<String>,
    /// It has `_revisions`: it is merged into its document's tree, as replication merges.
    pub(crate) has_history: bool,
    /// Its text has the content of attachments.
    pub(crate) has_attachments: bool,
    /// JSON text with `_id`.
    pub(crate) text: Vec<u8>,
}

/// Gives documents their ids.
#[derive(Debug)]
pub(crate) struct Identifier {
    member: Option<String>,
    sketch: Sketch,
    minified: Vec<u8>,
}

impl Item {
    /// Whether it is a local document, which has no place in the changes and is never replicated.
    pub(crate) fn is_local(&self) -> bool {
        self.id.starts_with(LOCAL_PREFIX)
    }

    /// What no two documents of a batch have in common.
    pub(crate) fn key(&self) -> (String, Option<String>) {
        (self.id.clone(), self.revision.clone().filter(|_| self.has_history))
    }
}

impl Identifier {
    /// One that takes ids from `member`, or else from the content.
    pub(crate) fn new(member: Option<String>) -> Identifier {
        Identifier { member, sketch: Sketch::default(), minified: Vec::new() }
    }

    /// Checks that `text` is a JSON object and finds its id. `text` has no white space around it.
    ///
    /// # Errors
    /// The line, which may lie behind `line`, and what is wrong there.
    pub(crate) fn identify(&mut self, line: u64, text: &[u8]) -> Result<Item, (u64, String)> {
        let here = |reason: String| (line, reason);
        let utf8 = std::str::from_utf8(text).map_err(|error| here(format!("not UTF-8: {error}")))?;
        let members = Members::parse(utf8, self.member.as_deref()).map_err(|error| at_line(line, &error))?;
        let text_id = |value: Value, name: &str| match value {
            Value::String(id) if !id.is_empty() => Ok(id),
            Value::Number(number) if name != "_id" => Ok(number.to_string()),
            _ => Err(here(format!("the member \"{name}\" is no id"))),
        };
        let revision = match members.revision {
            None => None,
            Some(Value::String(revision)) => Some(revision),
            Some(_) => return Err(here("the member \"_rev\" is no revision".to_owned())),
        };
        if members.has_history && revision.is_none() {
            return Err(here("the document has \"_revisions\" but no \"_rev\"".to_owned()));
        }
        if let Some(name) = members.attachments.as_ref().and_then(Attachments::missing) {
            return Err(here(format!(
                "the content of attachment {name:?} isn't here but a stub: `settee dump --attachments` has it, and \
                 a listing with attachments=true"
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
        Ok(Item { line, id, is_derived, revision, has_history, has_attachments, text })
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

/// A parser's message, with the line in the input instead of the one in the document.
fn at_line(line: u64, error: &serde_json::Error) -> (u64, String) {
    let text = error.to_string();
    let reason = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    (line + (error.line() as u64).saturating_sub(1), format!("{reason} at column {}", error.column()))
}

/// Appends JSON text without white space outside of strings. The text must be JSON.
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

/// The members that decide the id.
#[derive(Debug, Default)]
struct Members {
    id: Option<Value>,
    revision: Option<Value>,
    named: Option<Value>,
    has_history: bool,
    attachments: Option<Attachments>,
}

/// What is said of a document's attachments, without their content.
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
    /// The name of one whose content isn't in the document.
    fn missing(&self) -> Option<&str> {
        let missing = self.0.iter().find(|(_, attachment)| attachment.stub || attachment.follows);
        missing.map(|(name, _)| name.as_str())
    }
}

impl Members {
    /// Parses the whole text and keeps these members alone.
    fn parse(text: &str, name: Option<&str>) -> serde_json::Result<Members> {
        let mut parser = serde_json::Deserializer::from_str(text);
        let members = MembersSeed(name).deserialize(&mut parser)?;
        parser.end()?;
        Ok(members)
    }
}

struct MembersSeed<'a>(Option<&'a str>);

impl<'de> DeserializeSeed<'de> for MembersSeed<'_> {
    type Value = Members;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Members, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MembersSeed<'_> {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a document, which is a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Members::default();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            let slot = match key.as_ref() {
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
            if slot.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom(format!("the member \"{key}\" comes twice")));
            }
        }
        Ok(members)
    }
}

/// A key, borrowed from the text where it holds no escapes.
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

/// Counts occurrences of hashes in fixed memory: a count-min sketch with conservative update
/// (Cormode and Muthukrishnan 2005; Estan and Varghese 2002).
///
/// Each count given for one hash is higher than the one before: raising the lowest of its
/// counters raises the lowest value that the next look can find.
#[derive(Debug, Default)]
struct Sketch {
    counters: Vec<u32>,
}

impl Sketch {
    /// How often `hash` has come, this time included, or more.
    fn count(&mut self, hash: &[u8; 32]) -> u32 {
        if self.counters.is_empty() {
            self.counters = vec![0; SKETCH_ROWS * SKETCH_WIDTH];
        }
        let slots: [usize; SKETCH_ROWS] = std::array::from_fn(|row| {
            // The first half of the hash is the id; the sketch takes the other.
            let part = [0, 1, 2, 3].map(|byte| hash[16 + 4 * row + byte]);
            row * SKETCH_WIDTH + u32::from_le_bytes(part) as usize % SKETCH_WIDTH
        });
        let lowest = slots.iter().map(|&slot| self.counters[slot]).min().expect("there are rows");
        let count = lowest.saturating_add(1);
        for slot in slots {
            self.counters[slot] = self.counters[slot].max(count);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn identify(identifier: &mut Identifier, text: &str) -> Item {
        identifier.identify(1, text.as_bytes()).unwrap_or_else(|(_, reason)| panic!("{text}: {reason}"))
    }

    #[test]
    fn an_id_from_the_content_is_stable_and_blind_to_white_space() {
        let spaced = identify(&mut Identifier::new(None), "{ \"a\" : \"x \\\" y\" }");
        let dense = identify(&mut Identifier::new(None), "{\"a\":\"x \\\" y\"}");
        assert_eq!(spaced.id, dense.id);
        assert_eq!(dense.text, format!("{{\"_id\":\"{}\",\"a\":\"x \\\" y\"}}", dense.id).into_bytes());
        assert_ne!(dense.id, identify(&mut Identifier::new(None), "{\"a\":\"x\\\" y\"}").id);
    }

    #[test]
    fn equal_documents_of_one_input_get_distinct_ids_and_the_same_ones_again() {
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
    fn an_overfull_sketch_never_counts_equal_hashes_alike() {
        // All counters are shared by many: hashes that differ in the first half alone.
        let mut sketch = Sketch::default();
        let mut seen = HashSet::new();
        for round in 0..1000_u32 {
            let mut hash = [0; 32];
            hash[0] = (round % 7) as u8;
            hash[16] = (round % 3) as u8;
            assert!(seen.insert((hash, sketch.count(&hash))), "counted twice alike: round {round}");
        }
    }

    #[test]
    fn own_ids_count_before_named_members_and_these_before_hashes() {
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
    fn what_has_no_id_is_refused_with_its_line() {
        let cases = [
            ("{\"name\":{}}", "the member \"name\" is no id"),
            ("{\"name\":\"\"}", "the member \"name\" is no id"),
            ("{\"a\":1}", "there is no member \"name\""),
            ("{\"_id\":1}", "the member \"_id\" is no id"),
            ("{\"_id\":\"x\",\"_rev\":1}", "the member \"_rev\" is no revision"),
            ("{\"_rev\":\"1-a\",\"name\":\"x\"}", "the document has a \"_rev\" but no \"_id\""),
            ("{\"_id\":\"x\",\"_revisions\":{}}", "has \"_revisions\" but no \"_rev\""),
            ("{\"_id\":\"x\",\"_attachments\":{\"a\":{\"stub\":true}}}", "\"a\" isn't here but a stub"),
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
    fn bad_json_is_refused_at_its_line_and_column() {
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
