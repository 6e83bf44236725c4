//! Detects an input's format from its first bytes: JSON lines, a JSON array, a CouchDB response that contains
//! the documents in a member, or a couchbackup file.

use memchr::memchr;

/// Number of bytes at the beginning of an input that determine its format.
pub(super) const HEAD_BYTES: usize = 4 << 10;

/// Longest number or literal before the array of a wrapped input, in bytes. CouchDB's are much shorter.
const SCALAR_BYTES_MAX: usize = 1 << 10;

/// Format of an input. Positions are offsets from the beginning of the input in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// One document per line.
    Lines,
    /// A JSON array of documents, or several arrays one after the other.
    Arrays,
    /// `{…,"docs":[…]…}`, a request body of `_bulk_docs`, or `{…,"rows":[…]…}`, a response of `_all_docs`.
    /// The array begins at `array_at`; `has_rows` is set for the latter.
    Wrapped { array_at: usize, has_rows: bool },
    /// A couchbackup file: a header line of `header_bytes`, then one JSON array of documents per line.
    Couchbackup { header_bytes: usize },
}

/// Returns the format of the input that begins with `head`, at most [`HEAD_BYTES`] bytes.
pub(super) fn detect(head: &[u8]) -> Format {
    let start = head.len() - head.trim_ascii_start().len();
    match head.get(start) {
        Some(b'[') => Format::Arrays,
        Some(b'{') => detect_object(head, start),
        _ => Format::Lines,
    }
}

fn detect_object(head: &[u8], start: usize) -> Format {
    let line_end = memchr(b'\n', &head[start..]).map(|end| start + end);
    if let Some(end) = line_end
        && is_couchbackup_header(&head[start..end])
    {
        return Format::Couchbackup { header_bytes: end + 1 };
    }
    let mut cursor = Cursor { text: head, at: start + 1 };
    match find_array(&mut cursor) {
        Some(has_rows) => Format::Wrapped { array_at: cursor.at, has_rows },
        None => Format::Lines,
    }
}

/// Whether a line is the header that couchbackup writes since version 2.9.10.
fn is_couchbackup_header(line: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Header<'a> {
        name: &'a str,
    }
    serde_json::from_slice::<Header<'_>>(line).is_ok_and(|header| header.name == "@cloudant/couchbackup")
}

/// Skips the members that may precede the array, and stops at its opening bracket. Returns whether the member
/// is `rows`, or None if this is another object. A document with only these members is taken for a wrapper.
fn find_array(cursor: &mut Cursor<'_>) -> Option<bool> {
    loop {
        let name = cursor.string()?;
        cursor.expect(b':')?;
        match name {
            b"docs" | b"rows" => {
                cursor.skip_white();
                let begins = cursor.text.get(cursor.at) == Some(&b'[') && cursor.is_of_objects();
                return begins.then_some(name == b"rows");
            }
            b"total_rows" | b"offset" | b"update_seq" | b"new_edits" => cursor.scalar()?,
            _ => return None,
        }
        cursor.expect(b',')?;
    }
}

struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn skip_white(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_ascii_start().len();
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.skip_white();
        let found = *self.text.get(self.at)? == byte;
        self.at += 1;
        found.then_some(())
    }

    /// Reads a string. None if it contains escapes.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        let name = &rest[..memchr(b'"', rest)?];
        self.at += name.len() + 1;
        (!name.contains(&b'\\')).then_some(name)
    }

    /// Skips a string, a number or a literal.
    fn scalar(&mut self) -> Option<()> {
        self.skip_white();
        if self.text.get(self.at) == Some(&b'"') {
            return self.string().map(drop);
        }
        let rest = self.text[self.at..].iter();
        let size = rest.take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)).count();
        self.at += size;
        (1..=SCALAR_BYTES_MAX).contains(&size).then_some(())
    }

    /// Whether the array at the cursor is empty or begins with an object. True if the text ends before that.
    fn is_of_objects(&self) -> bool {
        matches!(self.text[self.at + 1..].trim_ascii_start().first(), None | Some(b'{' | b']'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_and_couchbackup_files_are_distinguished_from_documents() {
        // In wrapped inputs the last opening bracket is the array's.
        let wrapped = |has_rows| Format::Wrapped { array_at: 0, has_rows };
        for (head, format) in [
            ("", Format::Lines),
            ("{\"_id\":\"a\"}\n{}", Format::Lines),
            (" [{}]", Format::Arrays),
            ("{\"docs\":[{}]}", wrapped(false)),
            ("{ \"new_edits\" : false, \"docs\" : [\n", wrapped(false)),
            ("{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n{\"id\":", wrapped(true)),
            ("{\"total_rows\":null,\"update_seq\":\"3-g1[\",\"offset\":null,\"rows\":[]}", wrapped(true)),
            ("{\"docs\":[1]}", Format::Lines),
            ("{\"docs\":{}}", Format::Lines),
            ("{\"rows\":3}", Format::Lines),
            ("{\"name\":\"x\",\"docs\":[{}]}", Format::Lines),
            (
                "{\"name\":\"@cloudant/couchbackup\",\"version\":\"2.9.10\"}\n[",
                Format::Couchbackup { header_bytes: 0 },
            ),
            ("{\"name\":\"couchbackup\"}\n[", Format::Lines),
            ("{\"total_rows\":", Format::Lines),
        ] {
            let format = match format {
                Format::Wrapped { has_rows, .. } => {
                    Format::Wrapped { array_at: head.rfind('[').unwrap(), has_rows }
                }
                Format::Couchbackup { .. } => {
                    Format::Couchbackup { header_bytes: head.find('\n').unwrap() + 1 }
                }
                format => format,
            };
            assert_eq!(detect(head.as_bytes()), format, "{head}");
        }
    }
}
