//! Index entries as readers see them: a document's winning leaf, any leaf, and the location of a body.

use settee_store::{Entry, Location, Seq};

use crate::Result;
use crate::documents::Revision;
use crate::documents::keys::{LeafMeta, LeafState};

/// A document's entry in the index: its winning leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The winning revision.
    pub revision: Revision,
    /// Whether the winning revision deletes the document.
    pub deleted: bool,
    /// Whether the document has other leaves, deleted ones included.
    pub has_conflicts: bool,
    /// The `Seq` of its last change.
    pub seq: Seq,
}

/// A leaf of a document's revision tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Its revision.
    pub revision: Revision,
    /// Whether it deletes the document.
    pub deleted: bool,
}

/// Location of a body that was not read yet.
#[derive(Debug, Clone, Copy)]
pub struct BodyRef {
    pub(super) location: Location,
    /// Size of the body in bytes, if it is out of line.
    pub(super) out_of_line_bytes: u32,
}

impl BodyRef {
    /// Size of its record and its body in bytes.
    pub fn size(&self) -> u64 {
        u64::from(self.location.length) + u64::from(self.out_of_line_bytes)
    }
}

/// A winning leaf's entry in the index.
#[derive(Debug)]
pub struct FoundLeaf {
    pub(super) location: Location,
    pub(super) meta: Vec<u8>,
}

impl From<Entry> for FoundLeaf {
    fn from(entry: Entry) -> FoundLeaf {
        FoundLeaf { location: entry.location, meta: entry.meta }
    }
}

/// Decodes the entry of a winning leaf.
pub(super) fn row(meta: &[u8], location: Location) -> Result<(Summary, BodyRef)> {
    let meta = LeafMeta::decode(meta)?;
    let LeafState { deleted, has_conflicts, out_of_line_bytes, .. } = meta.state;
    let body = BodyRef { location, out_of_line_bytes };
    Ok((Summary { revision: meta.revision, deleted, has_conflicts, seq: Seq(location.seq) }, body))
}
