//! A document to be written: parsed and checked in its caller's task, before any lock is taken.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::value::RawValue;
use settee_store::Value;

use super::document::Document;
use super::id::{ID_SIZE_MAX, check_document_id};
use super::leaf_value::{DOCUMENT_BYTES_LIMIT, ENCODING_PLAIN};
use super::revision::{Revision, RevisionId};
use crate::attachments::{Attachment, Content, Following, NewAttachment, Upload, parse_digest};
use crate::json::{self, JsonError, write_json_string};
use crate::{Error, ErrorKind, Result};

/// Members that CouchDB's replicator writes into its documents; stored like ordinary members.
const REPLICATOR_MEMBERS: [&str; 5] = [
    "_replication_id",
    "_replication_state",
    "_replication_state_time",
    "_replication_state_reason",
    "_replication_stats",
];

/// Base 64 with or without padding, since clients send both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The media type of an attachment that came without one.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// Limits on documents.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Largest body in bytes, as stored text; default 8,000,000, at most
    /// [`DOCUMENT_BYTES_LIMIT`](crate::DOCUMENT_BYTES_LIMIT). Local documents have a lower limit besides: see
    /// [`Database::put_local`](crate::Database::put_local).
    pub document_bytes_max: usize,
    /// Largest attachment inside a document in bytes; unlimited by default.
    pub attachment_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { document_bytes_max: 8_000_000, attachment_bytes_max: u64::MAX }
    }
}

/// A requested write of one document.
#[derive(Debug, Clone)]
pub struct Edit {
    /// The document's id; empty if the text had none and the caller hasn't set it yet.
    pub id: String,
    /// `_rev`: the revision that an interactive edit replaces, or the revision itself of a replicated edit.
    pub revision: Option<Revision>,
    /// The N of `_rev` of a local document, `0-N`.
    pub local_revision: Option<u64>,
    /// `_revisions`: the ids from the revision itself back to its oldest known ancestor.
    pub history: Vec<RevisionId>,
    /// Whether it deletes the document.
    pub deleted: bool,
    /// All attachments of the new revision; attachments of the old one that aren't listed are removed.
    pub attachments: Vec<NewAttachment>,
    /// The members that aren't reserved, as stored: the encoding byte, then their text without white space
    /// and braces.
    stored: Value,
    digest: [u8; 32],
    /// The out-of-line body, if it was uploaded.
    pub(crate) uploaded_body: Option<Upload>,
}

impl Edit {
    /// The ids of a replicated edit's revisions, from its own, `revision`, back.
    pub(crate) fn path(&self, revision: &Revision) -> Vec<RevisionId> {
        if self.history.is_empty() { vec![revision.id.clone()] } else { self.history.clone() }
    }

    /// Parses a document's JSON text. Names are compared after unescaping. Repeated ordinary members are all
    /// kept, as received; numbers are kept as written.
    ///
    /// # Errors
    /// `BadRequest` if the text isn't exactly one JSON object in UTF-8, has an unpaired surrogate in a string
    /// or a number beyond a double's range, nests too deep, or has a bad `_rev`; `DocValidation` for other
    /// reserved members that are unknown, malformed or repeated; `IllegalDocId`; `TooLarge`;
    /// `AttachmentTooLarge`, whose reason is the attachment's name.
    pub fn parse(json: &[u8], options: &Options) -> Result<Edit> {
        Edit::parse_within(json, options, &mut |_| Ok::<(), Error>(()))
    }

    /// As [`Edit::parse`]; calls `charge` with the number of bytes before it allocates them for attachments
    /// and ancestors.
    /// Besides these, the edit allocates its body, which is no longer than `json` and `document_bytes_max`,
    /// and one string while it is parsed.
    ///
    /// # Errors
    /// As [`Edit::parse`], and those of `charge`.
    pub fn parse_within<E: From<Error>>(
        json: &[u8],
        options: &Options,
        charge: &mut dyn FnMut(usize) -> Result<(), E>,
    ) -> Result<Edit, E> {
        let stored_bytes_max = 1 + options.document_bytes_max.min(DOCUMENT_BYTES_LIMIT);
        let mut edit = Edit::delete("", None);
        edit.deleted = false;
        let mut stored = Vec::with_capacity(stored_bytes_max.min(1 + json.len()));
        stored.push(ENCODING_PLAIN);
        let mut reserved = Reserved::default();
        let mut is_too_large = false;
        json::members(json, |name, value| -> Result<(), E> {
            if name.starts_with('_') && !REPLICATOR_MEMBERS.contains(&name.as_ref()) {
                reserved.once(&name)?;
                json::check_tokens(value.get().as_bytes())?;
                return edit.take_reserved(&name, value, charge);
            }
            // The id, which the error names, may follow.
            if is_too_large || stored.len() + name.len() > stored_bytes_max {
                is_too_large = true;
                return Ok(());
            }
            if stored.len() > 1 {
                stored.push(b',');
            }
            write_json_string(&name, &mut stored);
            stored.push(b':');
            is_too_large = !json::write_compact(value, &mut stored, stored_bytes_max)?;
            Ok(())
        })?;
        let is_over = |new: &&NewAttachment| match &new.content {
            Content::Inline(bytes) => bytes.len() as u64 > options.attachment_bytes_max,
            _ => false,
        };
        if let Some(new) = edit.attachments.iter().find(is_over) {
            return Err(Error::new(ErrorKind::AttachmentTooLarge, new.name.clone()).into());
        }
        if is_too_large {
            return Err(Error::new(ErrorKind::TooLarge, edit.id).into());
        }
        edit.digest = *blake3::hash(&stored[1..]).as_bytes();
        edit.stored = Value::new(stored.into());
        Ok(edit)
    }

    /// An edit that deletes a document, with an empty body.
    pub fn delete(id: &str, revision: Option<Revision>) -> Edit {
        let digest = *blake3::hash(b"").as_bytes();
        Edit {
            id: id.into(),
            revision,
            local_revision: None,
            history: Vec::new(),
            deleted: true,
            attachments: Vec::new(),
            stored: Value::new(Bytes::from_static(&[ENCODING_PLAIN])),
            digest,
            uploaded_body: None,
        }
    }

    /// An edit that creates a document without members.
    pub fn empty(id: &str) -> Edit {
        Edit { deleted: false, ..Edit::delete(id, None) }
    }

    /// An edit that replaces a revision by one with the same body and attachments.
    ///
    /// # Panics
    /// If the document's body was not read: see [`Document::large_body`].
    pub fn again(document: &Document) -> Edit {
        document.check_is_whole();
        let mut stored = Vec::with_capacity(1 + document.body.len());
        stored.push(ENCODING_PLAIN);
        stored.extend_from_slice(&document.body);
        let keep = |attachment: &Attachment| NewAttachment {
            name: attachment.name.clone(),
            content_type: attachment.content_type.clone(),
            revpos: Some(attachment.revpos),
            content: Content::Stub(Some(attachment.digest)),
        };
        Edit {
            deleted: document.deleted,
            attachments: document.attachments.iter().map(keep).collect(),
            digest: *blake3::hash(&document.body).as_bytes(),
            stored: Value::new(stored.into()),
            ..Edit::delete(&document.id, Some(document.revision.clone()))
        }
    }

    /// The body's text: members without white space and without the braces.
    pub fn body(&self) -> Bytes {
        self.stored.bytes().slice(1..)
    }

    /// The body as it is stored.
    pub(crate) fn stored(&self) -> &Value {
        &self.stored
    }

    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    fn take_reserved<E: From<Error>>(
        &mut self,
        name: &str,
        value: &RawValue,
        charge: &mut dyn FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        match name {
            "_id" => {
                let id = json::string(value);
                let id =
                    id.ok_or_else(|| Error::new(ErrorKind::IllegalDocId, "Document id must be a string"))?;
                check_document_id(&id)?;
                self.id = id.into_owned();
            }
            "_rev" => {
                let text = json::string(value).ok_or_else(|| Error::bad_request("Invalid rev format"))?;
                // `_revisions` has precedence, before or behind `_rev`.
                if self.revision.is_none() && self.local_revision.is_none() {
                    match parse_local_revision(&text) {
                        Some(number) => self.local_revision = Some(number),
                        None => self.revision = Some(text.parse()?),
                    }
                }
            }
            "_deleted" => {
                self.deleted = serde_json::from_str(value.get()).map_err(|_| json::bad_member(name))?;
            }
            "_revisions" => self.take_revisions(value, charge)?,
            "_attachments" => self.attachments = parse_attachments(value, charge)?,
            // Members that a read adds are ignored by a write.
            "_revs_info" | "_local_seq" | "_conflicts" | "_deleted_conflicts" => {}
            _ => return Err(json::bad_member(name).into()),
        }
        Ok(())
    }

    fn take_revisions<E: From<Error>>(
        &mut self,
        value: &RawValue,
        charge: &mut dyn FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        #[derive(Deserialize)]
        struct Revisions<'a> {
            start: u32,
            #[serde(borrow)]
            ids: &'a RawValue,
        }

        let bad = |reason: &str| Error::new(ErrorKind::DocValidation, reason);
        let malformed = || bad("_revisions must have a start and ids");
        let Revisions { start, ids } = serde_json::from_str(value.get()).map_err(|_| malformed())?;
        let refused = |error: JsonError<E>| match error {
            JsonError::Refused(error) => error,
            JsonError::OtherKind | JsonError::Syntax => malformed().into(),
        };
        // Counted first: as a vector grows, the allocator keeps the smaller ones.
        let mut count = 0;
        let counted = json::each_json_element(ids.get().as_bytes(), |_| {
            count += 1;
            Ok(())
        });
        counted.map_err(refused)?;
        charge(count * ANCESTOR_BYTES)?;
        let mut local_revision = None;
        let mut history: Vec<RevisionId> = Vec::with_capacity(count);
        let read = json::each_json_element(ids.get().as_bytes(), |id| -> Result<(), E> {
            let text = json::string(id).ok_or_else(malformed)?;
            if start == 0 && history.is_empty() {
                // A local document: its first id is a number. From the text, since 16 digits are a hash as an id.
                local_revision = parse_local_revision(&format!("0-{text}"));
            }
            let id = RevisionId::parse(&text).map_err(|error| match text.len() {
                32 => bad("RevId isn't a valid hexadecimal"),
                _ => error,
            })?;
            if id.heap_bytes() > 0 {
                charge(ALLOCATION_BYTES + id.heap_bytes())?;
            }
            history.push(id);
            Ok(())
        });
        read.map_err(refused)?;
        if start == 0 {
            let first = history.into_iter().next().filter(|_| local_revision.is_none());
            self.revision = first.map(|id| Revision { generation: 0, id });
            self.local_revision = local_revision;
            return Ok(());
        }
        if count == 0 || count > start as usize {
            return Err(bad("_revisions.ids must have between one and start members").into());
        }
        self.local_revision = None;
        self.revision = Some(Revision { generation: start, id: history[0].clone() });
        self.history = history;
        Ok(())
    }
}

/// The number in a local document's revision, `0-N`.
pub fn parse_local_revision(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0-")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// The reserved members seen so far.
#[derive(Default)]
struct Reserved(Vec<String>);

impl Reserved {
    /// Refuses a repeated member: two revisions or two ids would be ambiguous.
    fn once(&mut self, name: &str) -> Result<()> {
        if self.0.iter().any(|seen| seen == name) {
            return Err(Error::new(
                ErrorKind::DocValidation,
                format!("Repeated special document member: {name}"),
            ));
        }
        self.0.push(name.to_owned());
        Ok(())
    }
}

/// Largest number of attachments of a document: the table of more would exceed a record.
pub(crate) const ATTACHMENTS_MAX: usize = 100_000;

/// Memory of an attachment besides its name and its members: its entries in the vector and in the set of
/// names, both of which double as they grow, and its allocations.
const ATTACHMENT_BYTES: usize = 3 * (size_of::<NewAttachment>() + size_of::<Cow<'_, str>>()) + 64;

/// Memory of an ancestor besides its text: its entries in the edit, and in the update's path and its copy.
const ANCESTOR_BYTES: usize = 3 * size_of::<RevisionId>();

/// Most bytes that an allocation takes besides its content.
const ALLOCATION_BYTES: usize = 32;

/// Parses `_attachments`.
fn parse_attachments<E: From<Error>>(
    value: &RawValue,
    charge: &mut dyn FnMut(usize) -> Result<(), E>,
) -> Result<Vec<NewAttachment>, E> {
    let mut attachments: Vec<NewAttachment> = Vec::new();
    // A hash set, since there may be as many attachments as a request has memory for.
    let mut seen = HashSet::new();
    let read = json::each_json_member(value.get().as_bytes(), |name, value| -> Result<(), E> {
        check_attachment_name(&name)?;
        if attachments.len() == ATTACHMENTS_MAX {
            return Err(Error::new(ErrorKind::TooLarge, "too many attachments").into());
        }
        charge(ATTACHMENT_BYTES + name.len() + value.get().len())?;
        attachments.push(parse_attachment(&name, value)?);
        match seen.replace(name) {
            None => Ok(()),
            Some(name) => Err(Error::bad_request(format!("Attachment {name} comes twice.")).into()),
        }
    });
    read.map_err(|error| match error {
        JsonError::Refused(error) => error,
        JsonError::OtherKind | JsonError::Syntax => {
            Error::bad_request("`_attachments` must be an object of attachments").into()
        }
    })?;
    Ok(attachments)
}

/// An attachment's content, decoded during parsing; `None` if it isn't base 64.
struct Data(Option<Bytes>);

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Data, D::Error> {
        struct Decode;

        impl Visitor<'_> for Decode {
            type Value = Data;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base 64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Data, E> {
                // Mail encoders break lines.
                let decoded = match text.bytes().any(|byte| byte.is_ascii_whitespace()) {
                    false => BASE64.decode(text),
                    true => {
                        let is_digit = |byte: &u8| !byte.is_ascii_whitespace();
                        BASE64.decode(text.bytes().filter(is_digit).collect::<Vec<u8>>())
                    }
                };
                Ok(Data(decoded.ok().map(Bytes::from)))
            }
        }

        deserializer.deserialize_str(Decode)
    }
}

fn parse_attachment(name: &str, value: &RawValue) -> Result<NewAttachment> {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow, default)]
        content_type: Option<Cow<'a, str>>,
        #[serde(default)]
        data: Option<Data>,
        #[serde(default)]
        stub: bool,
        #[serde(default)]
        follows: bool,
        #[serde(default)]
        revpos: Option<u32>,
        #[serde(default)]
        length: Option<u64>,
        #[serde(default)]
        encoded_length: Option<u64>,
        #[serde(borrow, default)]
        encoding: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        digest: Option<Cow<'a, str>>,
    }

    let bad = || Error::bad_request(format!("Invalid attachment data for {name}"));
    let members: Members<'_> = serde_json::from_str(value.get()).map_err(|_| bad())?;
    let digest = members.digest.as_deref().filter(|text| text.starts_with("md5-")).map(parse_digest);
    let content = if members.stub {
        // A digest of another algorithm matches no content here; as in CouchDB that is no error.
        Content::Stub(digest.and_then(Result::ok))
    } else if members.follows {
        let is_gzip = members.encoding.as_deref() == Some("gzip");
        let encoded_length = members.encoded_length.filter(|_| is_gzip);
        let length = encoded_length.or(members.length).ok_or_else(bad)?;
        Content::Follows(Following { length, is_gzip, digest: digest.transpose()? })
    } else {
        // `encoding` describes how it was stored; inline content is never encoded.
        Content::Inline(members.data.and_then(|data| data.0).ok_or_else(bad)?)
    };
    let content_type = members.content_type.as_deref().unwrap_or(UNKNOWN_TYPE).to_owned();
    Ok(NewAttachment { name: name.to_owned(), content_type, revpos: members.revpos, content })
}

/// Checks an attachment's name against CouchDB's rules.
///
/// # Errors
/// `BadRequest`.
pub fn check_attachment_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > ID_SIZE_MAX {
        return Err(Error::bad_request("Attachment names have between one and 8000 bytes."));
    }
    if name.starts_with('_') {
        return Err(Error::bad_request(format!(
            "Attachment name '{name}' starts with prohibited character '_'"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
