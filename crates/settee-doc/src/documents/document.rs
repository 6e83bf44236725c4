//! A document that was read: its JSON text is concatenated, nothing is parsed.
//!
//! A large body isn't read with its document, so that a reader needs memory for one chunk of it: see
//! [`Document::large_body`].

use bytes::Bytes;

use super::revision::{Revision, RevisionId};
use crate::attachments::Attachment;
use crate::json::write_json_string;

/// A revision of a document with its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The document's id.
    pub id: String,
    /// The revision.
    pub revision: Revision,
    /// Whether it deletes the document.
    pub deleted: bool,
    /// Its members, as text without white space and without the braces; empty if there is a `large_body`.
    pub body: Bytes,
    /// Its attachments, without their content.
    pub attachments: Vec<Attachment>,
    /// A body that was not read, because it is stored out of line in more than one chunk.
    /// [`Snapshot::large_body`](crate::Snapshot::large_body) reads it chunk by chunk,
    /// [`Snapshot::read_whole`](crate::Snapshot::read_whole) as a whole.
    pub large_body: Option<LargeBody>,
}

/// A body that is read chunk by chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargeBody(pub(crate) Attachment);

impl LargeBody {
    /// Size of the body in bytes.
    pub fn size(&self) -> u64 {
        self.0.stored_length()
    }
}

/// Optional members of a document's JSON text. Empty ones are left out.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// `_revisions`: the ids from the document's revision back to its oldest known ancestor.
    pub revisions: Option<Vec<RevisionId>>,
    /// `_conflicts`: the leaves that lost, not deleted.
    pub conflicts: Vec<Revision>,
    /// `_deleted_conflicts`: the deleted leaves that lost.
    pub deleted_conflicts: Vec<Revision>,
    /// `_revs_info`: revisions and their states.
    pub revs_info: Vec<(Revision, &'static str)>,
    /// `_local_seq`, a number in CouchDB too.
    pub local_seq: Option<u64>,
    /// How attachments are compressed (`att_encoding_info`).
    pub encoding: bool,
}

impl Document {
    /// Size of its body in bytes, read or not.
    pub fn body_size(&self) -> u64 {
        self.large_body.as_ref().map_or(self.body.len() as u64, LargeBody::size)
    }

    /// Verifies that the body was read.
    pub(crate) fn check_is_whole(&self) {
        assert!(self.large_body.is_none(), "the body of {} was not read", self.id);
    }

    /// Appends the document's JSON text, its attachments as stubs.
    ///
    /// # Panics
    /// If its body was not read.
    pub fn write_json(&self, extras: &Extras, out: &mut Vec<u8>) {
        self.begin_json(out);
        self.write_stubs(extras, out);
        self.end_json(extras, out);
    }

    /// Appends its attachments as stubs, between the text of [`Document::begin_json`] and that of
    /// [`Document::end_json`].
    pub fn write_stubs(&self, extras: &Extras, out: &mut Vec<u8>) {
        if !self.attachments.is_empty() {
            out.extend_from_slice(b",\"_attachments\":{");
            for (index, attachment) in self.attachments.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_json_string(&attachment.name, out);
                out.extend_from_slice(b":{");
                attachment.write_members(extras.encoding, out);
                out.extend_from_slice(b",\"stub\":true}");
            }
            out.push(b'}');
        }
    }

    /// Appends the text before its attachments.
    ///
    /// # Panics
    /// If its body was not read.
    pub fn begin_json(&self, out: &mut Vec<u8>) {
        self.check_is_whole();
        self.begin_members(out);
        out.extend_from_slice(&self.body);
    }

    /// Appends the text before its body. The caller appends the body, and then the text behind it:
    /// [`Document::write_stubs`] and [`Document::end_json`].
    pub fn begin_members(&self, out: &mut Vec<u8>) {
        out.reserve(self.body.len() + self.id.len() + 64);
        out.extend_from_slice(b"{\"_id\":");
        write_json_string(&self.id, out);
        out.extend_from_slice(b",\"_rev\":");
        self.revision.write_json(out);
        self.write_deleted(out);
    }

    fn write_deleted(&self, out: &mut Vec<u8>) {
        if self.deleted {
            out.extend_from_slice(b",\"_deleted\":true");
        }
        if self.body_size() > 0 {
            out.push(b',');
        }
    }

    /// Appends the JSON text of a document that isn't stored yet: without its revision.
    pub(crate) fn write_new_json(&self, out: &mut Vec<u8>) {
        self.check_is_whole();
        out.extend_from_slice(b"{\"_id\":");
        write_json_string(&self.id, out);
        self.write_deleted(out);
        out.extend_from_slice(&self.body);
        self.write_stubs(&Extras::default(), out);
        out.push(b'}');
    }

    /// Appends the text behind its attachments.
    pub fn end_json(&self, extras: &Extras, out: &mut Vec<u8>) {
        self.write_extras(extras, out);
        out.push(b'}');
    }

    fn write_extras(&self, extras: &Extras, out: &mut Vec<u8>) {
        if let Some(ids) = &extras.revisions {
            out.extend_from_slice(b",\"_revisions\":{\"start\":");
            out.extend_from_slice(itoa::Buffer::new().format(self.revision.generation).as_bytes());
            out.extend_from_slice(b",\"ids\":");
            write_list(ids, out, RevisionId::write_json);
            out.push(b'}');
        }
        for (name, revisions) in
            [("_conflicts", &extras.conflicts), ("_deleted_conflicts", &extras.deleted_conflicts)]
        {
            if !revisions.is_empty() {
                write_member(name, out);
                write_list(revisions, out, Revision::write_json);
            }
        }
        if !extras.revs_info.is_empty() {
            write_member("_revs_info", out);
            write_list(&extras.revs_info, out, |(revision, status), out| {
                out.extend_from_slice(b"{\"rev\":");
                revision.write_json(out);
                out.extend_from_slice(b",\"status\":");
                write_json_string(status, out);
                out.push(b'}');
            });
        }
        if let Some(seq) = extras.local_seq {
            write_member("_local_seq", out);
            out.extend_from_slice(itoa::Buffer::new().format(seq).as_bytes());
        }
    }
}

fn write_member(name: &str, out: &mut Vec<u8>) {
    out.push(b',');
    write_json_string(name, out);
    out.push(b':');
}

fn write_list<T>(items: &[T], out: &mut Vec<u8>, write: impl Fn(&T, &mut Vec<u8>)) {
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(item, out);
    }
    out.push(b']');
}
