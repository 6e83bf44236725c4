//! Rows as `JSON.stringify` prints them.

use super::values::{PrintedRow, Source, Text, Value};
use super::{Evaluated, Run};
use crate::document::{Kind, NodeId};
use crate::{number, text};

/// Nesting of the arrays and objects that a function makes; deeper ones may be circular.
const MADE_DEPTH_MAX: u32 = 50;

impl Run<'_> {
    /// Prints all emitted rows into `Heap::printed`.
    pub(super) fn print_rows(&mut self) -> Evaluated<()> {
        for index in 0..self.heap.emitted.len() {
            let (key, value) = self.heap.emitted[index];
            let start = self.heap.printed.len();
            self.print(key, 0)?;
            let middle = self.heap.printed.len();
            self.print(value, 0)?;
            let end = self.heap.printed.len();
            self.heap.rows.push(PrintedRow { start, middle, end });
            self.check_printed()?;
        }
        Ok(())
    }

    fn print(&mut self, value: Value, depth: u32) -> Evaluated<()> {
        match value {
            Value::Undefined | Value::Null => self.heap.printed.extend_from_slice(b"null"),
            Value::Bool(true) => self.heap.printed.extend_from_slice(b"true"),
            Value::Bool(false) => self.heap.printed.extend_from_slice(b"false"),
            Value::Number(value) if value.is_finite() => number::write(value, &mut self.heap.printed),
            Value::Number(_) => self.heap.printed.extend_from_slice(b"null"),
            Value::Text(text) => self.print_text(text),
            Value::Node(node) => self.print_node(node),
            Value::Array(_) | Value::Object(_) if depth == MADE_DEPTH_MAX => {
                return self.engine("deep values");
            }
            Value::Array(array) => {
                self.heap.printed.push(b'[');
                for index in 0..self.heap.array(array).len() {
                    if index > 0 {
                        self.heap.printed.push(b',');
                    }
                    let element = self.heap.array(array)[index];
                    self.print(element, depth + 1)?;
                    self.check_printed()?;
                }
                self.heap.printed.push(b']');
            }
            Value::Object(object) => return self.print_object(object, depth),
        }
        Ok(())
    }

    fn print_text(&mut self, text: Text) {
        if text.source() == Source::Document {
            // It has no escapes in the document, so it needs none.
            let printed = &mut self.heap.printed;
            printed.push(b'"');
            printed.extend_from_slice(self.document.bytes(text.start(), text.end()));
            printed.push(b'"');
            return;
        }
        // Taken out, so that the text can be read while it is printed.
        let mut printed = std::mem::take(&mut self.heap.printed);
        text::quote(self.bytes(text), &mut printed);
        self.heap.printed = printed;
    }

    fn print_object(&mut self, object: u32, depth: u32) -> Evaluated<()> {
        self.heap.printed.push(b'{');
        let mut is_first = true;
        let ordered = self.has_index_names(object).then(|| self.ordered_members(object));
        for place in 0..self.heap.object(object).len() {
            let member = ordered.as_ref().unwrap_or(self.heap.object(object))[place];
            if matches!(member.value, Value::Undefined) {
                continue;
            }
            if !is_first {
                self.heap.printed.push(b',');
            }
            is_first = false;
            self.print_text(member.name);
            self.heap.printed.push(b':');
            self.print(member.value, depth + 1)?;
            self.check_printed()?;
        }
        self.heap.printed.push(b'}');
        Ok(())
    }

    fn print_node(&mut self, node: NodeId) {
        let document = self.document;
        let printed = &mut self.heap.printed;
        if let Some(text) = document.verbatim(node) {
            printed.extend_from_slice(text);
            return;
        }
        match document.kind(node) {
            Kind::Number => match document.number(node) {
                value if value.is_finite() => number::write(value, printed),
                _ => printed.extend_from_slice(b"null"),
            },
            Kind::String | Kind::Name => {
                let (start, end, _) = document.string(node);
                let mut unescaped = Vec::with_capacity((end - start) as usize);
                text::unescape(document.bytes(start, end), &mut unescaped);
                text::quote(&unescaped, printed);
            }
            Kind::Array => {
                printed.push(b'[');
                let mut element = node + 1;
                for index in 0..document.count(node) {
                    if index > 0 {
                        self.heap.printed.push(b',');
                    }
                    self.print_node(element);
                    element = document.next(element);
                }
                self.heap.printed.push(b']');
            }
            Kind::Object => {
                printed.push(b'{');
                for (index, (name, value)) in document.members(node).into_iter().enumerate() {
                    if index > 0 {
                        self.heap.printed.push(b',');
                    }
                    self.print_node(name);
                    self.heap.printed.push(b':');
                    self.print_node(value);
                }
                self.heap.printed.push(b'}');
            }
            Kind::Null | Kind::True | Kind::False => unreachable!("words are printed verbatim"),
        }
    }
}
