//! Members: reading, writing, deleting and enumerating them.

use super::limits::{BYTES_PER_STEP, MEMBERS_PER_STEP};
use super::values::{Member, Text, Value};
use super::{Evaluated, Run};
use crate::document::{self, Kind, NodeId};
use crate::names::{self, ARRAY, BOOLEAN, NUMBER, OBJECT, TEXT};
use crate::plan::{Expression, Key, Name};
use crate::{number, text};

/// A member's name, with what lookups need to know about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Property {
    pub(super) text: Text,
    hash: u32,
    inheriting: u8,
    is_length: bool,
}

impl From<Name> for Property {
    fn from(name: Name) -> Self {
        Self { text: name.into(), hash: name.hash, inheriting: name.inheriting, is_length: name.is_length }
    }
}

/// A member's name before it is converted: numbers aren't made strings for arrays.
#[derive(Debug, Clone, Copy)]
pub(super) enum PropertyKey {
    Index(u32),
    Property(Property),
}

impl<'r> Run<'r> {
    pub(super) fn key(&mut self, key: &'r Key) -> Evaluated<PropertyKey> {
        match key {
            Key::Name(name) => Ok(PropertyKey::Property((*name).into())),
            Key::Value(value) => {
                let value = self.evaluate(value)?;
                if let Value::Number(value) = value
                    && let Some(index) = number::to_index(value)
                {
                    return Ok(PropertyKey::Index(index));
                }
                Ok(PropertyKey::Property(self.property(value)?))
            }
        }
    }

    /// A value as a member's name.
    pub(super) fn property(&mut self, value: Value) -> Evaluated<Property> {
        let text = self.text_of(value)?;
        self.steps(text.size() / BYTES_PER_STEP)?;
        let name = self.bytes(text);
        Ok(Property {
            text,
            hash: document::name_hash(name),
            inheriting: names::inheriting(name),
            is_length: name == b"length",
        })
    }

    fn key_property(&mut self, key: PropertyKey) -> Evaluated<Property> {
        match key {
            PropertyKey::Index(index) => self.property(Value::Number(f64::from(index))),
            PropertyKey::Property(property) => Ok(property),
        }
    }

    /// `receiver.name`, `receiver[key]`.
    pub(super) fn get(&mut self, receiver: Value, key: PropertyKey) -> Evaluated<Value> {
        if let Value::Undefined | Value::Null = receiver {
            return self.throw_for(receiver, key, "read");
        }
        if let Some(own) = self.get_own(receiver, key)? {
            return Ok(own);
        }
        match key {
            PropertyKey::Property(property) if property.inheriting & Self::kind(receiver, self) != 0 => {
                self.engine("an inherited member")
            }
            _ => Ok(Value::Undefined),
        }
    }

    #[cold]
    fn throw_for<T>(&mut self, receiver: Value, key: PropertyKey, action: &str) -> Evaluated<T> {
        let property = self.key_property(key)?;
        let name = text::lossy(self.bytes(property.text));
        let receiver = if matches!(receiver, Value::Null) { "null" } else { "undefined" };
        self.throw(format!("TypeError: cannot {action} property '{name}' of {receiver}"))
    }

    pub(super) fn kind(receiver: Value, run: &Self) -> u8 {
        match receiver {
            Value::Undefined | Value::Null => 0,
            Value::Bool(_) => BOOLEAN,
            Value::Number(_) => NUMBER,
            Value::Text(_) => TEXT,
            Value::Node(node) if run.document.kind(node) == Kind::Array => ARRAY,
            Value::Array(_) => ARRAY,
            Value::Node(_) | Value::Object(_) => OBJECT,
        }
    }

    /// The receiver's own member.
    pub(super) fn get_own(&mut self, receiver: Value, key: PropertyKey) -> Evaluated<Option<Value>> {
        match receiver {
            Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) => Ok(None),
            Value::Node(node) if self.document.kind(node) == Kind::Object => {
                let property = self.key_property(key)?;
                let document = self.document;
                self.steps(document.count(node) as usize / MEMBERS_PER_STEP)?;
                match document.member(node, self.bytes(property.text), property.hash) {
                    Some(value) => self.node_value(value).map(Some),
                    None => Ok(None),
                }
            }
            Value::Object(object) => {
                let property = self.key_property(key)?;
                Ok(self.find_member(object, property)?.map(|at| self.heap.object(object)[at].value))
            }
            Value::Text(text) => self.get_of_text(text, key),
            Value::Node(_) | Value::Array(_) => match key {
                PropertyKey::Property(property) if property.is_length => {
                    Ok(Some(Value::Number(self.count(receiver) as f64)))
                }
                _ => match self.index(key) {
                    Some(index) => self.element(receiver, index),
                    None => Ok(None),
                },
            },
        }
    }

    fn get_of_text(&mut self, text: Text, key: PropertyKey) -> Evaluated<Option<Value>> {
        self.steps(text.size() / BYTES_PER_STEP)?;
        if let PropertyKey::Property(property) = key
            && property.is_length
        {
            return Ok(Some(Value::Number(text::length(self.bytes(text)) as f64)));
        }
        let Some(index) = self.index(key) else { return Ok(None) };
        if index as usize >= text::length(self.bytes(text)) {
            return Ok(None);
        }
        self.substring(text, index as usize, index as usize + 1).map(|unit| Some(Value::Text(unit)))
    }

    /// The array index that a key is.
    fn index(&self, key: PropertyKey) -> Option<u32> {
        match key {
            PropertyKey::Index(index) => Some(index),
            PropertyKey::Property(property) => number::array_index(self.bytes(property.text)),
        }
    }

    /// Number of elements of an array.
    pub(super) fn count(&self, array: Value) -> usize {
        match array {
            Value::Node(node) => self.document.count(node) as usize,
            Value::Array(array) => self.heap.array(array).len(),
            _ => 0,
        }
    }

    /// An element of an array.
    pub(super) fn element(&mut self, array: Value, index: u32) -> Evaluated<Option<Value>> {
        match array {
            Value::Node(node) => match self.node_element(node, index)? {
                Some(element) => self.node_value(element).map(Some),
                None => Ok(None),
            },
            Value::Array(array) => Ok(self.heap.array(array).get(index as usize).copied()),
            _ => Ok(None),
        }
    }

    /// An element's node; the one that was read last is where the search begins.
    fn node_element(&mut self, array: NodeId, index: u32) -> Evaluated<Option<NodeId>> {
        if index >= self.document.count(array) {
            return Ok(None);
        }
        let (read, at, node) = self.heap.cursor;
        let (mut at, mut node) =
            if read == array && at <= index && node > array { (at, node) } else { (0, array + 1) };
        self.steps((index - at) as usize / MEMBERS_PER_STEP)?;
        while at < index {
            node = self.document.next(node);
            at += 1;
        }
        self.heap.cursor = (array, index, node);
        Ok(Some(node))
    }

    /// Where a member of a made object is.
    fn find_member(&mut self, object: u32, property: Property) -> Evaluated<Option<usize>> {
        self.steps(self.heap.object(object).len() / MEMBERS_PER_STEP)?;
        let name = self.bytes(property.text);
        let is_named = |member: &Member| member.hash == property.hash && self.bytes(member.name) == name;
        Ok(self.heap.object(object).iter().position(is_named))
    }

    /// Whether the receiver itself has a member.
    pub(super) fn has_own(&mut self, receiver: Value, key: PropertyKey) -> Evaluated<bool> {
        Ok(self.get_own(receiver, key)?.is_some())
    }

    /// `key in receiver`.
    pub(super) fn is_in(&mut self, key: Value, receiver: Value) -> Evaluated<bool> {
        if !matches!(receiver, Value::Node(_) | Value::Array(_) | Value::Object(_)) {
            return self.throw("TypeError: invalid 'in' operand");
        }
        let property = self.property(key)?;
        if self.has_own(receiver, PropertyKey::Property(property))? {
            return Ok(true);
        }
        if property.inheriting & Self::kind(receiver, self) != 0 {
            return self.engine("an inherited member");
        }
        Ok(false)
    }

    /// `receiver[key] = value`. The document is frozen: assignments to it do nothing.
    pub(super) fn set(&mut self, receiver: Value, key: PropertyKey, value: Value) -> Evaluated<()> {
        if let Value::Undefined | Value::Null = receiver {
            return self.throw_for(receiver, key, "set");
        }
        if let PropertyKey::Property(property) = key
            && property.inheriting != 0
        {
            return self.engine("an assignment to a member that may be inherited");
        }
        match receiver {
            Value::Object(object) => {
                let property = self.key_property(key)?;
                match self.find_member(object, property)? {
                    Some(at) => self.heap.object_mut(object)[at].value = value,
                    None => self.add_member(object, property, value)?,
                }
                Ok(())
            }
            Value::Array(array) => {
                let count = self.count(receiver);
                match self.index(key) {
                    Some(index) if (index as usize) < count => {
                        self.heap.array_mut(array)[index as usize] = value
                    }
                    Some(index) if index as usize == count => self.push(array, value)?,
                    _ => return self.engine("an assignment to an array's member"),
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn add_member(&mut self, object: u32, property: Property, value: Value) -> Evaluated<()> {
        self.reserve(1)?;
        let Property { text: name, hash, .. } = property;
        self.heap.object_mut(object).push(Member { name, hash, value });
        Ok(())
    }

    /// Defines a member of an object that is being made.
    pub(super) fn define(&mut self, object: u32, name: Name, value: Value) -> Evaluated<()> {
        let property = Property::from(name);
        match self.find_member(object, property)? {
            Some(at) => self.heap.object_mut(object)[at].value = value,
            None => self.add_member(object, property, value)?,
        }
        Ok(())
    }

    /// `delete receiver[key]`.
    pub(super) fn delete(&mut self, receiver: &'r Expression, key: &'r Key) -> Evaluated<bool> {
        let receiver = self.evaluate(receiver)?;
        let key = self.key(key)?;
        match receiver {
            Value::Undefined | Value::Null => {
                self.throw("TypeError: Cannot convert undefined or null to object")
            }
            Value::Object(object) => {
                let property = self.key_property(key)?;
                if let Some(at) = self.find_member(object, property)? {
                    self.heap.object_mut(object).remove(at);
                }
                Ok(true)
            }
            Value::Array(_) => self.engine("`delete` of an array's element"),
            Value::Text(_) | Value::Bool(_) | Value::Number(_) => {
                self.engine("`delete` of a primitive's member")
            }
            Value::Node(_) => Ok(!self.has_own(receiver, key)?),
        }
    }

    /// The names that `for…in` and `Object.keys` enumerate; `None` for null and undefined.
    pub(super) fn keys(&mut self, value: Value) -> Evaluated<Option<Vec<Text>>> {
        let count = match value {
            Value::Undefined | Value::Null => return Ok(None),
            Value::Bool(_) | Value::Number(_) => 0,
            Value::Text(text) => text::length(self.bytes(text)),
            Value::Object(object) => return Ok(Some(self.object_keys(object))),
            Value::Node(node) if self.document.kind(node) == Kind::Object => {
                let members = self.document.members(node);
                self.reserve(members.len())?;
                let names = members.into_iter().map(|(name, _)| self.node_text(name));
                return names.collect::<Evaluated<_>>().map(Some);
            }
            Value::Node(_) | Value::Array(_) => self.count(value),
        };
        self.reserve(count)?;
        let indexes = (0..count).map(|index| self.make(|made| number::write(index as f64, made)));
        indexes.collect::<Evaluated<_>>().map(Some)
    }

    fn object_keys(&self, object: u32) -> Vec<Text> {
        self.ordered_members(object).into_iter().map(|member| member.name).collect()
    }

    /// The members of a made object as JavaScript enumerates them: array indexes first.
    pub(super) fn ordered_members(&self, object: u32) -> Vec<Member> {
        let mut members = self.heap.object(object).clone();
        if self.has_index_names(object) {
            let index = |member: &Member| number::array_index(self.bytes(member.name));
            members.sort_by_key(|member| index(member).unwrap_or(u32::MAX));
        }
        members
    }

    /// Whether a made object has members that come before others.
    pub(super) fn has_index_names(&self, object: u32) -> bool {
        self.heap.object(object).iter().any(|member| number::array_index(self.bytes(member.name)).is_some())
    }

    /// Whether a name that `for…in` has read still exists when the loop reaches it.
    pub(super) fn is_enumerated_still(&mut self, receiver: Value, name: Text) -> Evaluated<bool> {
        if !matches!(receiver, Value::Object(_)) {
            return Ok(true);
        }
        let property = self.property(Value::Text(name))?;
        if self.has_own(receiver, PropertyKey::Property(property))? {
            return Ok(true);
        }
        if property.inheriting != 0 { self.engine("an inherited member") } else { Ok(false) }
    }
}
