//! What an input holds, by its first bytes: documents one a line, a JSON array, an answer of CouchDB's that
//! has the documents in a member, or what couchbackup writes.

use memchr::memchr;

/// How much of an input is looked at.
pub(super) const HEAD_BYTES: usize = 4 << 10;

/// Largest number in a wrapper's members; none that is written has as many digits.
const SCALAR_BYTES_MAX: usize = 1 << 10;

/// An input's layout. Positions count from the beginning of what was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A document a line.
    Lines,
    /// A JSON array of documents, or several one after the other.
    Arrays,
    /// `{…,"docs":[…]…}` as `_bulk_docs` takes it, or `{…,"rows":[…]…}` as `_all_docs` answers it. The array
    /// begins at `array_at`.
    Wrapped { array_at: usize, has_rows: bool },
    /// A header line, then a JSON array of documents a line (couchbackup).
    Backup { header_bytes: usize },
}

/// Finds the layout of what begins with `head`, at most [`HEAD_BYTES`] of it.
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
        && is_backup_header(&head[start..end])
    {
        return Format::Backup { header_bytes: end + 1 };
    }
    let mut cursor = Cursor { text: head, at: start + 1 };
    match find_array(&mut cursor) {
        Some(has_rows) => Format::Wrapped { array_at: cursor.at, has_rows },
        None => Format::Lines,
    }
}

/// What couchbackup writes first since its version 2.9.10.
fn is_backup_header(line: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Header<'a> {
        name: &'a str,
    }
    serde_json::from_slice::<Header<'_>>(line).is_ok_and(|header| header.name == "@cloudant/couchbackup")
}

/// Passes over the members that may stand before the array, and stops at its bracket. Returns whether it is
/// one of rows; None where this is another object. A document of the same form isn't told from it: its
/// only members would be these.
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

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        let name = &rest[..memchr(b'"', rest)?];
        self.at += name.len() + 1;
        (!name.contains(&b'\\')).then_some(name)
    }

    /// A string, a number, or one of JSON's words.
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

    /// Whether the array at the cursor is empty or begins with an object, as far as it was looked at.
    fn is_of_objects(&self) -> bool {
        matches!(self.text[self.at + 1..].trim_ascii_start().first(), None | Some(b'{' | b']'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_backups_are_told_from_documents() {
        // Of these the last bracket that opens is the array's.
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
                Format::Backup { header_bytes: 0 },
            ),
            ("{\"name\":\"couchbackup\"}\n[", Format::Lines),
            ("{\"total_rows\":", Format::Lines),
        ] {
            let format = match format {
                Format::Wrapped { has_rows, .. } => {
                    Format::Wrapped { array_at: head.rfind('[').unwrap(), has_rows }
                }
                Format::Backup { .. } => Format::Backup { header_bytes: head.find('\n').unwrap() + 1 },
                format => format,
            };
            assert_eq!(detect(head.as_bytes()), format, "{head}");
        }
    }
}
