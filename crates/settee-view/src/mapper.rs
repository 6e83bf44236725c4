//! Map functions: what turns documents into rows.

use settee_collate::{Collation, write_sort_key};

use crate::error::ViewError;
use crate::mango::IndexDefinition;
use crate::row::EmittedRow;

/// What a map function did with a document.
#[derive(Debug)]
pub(crate) enum Mapped {
    /// What it emitted: keys and values as JSON.
    Rows(Vec<(String, String)>),
    /// It threw an exception: the document has no rows in this view.
    Dropped(String),
    /// It must not be called any more.
    Stopped(ViewError),
}

/// The map functions of a design document.
pub(crate) trait Mapper: Send {
    /// Calls each function with each document, given as JSON. Returns for each document what each function did.
    fn map(&mut self, documents: &[&[u8]]) -> Vec<Vec<Mapped>>;
}

/// Mango indexes of a design document; `None` for a view that defines none.
pub(crate) struct MangoMapper(pub(crate) Vec<Option<IndexDefinition>>);

impl Mapper for MangoMapper {
    fn map(&mut self, documents: &[&[u8]]) -> Vec<Vec<Mapped>> {
        let row = |document: &[u8], definition: &Option<IndexDefinition>| {
            let document = std::str::from_utf8(document).unwrap_or_default();
            let key = definition.as_ref().and_then(|definition| definition.row(document));
            Mapped::Rows(key.into_iter().map(|key| (key, "null".to_owned())).collect())
        };
        let of_document =
            |document: &&[u8]| self.0.iter().map(|definition| row(document, definition)).collect();
        documents.iter().map(of_document).collect()
    }
}

/// Makes the sort keys of rows. A row whose key can't be ordered, since it nests too deep, is left out.
pub(crate) fn order_rows(
    rows: Vec<(String, String)>,
    partition: Option<&str>,
    collation: Collation,
) -> Vec<EmittedRow> {
    let ordered = rows.into_iter().filter_map(|(key, value)| {
        let mut sort_key = Vec::with_capacity(key.len() + 16);
        if let Some(partition) = partition {
            write_partition(partition, &mut sort_key);
        }
        write_sort_key(&key, collation, &mut sort_key).ok()?;
        Some(EmittedRow { sort_key, key, value })
    });
    ordered.collect()
}

/// Appends what the sort keys of a partition's rows begin with. No partition has a colon in its name.
pub(crate) fn write_partition(partition: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(partition.as_bytes());
    out.push(b':');
}
