//! Values of a run and the memory that they refer to.

use super::limits::MADE_BYTES_MAX;
use crate::document::NodeId;
use crate::plan::Name;

/// A value of JavaScript. Values are small and copied; what they refer to lives as long as the run.
///
/// The tag is as wide as the rest, so that copies are of whole words.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(super) enum Value {
    Undefined,
    Null,
    Bool(bool),
    Number(f64),
    Text(Text),
    /// An array or object of the document.
    Node(NodeId),
    /// An array that the function made.
    Array(u32),
    /// An object that the function made.
    Object(u32),
}

/// A string, in WTF-8: a range of the document's text, of the plan's literals, of the run's own strings, or of
/// [`WORDS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Text {
    start: u32,
    /// The source in the highest bits, then the number of bytes.
    source_and_size: u32,
}

const SIZE_BITS: u32 = 30;
const SIZE_MASK: u32 = (1 << SIZE_BITS) - 1;
const _: () = assert!(crate::document::DOCUMENT_BYTES_MAX < 1 << SIZE_BITS);
const _: () = assert!(MADE_BYTES_MAX < 1 << SIZE_BITS);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Document = 0,
    Literal = 1,
    Made = 2,
    Word = 3,
}

/// The words that conversions and `typeof` give.
pub(super) const WORDS: &[u8] = b"undefinednulltruefalsebooleannumberobjectstring,";

impl Text {
    pub(super) const EMPTY: Self = Self::word(0, 0);
    pub(super) const UNDEFINED: Self = Self::word(0, 9);
    pub(super) const NULL: Self = Self::word(9, 13);
    pub(super) const TRUE: Self = Self::word(13, 17);
    pub(super) const FALSE: Self = Self::word(17, 22);
    pub(super) const BOOLEAN: Self = Self::word(22, 29);
    pub(super) const NUMBER: Self = Self::word(29, 35);
    pub(super) const OBJECT: Self = Self::word(35, 41);
    pub(super) const STRING: Self = Self::word(41, 47);
    pub(super) const COMMA: Self = Self::word(47, 48);

    const fn word(start: u32, end: u32) -> Self {
        Self::new(Source::Word, start, end)
    }

    pub(super) const fn new(source: Source, start: u32, end: u32) -> Self {
        Self { start, source_and_size: (source as u32) << SIZE_BITS | (end - start) }
    }

    pub(super) fn source(self) -> Source {
        match self.source_and_size >> SIZE_BITS {
            0 => Source::Document,
            1 => Source::Literal,
            2 => Source::Made,
            _ => Source::Word,
        }
    }

    pub(super) fn start(self) -> u32 {
        self.start
    }

    pub(super) fn end(self) -> u32 {
        self.start + (self.source_and_size & SIZE_MASK)
    }

    /// The bytes `start..end` of this string.
    pub(super) fn part(self, start: usize, end: usize) -> Self {
        Self::new(self.source(), self.start + start as u32, self.start + end as u32)
    }

    pub(super) fn size(self) -> usize {
        (self.source_and_size & SIZE_MASK) as usize
    }
}

impl From<Name> for Text {
    fn from(name: Name) -> Self {
        Self::new(Source::Literal, name.start, name.end)
    }
}

const _: () = assert!(size_of::<Value>() == 16);

/// A member of an object that the function made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) name: Text,
    pub(super) hash: u32,
    pub(super) value: Value,
}

/// A row: printed key and value as ranges of `Heap::printed`.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrintedRow {
    pub(super) start: usize,
    pub(super) middle: usize,
    pub(super) end: usize,
}

/// All memory of a run.
#[derive(Debug, Default)]
pub(super) struct Heap {
    pub(super) locals: Vec<Value>,
    /// The document's members that were read, by the numbers of their names. A frozen document's don't change.
    pub(super) known: Vec<Option<Value>>,
    /// Emitted keys and values.
    pub(super) emitted: Vec<(Value, Value)>,
    /// The value of the last `return`.
    pub(super) returned: Option<Value>,
    pub(super) made: Vec<u8>,
    arrays: Vec<Vec<Value>>,
    array_count: usize,
    objects: Vec<Vec<Member>>,
    object_count: usize,
    /// Arrays, objects, elements and members made so far.
    pub(super) value_count: usize,
    pub(super) step_count: u32,
    pub(super) message: String,
    pub(super) reason: &'static str,
    /// Where the element of a document's array that was read last is: array, index, node.
    pub(super) cursor: (NodeId, u32, NodeId),
    pub(super) printed: Vec<u8>,
    pub(super) rows: Vec<PrintedRow>,
}

/// Arrays and objects whose memory is kept for the next run, and the memory that a kept one may have.
const POOLED_MAX: usize = 64;
const POOLED_SIZE_MAX: usize = 64;

/// Bytes of strings and of printed rows, and rows, whose memory is kept for the next run.
const KEPT_BYTES_MAX: usize = 64 << 10;
const KEPT_ROWS_MAX: usize = 1 << 10;

impl Heap {
    pub(super) fn clear(&mut self, slot_count: usize, name_count: usize) {
        self.locals.clear();
        self.locals.resize(slot_count, Value::Undefined);
        self.known.clear();
        self.known.resize(name_count, None);
        self.emitted.clear();
        self.emitted.shrink_to(KEPT_ROWS_MAX);
        self.returned = None;
        self.made.clear();
        self.made.shrink_to(KEPT_BYTES_MAX);
        self.arrays.truncate(POOLED_MAX);
        self.arrays.iter_mut().take(self.array_count).for_each(|array| array.shrink_to(POOLED_SIZE_MAX));
        self.array_count = 0;
        self.objects.truncate(POOLED_MAX);
        self.objects.iter_mut().take(self.object_count).for_each(|object| object.shrink_to(POOLED_SIZE_MAX));
        self.object_count = 0;
        self.value_count = 0;
        self.step_count = 0;
        self.message.clear();
        self.reason = "";
        self.cursor = (0, 0, 0);
        self.printed.clear();
        self.printed.shrink_to(KEPT_BYTES_MAX);
        self.rows.clear();
        self.rows.shrink_to(KEPT_ROWS_MAX);
    }

    /// An empty array.
    pub(super) fn add_array(&mut self) -> u32 {
        let index = self.array_count;
        match self.arrays.get_mut(index) {
            Some(array) => array.clear(),
            None => self.arrays.push(Vec::new()),
        }
        self.array_count += 1;
        index as u32
    }

    /// An empty object.
    pub(super) fn add_object(&mut self) -> u32 {
        let index = self.object_count;
        match self.objects.get_mut(index) {
            Some(object) => object.clear(),
            None => self.objects.push(Vec::new()),
        }
        self.object_count += 1;
        index as u32
    }

    pub(super) fn array(&self, array: u32) -> &Vec<Value> {
        &self.arrays[array as usize]
    }

    pub(super) fn object(&self, object: u32) -> &Vec<Member> {
        &self.objects[object as usize]
    }

    pub(super) fn object_mut(&mut self, object: u32) -> &mut Vec<Member> {
        &mut self.objects[object as usize]
    }

    pub(super) fn array_mut(&mut self, array: u32) -> &mut Vec<Value> {
        &mut self.arrays[array as usize]
    }
}
