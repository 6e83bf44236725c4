//! Writes documents as lines of JSON, and counts what a dump leaves out.

use std::io::{BufWriter, Write};

use crate::json_members;
use crate::load::LINE_BYTES_MAX;
use crate::load::identity::minify;
use crate::load::target::Error;
use crate::output::write_error;

/// Writes documents, one per line.
pub(super) struct DocumentWriter<W: Write> {
    writer: BufWriter<W>,
    no_rev: bool,
    /// Number of documents written.
    pub(super) count: u64,
    line: Vec<u8>,
}

impl<W: Write> DocumentWriter<W> {
    pub(super) fn new(writer: W, no_rev: bool) -> DocumentWriter<W> {
        DocumentWriter {
            writer: BufWriter::with_capacity(256 << 10, writer),
            no_rev,
            count: 0,
            line: Vec::new(),
        }
    }

    pub(super) fn write(&mut self, document: &[u8]) -> Result<(), Error> {
        self.line.clear();
        if self.no_rev {
            json_members::write_without("_rev", document, &mut self.line)?;
        } else {
            minify(document, &mut self.line);
        }
        if self.line.len() > LINE_BYTES_MAX {
            return Err(too_large("a document"));
        }
        self.line.push(b'\n');
        self.writer.write_all(&self.line).map_err(write_error)?;
        self.count += 1;
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(W, u64), Error> {
        let count = self.count;
        let writer = self.writer.into_inner().map_err(|error| write_error(error.into_error()))?;
        Ok((writer, count))
    }
}

/// How attachments are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachmentContent {
    /// As stubs, without their content.
    Stubs,
    /// With their content in base64.
    Inline,
}

/// Counts of what a dump leaves out of a database.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) deleted_count: u64,
    /// Leaves other than the winning revisions.
    pub(super) branch_count: u64,
    /// Attachments written without their content.
    pub(super) attachment_count: u64,
    /// Local documents. None if the server doesn't list them.
    pub(super) local_count: Option<u64>,
}

impl LeftOut {
    /// Describes what was left out and the flags that include it. None if the dump is complete.
    pub(super) fn text(&self) -> Option<String> {
        let counted = |count: u64, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            count => Some(format!("{count} {what}s")),
        };
        let local = match self.local_count {
            Some(count) => counted(count, "local document"),
            None => Some("local documents, which the server doesn't list".to_owned()),
        };
        let revisions = [
            counted(self.deleted_count, "deleted document"),
            counted(self.branch_count, "conflicting or deleted revision"),
            local,
        ];
        let revisions: Vec<String> = revisions.into_iter().flatten().collect();
        let mut parts = Vec::new();
        if !revisions.is_empty() {
            parts.push(format!("{} (--all-revisions has them)", revisions.join(", ")));
        }
        if let Some(attachments) = counted(self.attachment_count, "attachment") {
            parts.push(format!("the content of {attachments} (--attachments has it)"));
        }
        (!parts.is_empty()).then(|| format!("left out: {}", parts.join("; ")))
    }
}

pub(super) fn check_count(found: u64, announced: u64) -> Result<(), Error> {
    if found == announced {
        Ok(())
    } else {
        Err(format!("received {found} documents of {announced} announced").into())
    }
}

/// The error of a document that `settee load` would refuse.
pub(super) fn too_large(id: &str) -> Error {
    format!(
        "{id} exceeds {LINE_BYTES_MAX} bytes with its attachments: copy the database by replication or with \
         `settee backup`"
    )
    .into()
}
