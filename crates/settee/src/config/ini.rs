//! CouchDB's ini files, read as CouchDB 3.3 and later read them.
//!
//! A line is a section, a key with its value, or nothing; there are no values of several lines,
//! no quotes and no escapes. `;` begins a comment at the beginning of a line or behind a space or
//! tab, `#` doesn't. A later file goes before an earlier one, and a later line before an earlier
//! one. No reader of ini files that is at hand does the same: each has quotes, escapes or other
//! comments of its own.

use std::collections::BTreeMap;
use std::fmt;

/// Control-Z, which ends a line too.
const SUBSTITUTE: char = '\u{1a}';

/// Where something stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Which of the files it is, by their order.
    pub(super) order: usize,
    pub(super) file: String,
    pub(super) line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: String,
    pub(super) place: Place,
}

/// What several files say together.
#[derive(Debug, Default)]
pub(super) struct Ini {
    /// By section and key.
    pub(super) entries: BTreeMap<(String, String), Entry>,
    /// Lines that mean nothing to CouchDB.
    pub(super) ignored: Vec<Place>,
    file_count: usize,
}

impl Ini {
    /// Reads the next file over what the ones before it said.
    pub(super) fn read(&mut self, file: &str, text: &str) {
        let order = self.file_count;
        self.file_count += 1;
        let mut section = String::new();
        let mut read = Vec::new();
        for (index, line) in lines(text).enumerate() {
            let place = Place { order, file: file.to_owned(), line: index + 1 };
            let line = uncommented(line);
            if line.is_empty() {
                continue;
            }
            match line.strip_prefix('[') {
                Some(rest) => match rest.split_once(']') {
                    Some((name, "")) if !name.is_empty() => section = name.to_owned(),
                    _ => self.ignored.push(place),
                },
                None => match key_and_value(line).filter(|_| !section.is_empty()) {
                    Some((key, value)) => read.push(((section.clone(), key.to_owned()), value, place)),
                    None => self.ignored.push(place),
                },
            }
        }
        // A key without a value takes away what earlier files say; not what this one does.
        for (key, ..) in read.iter().filter(|(_, value, _)| value.is_empty()) {
            self.entries.remove(key);
        }
        for (key, value, place) in read.into_iter().filter(|(_, value, _)| !value.is_empty()) {
            self.entries.insert(key, Entry { value: value.to_owned(), place });
        }
    }

    /// Takes a key out.
    pub(super) fn take(&mut self, section: &str, key: &str) -> Option<Entry> {
        self.entries.remove(&(section.to_owned(), key.to_owned()))
    }
}

/// Lines, however they end.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    // A carriage return and a newline end one line, not two.
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

/// Splits a line that has been trimmed; the value is empty where the key is to be taken away.
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = match line.split_once(" = ") {
        // So a key may hold `=`.
        Some(halves) => halves,
        None => line.split_once('=').filter(|(key, _)| !key.is_empty())?,
    };
    Some((key.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text of one section means.
    fn of(text: &str) -> Vec<(String, String)> {
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
            assert_eq!(of(line), [(key.to_owned(), value.to_owned())], "{line:?}");
        }
    }

    #[test]
    fn what_is_neither_is_ignored_with_its_place() {
        for text in ["", ";a=1", " \t;a = 1", "a =", "a = ;1"] {
            let mut ini = Ini::default();
            ini.read("a.ini", &format!("[s]\n{text}"));
            assert!(ini.entries.is_empty() && ini.ignored.is_empty(), "{text:?}: {ini:?}");
        }
        for text in ["word", "=1", "= 1", "[t", "[]", "[t]u", "[t] a = 1"] {
            let mut ini = Ini::default();
            ini.read("a.ini", &format!("[s]\n{text}\nb = 2"));
            assert_eq!(ini.ignored.iter().map(Place::to_string).collect::<Vec<_>>(), ["a.ini:2"], "{text:?}");
            assert_eq!(ini.take("s", "b").unwrap().value, "2", "{text:?}");
        }
        let mut ini = Ini::default();
        ini.read("a.ini", "a = 1\n[s]");
        assert!(ini.entries.is_empty() && ini.ignored.len() == 1, "before any section: {ini:?}");
    }

    #[test]
    fn a_section_ends_where_the_next_begins_and_may_have_a_comment() {
        let mut ini = Ini::default();
        ini.read("a.ini", "[s] ; one\r\na = 1\r\n\r[cors:http://x.org]\x1aa = 2\n[s]\nb = 3");
        let found: Vec<_> =
            ini.entries.iter().map(|((section, key), entry)| (&**section, &**key, &*entry.value)).collect();
        assert_eq!(found, [("cors:http://x.org", "a", "2"), ("s", "a", "1"), ("s", "b", "3")]);
    }

    #[test]
    fn a_later_file_goes_before_an_earlier_one_and_takes_keys_away() {
        let mut ini = Ini::default();
        ini.read("a.ini", "[s]\na = 1\nb = 1\nc = 1\na = 2");
        ini.read("b.ini", "[s]\nb = 2\nc =\nd = 4\nd =");
        let place = |key: &str| ini.entries.get(&("s".to_owned(), key.to_owned()));
        let told = |key| place(key).map(|entry| (&*entry.value, entry.place.to_string()));
        assert_eq!(told("a"), Some(("2", "a.ini:5".to_owned())));
        assert_eq!(told("b"), Some(("2", "b.ini:2".to_owned())));
        assert_eq!(told("c"), None);
        assert_eq!(told("d"), Some(("4", "b.ini:4".to_owned())), "of the same file it stays, as in CouchDB");
    }
}
