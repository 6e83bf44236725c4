//! Making and reading values, within the run's limits.

use super::limits::{MADE_BYTES_MAX, MADE_VALUES_MAX, ROW_BYTES_MAX};
use super::values::{Source, Text, Value, WORDS};
use super::{Evaluated, Run};
use crate::document::NodeId;
use crate::text;

impl<'r> Run<'r> {
    /// Counts values that are about to be made.
    pub(super) fn reserve(&mut self, count: usize) -> Evaluated<()> {
        self.heap.value_count += count;
        if self.heap.value_count > MADE_VALUES_MAX { self.engine("many values") } else { Ok(()) }
    }

    pub(super) fn new_array(&mut self) -> Evaluated<u32> {
        self.reserve(1)?;
        Ok(self.heap.add_array())
    }

    pub(super) fn push(&mut self, array: u32, value: Value) -> Evaluated<()> {
        self.reserve(1)?;
        self.heap.array_mut(array).push(value);
        Ok(())
    }

    pub(super) fn new_object(&mut self) -> Evaluated<u32> {
        self.reserve(1)?;
        Ok(self.heap.add_object())
    }

    pub(super) fn bytes(&self, text: Text) -> &[u8] {
        match text.source() {
            Source::Document => self.document.bytes(text.start(), text.end()),
            Source::Literal => &self.plan.literals[text.start() as usize..text.end() as usize],
            Source::Made => &self.heap.made[text.start() as usize..text.end() as usize],
            Source::Word => &WORDS[text.start() as usize..text.end() as usize],
        }
    }

    /// Makes a string of what `write` appends.
    pub(super) fn make(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Evaluated<Text> {
        let start = self.heap.made.len();
        write(&mut self.heap.made);
        self.made_since(start)
    }

    /// The string that was appended to `Heap::made` since it had `start` bytes.
    pub(super) fn made_since(&mut self, start: usize) -> Evaluated<Text> {
        let end = self.heap.made.len();
        if end > MADE_BYTES_MAX {
            return self.engine("long strings");
        }
        Ok(Text::new(Source::Made, start as u32, end as u32))
    }

    /// Appends to the string that is being made since `start`.
    pub(super) fn append(&mut self, start: usize, text: Text) -> Evaluated<()> {
        if self.heap.made.len() + text.size() > MADE_BYTES_MAX {
            return self.engine("long strings");
        }
        match text.source() {
            Source::Document => {
                let document: &'r _ = self.document;
                text::append(&mut self.heap.made, start, document.bytes(text.start(), text.end()));
            }
            Source::Literal => {
                let plan: &'r _ = self.plan;
                let literal = &plan.literals[text.start() as usize..text.end() as usize];
                text::append(&mut self.heap.made, start, literal);
            }
            Source::Word => {
                self.heap.made.extend_from_slice(&WORDS[text.start() as usize..text.end() as usize])
            }
            Source::Made => {
                let copy = self.bytes(text).to_vec();
                text::append(&mut self.heap.made, start, &copy);
            }
        }
        Ok(())
    }

    /// A name's or string's text in the document, unescaped.
    pub(super) fn node_text(&mut self, node: NodeId) -> Evaluated<Text> {
        let (start, end, escaped) = self.document.string(node);
        if !escaped {
            return Ok(Text::new(Source::Document, start, end));
        }
        let document = self.document;
        self.make(|made| text::unescape(document.bytes(start, end), made))
    }

    /// Checks that printing may go on.
    pub(super) fn check_printed(&mut self) -> Evaluated<()> {
        if self.heap.printed.len() > ROW_BYTES_MAX { self.engine("long rows") } else { Ok(()) }
    }
}
