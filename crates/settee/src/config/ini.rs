//! Parser of CouchDB's ini files, in the syntax of CouchDB 3.3 and later.
//!
//! A line is a section, a key with its value, or empty. There are no multi-line values, quotes or escapes.
//! `;` begins a comment at the beginning of a line or after a space or tab; `#` doesn't. Later files and
//! later lines take precedence. Existing ini parsers differ in quotes, escapes or comments.

use std::collections::BTreeMap;
use std::fmt;

/// Control-Z, which also ends a line.
const SUBSTITUTE: char = '\u{1a}';

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceLine {
    /// Index of the file.
    pub(super) order: usize,
    pub(super) file: String,
    pub(super) line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A value and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IniValue {
    pub(super) value: String,
    pub(super) source: SourceLine,
}

/// The merged contents of several files.
#[derive(Debug, Default)]
pub(super) struct Ini {
    /// The values by section and key.
    pub(super) entries: BTreeMap<(String, String), IniValue>,
    /// Lines that CouchDB ignores.
    pub(super) ignored: Vec<SourceLine>,
    file_count: usize,
}

impl Ini {
    /// Parses the next file. Its values take precedence over those of earlier files.
    pub(super) fn read(&mut self, file: &str, text: &str) {
        let order = self.file_count;
        self.file_count += 1;
        let mut section = String::new();
        let mut read = Vec::new();
        for (index, line) in lines(text).enumerate() {
            let source = SourceLine { order, file: file.to_owned(), line: index + 1 };
            let line = uncommented(line);
            if line.is_empty() {
                continue;
            }
            match line.strip_prefix('[') {
                Some(rest) => match rest.split_once(']') {
                    Some((name, "")) if !name.is_empty() => section = name.to_owned(),
                    _ => self.ignored.push(source),
                },
                None => match key_and_value(line).filter(|_| !section.is_empty()) {
                    Some((key, value)) => read.push(((section.clone(), key.to_owned()), value, source)),
                    None => self.ignored.push(source),
                },
            }
        }
        // An empty value deletes the key of earlier files, but not of the same file.
        for (key, ..) in read.iter().filter(|(_, value, _)| value.is_empty()) {
            self.entries.remove(key);
        }
        for (key, value, source) in read.into_iter().filter(|(_, value, _)| !value.is_empty()) {
            self.entries.insert(key, IniValue { value: value.to_owned(), source });
        }
    }

    /// Removes a key and returns its value.
    pub(super) fn take(&mut self, section: &str, key: &str) -> Option<IniValue> {
        self.entries.remove(&(section.to_owned(), key.to_owned()))
    }
}

/// Splits a text into lines, which may end with a newline, a carriage return, both, or Control-Z.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    // A carriage return before a newline doesn't end a line of its own.
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split(['\r', SUBSTITUTE]))
}

fn uncommented(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with(';') {
        return "";
    }
    let end = [" ;", "\t;"].iter().filter_map(|begin| line.find(begin)).min();
    line[..end.unwrap_or(line.len())].trim()
}

/// Splits a trimmed line. An empty value deletes the key.
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = match line.split_once(" = ") {
        // A key may contain `=` without spaces.
        Some(halves) => halves,
        None => line.split_once('=').filter(|(key, _)| !key.is_empty())?,
    };
    Some((key.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the text of one section.
    fn parse(text: &str) -> Vec<(String, String)> {
        let mut ini = Ini::default();
        ini.read("a.ini", &format!("[s]\n{text}"));
        ini.entries.into_iter().map(|((_, key), entry)| (key, entry.value)).collect()
    }

    #[test]
    fn keys_and_values_are_split_as_couchdb_splits_them() {
        for (line, key, value) in [
            ("a=1", "a", "1"),
            ("  a\t =  1  ", "a", "1"),
            ("a = 1 ; one", "a", "1"),
            ("a = 1\t; one ; and more", "a", "1"),
            ("a = x;y ;z", "a", "x;y"),
            ("a =;y", "a", ";y"),
            ("a = b = c", "a", "b = c"),
            ("k== = v", "k==", "v"),
            ("=k = v", "=k", "v"),
            ("a=b=c", "a", "b=c"),
            ("a==", "a", "="),
            ("hmac:k = x\\ny", "hmac:k", "x\\ny"),
            ("# a = 1", "# a", "1"),
            ("a = \"1\"", "a", "\"1\""),
        ] {
            assert_eq!(parse(line), [(key.to_owned(), value.to_owned())], "{line:?}");
        }
    }

    #[test]
    fn an_invalid_line_is_ignored_and_listed() {
        for text in ["", ";a=1", " \t;a = 1", "a =", "a = ;1"] {
            let mut ini = Ini::default();
            ini.read("a.ini", &format!("[s]\n{text}"));
            assert!(ini.entries.is_empty() && ini.ignored.is_empty(), "{text:?}: {ini:?}");
        }
        for text in ["word", "=1", "= 1", "[t", "[]", "[t]u", "[t] a = 1"] {
            let mut ini = Ini::default();
            ini.read("a.ini", &format!("[s]\n{text}\nb = 2"));
            assert_eq!(
                ini.ignored.iter().map(SourceLine::to_string).collect::<Vec<_>>(),
                ["a.ini:2"],
                "{text:?}"
            );
            assert_eq!(ini.take("s", "b").unwrap().value, "2", "{text:?}");
        }
        let mut ini = Ini::default();
        ini.read("a.ini", "a = 1\n[s]");
        assert!(ini.entries.is_empty() && ini.ignored.len() == 1, "before any section: {ini:?}");
    }

    #[test]
    fn a_section_extends_to_the_next_and_may_have_a_comment() {
        let mut ini = Ini::default();
        ini.read("a.ini", "[s] ; one\r\na = 1\r\n\r[cors:http://x.org]\x1aa = 2\n[s]\nb = 3");
        let found: Vec<_> =
            ini.entries.iter().map(|((section, key), entry)| (&**section, &**key, &*entry.value)).collect();
        assert_eq!(found, [("cors:http://x.org", "a", "2"), ("s", "a", "1"), ("s", "b", "3")]);
    }

    #[test]
    fn a_later_file_takes_precedence_and_deletes_keys() {
        let mut ini = Ini::default();
        ini.read("a.ini", "[s]\na = 1\nb = 1\nc = 1\na = 2");
        ini.read("b.ini", "[s]\nb = 2\nc =\nd = 4\nd =");
        let entry = |key: &str| ini.entries.get(&("s".to_owned(), key.to_owned()));
        let found = |key| entry(key).map(|entry| (&*entry.value, entry.source.to_string()));
        assert_eq!(found("a"), Some(("2", "a.ini:5".to_owned())));
        assert_eq!(found("b"), Some(("2", "b.ini:2".to_owned())));
        assert_eq!(found("c"), None);
        assert_eq!(
            found("d"),
            Some(("4", "b.ini:4".to_owned())),
            "the same file's key is kept, as in CouchDB"
        );
    }
}
