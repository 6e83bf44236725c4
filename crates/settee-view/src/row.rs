//! The entries of an index's tree: rows, what each document emitted, and values that are too large for a node.
//!
//! Bytes: `docs/format.md`, "An index of a view".
//!
//! Invariants:
//! 1. Rows are ordered by their sort keys, then by the bytes of their documents' ids. A sort key or id beyond
//!    [`WHOLE_SIZE_MAX`] bytes is ordered by its beginning, and then by a hash.
//! 2. A document's rows with equal sort keys are one entry.

use std::borrow::Cow;

/// First byte of the key of what a document emitted: see [`emitted_key`].
pub(crate) const EMITTED: u8 = 1;
/// First byte of the key of a chunk of a large value: see [`chunk_key`].
pub(crate) const CHUNK: u8 = 2;
/// First byte of the key of a row.
pub(crate) const ROW: u8 = 3;

/// Largest sort key, and largest id of a document, that is a part of a row's key as it is. Of larger ones the part is
/// their first bytes, as many, and a hash: it is longer than any that is whole.
pub(crate) const WHOLE_SIZE_MAX: usize = 4_080;
const HASH_SIZE: usize = 16;
const PART_SIZE_MAX: usize = WHOLE_SIZE_MAX + HASH_SIZE;

/// Largest value of an entry.
pub(crate) const VALUE_SIZE_MAX: usize = settee_tree::VALUE_SIZE_MAX;

const _: () = assert!(2 * PART_SIZE_MAX < settee_tree::KEY_SIZE_MAX);

/// Flags of a row's entry.
const MANY: u8 = 1;
const HAS_ID: u8 = 2;
const OVERFLOW: u8 = 4;

/// A row that a map function emitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EmittedRow {
    pub(crate) sort_key: Vec<u8>,
    /// JSON texts.
    pub(crate) key: String,
    pub(crate) value: String,
}

/// The part of a row's key that a sort key or an id makes up.
pub(crate) fn key_part(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.len() <= WHOLE_SIZE_MAX {
        return Cow::Borrowed(bytes);
    }
    let mut part = bytes[..WHOLE_SIZE_MAX].to_vec();
    part.extend_from_slice(&blake3::hash(bytes).as_bytes()[..HASH_SIZE]);
    Cow::Owned(part)
}

/// What is stored of a sort key as it is: all of it, or what precedes the hash.
pub(crate) fn whole_part(part: &[u8]) -> &[u8] {
    &part[..part.len().min(WHOLE_SIZE_MAX)]
}

/// The key of a document's rows with a sort key.
pub(crate) fn row_key(sort_key: &[u8], id: &str) -> Vec<u8> {
    row_key_of_part(&key_part(sort_key), id)
}

/// As [`row_key`], by the part of the sort key.
pub(crate) fn row_key_of_part(part: &[u8], id: &str) -> Vec<u8> {
    let id = key_part(id.as_bytes());
    let mut key = Vec::with_capacity(1 + part.len() + id.len());
    key.push(ROW);
    key.extend_from_slice(part);
    key.extend_from_slice(&id);
    key
}

/// The key of the list of what a document emitted.
pub(crate) fn emitted_key(id: &str) -> Vec<u8> {
    [&[EMITTED], id.as_bytes()].concat()
}

/// The key of a chunk of a large value.
pub(crate) fn chunk_key(number: u64, chunk: u32) -> Vec<u8> {
    let mut key = vec![CHUNK];
    key.extend_from_slice(&number.to_be_bytes());
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

/// A value in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overflow {
    /// Number of rows in it; 0 for a list of sort keys.
    pub(crate) row_count: u64,
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

impl Overflow {
    /// Number of chunks.
    pub(crate) fn chunk_count(&self) -> u32 {
        self.bytes.div_ceil(VALUE_SIZE_MAX as u64) as u32
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.row_count, self.number, self.bytes] {
            push_varint(number, out);
        }
    }

    fn decode(bytes: &mut &[u8]) -> Option<Overflow> {
        let mut next = || take_varint(bytes);
        Some(Overflow { row_count: next()?, number: next()?, bytes: next()? })
    }
}

/// The rows of an entry.
#[derive(Debug, Clone)]
pub(crate) enum EntryRows<'a> {
    Inline(Vec<Row<'a>>),
    /// In chunks.
    Overflow(Overflow),
}

/// A stored row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    /// The part of the entry's key that its sort key makes up.
    pub(crate) sort_key: &'a [u8],
    pub(crate) id: &'a str,
    /// JSON texts.
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
}

/// A row that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewRow {
    /// The id of the document that emitted it.
    pub id: String,
    /// Its key as JSON.
    pub key: String,
    /// Its value as JSON.
    pub value: String,
    /// Its sort key, or the part of it that is stored.
    pub(crate) sort_key: Vec<u8>,
}

impl ViewRow {
    pub(crate) fn as_row(&self) -> Row<'_> {
        Row { sort_key: &self.sort_key, id: &self.id, key: &self.key, value: &self.value }
    }

    pub(crate) fn of(row: &Row<'_>) -> ViewRow {
        let Row { sort_key, id, key, value } = *row;
        ViewRow {
            id: id.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
            sort_key: sort_key.to_vec(),
        }
    }
}

/// Encodes the entry of a document's rows with one sort key: what precedes the rows, and the rows.
pub(crate) fn encode_rows(sort_key: &[u8], id: &str, rows: &[&EmittedRow]) -> (Vec<u8>, Vec<u8>) {
    let mut head = Vec::new();
    let has_id = id.len() > WHOLE_SIZE_MAX;
    head.push(if rows.len() > 1 { MANY } else { 0 } | if has_id { HAS_ID } else { 0 });
    let part_size = if sort_key.len() > WHOLE_SIZE_MAX { PART_SIZE_MAX } else { sort_key.len() };
    push_varint(part_size as u64, &mut head);
    let mut body = Vec::new();
    if has_id {
        push_bytes(id.as_bytes(), &mut body);
    }
    match rows {
        [row] => {
            push_bytes(row.key.as_bytes(), &mut body);
            body.extend_from_slice(row.value.as_bytes());
        }
        rows => {
            push_varint(rows.len() as u64, &mut body);
            for row in rows {
                push_bytes(row.key.as_bytes(), &mut body);
                push_bytes(row.value.as_bytes(), &mut body);
            }
        }
    }
    (head, body)
}

/// The value of an entry whose rows are in chunks.
pub(crate) fn encode_overflow(mut head: Vec<u8>, overflow: &Overflow) -> Vec<u8> {
    head[0] |= OVERFLOW;
    overflow.encode(&mut head);
    head
}

/// Decodes the entry of rows; `None` for other entries, and for damage that no checksum detected.
pub(crate) fn decode<'a>(key: &'a [u8], value: &'a [u8]) -> Option<EntryRows<'a>> {
    let (head, mut rest) = Head::decode(key, value)?;
    if head.flags & OVERFLOW != 0 {
        return Overflow::decode(&mut rest).map(EntryRows::Overflow);
    }
    head.rows(rest).map(EntryRows::Inline)
}

/// Where the chunks of an entry's value are, if it has some.
pub(crate) fn overflow_of(key: &[u8], value: &[u8]) -> Option<Overflow> {
    match *key.first()? {
        ROW => match decode(key, value)? {
            EntryRows::Overflow(overflow) => Some(overflow),
            EntryRows::Inline(_) => None,
        },
        EMITTED => decode_emitted_value(value)?.err(),
        _ => None,
    }
}

/// Decodes rows that were in chunks; `value` is the entry's.
pub(crate) fn decode_chunks<'a>(key: &'a [u8], value: &'a [u8], chunks: &'a [u8]) -> Option<Vec<Row<'a>>> {
    Head::decode(key, value)?.0.rows(chunks)
}

struct Head<'a> {
    flags: u8,
    sort_key: &'a [u8],
    /// The part of the entry's key that the id makes up.
    id: &'a [u8],
}

impl<'a> Head<'a> {
    fn decode(key: &'a [u8], value: &'a [u8]) -> Option<(Head<'a>, &'a [u8])> {
        let (&[ROW], key) = key.split_at_checked(1)? else { return None };
        let (&flags, mut rest) = value.split_first()?;
        let size = usize::try_from(take_varint(&mut rest)?).ok()?;
        let (sort_key, id) = key.split_at_checked(size)?;
        Some((Head { flags, sort_key, id }, rest))
    }

    fn rows(&self, mut rest: &'a [u8]) -> Option<Vec<Row<'a>>> {
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let sort_key = self.sort_key;
        let id = text(if self.flags & HAS_ID == 0 { self.id } else { take_bytes(&mut rest)? })?;
        if self.flags & MANY == 0 {
            let key = text(take_bytes(&mut rest)?)?;
            return Some(vec![Row { sort_key, id, key, value: text(rest)? }]);
        }
        let count = take_varint(&mut rest)?;
        let mut rows = Vec::with_capacity((count as usize).min(rest.len()));
        for _ in 0..count {
            let key = text(take_bytes(&mut rest)?)?;
            rows.push(Row { sort_key, id, key, value: text(take_bytes(&mut rest)?)? });
        }
        rest.is_empty().then_some(rows)
    }
}

/// Encodes the list of what a document emitted: the distinct parts of row keys, ascending.
pub(crate) fn encode_emitted(parts: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    parts.iter().for_each(|part| push_bytes(part, &mut body));
    body
}

/// Decodes [`encode_emitted`]'s result.
pub(crate) fn decode_emitted(mut body: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !body.is_empty() {
        parts.push(take_bytes(&mut body)?);
    }
    Some(parts)
}

/// The value of a list: a flag, then the list or where its chunks are.
pub(crate) fn emitted_value(body: &[u8], overflow: Option<&Overflow>) -> Vec<u8> {
    let mut value = vec![if overflow.is_some() { OVERFLOW } else { 0 }];
    match overflow {
        Some(overflow) => overflow.encode(&mut value),
        None => value.extend_from_slice(body),
    }
    value
}

/// Decodes [`emitted_value`]'s result: the list, or where it is.
pub(crate) fn decode_emitted_value(value: &[u8]) -> Option<Result<&[u8], Overflow>> {
    let (&flags, mut rest) = value.split_first()?;
    match flags & OVERFLOW {
        0 => Some(Ok(rest)),
        _ => Overflow::decode(&mut rest).map(Err),
    }
}

pub(crate) fn push_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    push_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let size = usize::try_from(take_varint(bytes)?).ok()?;
    let (own, rest) = bytes.split_at_checked(size)?;
    *bytes = rest;
    Some(own)
}

/// Appends a number in groups of seven bits, the lowest first (LEB128).
pub(crate) fn push_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
