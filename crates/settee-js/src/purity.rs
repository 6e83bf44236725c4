//! Which map functions cannot change a document.
pub(crate) fn keeps_documents(_source: &str) -> bool {
    false
}
