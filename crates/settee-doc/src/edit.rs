//! A document on its way in: parsed and checked in its caller's task, before any lock.

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

use crate::attachment::{Content, Following, NewAttachment, Upload, parse_digest};
use crate::document::Document;
use crate::json::{self, JsonError, write_json_string};
use crate::revision::{Hash, Revision, parse_hash};
use crate::update::ENCODING_PLAIN;
use crate::{Error, ErrorKind, Result};

/// Longest document id in bytes.
pub const ID_SIZE_MAX: usize = 8_000;

/// Longest text in bytes of a revision, of our form or another.
const REVISION_SIZE_MAX: usize = 8_000;

/// Members that CouchDB's replicator writes into its documents: kept like ordinary ones.
const REPLICATOR_MEMBERS: [&str; 5] = [
    "_replication_id",
    "_replication_state",
    "_replication_state_time",
    "_replication_state_reason",
    "_replication_stats",
];

/// Base 64 with or without its padding, as clients send both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The media type of what came without one.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// Limits on documents.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Largest body in bytes: its text as it is stored. At most
    /// [`DOCUMENT_BYTES_LIMIT`](crate::DOCUMENT_BYTES_LIMIT).
    pub document_bytes_max: usize,
    /// Largest attachment in bytes that comes inside of a document.
    pub attachment_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { document_bytes_max: 8_000_000, attachment_bytes_max: u64::MAX }
    }
}

/// What a document's writer asks for.
#[derive(Debug, Clone)]
pub struct Edit {
    /// The document's id; empty where the text had none and nobody has set it yet.
    pub id: String,
    /// `_rev`: for an interactive edit the revision that it replaces, for a replicated one the
    /// revision itself.
    pub revision: Option<Revision>,
    /// The revision's text where its hash, or one in `_revisions`, isn't of our form. Without a
    /// `revision` the edit names one that no document has; a replicated one can't be taken.
    pub foreign_revision: Option<String>,
    /// `_rev` of a local document, `0-N`: its N.
    pub local_revision: Option<u64>,
    /// `_revisions`: the hashes from the revision itself back to its oldest known ancestor.
    pub history: Vec<Hash>,
    /// Whether it deletes the document.
    pub deleted: bool,
    /// All attachments that the document is to have; what isn't named goes.
    pub attachments: Vec<NewAttachment>,
    /// The members that aren't reserved, as they are stored: the encoding, then their text without
    /// white space and without the braces.
    stored: Value,
    digest: [u8; 32],
    /// The body, where it was written ahead.
    pub(crate) ahead: Option<Upload>,
}

impl Edit {
    /// Parses a document's JSON text. Names are compared after unescaping. Of an ordinary name
    /// that comes more than once all are kept, as they came; numbers are kept as written.
    ///
    /// # Errors
    /// `BadRequest` for what isn't one JSON object in UTF-8, has half a surrogate pair in a
    /// string or a number beyond a double's range, nests too deep, or has a bad `_rev`; `DocValidation` for other reserved members
    /// that are unknown, malformed or repeated; `IllegalDocId`; `TooLarge`; `AttachmentTooLarge`, which
    /// names it.
    pub fn parse(json: &[u8], options: &Options) -> Result<Edit> {
        Edit::parse_within(json, options, &mut |_| Ok::<(), Error>(()))
    }

    /// As [`Edit::parse`]; `charge` is called with a number of bytes before as many are allocated for attachments.
    /// Beside them the edit takes its body, which is no longer than `json` and than `document_bytes_max`, and
    /// while it is parsed one string.
    ///
    /// # Errors
    /// As [`Edit::parse`], and those of `charge`.
    pub fn parse_within<E: From<Error>>(
        json: &[u8],
        options: &Options,
        charge: &mut dyn FnMut(usize) -> Result<(), E>,
    ) -> Result<Edit, E> {
        let stored_bytes_max = 1 + options.document_bytes_max.min(crate::DOCUMENT_BYTES_LIMIT);
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
            // The id, by which the error names the document, may come behind it.
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
            foreign_revision: None,
            local_revision: None,
            history: Vec::new(),
            deleted: true,
            attachments: Vec::new(),
            stored: Value::new(Bytes::from_static(&[ENCODING_PLAIN])),
            digest,
            ahead: None,
        }
    }

    /// An edit that makes a document without members.
    pub fn empty(id: &str) -> Edit {
        Edit { deleted: false, ..Edit::delete(id, None) }
    }

    /// An edit that replaces a revision by one with the same body and the same attachments.
    pub fn again(document: &Document) -> Edit {
        let mut stored = Vec::with_capacity(1 + document.body.len());
        stored.push(ENCODING_PLAIN);
        stored.extend_from_slice(&document.body);
        let keep = |attachment: &crate::Attachment| NewAttachment {
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
            ..Edit::delete(&document.id, Some(document.revision))
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
                let text = json::string(value).filter(|text| text.len() <= REVISION_SIZE_MAX);
                let text = text.ok_or_else(|| Error::bad_request("Invalid rev format"))?;
                // `_revisions` says more, wherever it stands.
                let is_said = !self.history.is_empty()
                    || self.foreign_revision.is_some()
                    || self.local_revision.is_some();
                if !is_said {
                    self.local_revision = parse_local_revision(&text);
                }
                if !is_said && self.local_revision.is_none() {
                    self.revision = Revision::parse_any(&text)?;
                    self.foreign_revision = self.revision.is_none().then(|| text.into_owned());
                }
            }
            "_deleted" => {
                self.deleted = serde_json::from_str(value.get()).map_err(|_| json::bad_member(name))?;
            }
            "_revisions" => self.take_revisions(value)?,
            "_attachments" => self.attachments = parse_attachments(value, charge)?,
            // What a read adds, a write ignores.
            "_revs_info" | "_local_seq" | "_conflicts" | "_deleted_conflicts" => {}
            _ => return Err(json::bad_member(name).into()),
        }
        Ok(())
    }

    fn take_revisions(&mut self, value: &RawValue) -> Result<()> {
        #[derive(Deserialize)]
        struct Revisions<'a> {
            start: u32,
            #[serde(borrow)]
            ids: &'a RawValue,
        }

        let bad = |reason: &str| Error::new(ErrorKind::DocValidation, reason);
        let malformed = || bad("_revisions must have a start and ids");
        let no_hex = || bad("RevId isn't a valid hexadecimal");
        let Revisions { start, ids } = serde_json::from_str(value.get()).map_err(|_| malformed())?;
        let (mut count, mut named) = (0_usize, None);
        let read = json::each_json_element(ids.get().as_bytes(), |id| -> Result<()> {
            // Without escapes, which no hash has.
            let id: &str = serde_json::from_str(id.get()).map_err(|_| malformed())?;
            count += 1;
            if count == 1 && id.len() <= REVISION_SIZE_MAX {
                named = Some(format!("{start}-{id}"));
            }
            // Behind one that is foreign none is looked at.
            if self.history.len() + 1 == count && id.len() == 32 {
                let hash = parse_hash(id).or_else(|_| parse_hash(&id.to_ascii_lowercase()));
                self.history.push(hash.map_err(|_| no_hex())?);
            }
            Ok(())
        });
        read.map_err(|error| match error {
            JsonError::Refused(error) => error,
            JsonError::OtherKind | JsonError::Syntax => malformed(),
        })?;
        if start == 0 {
            // Of a local document, whose one id is a number.
            (self.revision, self.history) = (None, Vec::new());
            self.local_revision = named.as_deref().and_then(parse_local_revision);
            self.foreign_revision = named.filter(|_| self.local_revision.is_none());
            return Ok(());
        }
        if count == 0 || count > start as usize {
            return Err(bad("_revisions.ids must have between one and start members"));
        }
        self.local_revision = None;
        let named = named.ok_or_else(no_hex)?;
        self.revision = Revision::parse_any(&named).map_err(|_| no_hex())?;
        self.foreign_revision = (self.history.len() < count).then_some(named);
        Ok(())
    }
}

/// The number in a local document's revision, `0-N`.
pub fn parse_local_revision(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0-")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Which reserved members have come.
#[derive(Default)]
struct Reserved(Vec<String>);

impl Reserved {
    /// Two revisions, or two ids, are no document: which of them counts is not ours to guess.
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

/// Attachments of a document: with more of them, the list of what they are is no record any more.
pub(crate) const ATTACHMENTS_MAX: usize = 100_000;

/// Bytes that an attachment takes beside its name and what is said of it: its place among the attachments and
/// among the names, both of which double as they grow, and what it allocates.
const ATTACHMENT_BYTES: usize = 3 * (size_of::<NewAttachment>() + size_of::<Cow<'_, str>>()) + 64;

/// `_attachments`: names and what is said of each.
fn parse_attachments<E: From<Error>>(
    value: &RawValue,
    charge: &mut dyn FnMut(usize) -> Result<(), E>,
) -> Result<Vec<NewAttachment>, E> {
    let mut attachments: Vec<NewAttachment> = Vec::new();
    // There may be as many as a request has memory for: none is compared with all others.
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

/// What an attachment holds, decoded as it is read; None where it isn't base 64.
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
                // Encoders for mail break lines.
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
    struct Said<'a> {
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
    let said: Said<'_> = serde_json::from_str(value.get()).map_err(|_| bad())?;
    let digest = said.digest.as_deref().filter(|text| text.starts_with("md5-")).map(parse_digest);
    let content = if said.stub {
        // What names no content of ours needs none of it: as in CouchDB that is no error.
        Content::Stub(digest.and_then(Result::ok))
    } else if said.follows {
        let is_gzip = said.encoding.as_deref() == Some("gzip");
        let encoded_length = said.encoded_length.filter(|_| is_gzip);
        let length = encoded_length.or(said.length).ok_or_else(bad)?;
        Content::Follows(Following { length, is_gzip, digest: digest.transpose()? })
    } else {
        // What `encoding` says is how it was stored: inline it always comes as what it is.
        Content::Inline(said.data.and_then(|data| data.0).ok_or_else(bad)?)
    };
    let content_type = said.content_type.as_deref().unwrap_or(UNKNOWN_TYPE).to_owned();
    Ok(NewAttachment { name: name.to_owned(), content_type, revpos: said.revpos, content })
}

/// Checks an attachment's name by CouchDB's rules.
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

/// Checks a document's id by CouchDB's rules: not empty, and `_` first only in `_design/…` and
/// `_local/…`.
///
/// # Errors
/// `IllegalDocId`.
pub fn check_document_id(id: &str) -> Result<()> {
    let illegal = |reason: String| Err(Error::new(ErrorKind::IllegalDocId, reason));
    if id.is_empty() {
        return illegal("Document id must not be empty".into());
    }
    if id.len() > ID_SIZE_MAX {
        return illegal("Document id is too long".into());
    }
    if id == "_design/" || id == "_local/" {
        return illegal(format!("Illegal document id `{id}`"));
    }
    if id.starts_with('_') && !id.starts_with("_design/") && !id.starts_with("_local/") {
        return illegal("Only reserved document ids may start with underscore.".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
