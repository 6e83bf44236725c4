//! Matching of documents with selectors. What may take long runs on a blocking thread: large documents, and regular
//! expressions with large programs.

use std::sync::Arc;

use settee_doc::{Document, Extras, Selector, Snapshot};

use super::whole::read_whole;
use crate::blocking;
use crate::body::BodyMemory;
use crate::error::ApiError;
use crate::response::writer::ResponseWriter;

/// Largest body in bytes that is matched, or shown in part, in the response's task; a larger one on a blocking
/// thread.
pub(crate) const MATCHED_INLINE_BYTES: u64 = 64 << 10;

/// Largest number of steps of regular expressions that a match in the response's task may take: about 2 ms. See
/// [`Selector::regex_steps`].
const MATCHED_INLINE_WORK_MAX: u64 = 16 << 20;

/// Bytes of a conflict among a document's members.
const CONFLICT_BYTES: u64 = 40;

/// Something with a selector, shared with the blocking threads that match with it.
pub(crate) trait Selecting: Send + Sync + 'static {
    fn selector(&self) -> &Selector;
}

/// Whether a document matches. The client of `out` is looked at after each match on a blocking thread.
///
/// # Errors
/// 503 if the memory for a large body is exhausted; 500 if it can't be read; the client has closed the connection.
pub(crate) async fn matches(
    selecting: &Arc<impl Selecting>,
    snapshot: &Snapshot,
    document: &Document,
    extras: &Extras,
    body_memory: &BodyMemory,
    out: &ResponseWriter,
) -> Result<bool, ApiError> {
    let selector = selecting.selector();
    let body_bytes = if selector.needs_body() { document.body_size() } else { 0 };
    if is_quick(selector, body_bytes + reserved_bytes(document, extras)) {
        return Ok(selector.matches(document, extras));
    }
    // In a box: feeds, of which there are many, would hold the space of it while they wait.
    Box::pin(match_elsewhere(selecting, snapshot, document, extras, body_memory, out)).await
}

/// As [`matches`], on a blocking thread.
async fn match_elsewhere(
    selecting: &Arc<impl Selecting>,
    snapshot: &Snapshot,
    document: &Document,
    extras: &Extras,
    body_memory: &BodyMemory,
    out: &ResponseWriter,
) -> Result<bool, ApiError> {
    let (document, permit) = match selecting.selector().needs_body() {
        true => {
            let (document, permit) = read_whole(snapshot, document.clone(), body_memory).await?;
            (document, Some(permit))
        }
        false => (document.clone(), None),
    };
    let (selecting, extras) = (selecting.clone(), extras.clone());
    let matches = blocking::run(move || {
        let _permit = permit;
        selecting.selector().matches(&document, &extras)
    });
    let matches = matches.await?;
    out.check_open()?;
    Ok(matches)
}

/// As [`matches`], for an object as JSON text, which is returned again.
///
/// # Errors
/// The client has closed the connection.
pub(crate) async fn matches_json(
    selecting: &Arc<impl Selecting>,
    object: String,
    out: &ResponseWriter,
) -> Result<(bool, String), ApiError> {
    if is_quick(selecting.selector(), object.len() as u64) {
        return Ok((selecting.selector().matches_json(&object), object));
    }
    let selecting = selecting.clone();
    let matches = blocking::run(move || (selecting.selector().matches_json(&object), object)).await?;
    out.check_open()?;
    Ok(matches)
}

/// Whether `bytes` of text are matched in the response's task.
fn is_quick(selector: &Selector, bytes: u64) -> bool {
    bytes <= MATCHED_INLINE_BYTES && selector.regex_steps(bytes) <= MATCHED_INLINE_WORK_MAX
}

/// About the bytes of a document's members outside of its body.
fn reserved_bytes(document: &Document, extras: &Extras) -> u64 {
    let attachment_bytes = |attachment: &settee_doc::Attachment| {
        attachment.name.len() as u64 + attachment.content_type.len() as u64
    };
    let attachments: u64 = document.attachments.iter().map(attachment_bytes).sum();
    document.id.len() as u64 + attachments + extras.conflicts.len() as u64 * CONFLICT_BYTES
}

/// Whether a request's text may have a regular expression. It then takes long to parse, whatever its size.
pub(crate) fn may_have_regex(text: &[u8]) -> bool {
    // An escape may hide the name.
    ["$regex", "\\u"].iter().any(|part| memchr::memmem::find(text, part.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_regular_expressions_are_matched_in_the_task() {
        let quick = |pattern: &str, bytes| {
            let text = format!("{{\"a\":{{\"$regex\":{pattern:?}}}}}");
            is_quick(&Selector::parse(&text).unwrap(), bytes)
        };
        for pattern in ["^foo.*bar$", "(?i)foo", "^[\\w.+-]+@[\\w-]+\\.[\\w.]+$"] {
            assert!(quick(pattern, 4 << 10), "{pattern}");
        }
        assert!(!quick("(?i:[ab]{0,600}z)", 4 << 10) && quick("(?i:[ab]{0,600}z)", 100));
        let plain = Selector::parse("{\"a\":{\"$gt\":1}}").unwrap();
        assert!(is_quick(&plain, MATCHED_INLINE_BYTES) && !is_quick(&plain, MATCHED_INLINE_BYTES + 1));
    }

    #[test]
    fn a_hidden_regular_expression_is_suspected() {
        assert!(may_have_regex(b"{\"a\":{\"$regex\":\"x\"}}"));
        assert!(may_have_regex(b"{\"a\":{\"$reg\\u0065x\":\"x\"}}"));
        assert!(!may_have_regex(b"{\"a\":{\"$gt\":\"x\"}}"));
    }
}
