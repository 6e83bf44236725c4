//! The indexes that a database's design documents define.

use hyper::StatusCode;
use settee_doc::{Database, Document, DocumentRow, Extras, Range, Snapshot};
use settee_view::mango::{self, DESIGN, IndexDefinition};

use crate::blocking;
use crate::document::matching::may_have_regex;
use crate::error::ApiError;

/// Largest design document in bytes that defines indexes. Each search parses them.
pub(super) const DESIGN_BYTES_MAX: u64 = 1 << 20;

/// Largest total size in bytes of the design documents that define a database's indexes.
const DESIGNS_BYTES_MAX: u64 = 16 << 20;

/// The `language` of design documents with indexes, as a part of their text.
const LANGUAGE: &[u8] = b"\"query\"";

/// All indexes of a database, by design document and name.
///
/// # Errors
/// 500 if there are too many, or a design document can't be read.
pub(super) async fn load(database: &Database, snapshot: &Snapshot) -> Result<Vec<IndexDefinition>, ApiError> {
    let range = Range { prefix: DESIGN.to_owned(), ..Range::default() };
    let rows = snapshot.all_docs(&range).await?;
    let mut documents = snapshot.read_ahead(rows, u64::MAX, None);
    let (mut list, mut bytes) = (Vec::new(), 0);
    while let Some(DocumentRow { key: id, winner }) = documents.next().await? {
        // Reads from memory never yield, so this task must.
        tokio::task::consume_budget().await;
        let winner = winner.expect("a row has a document");
        let document = snapshot.read_winner(&id, winner).await?;
        if document.body_size() > DESIGN_BYTES_MAX || memchr::memmem::find(&document.body, LANGUAGE).is_none()
        {
            continue;
        }
        bytes += document.body_size();
        if bytes > DESIGNS_BYTES_MAX {
            let reason = format!("Design documents with indexes have more than {DESIGNS_BYTES_MAX} bytes.");
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "too_many_indexes", reason));
        }
        list = add_design(list, database, id, text_of(&document)).await?;
    }
    list.sort_by(|one, other| (&one.ddoc, &one.name).cmp(&(&other.ddoc, &other.name)));
    Ok(list)
}

/// `list` with the indexes of a design document that has this text.
///
/// # Errors
/// 500 if there are too many.
pub(super) async fn add_design(
    mut list: Vec<IndexDefinition>,
    database: &Database,
    id: String,
    text: String,
) -> Result<Vec<IndexDefinition>, ApiError> {
    let is_partitioned = database.is_partitioned();
    let is_slow = may_have_regex(text.as_bytes());
    let add = move || mango::indexes_of(&id, &text, is_partitioned, &mut list).map(|()| list);
    Ok(if is_slow { blocking::run(add).await?? } else { add()? })
}

/// A document's JSON text, its attachments as stubs.
pub(super) fn text_of(document: &Document) -> String {
    let mut text = Vec::new();
    document.write_json(&Extras::default(), &mut text);
    String::from_utf8(text).unwrap_or_default()
}
