//! A parsed selector, and whether a document matches it.

use super::condition::{Node, Subject};
use super::constant::Order;
use super::error::SelectorError;
use super::parse;
use super::paths::Paths;
use super::raw::{Members, Raw};
use crate::documents::{Document, Extras};

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
    /// Total size in bytes of its compiled regular expressions.
    regex_bytes: u64,
}

impl Selector {
    /// Parses a selector from JSON text.
    ///
    /// # Errors
    /// CouchDB's error for an invalid selector: see [`SelectorError`]. Beyond a limit, `invalid_selector`.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        Selector::parse_with(text, false)
    }

    /// As [`Selector::parse`], for a search: `$text` outside of fields is accepted, and matches every document,
    /// as in CouchDB without a text index.
    ///
    /// # Errors
    /// As for [`Selector::parse`]; `bad_field` for `$text` on a field.
    pub fn parse_for_find(text: &str) -> Result<Selector, SelectorError> {
        Selector::parse_with(text, true)
    }

    fn parse_with(text: &str, allows_text: bool) -> Result<Selector, SelectorError> {
        let Some((mut root, regex_bytes)) = parse::condition(text, allows_text)? else {
            let no_paths = Paths::new(Vec::new());
            let names = Vec::new();
            return Ok(Selector { root: None, paths: no_paths, names, needs_whole: false, regex_bytes: 0 });
        };
        let mut paths = Vec::new();
        root.each_path(&mut |path| paths.push(path.parts.clone()));
        let needs_whole = paths.iter().any(Vec::is_empty);
        let mut names: Vec<String> = paths.iter().filter_map(|path| path.first().cloned()).collect();
        names.sort_unstable();
        names.dedup();
        let paths = Paths::new(paths);
        root.each_path(&mut |path| {
            path.place = paths.place(&path.parts).expect("all of them are there");
        });
        let regex_bytes = regex_bytes as u64;
        Ok(Selector { root: Some(root), paths, names, needs_whole, regex_bytes })
    }

    /// Whether a document matches: its members, and `_id`, `_rev`, `_deleted`, `_attachments` and the members
    /// in `extras`.
    ///
    /// # Panics
    /// If it needs the document's body, which was not read: see [`Document::large_body`].
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
        if self.needs_body() {
            document.check_is_whole();
        }
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

    /// A bound of the steps that its regular expressions take for a document with `bytes` of text: an automaton takes
    /// up to one for each byte of its program and of the text, about 0.1 ns each. 0 without regular expressions.
    pub fn regex_steps(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.regex_bytes)
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
