//! `settee load`: stores JSON documents in a database of a server or of a data directory.
//!
//! One thread reads and splits the input and determines each document's id. It sends batches through a
//! bounded queue to a task that stores them one after the other. Ids are stable ([`identity`]), so loading
//! the same input again adds nothing. If most documents of a batch existed, the loader looks up the ids of
//! the next batch first and sends only the missing documents.
//!
//! Documents with `_revisions` are merged into their revision trees as in replication, so a dump with
//! `--all-revisions` restores conflicts and deletions.
//!
//! Invariants:
//! 1. Memory holds [`BATCHES_AHEAD`] batches and the one being stored, independent of the input's size.
//! 2. A document counts as loaded once it is persisted.
//! 3. No document is overwritten: an existing document with the same id and other content is an error with
//!    the line.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use settee_doc::{Edit, ErrorKind, Options};
use tokio::sync::mpsc;

use crate::output::{CommandResult, print_stderr, print_stdout};
use identity::{Identifier, InputDocument};
use split::{SplitError, Splitter};
use target::{Error, MissingDatabase, StoreOutcome, Target, TargetArgs};

mod format;
pub(crate) mod identity;
mod input;
pub(crate) mod split;
pub(crate) mod target;

/// Largest batch in bytes of documents. A batch of one document may exceed it.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Largest document with attachments, and largest line of a couchbackup file, in bytes. `--document-bytes-max`
/// limits documents without attachments.
pub(crate) const LINE_BYTES_MAX: usize = 256 << 20;

/// Number of batches read ahead of the one being stored.
const BATCHES_AHEAD: usize = 2;

/// Number of errors printed. Further errors are only counted.
const ERRORS_SHOWN_MAX: u64 = 100;

/// Time between two updates of the progress bar on the terminal.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File with JSON lines, a JSON array, `{"docs":[…]}`, a response of _all_docs with include_docs=true, or
    /// a couchbackup; may be compressed with gzip or zstd; - reads the standard input
    file: PathBuf,

    #[command(flatten)]
    target: TargetArgs,

    /// Number of documents in a batch
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    batch: u64,

    /// Create the database if it doesn't exist
    #[arg(long)]
    create: bool,

    /// Member with the id of documents that have no _id [default: a hash of the content]
    #[arg(long, value_name = "MEMBER")]
    id: Option<String>,

    /// Largest document in bytes, without its attachments
    #[arg(long, value_name = "N", env = "SETTEE_DOCUMENT_BYTES_MAX", default_value_t = Options::default().document_bytes_max)]
    document_bytes_max: usize,

    /// Skip and count documents that can't be read or are refused
    #[arg(long)]
    skip_errors: bool,
}

impl Args {
    fn options(&self) -> Options {
        Options { document_bytes_max: self.document_bytes_max, ..Options::default() }
    }
}

pub(crate) fn run(args: Args) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(load(args))
}

async fn load(args: Args) -> CommandResult {
    let input = input::open(&args.file)?;
    let target = Target::open(&args.target, args.options(), MissingDatabase::of_load(args.create)).await?;
    let (mut loader, mut batches) = start_reader(target, input.size, input.reader, &args)?;
    let failed = loader.store_all(&mut batches).await;
    loader.finish(failed).await
}

/// Starts the reader thread. Returns the loader and the queue that the thread fills.
fn start_reader(
    target: Target,
    size: Option<u64>,
    input: Box<dyn Read + Send>,
    args: &Args,
) -> io::Result<(Loader, mpsc::Receiver<Message>)> {
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let reader = Reader {
        identifier: Identifier::new(args.id.clone()),
        batch: args.batch as usize,
        options: args.options(),
        sender,
    };
    std::thread::Builder::new().name("load-reader".to_owned()).spawn(move || reader.run(input))?;
    Ok((Loader::new(target, size, args.skip_errors), receiver))
}

/// Message from the reader to the loader.
#[derive(Debug)]
enum Message {
    /// Documents with distinct keys ([`InputDocument::key`]), and the number of input bytes read so far.
    Batch { items: Vec<InputDocument>, bytes: u64 },
    /// An invalid document. `is_last` is set if the input can't be read beyond it.
    Invalid { line: u64, reason: String, is_last: bool },
}

/// The loader has stopped and takes no more messages.
struct ReceiverClosed;

/// The reader thread: reads and splits the input and determines the documents' ids.
struct Reader {
    identifier: Identifier,
    batch: usize,
    options: Options,
    sender: mpsc::Sender<Message>,
}

impl Reader {
    fn run(mut self, input: impl Read) {
        // The loader has stopped; so does the reader.
        let _ = self.read(input);
    }

    fn read(&mut self, input: impl Read) -> Result<(), ReceiverClosed> {
        let mut splitter = match Splitter::new(input, LINE_BYTES_MAX) {
            Ok(splitter) => splitter,
            Err(error) => {
                return self.send(Message::Invalid { line: 1, reason: error.to_string(), is_last: true });
            }
        };
        let (mut document, mut batch) = (Vec::new(), Batch::default());
        loop {
            let bytes = splitter.bytes_read();
            let found = match splitter.next(&mut document) {
                Ok(Some(line)) => self.identify(line, &document).map_err(|error| (error, false)),
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
                    self.send(Message::Invalid { line, reason, is_last })?;
                    if is_last {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn identify(&mut self, line: u64, text: &[u8]) -> Result<InputDocument, (u64, String)> {
        let item = self.identifier.identify(line, text)?;
        match !item.has_attachments && self.is_too_large(text) {
            true => {
                let reason = too_large(self.options.document_bytes_max);
                Err((line, format!("{reason}: see --document-bytes-max")))
            }
            false => Ok(item),
        }
    }

    /// Whether a document exceeds the limit, to which neither white space nor `_id`, `_rev` and `_revisions`
    /// count.
    fn is_too_large(&self, text: &[u8]) -> bool {
        let is_refused =
            || Edit::parse(text, &self.options).is_err_and(|error| error.kind() == ErrorKind::TooLarge);
        text.len() > self.options.document_bytes_max && is_refused()
    }

    fn send_batch(&mut self, batch: &mut Batch, bytes: u64) -> Result<(), ReceiverClosed> {
        let items = std::mem::take(batch).items;
        if items.is_empty() { Ok(()) } else { self.send(Message::Batch { items, bytes }) }
    }

    fn send(&mut self, message: Message) -> Result<(), ReceiverClosed> {
        self.sender.blocking_send(message).map_err(|_| ReceiverClosed)
    }
}

/// Returns the line, the reason, and whether the input can't be read beyond the error.
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
    items: Vec<InputDocument>,
    keys: HashSet<(String, Option<String>)>,
    bytes: usize,
}

impl Batch {
    fn is_full(&self, count: usize) -> bool {
        self.items.len() >= count || self.bytes >= BATCH_BYTES_MAX
    }

    fn push(&mut self, item: InputDocument) {
        self.bytes += item.text.len();
        self.keys.insert(item.key());
        self.items.push(item);
    }
}

/// Stores batches and keeps the counts.
struct Loader {
    target: Target,
    skip_errors: bool,
    /// Whether to look up the ids of a batch before sending it, since most of the previous batch existed.
    must_look_up: bool,
    /// Documents stored by this load.
    loaded_count: u64,
    /// Documents that were in the database already.
    existing_count: u64,
    /// Documents that were not loaded.
    error_count: u64,
    /// The error that stopped the load before the end of the input.
    stopped: Option<String>,
    started: Instant,
    bar: ProgressBar,
}

impl Loader {
    fn new(target: Target, size: Option<u64>, skip_errors: bool) -> Loader {
        Loader {
            target,
            skip_errors,
            must_look_up: true,
            loaded_count: 0,
            existing_count: 0,
            error_count: 0,
            stopped: None,
            started: Instant::now(),
            bar: progress_bar(size),
        }
    }

    /// Stores batches until the end of the input or an error. Returns the error if the target failed; an
    /// invalid document sets `stopped` instead.
    async fn store_all(&mut self, batches: &mut mpsc::Receiver<Message>) -> Option<Error> {
        while let Some(message) = batches.recv().await {
            match message {
                Message::Batch { items, bytes } => {
                    if let Err(error) = self.batch(&items).await {
                        return Some(error);
                    }
                    self.show_progress(bytes);
                }
                Message::Invalid { line, reason, is_last } => {
                    self.reject(line, &reason);
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

    /// Closes the target and prints the summary. Success is reported only after all documents are persisted.
    async fn finish(self, failed: Option<Error>) -> CommandResult {
        let Loader { target, loaded_count, existing_count, error_count, stopped, started, bar, .. } = self;
        bar.finish_and_clear();
        let failed = match failed {
            Some(error) => Some(error),
            None => target.close().await.err(),
        };
        if let Some(error) = failed {
            return Err(format!(
                "{error}; {loaded_count} documents were stored before that ({existing_count} already there): \
                 load again to continue"
            )
            .into());
        }
        print_stdout!("{}", summary(loaded_count, existing_count, error_count, started.elapsed()));
        match (stopped, error_count) {
            (Some(error), _) => {
                Err(format!("stopped at {error}; {loaded_count} documents were stored").into())
            }
            (None, 0) => Ok(()),
            (None, count) => Err(format!("{count} documents were not loaded").into()),
        }
    }

    fn show_progress(&self, bytes: u64) {
        let documents = self.loaded_count + self.existing_count;
        self.bar.set_position(bytes);
        self.bar.set_message(format!(
            "{documents} documents, {:.0}/s",
            documents as f64 / self.started.elapsed().as_secs_f64()
        ));
    }

    /// Counts a document that isn't loaded, and prints the reason.
    fn report(&mut self, line: u64, reason: &str) {
        self.error_count += 1;
        if self.error_count <= ERRORS_SHOWN_MAX {
            self.bar.suspend(|| print_stderr!("line {line}: {reason}"));
        }
        if self.error_count == ERRORS_SHOWN_MAX {
            self.bar.suspend(|| print_stderr!("further errors are only counted"));
        }
    }

    /// Counts an invalid or refused document. Stops the load unless `skip_errors` is set.
    fn reject(&mut self, line: u64, reason: &str) {
        if self.skip_errors {
            self.report(line, reason);
        } else {
            self.error_count += 1;
            self.stopped.get_or_insert_with(|| format!("line {line}: {reason}"));
        }
    }

    async fn batch(&mut self, items: &[InputDocument]) -> Result<(), Error> {
        let (local, listed): (Vec<&InputDocument>, Vec<&InputDocument>) =
            items.iter().partition(|item| item.is_local());
        let (branches, others): (Vec<&InputDocument>, Vec<&InputDocument>) =
            listed.into_iter().partition(|item| item.has_history);
        let (replicated, new): (Vec<&InputDocument>, Vec<&InputDocument>) =
            others.into_iter().partition(|item| item.revision.is_some());
        let existing_before = self.existing_count;
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
        self.must_look_up = 2 * (self.existing_count - existing_before) > items.len() as u64;
        Ok(())
    }

    /// Stores a local document unless its id exists.
    async fn store_local(&mut self, item: &InputDocument) -> Result<(), Error> {
        match self.target.local_document(&item.id).await? {
            Some(document) if is_same(&document, &item.text) => self.existing_count += 1,
            Some(_) => self.report(item.line, &format!("{:?} already exists with other content", item.id)),
            None => match self.target.put_local(item).await? {
                StoreOutcome::Stored => self.loaded_count += 1,
                StoreOutcome::Conflict => self.report(item.line, &format!("{:?} is in conflict", item.id)),
                StoreOutcome::Refused(reason) => self.reject(item.line, &reason),
            },
        }
        Ok(())
    }

    /// Merges documents with their ancestors. A revision that the database has counts as existing.
    async fn store_branches(&mut self, items: &[&InputDocument]) -> Result<(), Error> {
        let mut is_missing = self.target.missing(items).await?.into_iter();
        let (missing, existing): (Vec<&InputDocument>, Vec<&InputDocument>) =
            items.iter().copied().partition(|_| is_missing.next().expect("one result per item"));
        self.existing_count += existing.len() as u64;
        self.store_with_revisions(&missing).await
    }

    async fn store_with_revisions(&mut self, items: &[&InputDocument]) -> Result<(), Error> {
        for (item, stored) in items.iter().zip(self.store(items, true).await?) {
            match stored {
                StoreOutcome::Stored => self.loaded_count += 1,
                StoreOutcome::Conflict => self.report(item.line, &format!("{:?} is in conflict", item.id)),
                StoreOutcome::Refused(reason) => self.reject(item.line, &reason),
            }
        }
        Ok(())
    }

    /// Stores documents under the revisions they have. If the database has another revision of a document,
    /// the new one would become an unnoticed conflict; that is reported as an error instead.
    async fn store_replicated(&mut self, items: &[&InputDocument]) -> Result<(), Error> {
        let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        let existing = self.target.existing(&ids, false).await?;
        let mut missing = Vec::new();
        for (&item, existing) in items.iter().zip(existing) {
            match existing {
                None => missing.push(item),
                Some(existing) if Some(&existing.revision) == item.revision.as_ref() => {
                    self.existing_count += 1
                }
                Some(existing) => {
                    let state = if existing.is_deleted { "was deleted with" } else { "already exists with" };
                    self.report(item.line, &format!("{:?} {state} revision {}", item.id, existing.revision));
                }
            }
        }
        self.store_with_revisions(&missing).await
    }

    async fn store_new(&mut self, mut items: Vec<&InputDocument>) -> Result<(), Error> {
        let mut existing_items = Vec::new();
        if self.must_look_up {
            let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
            let existing = self.target.existing(&ids, false).await?;
            let mut exists =
                existing.iter().map(|found| found.as_ref().is_some_and(|found| !found.is_deleted));
            (existing_items, items) =
                items.into_iter().partition(|_| exists.next().expect("one row per item"));
        }
        for (&item, stored) in items.iter().zip(self.store(&items, false).await?) {
            match stored {
                StoreOutcome::Stored => self.loaded_count += 1,
                StoreOutcome::Conflict => existing_items.push(item),
                StoreOutcome::Refused(reason) => self.reject(item.line, &reason),
            }
        }
        self.compare(&existing_items).await
    }

    async fn store(
        &mut self,
        items: &[&InputDocument],
        with_revisions: bool,
    ) -> Result<Vec<StoreOutcome>, Error> {
        if items.is_empty() { Ok(Vec::new()) } else { self.target.store(items, with_revisions).await }
    }

    /// Compares documents with the existing ones of the same ids. Equal documents count as existing; others
    /// are errors.
    async fn compare(&mut self, existing_items: &[&InputDocument]) -> Result<(), Error> {
        let (derived, given): (Vec<&InputDocument>, Vec<&InputDocument>) =
            existing_items.iter().copied().partition(|item| item.is_derived);
        self.existing_count += derived.len() as u64;
        if given.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = given.iter().map(|item| item.id.as_str()).collect();
        let existing = self.target.existing(&ids, true).await?;
        for (item, existing) in given.iter().zip(existing) {
            let document = existing.and_then(|existing| existing.document);
            if document.is_some_and(|document| is_same(&document, &item.text)) {
                self.existing_count += 1;
            } else {
                self.report(item.line, &format!("{:?} already exists with other content", item.id));
            }
        }
        Ok(())
    }
}

/// Whether two documents have equal members, regardless of order and revision. Attachments are compared by
/// name, type and digest, since stubs have no content.
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
    let is_equal = |(name, attachment): (&String, &Value)| {
        other.get(name).is_some_and(|other| {
            ["content_type", "digest"].iter().all(|member| attachment[member] == other[member])
        })
    };
    one.len() == other.len() && one.iter().all(is_equal)
}

fn summary(loaded: u64, existing: u64, errors: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let rate = (loaded + existing) as f64 / seconds;
    format!(
        "loaded {loaded} documents ({existing} already there, {errors} errors) in {seconds:.1} s, \
         {rate:.0} docs/s"
    )
}

/// Returns a progress bar, or a counter if the input's size is unknown. It is hidden unless stderr is a
/// terminal.
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
    bar.enable_steady_tick(DRAW_INTERVAL);
    bar
}

#[cfg(test)]
mod tests;
