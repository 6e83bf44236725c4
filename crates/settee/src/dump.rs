//! `settee dump`: writes a database's documents as JSON lines, which `settee load` reads.
//!
//! Rows are streamed. Memory holds one document, or one `_bulk_get` response for a server's documents with
//! all revisions. A truncated response, or one with fewer documents than it announced, is an error; then no
//! output file is created. The dump counts what it leaves out and prints the counts.
//!
//! With `--all-revisions` each line is a leaf with its `_revisions`; deleted leaves and local documents are
//! included. `settee load` merges such lines as replication does.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use settee_doc::Options;

use crate::load::target::{Error, MissingDatabase, Target, TargetArgs};
use crate::output::{CommandResult, print_stderr};

mod document_writer;
mod local;
mod remote;
mod row_parser;

use document_writer::{AttachmentContent, DocumentWriter, LeftOut};

#[derive(clap::Args)]
#[command(
    after_help = "Without --all-revisions the dump leaves out deleted documents, conflicting revisions and \
    local documents; without --attachments it leaves out the content of attachments. It prints their counts. \
    With both flags `settee load` restores the whole database."
)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,

    /// File to write instead of the standard output; created or replaced atomically
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Replace the file if it exists
    #[arg(long, requires = "out")]
    force: bool,

    /// Include the content of attachments, in base64
    #[arg(long)]
    attachments: bool,

    /// Include deleted documents, conflicting revisions, each revision's ancestors, and local documents
    #[arg(long)]
    all_revisions: bool,

    /// Leave out _rev: loaded again, the documents begin with a first revision
    #[arg(long, conflicts_with = "all_revisions")]
    no_rev: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(dump(args))
}

async fn dump(args: Args) -> CommandResult {
    if let Some(path) = &args.out {
        check_replaceable(path, args.force)?;
    }
    let mut target = Target::open(&args.target, Options::default(), MissingDatabase::Refuse).await?;
    let (count, left_out) = match &args.out {
        None => {
            let mut writer = DocumentWriter::new(io::stdout().lock(), args.no_rev);
            let left_out = write_documents(&mut target, &args, &mut writer).await?;
            (writer.finish()?.1, left_out)
        }
        Some(path) if is_special(path) => {
            // A device or a pipe is written to and never replaced.
            let file = File::options().write(true).open(path).map_err(|error| with_path(path, error))?;
            let mut writer = DocumentWriter::new(file, args.no_rev);
            let left_out = write_documents(&mut target, &args, &mut writer).await?;
            (writer.finish()?.1, left_out)
        }
        Some(path) => {
            // A symbolic link is followed: its target is replaced.
            let path = &fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let temporary = TemporaryFile::new(path)?;
            let file = File::create(&temporary.path).map_err(|error| with_path(path, error))?;
            let mut writer = DocumentWriter::new(file, args.no_rev);
            let left_out = write_documents(&mut target, &args, &mut writer).await?;
            let (file, count) = writer.finish()?;
            file.sync_all()?;
            check_replaceable(path, args.force)?;
            temporary.rename(path)?;
            (count, left_out)
        }
    };
    match args.all_revisions {
        false => print_stderr!("dumped {count} documents"),
        true => print_stderr!("dumped {count} leaf revisions and local documents"),
    }
    if let Some(left_out) = left_out.text() {
        print_stderr!("{left_out}");
    }
    Ok(())
}

/// Refuses a directory, and an existing file unless `force` is set.
fn check_replaceable(path: &Path, force: bool) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(format!("{} is a directory", path.display()).into()),
        Ok(found) if found.is_file() && !force => {
            Err(format!("{} already exists; --force replaces it", path.display()).into())
        }
        _ => Ok(()),
    }
}

/// Whether `path` exists and is not a regular file.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file())
}

fn with_path(path: &Path, error: io::Error) -> Error {
    format!("{}: {error}", path.display()).into()
}

/// The output file under a temporary name. Dropping it without `rename` removes the file.
struct TemporaryFile {
    path: PathBuf,
}

impl TemporaryFile {
    /// Chooses a temporary name in the directory of `path`.
    fn new(path: &Path) -> Result<TemporaryFile, Error> {
        let name = path.file_name().ok_or_else(|| format!("{} is not a file name", path.display()))?;
        let name = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        Ok(TemporaryFile { path: path.with_file_name(name) })
    }

    /// Renames the file to `path`. The rename is persisted when this returns.
    fn rename(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Fails if the file was renamed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes the documents that the flags select. Returns the counts of what they leave out.
async fn write_documents<W: Write>(
    target: &mut Target,
    args: &Args,
    writer: &mut DocumentWriter<W>,
) -> Result<LeftOut, Error> {
    let content = if args.attachments { AttachmentContent::Inline } else { AttachmentContent::Stubs };
    match (target, args.all_revisions) {
        (Target::Local(database), false) => local::write_winners(database, content, writer).await,
        (Target::Local(database), true) => local::write_all(database, content, writer).await,
        (Target::Remote(database), false) => remote::write_winners(database, content, writer).await,
        (Target::Remote(database), true) => remote::write_all(database, content, writer).await,
    }
}

#[cfg(test)]
mod tests;
