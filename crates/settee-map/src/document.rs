//! A document's JSON text with a flat index of its tokens.
//!
//! One pass over the text appends a node per value and per member name, in the order of the text. A container's
//! node knows where its subtree ends, so siblings are reached without looking at the text again. Strings aren't
//! unescaped and numbers aren't converted: values are read from the text when a plan asks for them.
//!
//! Invariants:
//! 1. `nodes[0]` is the document's object; a name's node is followed by its value's.
//! 2. A node whose subtree has no `ODD` node and no irregular object is what `JSON.stringify` prints for it, byte
//!    for byte, unless the text has white space between tokens.

use crate::number;
use crate::text;

/// Largest document in bytes, whose index may take ten times as much. The engine parses larger ones.
pub const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// Deepest nesting of arrays and objects. The engine parses deeper ones.
pub const DOCUMENT_DEPTH_MAX: u32 = 100;

/// Nodes and names whose memory is kept for the next document.
const KEPT_NODES_MAX: usize = 1 << 14;

/// Members up to which duplicate names are found by a bitmap and comparisons; above, by sorting.
const BITMAP_MEMBERS_MAX: u32 = 256;
const BITMAP_WORDS: usize = 16;

/// The string's text has an escape sequence.
const ESCAPED: u8 = 1;
/// `JSON.stringify` may print this token, or one below it, in another way than the text has it.
const ODD: u8 = 2;
/// The name is an array index, so that JavaScript enumerates it before other names.
const INDEX: u8 = 4;

/// Why a text has no index. The engine decides what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The text isn't one JSON object in UTF-8.
    #[error("not a JSON object, at byte {0}")]
    Malformed(usize),

    /// The text is longer than [`DOCUMENT_BYTES_MAX`].
    #[error("document exceeds {DOCUMENT_BYTES_MAX} bytes")]
    TooLarge,

    /// Arrays and objects are nested more than [`DOCUMENT_DEPTH_MAX`] deep.
    #[error("nested more than {DOCUMENT_DEPTH_MAX} deep")]
    TooDeep,
}

/// The memory of a [`Document`]'s index, kept from one document to the next.
#[derive(Debug, Default)]
pub struct DocumentBuffer {
    nodes: Vec<Node>,
    root_hashes: Vec<u32>,
    root_names: Vec<NodeId>,
}

/// A document's JSON text and the index of its tokens. All plans that run over the document share it.
#[derive(Debug)]
pub struct Document<'j> {
    json: &'j str,
    nodes: Vec<Node>,
    /// The hashes and nodes of the document's own names: most lookups are of these.
    root_hashes: Vec<u32>,
    root_names: Vec<NodeId>,
    /// White space between tokens: no container is copied as it is.
    spaced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    True,
    False,
    Number,
    String,
    Array,
    Object,
    Name,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// Strings and names: the text between the quotes. Others: the whole token.
    start: u32,
    end: u32,
    /// The node after this one's subtree.
    next: u32,
    /// Containers: number of elements or members. Names: [`name_hash`] of the unescaped name.
    info: u32,
    kind: Kind,
    flags: u8,
}

/// A name or value in the text of a document.
pub(crate) type NodeId = u32;

impl<'j> Document<'j> {
    /// Indexes a document: its complete JSON text with `_id` and `_rev`, as the engine would parse it. The text's
    /// syntax was checked when the document was stored; what is found here is only what the index needs.
    ///
    /// # Errors
    /// [`Unreadable`]: the engine maps the document.
    pub fn new(json: &'j [u8]) -> Result<Self, Unreadable> {
        Self::with_buffer(json, DocumentBuffer::default())
    }

    /// As [`Document::new`], in the memory of an earlier document ([`Document::into_buffer`]).
    ///
    /// # Errors
    /// [`Unreadable`]: the engine maps the document. The buffer's memory is freed.
    pub fn with_buffer(json: &'j [u8], buffer: DocumentBuffer) -> Result<Self, Unreadable> {
        if json.len() > DOCUMENT_BYTES_MAX {
            return Err(Unreadable::TooLarge);
        }
        let json = std::str::from_utf8(json).map_err(|error| Unreadable::Malformed(error.valid_up_to()))?;
        let DocumentBuffer { nodes, root_hashes, root_names } = buffer;
        let mut indexer =
            Indexer { bytes: json.as_bytes(), at: 0, nodes, root_hashes, root_names, spaced: false };
        indexer.skip_space();
        if indexer.peek() != Some(b'{') {
            return Err(Unreadable::Malformed(indexer.at));
        }
        indexer.value(0)?;
        indexer.skip_space();
        if indexer.at != json.len() {
            return Err(Unreadable::Malformed(indexer.at));
        }
        let Indexer { nodes, root_hashes, root_names, spaced, .. } = indexer;
        Ok(Self { json, nodes, root_hashes, root_names, spaced })
    }

    /// The index's memory, for the next document. That of an unusually large one is freed.
    pub fn into_buffer(self) -> DocumentBuffer {
        let Self { mut nodes, mut root_hashes, mut root_names, .. } = self;
        nodes.clear();
        nodes.shrink_to(KEPT_NODES_MAX);
        root_hashes.clear();
        root_hashes.shrink_to(KEPT_NODES_MAX);
        root_names.clear();
        root_names.shrink_to(KEPT_NODES_MAX);
        DocumentBuffer { nodes, root_hashes, root_names }
    }

    pub(crate) fn kind(&self, node: NodeId) -> Kind {
        self.nodes[node as usize].kind
    }

    /// Number of elements or members, duplicates included.
    pub(crate) fn count(&self, container: NodeId) -> u32 {
        self.nodes[container as usize].info
    }

    /// The sibling after this node, or the node after the parent's subtree.
    pub(crate) fn next(&self, node: NodeId) -> NodeId {
        self.nodes[node as usize].next
    }

    /// Where the string's or name's text is, and whether it has escapes.
    pub(crate) fn string(&self, node: NodeId) -> (u32, u32, bool) {
        let node = &self.nodes[node as usize];
        (node.start, node.end, node.flags & ESCAPED != 0)
    }

    pub(crate) fn bytes(&self, start: u32, end: u32) -> &'j [u8] {
        &self.json.as_bytes()[start as usize..end as usize]
    }

    pub(crate) fn number(&self, node: NodeId) -> f64 {
        let node = &self.nodes[node as usize];
        number::from_json(&self.json[node.start as usize..node.end as usize])
    }

    /// The value of an object's member: of several with this name, the last one.
    pub(crate) fn member(&self, object: NodeId, name: &[u8], hash: u32) -> Option<NodeId> {
        if object == 0 {
            return self.root_member(name, hash);
        }
        let end = self.next(object);
        let mut at = object + 1;
        let mut found = None;
        while at < end {
            let node = &self.nodes[at as usize];
            if node.info == hash && self.is_named(node, name) {
                found = Some(at + 1);
            }
            at = self.nodes[at as usize + 1].next;
        }
        found
    }

    fn root_member(&self, name: &[u8], hash: u32) -> Option<NodeId> {
        let mut hashes = self.root_hashes.as_slice();
        while let Some(place) = hashes.iter().rposition(|of_name| *of_name == hash) {
            let node = self.root_names[place];
            if self.is_named(&self.nodes[node as usize], name) {
                return Some(node + 1);
            }
            hashes = &hashes[..place];
        }
        None
    }

    /// The texts of a member's name, in quotes, and of its value.
    pub(crate) fn root_member_text(&self, name: &[u8], hash: u32) -> Option<(&'j [u8], &'j [u8])> {
        let node = self.root_member(name, hash)?;
        Some((self.token(node - 1), self.token(node)))
    }

    fn token(&self, node: NodeId) -> &'j [u8] {
        let Node { start, end, kind, .. } = self.nodes[node as usize];
        let quote = u32::from(matches!(kind, Kind::String | Kind::Name));
        self.bytes(start - quote, end + quote)
    }

    fn is_named(&self, node: &Node, name: &[u8]) -> bool {
        let raw = self.bytes(node.start, node.end);
        if node.flags & ESCAPED == 0 {
            return raw == name;
        }
        let mut unescaped = Vec::new();
        text::unescape(raw, &mut unescaped);
        unescaped == name
    }

    /// The members in the order in which JavaScript enumerates them: array indexes first, ascending, then the
    /// first places of the other names; each with its last value.
    pub(crate) fn members(&self, object: NodeId) -> Vec<(NodeId, NodeId)> {
        let mut members = Vec::with_capacity(self.count(object) as usize);
        let end = self.next(object);
        let mut at = object + 1;
        while at < end {
            members.push((at, at + 1));
            at = self.next(at + 1);
        }
        if self.is_regular(object) {
            return members;
        }
        let mut named: Vec<(Vec<u8>, usize)> =
            members.iter().enumerate().map(|(place, member)| (self.name(member.0), place)).collect();
        named.sort();
        let mut ordered = Vec::with_capacity(named.len());
        for same in named.chunk_by(|a, b| a.0 == b.0) {
            let (first, last) = (same[0].1, same[same.len() - 1].1);
            let order = match number::array_index(&same[0].0) {
                Some(index) => (0, index as usize),
                None => (1, first),
            };
            ordered.push((order, (members[first].0, members[last].1)));
        }
        ordered.sort_unstable();
        ordered.into_iter().map(|(_, member)| member).collect()
    }

    /// The unescaped name, in WTF-8.
    fn name(&self, node: NodeId) -> Vec<u8> {
        let (start, end, escaped) = self.string(node);
        let raw = self.bytes(start, end);
        if !escaped {
            return raw.to_vec();
        }
        let mut unescaped = Vec::new();
        text::unescape(raw, &mut unescaped);
        unescaped
    }

    /// Whether the members' order is the text's and no name occurs twice. `false` may be wrong.
    pub(crate) fn is_regular(&self, object: NodeId) -> bool {
        let end = self.next(object);
        let count = self.count(object);
        let mut at = object + 1;
        if count > BITMAP_MEMBERS_MAX {
            let mut hashes = Vec::with_capacity(count as usize);
            while at < end {
                hashes.push(self.nodes[at as usize].info);
                if self.nodes[at as usize].flags & INDEX != 0 {
                    return false;
                }
                at = self.next(at + 1);
            }
            hashes.sort_unstable();
            return hashes.windows(2).all(|pair| pair[0] != pair[1]);
        }
        let mut bitmap = [0_u64; BITMAP_WORDS];
        while at < end {
            let node = &self.nodes[at as usize];
            if node.flags & INDEX != 0 {
                return false;
            }
            let word = &mut bitmap[node.info as usize % BITMAP_WORDS];
            let bit = 1 << (node.info >> 26);
            if *word & bit != 0 && self.has_hash_before(object, at, node.info) {
                return false;
            }
            *word |= bit;
            at = self.next(at + 1);
        }
        true
    }

    fn has_hash_before(&self, object: NodeId, end: NodeId, hash: u32) -> bool {
        let mut at = object + 1;
        while at < end {
            if self.nodes[at as usize].info == hash {
                return true;
            }
            at = self.next(at + 1);
        }
        false
    }

    /// The value's text if `JSON.stringify` prints just that.
    pub(crate) fn verbatim(&self, node: NodeId) -> Option<&'j [u8]> {
        let Node { start, end, next, kind, flags, .. } = self.nodes[node as usize];
        if flags & ODD != 0 {
            return None;
        }
        if !matches!(kind, Kind::Array | Kind::Object) {
            return Some(self.token(node));
        }
        if self.spaced {
            return None;
        }
        let irregular = |at: NodeId| {
            let node = &self.nodes[at as usize];
            node.kind == Kind::Object && node.info > 1 && !self.is_regular(at)
        };
        if (node..next).any(irregular) {
            return None;
        }
        Some(self.bytes(start, end))
    }
}

/// A hash of a member's unescaped name. Equal names have equal hashes, nothing more.
pub(crate) fn name_hash(name: &[u8]) -> u32 {
    let word = |at: usize| u64::from_le_bytes(name[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u64::from(u32::from_le_bytes(name[at..at + 4].try_into().expect("four bytes")));
    let size = name.len();
    let (first, last) = match size {
        0 => (0, 0),
        1..4 => (u64::from(name[0]), u64::from(name[size / 2]) << 8 | u64::from(name[size - 1])),
        4..8 => (half(0), half(size - 4)),
        _ => (word(0), word(size - 8)),
    };
    let mixed = first ^ last.rotate_left(29) ^ (size as u64).rotate_right(8);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

struct Indexer<'j> {
    bytes: &'j [u8],
    at: usize,
    nodes: Vec<Node>,
    root_hashes: Vec<u32>,
    root_names: Vec<NodeId>,
    spaced: bool,
}

impl Indexer<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn malformed<T>(&self) -> Result<T, Unreadable> {
        Err(Unreadable::Malformed(self.at))
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.spaced = true;
            self.at += 1;
        }
    }

    /// Appends a value's nodes, returns its `ODD` flag.
    fn value(&mut self, depth: u32) -> Result<u8, Unreadable> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word(b"true", Kind::True),
            Some(b'f') => self.word(b"false", Kind::False),
            Some(b'n') => self.word(b"null", Kind::Null),
            _ => self.malformed(),
        }
    }

    fn push(&mut self, start: usize, end: usize, kind: Kind, flags: u8) {
        let next = self.nodes.len() as u32 + 1;
        self.nodes.push(Node { start: start as u32, end: end as u32, next, info: 0, kind, flags });
    }

    fn word(&mut self, word: &[u8], kind: Kind) -> Result<u8, Unreadable> {
        if !self.bytes[self.at..].starts_with(word) {
            return self.malformed();
        }
        self.push(self.at, self.at + word.len(), kind, 0);
        self.at += word.len();
        Ok(0)
    }

    fn number(&mut self) -> Result<u8, Unreadable> {
        let start = self.at;
        self.at += usize::from(self.bytes[start] == b'-');
        let digits = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        let digit_count = self.at - digits;
        if digit_count == 0 {
            return self.malformed();
        }
        let mut plain = digit_count <= number::EXACT_DIGITS_MAX && self.bytes[start..self.at] != *b"-0";
        while let Some(b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-') = self.peek() {
            plain = false;
            self.at += 1;
        }
        let flags = if plain { 0 } else { ODD };
        self.push(start, self.at, Kind::Number, flags);
        Ok(flags)
    }

    fn string(&mut self) -> Result<u8, Unreadable> {
        let (start, end, flags) = self.quoted()?;
        self.push(start, end, Kind::String, flags);
        Ok(flags & ODD)
    }

    /// Skips a string; returns where the text between its quotes is, and its flags.
    fn quoted(&mut self) -> Result<(usize, usize, u8), Unreadable> {
        let start = self.at + 1;
        self.at = start;
        let mut flags = 0;
        loop {
            self.at += match find_quote_or_escape(&self.bytes[self.at..]) {
                Some(skipped) => skipped,
                None => return self.malformed(),
            };
            if self.bytes[self.at] == b'"' {
                self.at += 1;
                return Ok((start, self.at - 1, flags));
            }
            flags |= ESCAPED;
            match self.bytes.get(self.at + 1) {
                Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => {}
                Some(_) => flags |= ODD,
                None => return self.malformed(),
            }
            self.at += 2;
        }
    }

    fn name(&mut self, depth: u32) -> Result<u8, Unreadable> {
        if self.peek() != Some(b'"') {
            return self.malformed();
        }
        let (start, end, mut flags) = self.quoted()?;
        let raw = &self.bytes[start..end];
        let hash = if flags & ESCAPED == 0 {
            if raw.first().is_some_and(u8::is_ascii_digit) && number::array_index(raw).is_some() {
                flags |= ODD | INDEX;
            }
            name_hash(raw)
        } else {
            let mut unescaped = Vec::new();
            text::unescape(raw, &mut unescaped);
            if number::array_index(&unescaped).is_some() {
                flags |= ODD | INDEX;
            }
            name_hash(&unescaped)
        };
        if depth == 0 {
            self.root_hashes.push(hash);
            self.root_names.push(self.nodes.len() as NodeId);
        }
        self.push(start, end, Kind::Name, flags);
        self.nodes.last_mut().expect("a name was pushed").info = hash;
        Ok(flags & ODD)
    }

    fn object(&mut self, depth: u32) -> Result<u8, Unreadable> {
        let node = self.open(Kind::Object, depth)?;
        let (mut flags, mut count) = (0, 0);
        if self.peek() == Some(b'}') {
            return Ok(self.close(node, count, flags));
        }
        loop {
            self.skip_space();
            flags |= self.name(depth)?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return self.malformed();
            }
            self.at += 1;
            self.skip_space();
            flags |= self.value(depth + 1)?;
            count += 1;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => return Ok(self.close(node, count, flags)),
                _ => return self.malformed(),
            }
        }
    }

    fn array(&mut self, depth: u32) -> Result<u8, Unreadable> {
        let node = self.open(Kind::Array, depth)?;
        let (mut flags, mut count) = (0, 0);
        if self.peek() == Some(b']') {
            return Ok(self.close(node, count, flags));
        }
        loop {
            self.skip_space();
            flags |= self.value(depth + 1)?;
            count += 1;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => return Ok(self.close(node, count, flags)),
                _ => return self.malformed(),
            }
        }
    }

    fn open(&mut self, kind: Kind, depth: u32) -> Result<usize, Unreadable> {
        if depth >= DOCUMENT_DEPTH_MAX {
            return Err(Unreadable::TooDeep);
        }
        self.push(self.at, self.at, kind, 0);
        self.at += 1;
        self.skip_space();
        Ok(self.nodes.len() - 1)
    }

    fn close(&mut self, node: usize, count: u32, flags: u8) -> u8 {
        self.at += 1;
        let next = self.nodes.len() as u32;
        let node = &mut self.nodes[node];
        node.end = self.at as u32;
        node.next = next;
        node.info = count;
        node.flags = flags;
        flags
    }
}

/// Where the next quote or backslash is. Most strings are short: a call of `memchr2` costs more than looking at
/// their first words.
fn find_quote_or_escape(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const WORDS: usize = 4;
    const WORD_SIZE: usize = size_of::<u64>();
    // The lowest byte that is zero has its high bit set in the result; so may have bytes above it.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7);
    let (words, _) = bytes.as_chunks::<WORD_SIZE>();
    for (index, word) in words.iter().take(WORDS).enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = zeros(word ^ (ONES * u64::from(b'"'))) | zeros(word ^ (ONES * u64::from(b'\\')));
        if found != 0 {
            return Some(index * WORD_SIZE + found.trailing_zeros() as usize / 8);
        }
    }
    let skipped = words.len().min(WORDS) * WORD_SIZE;
    Some(skipped + memchr::memchr2(b'"', b'\\', &bytes[skipped..])?)
}
