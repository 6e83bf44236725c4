//! Bookmarks: the row after which the next page begins.
//!
//! A bookmark is URL-safe base64 of: a version byte, a fingerprint of the query, the length of the row's id as a
//! little-endian `u16`, the id, and the key's JSON text, which is empty for the index of ids.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

use super::error::MangoError;
use super::plan::Plan;
use super::request::FindRequest;
use super::text;

/// The first byte of a decoded bookmark.
const VERSION: u8 = 1;

/// Bytes of a fingerprint.
const FINGERPRINT_BYTES: usize = 8;

/// The bookmark of a search that found nothing.
pub(super) const NOTHING: &str = "nil";

/// The row after which a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bookmark {
    /// The document's id.
    pub id: String,
    /// The row's key, JSON text; `None` in the index of ids.
    pub key: Option<String>,
}

impl Bookmark {
    /// The bookmark of a request; `None` if it has none.
    ///
    /// # Errors
    /// `invalid_bookmark` for a text that isn't a bookmark, or one of another selector, sort, partition or index.
    pub fn of(request: &FindRequest, plan: &Plan) -> Result<Option<Bookmark>, MangoError> {
        let Some(sent) = &request.bookmark else { return Ok(None) };
        let fingerprint = fingerprint(request, plan);
        match Bookmark::decode(sent, &fingerprint) {
            Some(bookmark) if bookmark.key.is_some() == plan.index.definition().is_some() => {
                Ok(Some(bookmark))
            }
            _ => Err(MangoError::invalid_bookmark(&text::quoted(sent))),
        }
    }

    /// The text that a response shows: of the last row found, else the one that the request had.
    pub fn shown(last: Option<&Bookmark>, request: &FindRequest, plan: &Plan) -> String {
        match last {
            Some(bookmark) => bookmark.encode(&fingerprint(request, plan)),
            None => request.bookmark.clone().unwrap_or_else(|| NOTHING.to_owned()),
        }
    }

    fn encode(&self, fingerprint: &[u8; FINGERPRINT_BYTES]) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(fingerprint);
        let id_bytes = u16::try_from(self.id.len()).expect("ids are shorter");
        bytes.extend_from_slice(&id_bytes.to_le_bytes());
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(self.key.as_deref().unwrap_or_default().as_bytes());
        BASE64.encode(bytes)
    }

    fn decode(text: &str, wanted: &[u8; FINGERPRINT_BYTES]) -> Option<Bookmark> {
        let bytes = BASE64.decode(text).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (fingerprint, rest) = rest.split_first_chunk::<FINGERPRINT_BYTES>()?;
        let (id_bytes, rest) = rest.split_first_chunk::<2>()?;
        let (id, key) = rest.split_at_checked(usize::from(u16::from_le_bytes(*id_bytes)))?;
        if *version != VERSION || fingerprint != wanted {
            return None;
        }
        let (id, key) = (String::from_utf8(id.to_vec()).ok()?, String::from_utf8(key.to_vec()).ok()?);
        if !key.is_empty() {
            text::elements(&key, usize::MAX)?;
        }
        Some(Bookmark { id, key: Some(key).filter(|key| !key.is_empty()) })
    }
}

/// Identifies what a bookmark belongs to: the pages of a query may differ in all other members.
fn fingerprint(request: &FindRequest, plan: &Plan) -> [u8; FINGERPRINT_BYTES] {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &str| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    };
    add(&request.normal.to_json());
    add(if plan.descending { "desc" } else { "asc" });
    add(request.partition.as_deref().unwrap_or_default());
    if let Some(definition) = plan.index.definition() {
        add(&definition.to_json());
    }
    let mut fingerprint = [0; FINGERPRINT_BYTES];
    hasher.finalize_xof().fill(&mut fingerprint);
    fingerprint
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mango::{NewIndex, PlanScope, plan};

    const SCOPE: PlanScope = PlanScope { is_partitioned: false, in_partition: false };

    fn planned(body: &str, index: Option<&str>) -> (FindRequest, Plan) {
        let request = FindRequest::parse(body.as_bytes()).unwrap();
        let index = index.map(|fields| format!("{{\"index\":{{\"fields\":{fields}}}}}"));
        let index = index.map(|body| Arc::new(NewIndex::parse(body.as_bytes(), false).unwrap().definition));
        let plan = plan(&request, index.as_slice(), SCOPE).unwrap();
        (request, plan)
    }

    #[test]
    fn a_bookmark_of_the_same_query_is_found_again() {
        for (index, key) in [(None, None), (Some("[\"a\"]"), Some("[\"ä\"]".to_owned()))] {
            let (mut request, plan) = planned("{\"selector\":{\"a\":{\"$gt\":1}}}", index);
            let last = Bookmark { id: "é".into(), key };
            request.bookmark = Some(Bookmark::shown(Some(&last), &request, &plan));
            request.limit = 7;
            assert_eq!(Bookmark::of(&request, &plan).unwrap(), Some(last));
            assert_eq!(Bookmark::shown(None, &request, &plan), request.bookmark.clone().unwrap());
            request.bookmark = None;
            assert_eq!(Bookmark::of(&request, &plan).unwrap(), None);
            assert_eq!(Bookmark::shown(None, &request, &plan), "nil");
        }
    }

    #[test]
    fn a_bookmark_of_another_query_and_junk_are_refused() {
        let (request, plan) = planned("{\"selector\":{\"a\":1}}", None);
        let sent = Bookmark::shown(Some(&Bookmark { id: "x".into(), key: None }), &request, &plan);
        let others = [
            planned("{\"selector\":{\"a\":2}}", None),
            planned("{\"selector\":{\"a\":1},\"partition\":\"p\"}", None),
            planned("{\"selector\":{\"a\":1}}", Some("[\"a\"]")),
            planned("{\"selector\":{\"a\":1},\"sort\":[{\"a\":\"desc\"}]}", Some("[\"a\"]")),
        ];
        for (mut request, plan) in others {
            request.bookmark = Some(sent.clone());
            let error = Bookmark::of(&request, &plan).unwrap_err();
            assert_eq!(error.reason, format!("Invalid bookmark value: \"{sent}\""));
        }
        let cut = sent[..sent.len() - 2].to_owned();
        for junk in ["nil", "x", "!", &cut[..4], "AAAA"] {
            let request = FindRequest { bookmark: Some(junk.to_owned()), ..request.clone() };
            assert_eq!(Bookmark::of(&request, &plan).unwrap_err().error, "invalid_bookmark", "{junk}");
        }
    }
}
