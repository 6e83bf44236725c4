//! `settee load`: JSON documents into a database, at a URL or in a data directory.
//!
//! One thread reads and splits the input and finds each document's id; batches go through a
//! short queue to a task that stores them, one after the other. Ids are stable
//! ([`identity`]), so that loading again what was loaded before adds nothing: where a batch was
//! mostly there already, the next one asks first and sends only what is missing.
//!
//! Documents with `_revisions` are merged into their trees as replication merges them, so that what
//! `settee dump --all-revisions` wrote comes back with its conflicts and deletions.
//!
//! Invariants:
//! 1. Memory holds [`BATCHES_AHEAD`] batches and what is being stored, whatever the input's size.
//! 2. A document counts as loaded once it is persisted.
//! 3. No document is overwritten: another one under its id is an error that names the line.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use settee_doc::Options;
use tokio::sync::mpsc;

use crate::CommandResult;
use crate::output::{complain, say};
use identity::{Identifier, Item};
use split::{SplitError, Splitter};
use target::{Error, Missing, Stored, Target, TargetArgs};

mod format;
pub(crate) mod identity;
mod input;
pub(crate) mod split;
pub(crate) mod target;

/// Most bytes of documents in a batch; one document may exceed it.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Most bytes of a document with its attachments, and of a line of couchbackup's. Without attachments a
/// document has a limit of its own.
pub(crate) const LINE_BYTES_MAX: usize = 256 << 20;

/// Batches that are read ahead of the one being stored.
const BATCHES_AHEAD: usize = 2;

/// Most errors that are printed; the others are counted.
const ERRORS_SHOWN_MAX: u64 = 100;

/// Time between two pictures of the progress bar.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// JSON lines or a JSON array of documents, `{"docs":[…]}`, an answer of _all_docs with include_docs=true,
    /// or couchbackup's; also compressed by gzip or zstd; - reads the standard input
    file: PathBuf,

    #[command(flatten)]
    target: TargetArgs,

    /// Documents in a batch
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    batch: u64,

    /// Make the database where it isn't there
    #[arg(long)]
    create: bool,

    /// Member that holds the id of documents without _id [default: a hash of the content]
    #[arg(long, value_name = "MEMBER")]
    id: Option<String>,

    /// Bytes of a document
    #[arg(long, value_name = "N", env = "SETTEE_MAX_DOCUMENT_SIZE", default_value_t = Options::default().document_bytes_max)]
    max_document_size: usize,

    /// Store design documents with validate_doc_update, and what they would check, without running them; in a
    /// data directory. A server has a setting of its own for that
    #[arg(long, conflicts_with = "url")]
    ignore_validation: bool,

    /// Go on behind a document that can't be read or is refused, and count it
    #[arg(long)]
    skip_errors: bool,
}

impl Args {
    fn options(&self) -> Options {
        Options { document_bytes_max: self.max_document_size, ..Options::default() }
    }
}

pub(crate) fn run(args: Args) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(load(args))
}

async fn load(args: Args) -> CommandResult {
    let input = input::open(&args.file)?;
    let target =
        Target::open(&args.target, args.options(), Missing::of_load(args.create), args.ignore_validation)
            .await?;
    let (mut loader, mut batches) = begin(target, input.size, input.reader, &args)?;
    let failed = loader.store_all(&mut batches).await;
    loader.finish(failed).await
}

/// Starts to read, in a thread of its own.
fn begin(
    target: Target,
    size: Option<u64>,
    input: Box<dyn Read + Send>,
    args: &Args,
) -> io::Result<(Loader, mpsc::Receiver<Message>)> {
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let reader = Reader {
        identifier: Identifier::new(args.id.clone()),
        batch: args.batch as usize,
        document_bytes_max: args.max_document_size,
        sender,
    };
    std::thread::Builder::new().name("load-reader".to_owned()).spawn(move || reader.run(input))?;
    Ok((Loader::new(target, size, args.skip_errors), receiver))
}

/// What the reader hands over.
#[derive(Debug)]
enum Message {
    /// Documents, no two with the same id, and how far the input was read.
    Batch { items: Vec<Item>, bytes: u64 },
    /// A place where there is no document to load.
    Bad { line: u64, reason: String, is_last: bool },
}

/// The storing side is gone: nobody wants the rest.
struct Gone;

/// Reads, splits and identifies, in a thread of its own.
struct Reader {
    identifier: Identifier,
    batch: usize,
    document_bytes_max: usize,
    sender: mpsc::Sender<Message>,
}

impl Reader {
    fn run(mut self, input: impl Read) {
        // Without a receiver there is nothing left to do.
        let _ = self.read(input);
    }

    fn read(&mut self, input: impl Read) -> Result<(), Gone> {
        let mut splitter = match Splitter::new(input, LINE_BYTES_MAX) {
            Ok(splitter) => splitter,
            Err(error) => {
                return self.send(Message::Bad { line: 1, reason: error.to_string(), is_last: true });
            }
        };
        let (mut document, mut batch) = (Vec::new(), Batch::default());
        loop {
            let bytes = splitter.bytes_read();
            let found = match splitter.next(&mut document) {
                Ok(Some(line)) => self.identify(line, &document).map_err(|bad| (bad, false)),
                Ok(None) => return self.send_batch(&mut batch, splitter.bytes_read()),
                Err(error) => Err(split_error(error)),
            };
            match found {
                Ok(item) => {
                    if batch.is_full(self.batch) || batch.keys.contains(&item.key()) {
                        self.send_batch(&mut batch, bytes)?;
                    }
                    batch.push(item);
                }
                Err(((line, reason), is_last)) => {
                    self.send_batch(&mut batch, bytes)?;
                    self.send(Message::Bad { line, reason, is_last })?;
                    if is_last {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn identify(&mut self, line: u64, text: &[u8]) -> Result<Item, (u64, String)> {
        let item = self.identifier.identify(line, text)?;
        match !item.has_attachments && text.len() > self.document_bytes_max {
            true => Err((line, too_large(self.document_bytes_max))),
            false => Ok(item),
        }
    }

    fn send_batch(&mut self, batch: &mut Batch, bytes: u64) -> Result<(), Gone> {
        let items = std::mem::take(batch).items;
        if items.is_empty() { Ok(()) } else { self.send(Message::Batch { items, bytes }) }
    }

    fn send(&mut self, message: Message) -> Result<(), Gone> {
        self.sender.blocking_send(message).map_err(|_| Gone)
    }
}

/// Line and reason, and whether nothing can be read behind it.
fn split_error(error: SplitError) -> ((u64, String), bool) {
    match error {
        SplitError::TooLarge { line, max } => ((line, too_large(max)), false),
        SplitError::NoDocument { line, reason } => ((line, reason.to_owned()), false),
        SplitError::Syntax { line, reason } => ((line, reason.to_owned()), true),
        SplitError::Read { line, source } => ((line, source.to_string()), true),
    }
}

fn too_large(max: usize) -> String {
    format!("the document exceeds {max} bytes")
}

#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    keys: HashSet<(String, Option<String>)>,
    bytes: usize,
}

impl Batch {
    fn is_full(&self, count: usize) -> bool {
        self.items.len() >= count || self.bytes >= BATCH_BYTES_MAX
    }

    fn push(&mut self, item: Item) {
        self.bytes += item.text.len();
        self.keys.insert(item.key());
        self.items.push(item);
    }
}

/// Stores batches and keeps the counts.
struct Loader {
    target: Target,
    skip_errors: bool,
    /// The last batch was mostly there: ask before sending.
    ask_first: bool,
    loaded: u64,
    there: u64,
    errors: u64,
    /// Why it stopped before the input's end.
    stopped: Option<String>,
    started: Instant,
    bar: ProgressBar,
}

impl Loader {
    fn new(target: Target, size: Option<u64>, skip_errors: bool) -> Loader {
        Loader {
            target,
            skip_errors,
            ask_first: true,
            loaded: 0,
            there: 0,
            errors: 0,
            stopped: None,
            started: Instant::now(),
            bar: progress_bar(size),
        }
    }

    /// Stores what comes until the input's end, or until something stops it: what failed is
    /// returned.
    async fn store_all(&mut self, batches: &mut mpsc::Receiver<Message>) -> Option<Error> {
        while let Some(message) = batches.recv().await {
            match message {
                Message::Batch { items, bytes } => {
                    if let Err(error) = self.batch(&items).await {
                        return Some(error);
                    }
                    self.show(bytes);
                }
                Message::Bad { line, reason, is_last } => {
                    self.bad(line, &reason);
                    if is_last {
                        self.stopped.get_or_insert_with(|| format!("line {line}: {reason}"));
                    }
                }
            }
            if self.stopped.is_some() {
                break;
            }
        }
        None
    }

    /// The end: everything is persisted before success is reported.
    async fn finish(self, failed: Option<Error>) -> CommandResult {
        let Loader { target, loaded, there, errors, stopped, started, bar, .. } = self;
        bar.finish_and_clear();
        let failed = match failed {
            Some(error) => Some(error),
            None => target.close().await.err(),
        };
        if let Some(error) = failed {
            return Err(format!(
                "{error}; {loaded} documents were stored before that ({there} already there): load again to go on"
            )
            .into());
        }
        say!("{}", summary(loaded, there, errors, started.elapsed()));
        match (stopped, errors) {
            (Some(place), _) => Err(format!("stopped at {place}; {loaded} documents were stored").into()),
            (None, 0) => Ok(()),
            (None, errors) => Err(format!("{errors} documents were not loaded").into()),
        }
    }

    fn show(&self, bytes: u64) {
        let documents = self.loaded + self.there;
        self.bar.set_position(bytes);
        self.bar.set_message(format!(
            "{documents} documents, {:.0}/s",
            documents as f64 / self.started.elapsed().as_secs_f64()
        ));
    }

    /// Counts a document that isn't loaded, and shows why.
    fn report(&mut self, line: u64, reason: &str) {
        self.errors += 1;
        if self.errors <= ERRORS_SHOWN_MAX {
            self.bar.suspend(|| complain!("line {line}: {reason}"));
        }
        if self.errors == ERRORS_SHOWN_MAX {
            self.bar.suspend(|| complain!("further errors are counted alone"));
        }
    }

    /// A document that can't be loaded: it ends the run, or is passed over.
    fn bad(&mut self, line: u64, reason: &str) {
        if self.skip_errors {
            self.report(line, reason);
        } else {
            self.errors += 1;
            self.stopped.get_or_insert_with(|| format!("line {line}: {reason}"));
        }
    }

    async fn batch(&mut self, items: &[Item]) -> Result<(), Error> {
        let (local, listed): (Vec<&Item>, Vec<&Item>) = items.iter().partition(|item| item.is_local());
        let (branches, others): (Vec<&Item>, Vec<&Item>) =
            listed.into_iter().partition(|item| item.has_history);
        let (replicated, new): (Vec<&Item>, Vec<&Item>) =
            others.into_iter().partition(|item| item.revision.is_some());
        let there_before = self.there;
        for item in local {
            self.store_local(item).await?;
        }
        if !branches.is_empty() {
            self.store_branches(&branches).await?;
        }
        if !replicated.is_empty() {
            self.store_replicated(&replicated).await?;
        }
        if !new.is_empty() {
            self.store_new(new).await?;
        }
        self.ask_first = 2 * (self.there - there_before) > items.len() as u64;
        Ok(())
    }

    /// A local document is stored where there is none of its id.
    async fn store_local(&mut self, item: &Item) -> Result<(), Error> {
        match self.target.local_document(&item.id).await? {
            Some(document) if is_same(&document, &item.text) => self.there += 1,
            Some(_) => self.report(item.line, &format!("{:?} is there with other content", item.id)),
            None => match self.target.put_local(item).await? {
                Stored::Yes => self.loaded += 1,
                Stored::Conflict => self.report(item.line, &format!("{:?} is in conflict", item.id)),
                Stored::Refused(reason) => self.bad(item.line, &reason),
            },
        }
        Ok(())
    }

    /// Documents with their ancestors are merged; those that are known are there.
    async fn store_branches(&mut self, items: &[&Item]) -> Result<(), Error> {
        let mut is_missing = self.target.missing(items).await?.into_iter();
        let (missing, known): (Vec<&Item>, Vec<&Item>) =
            items.iter().copied().partition(|_| is_missing.next().expect("an answer for each"));
        self.there += known.len() as u64;
        self.store_as_they_are(&missing).await
    }

    async fn store_as_they_are(&mut self, items: &[&Item]) -> Result<(), Error> {
        for (item, stored) in items.iter().zip(self.store(items, true).await?) {
            match stored {
                Stored::Yes => self.loaded += 1,
                Stored::Conflict => self.report(item.line, &format!("{:?} is in conflict", item.id)),
                Stored::Refused(reason) => self.bad(item.line, &reason),
            }
        }
        Ok(())
    }

    /// Documents with revisions keep them. Where another revision is there, theirs would become
    /// a conflict that nobody sees: that is an error instead.
    async fn store_replicated(&mut self, items: &[&Item]) -> Result<(), Error> {
        let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        let existing = self.target.existing(&ids, false).await?;
        let mut missing = Vec::new();
        for (&item, existing) in items.iter().zip(existing) {
            match existing {
                None => missing.push(item),
                Some(existing) if Some(&existing.revision) == item.revision.as_ref() => self.there += 1,
                Some(existing) => {
                    let state = if existing.is_deleted { "was deleted with" } else { "is there with" };
                    self.report(item.line, &format!("{:?} {state} revision {}", item.id, existing.revision));
                }
            }
        }
        self.store_as_they_are(&missing).await
    }

    async fn store_new(&mut self, mut items: Vec<&Item>) -> Result<(), Error> {
        let mut taken = Vec::new();
        if self.ask_first {
            let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
            let existing = self.target.existing(&ids, false).await?;
            let mut is_there =
                existing.iter().map(|found| found.as_ref().is_some_and(|found| !found.is_deleted));
            (taken, items) = items.into_iter().partition(|_| is_there.next().expect("a row for each"));
        }
        for (&item, stored) in items.iter().zip(self.store(&items, false).await?) {
            match stored {
                Stored::Yes => self.loaded += 1,
                Stored::Conflict => taken.push(item),
                Stored::Refused(reason) => self.bad(item.line, &reason),
            }
        }
        self.compare(&taken).await
    }

    async fn store(&mut self, items: &[&Item], with_revisions: bool) -> Result<Vec<Stored>, Error> {
        if items.is_empty() { Ok(Vec::new()) } else { self.target.store(items, with_revisions).await }
    }

    /// Ids that are taken: by the same document, or by another one, which stays.
    async fn compare(&mut self, taken: &[&Item]) -> Result<(), Error> {
        let (derived, given): (Vec<&Item>, Vec<&Item>) =
            taken.iter().copied().partition(|item| item.is_derived);
        self.there += derived.len() as u64;
        if given.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = given.iter().map(|item| item.id.as_str()).collect();
        let existing = self.target.existing(&ids, true).await?;
        for (item, existing) in given.iter().zip(existing) {
            let document = existing.and_then(|existing| existing.document);
            if document.is_some_and(|document| is_same(&document, &item.text)) {
                self.there += 1;
            } else {
                self.report(item.line, &format!("{:?} is there with other content", item.id));
            }
        }
        Ok(())
    }
}

/// Whether two documents have the same members, whatever their order and revisions. Of attachments the names,
/// types and digests are compared, not the content, which a stub hasn't.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let members = |text| match serde_json::from_slice(text) {
        Ok(Value::Object(mut members)) => {
            members.shift_remove("_rev");
            let attachments = members.shift_remove("_attachments");
            Some((members, attachments))
        }
        _ => None,
    };
    match (members(one), members(other)) {
        (Some((one, attached)), Some((other, other_attached))) => {
            one == other && has_same_attachments(attached, other_attached)
        }
        _ => false,
    }
}

fn has_same_attachments(one: Option<Value>, other: Option<Value>) -> bool {
    let (one, other) = (one.unwrap_or_else(|| json!({})), other.unwrap_or_else(|| json!({})));
    let (Value::Object(one), Value::Object(other)) = (one, other) else { return false };
    let is_alike = |(name, attachment): (&String, &Value)| {
        other.get(name).is_some_and(|other| {
            ["content_type", "digest"].iter().all(|member| attachment[member] == other[member])
        })
    };
    one.len() == other.len() && one.iter().all(is_alike)
}

fn summary(loaded: u64, there: u64, errors: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let rate = (loaded + there) as f64 / seconds;
    format!(
        "loaded {loaded} documents ({there} already there, {errors} errors) in {seconds:.1} s, {rate:.0} docs/s"
    )
}

/// On a terminal a bar, or without a size a counter; elsewhere nothing.
fn progress_bar(size: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match size {
        Some(size) => {
            (ProgressBar::new(size), "{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {msg}, {eta} left")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {bytes_per_sec}, {msg}"),
    };
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
    bar.enable_steady_tick(PROGRESS_EVERY);
    bar
}

#[cfg(test)]
mod tests;
