//! `settee dump`: a database's documents as JSON lines, the reverse of `settee load`.
//!
//! Rows are streamed; memory holds one document, of a server's documents with all revisions one answer. The
//! end of the stream must be its proper end, and hold as many documents as its beginning announced: a dump that
//! stops in the middle is an error, and then no file is left under the name asked for. What was left out is
//! counted and printed.
//!
//! With all revisions each line is a leaf with its `_revisions`, and deleted ones and local documents are
//! among them: `settee load` merges such lines as replication does.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use settee_doc::Options;

use crate::load::LINE_BYTES_MAX;
use crate::load::identity::minify;
use crate::load::target::{Error, Missing, Target, TargetArgs};
use crate::output::{complain, write_error};
use crate::{CommandResult, members};

mod listing;
mod local;
mod remote;

#[derive(clap::Args)]
#[command(
    after_help = "Without --all-revisions, deleted documents, conflicting revisions and local documents are \
    left out, without --attachments the content of attachments; how many is printed. With both, `settee load` \
    takes back the whole database."
)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,

    /// File to write, in place of the standard output; it appears whole or not at all
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Replace that file where there is one
    #[arg(long, requires = "out")]
    force: bool,

    /// With the content of attachments, in base 64
    #[arg(long)]
    attachments: bool,

    /// With deleted documents, conflicting revisions, each revision's ancestors, and local documents
    #[arg(long)]
    all_revisions: bool,

    /// Leave out _rev: loaded again, documents begin anew
    #[arg(long, conflicts_with = "all_revisions")]
    no_rev: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(dump(args))
}

async fn dump(args: Args) -> CommandResult {
    if let Some(path) = &args.out {
        check_free(path, args.force)?;
    }
    let mut target = Target::open(&args.target, Options::default(), Missing::Refuse, false).await?;
    let (count, left_out) = match &args.out {
        None => {
            let mut sink = Sink::new(io::stdout().lock(), args.no_rev);
            let left_out = write_documents(&mut target, &args, &mut sink).await?;
            (sink.finish()?.1, left_out)
        }
        Some(path) if is_special(path) => {
            // A device or a pipe is written to, never replaced.
            let file = File::options().write(true).open(path).map_err(|error| named(path, error))?;
            let mut sink = Sink::new(file, args.no_rev);
            let left_out = write_documents(&mut target, &args, &mut sink).await?;
            (sink.finish()?.1, left_out)
        }
        Some(path) => {
            // What a link leads to is replaced, not the link.
            let path = &fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let temporary = Temporary::new(path)?;
            let file = File::create(&temporary.path).map_err(|error| named(path, error))?;
            let mut sink = Sink::new(file, args.no_rev);
            let left_out = write_documents(&mut target, &args, &mut sink).await?;
            let (file, count) = sink.finish()?;
            file.sync_all()?;
            check_free(path, args.force)?;
            temporary.rename(path)?;
            (count, left_out)
        }
    };
    match args.all_revisions {
        false => complain!("dumped {count} documents"),
        true => complain!("dumped {count} leaf revisions and local documents"),
    }
    if let Some(left_out) = left_out.text() {
        complain!("{left_out}");
    }
    Ok(())
}

/// Refuses to replace a file that nobody asked to replace.
fn check_free(path: &Path, force: bool) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(format!("{} is a directory", path.display()).into()),
        Ok(found) if found.is_file() && !force => {
            Err(format!("{} is there already; --force replaces it", path.display()).into())
        }
        _ => Ok(()),
    }
}

/// Whether something is there that is no ordinary file.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file())
}

fn named(path: &Path, error: io::Error) -> Error {
    format!("{}: {error}", path.display()).into()
}

/// A file that is removed unless it gets its name.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn new(path: &Path) -> Result<Temporary, Error> {
        let name = path.file_name().ok_or_else(|| format!("{} names no file", path.display()))?;
        let name = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        Ok(Temporary { path: path.with_file_name(name) })
    }

    /// Gives the file its name, persisted when it returns.
    fn rename(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // It is gone already where it was renamed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes documents, one a line.
struct Sink<W: Write> {
    writer: BufWriter<W>,
    no_rev: bool,
    count: u64,
    line: Vec<u8>,
}

impl<W: Write> Sink<W> {
    fn new(writer: W, no_rev: bool) -> Sink<W> {
        Sink { writer: BufWriter::with_capacity(256 << 10, writer), no_rev, count: 0, line: Vec::new() }
    }

    fn write(&mut self, document: &[u8]) -> Result<(), Error> {
        self.line.clear();
        if self.no_rev {
            members::write_without("_rev", document, &mut self.line)?;
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

    fn finish(self) -> Result<(W, u64), Error> {
        let count = self.count;
        let writer = self.writer.into_inner().map_err(|error| write_error(error.into_error()))?;
        Ok((writer, count))
    }
}

/// Writes what was asked for.
async fn write_documents<W: Write>(
    target: &mut Target,
    args: &Args,
    sink: &mut Sink<W>,
) -> Result<LeftOut, Error> {
    let content = if args.attachments { Content::Inline } else { Content::Stubs };
    match (target, args.all_revisions) {
        (Target::Local(database), false) => local::write_winners(database, content, sink).await,
        (Target::Local(database), true) => local::write_all(database, content, sink).await,
        (Target::Remote(database), false) => remote::write_winners(database, content, sink).await,
        (Target::Remote(database), true) => remote::write_all(database, content, sink).await,
    }
}

/// What is written of attachments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// All but their content.
    Stubs,
    /// Their content, in base 64.
    Inline,
}

/// What of a database a dump doesn't have.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeftOut {
    deleted_count: u64,
    /// Leaves that aren't their documents' winners.
    branch_count: u64,
    /// Attachments without their content.
    attachment_count: u64,
    /// None where the server doesn't tell.
    local_count: Option<u64>,
}

impl LeftOut {
    /// What was left out, and which flag has it; None where nothing was.
    fn text(&self) -> Option<String> {
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

fn check_count(found: u64, announced: u64) -> Result<(), Error> {
    if found == announced {
        Ok(())
    } else {
        Err(format!("{found} documents came where {announced} were announced").into())
    }
}

/// A document that no load would take.
fn too_large(id: &str) -> Error {
    format!(
        "{id} takes more than {LINE_BYTES_MAX} bytes with its attachments: copy the database by replication, or \
         by `settee backup`"
    )
    .into()
}

#[cfg(test)]
mod tests;
