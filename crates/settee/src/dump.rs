//! `settee dump`: a database's documents as JSON lines, the reverse of `settee load`.
//!
//! Rows are streamed from one snapshot; memory holds one document. The end of the stream must
//! be its proper end, and hold as many documents as its beginning announced: a dump that stops
//! in the middle is an error, and then no file is left under the name asked for.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use settee_bench::http::encode_segment;
use settee_doc::{Extras, Options, Range};

use crate::CommandResult;
use crate::load::identity::minify;
use crate::load::split::{ArrayEvent, ArrayScanner};
use crate::load::target::{Error, Local, Remote, Target, TargetArgs};

/// Most bytes around the rows of a listing.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// Most bytes of one row of a listing.
const ROW_BYTES_MAX: usize = 256 << 20;

#[derive(clap::Args)]
#[command(after_help = "Deleted documents, conflicting revisions, local documents and the content of \
    attachments are not dumped.")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,

    /// File to write, in place of the standard output; it appears whole or not at all
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Leave out _rev: loaded again, documents begin anew
    #[arg(long)]
    no_rev: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(dump(args))
}

async fn dump(args: Args) -> CommandResult {
    let target = Target::open(&args.target, Options::default(), false).await?;
    let count = match &args.out {
        None => {
            let mut sink = Sink::new(io::stdout().lock(), args.no_rev);
            write_documents(&target, &mut sink).await?;
            sink.finish()?.1
        }
        Some(path) if is_special(path) => {
            // A device or a pipe is written to, never replaced.
            let file = File::options().write(true).open(path).map_err(|error| named(path, error))?;
            let mut sink = Sink::new(file, args.no_rev);
            write_documents(&target, &mut sink).await?;
            sink.finish()?.1
        }
        Some(path) => {
            // What a link leads to is replaced, not the link.
            let path = &fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let temporary = Temporary::new(path)?;
            let file = File::create(&temporary.path).map_err(|error| named(path, error))?;
            let mut sink = Sink::new(file, args.no_rev);
            write_documents(&target, &mut sink).await?;
            let (file, count) = sink.finish()?;
            file.sync_all()?;
            temporary.rename(path)?;
            count
        }
    };
    eprintln!("dumped {count} documents");
    Ok(())
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
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
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
            without_rev(document, &mut self.line)?;
        } else {
            minify(document, &mut self.line);
        }
        self.line.push(b'\n');
        self.writer.write_all(&self.line)?;
        self.count += 1;
        Ok(())
    }

    fn finish(self) -> Result<(W, u64), Error> {
        let count = self.count;
        let writer = self.writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((writer, count))
    }
}

/// Appends a document's members but `_rev`, each with the text that it has.
fn without_rev(document: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    let Members(members) = serde_json::from_slice(document)?;
    out.push(b'{');
    let start = out.len();
    for (key, value) in members.into_iter().filter(|(key, _)| key != "_rev") {
        if out.len() > start {
            out.push(b',');
        }
        serde_json::to_writer(&mut *out, &key)?;
        out.push(b':');
        minify(value.get().as_bytes(), out);
    }
    out.push(b'}');
    Ok(())
}

/// An object's members in their order, values as they stand.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Members<'a>, D::Error> {
        struct Visit;
        impl<'de> serde::de::Visitor<'de> for Visit {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a document")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Visit).map(Members)
    }
}

async fn write_documents<W: Write>(target: &Target, sink: &mut Sink<W>) -> Result<(), Error> {
    match target {
        Target::Local(local) => write_local(local, sink).await,
        Target::Remote(remote) => write_remote(remote, sink).await,
    }
}

async fn write_local<W: Write>(local: &Local, sink: &mut Sink<W>) -> Result<(), Error> {
    let view = local.database.view();
    let mut rows = view.all_docs(&Range::default()).await?;
    let mut text = Vec::new();
    while let Some(row) = rows.next().await? {
        let (id, summary, body) = (row.id.to_owned(), row.summary, row.body);
        text.clear();
        view.read(&id, summary, body).await?.write_json(&Extras::default(), &mut text);
        sink.write(&text)?;
    }
    check_count(sink.count, view.doc_count())
}

async fn write_remote<W: Write>(remote: &Remote, sink: &mut Sink<W>) -> Result<(), Error> {
    let target = format!("/{}/_all_docs?include_docs=true", encode_segment(&remote.database));
    let mut connection = remote.couch.stream("GET", &target).await?;
    let mut listing = Listing::default();
    while let Some(chunk) = connection.chunk().await? {
        listing.take(chunk, |row| sink.write(row_document(row)?.get().as_bytes()))?;
    }
    if let Some(total) = listing.finish()? {
        check_count(sink.count, total)?;
    }
    Ok(())
}

fn check_count(found: u64, announced: u64) -> Result<(), Error> {
    if found == announced {
        Ok(())
    } else {
        Err(format!("{found} documents came where {announced} were announced").into())
    }
}

/// The document of one row of a listing.
fn row_document(row: &[u8]) -> Result<&RawValue, Error> {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        doc: Option<&'a RawValue>,
    }
    let row: Row<'_> = serde_json::from_slice(row)?;
    row.doc.filter(|doc| doc.get().starts_with('{')).ok_or_else(|| "a row holds no document".into())
}

/// Takes the answer of `_all_docs` apart as it comes: `{…,"rows":[…]…}`.
struct Listing {
    rows: ArrayScanner,
    is_in_rows: bool,
    row: Vec<u8>,
    /// What stands before and behind the rows.
    frame: Vec<u8>,
}

impl Default for Listing {
    fn default() -> Listing {
        Listing { rows: ArrayScanner::new(), is_in_rows: false, row: Vec::new(), frame: Vec::new() }
    }
}

impl Listing {
    fn take(
        &mut self,
        mut text: &[u8],
        mut on_row: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !text.is_empty() {
            if !self.is_in_rows || self.rows.is_done() {
                // No string before the rows holds a bracket: the totals are numbers.
                let end = if self.is_in_rows { None } else { memchr::memchr(b'[', text) };
                let (piece, rest) = text.split_at(end.unwrap_or(text.len()));
                if self.frame.len() + piece.len() > FRAME_BYTES_MAX {
                    return Err("the listing has no rows".into());
                }
                self.frame.extend_from_slice(piece);
                self.is_in_rows |= end.is_some();
                text = rest;
                continue;
            }
            let step = self.rows.scan(text);
            if self.row.len() + step.element.len() > ROW_BYTES_MAX {
                return Err(format!("a row exceeds {ROW_BYTES_MAX} bytes").into());
            }
            self.row.extend_from_slice(&text[step.element]);
            match step.event {
                ArrayEvent::More => {}
                ArrayEvent::Element => {
                    on_row(&self.row)?;
                    self.row.clear();
                }
                ArrayEvent::Broken(reason) => {
                    return Err(format!("the listing is malformed: {reason}").into());
                }
            }
            text = &text[step.used..];
        }
        Ok(())
    }

    /// The number of documents that the listing announced.
    fn finish(self) -> Result<Option<u64>, Error> {
        #[derive(Deserialize)]
        struct Frame {
            total_rows: Option<u64>,
        }
        if !self.rows.is_done() {
            return Err("the listing ends in the middle".into());
        }
        // The rows were taken out: in their place an empty array makes the frame whole.
        let mut frame = self.frame;
        let place = memchr::memmem::rfind(&frame, b"\"rows\":").ok_or("the listing has no rows")? + 7;
        frame.splice(place..place, *b"[]");
        let frame: Frame = serde_json::from_slice(&frame).map_err(|_| "the listing ends in the middle")?;
        Ok(frame.total_rows)
    }
}

#[cfg(test)]
mod tests;
