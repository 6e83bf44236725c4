//! The database that documents are loaded into or dumped from, on a server or in a data directory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use settee_client::{BulkRow, Couch, CouchError, encode_segment, parse};
use settee_doc::{Database, Databases, Edit, ErrorKind, Extras, Options, Revision, Stage};

use super::identity::InputDocument;
use crate::data_directory;
use crate::json_members;
use crate::secret::UserArgs;

/// The data directory if neither the flag nor the variable is set.
const DATA_DIRECTORY_DEFAULT: &str = "./settee-data";

/// Variable with the data directory. It isn't declared as clap's `env`, which would conflict with `--url`.
const DATA_DIRECTORY_VARIABLE: &str = "SETTEE_DATA_DIR";

/// Flags that select the database.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The database's name
    #[arg(long, value_name = "NAME")]
    pub(crate) db: String,

    /// Data directory that no server has open [default: $SETTEE_DATA_DIR, or ./settee-data]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    data_dir: Option<PathBuf>,

    /// Server that speaks CouchDB's API: `http://[user:password@]host:port`
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    #[command(flatten)]
    user: UserArgs,
}

/// How a database that doesn't exist is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingDatabase {
    /// Creates it.
    Create,
    /// Returns an error that mentions `--create`.
    RefuseWithHint,
    /// Returns an error.
    Refuse,
}

impl MissingDatabase {
    pub(crate) fn of_load(create: bool) -> MissingDatabase {
        if create { MissingDatabase::Create } else { MissingDatabase::RefuseWithHint }
    }

    /// Suffix of the error message.
    fn hint(self) -> &'static str {
        if self == MissingDatabase::RefuseWithHint { " (--create creates it)" } else { "" }
    }
}

/// The winning revision that a database has for an id.
#[derive(Debug)]
pub(crate) struct ExistingDocument {
    pub(crate) revision: String,
    pub(crate) is_deleted: bool,
    /// The JSON text. None if it wasn't requested or the document is deleted.
    pub(crate) document: Option<Vec<u8>>,
}

/// Outcome of storing a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreOutcome {
    /// The document is persisted.
    Stored,
    /// A document with the same id exists.
    Conflict,
    /// The document was refused, for the given reason.
    Refused(String),
}

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// The target database.
pub(crate) enum Target {
    Local(Local),
    Remote(Box<Remote>),
}

pub(crate) struct Local {
    databases: Arc<Databases>,
    pub(crate) database: Arc<Database>,
    options: Options,
}

pub(crate) struct Remote {
    pub(crate) couch: Couch,
    pub(crate) database: String,
}

impl Target {
    /// Opens the database.
    ///
    /// # Errors
    /// The database can't be opened, or doesn't exist and `missing` doesn't create it.
    pub(crate) async fn open(
        args: &TargetArgs,
        options: Options,
        missing: MissingDatabase,
    ) -> Result<Target, Error> {
        match &args.url {
            Some(url) => {
                let couch = Couch::new(args.user.apply(url.parse()?)?);
                Ok(Target::Remote(Box::new(Remote::open(couch, args.db.clone(), missing).await?)))
            }
            None => {
                let named = args
                    .data_dir
                    .clone()
                    .or_else(|| std::env::var_os(DATA_DIRECTORY_VARIABLE).map(PathBuf::from));
                let directory = named.unwrap_or_else(|| PathBuf::from(DATA_DIRECTORY_DEFAULT));
                Ok(Target::Local(Local::open(&directory, &args.db, options, missing).await?))
            }
        }
    }

    /// Looks up the winning revision of each of `ids`.
    pub(crate) async fn existing(
        &mut self,
        ids: &[&str],
        with_documents: bool,
    ) -> Result<Vec<Option<ExistingDocument>>, Error> {
        match self {
            Target::Local(local) => local.existing(ids, with_documents).await,
            Target::Remote(remote) => remote.existing(ids, with_documents).await,
        }
    }

    /// Stores documents and returns once they are persisted. `with_revisions` stores them under the revisions
    /// they have, otherwise as new documents.
    pub(crate) async fn store(
        &mut self,
        items: &[&InputDocument],
        with_revisions: bool,
    ) -> Result<Vec<StoreOutcome>, Error> {
        match self {
            Target::Local(local) => local.store(items, with_revisions).await,
            Target::Remote(remote) => remote.store(items, with_revisions).await,
        }
    }

    /// Returns for each document whether the database lacks its revision.
    pub(crate) async fn missing(&mut self, items: &[&InputDocument]) -> Result<Vec<bool>, Error> {
        match self {
            Target::Local(local) => local.missing(items).await,
            Target::Remote(remote) => remote.missing(items).await,
        }
    }

    /// Returns the JSON text of a local document. `id` includes `_local/`.
    pub(crate) async fn local_document(&mut self, id: &str) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Target::Local(local) => local.local_document(id).await,
            Target::Remote(remote) => remote.local_document(id).await,
        }
    }

    /// Stores a local document under the revision it has, and returns once it is persisted.
    pub(crate) async fn put_local(&mut self, item: &InputDocument) -> Result<StoreOutcome, Error> {
        match self {
            Target::Local(local) => local.put_local(item).await,
            Target::Remote(remote) => remote.put_local(item).await,
        }
    }

    /// Waits until everything stored is persisted; closes a data directory.
    pub(crate) async fn close(self) -> Result<(), Error> {
        match self {
            Target::Local(local) => {
                local.database.barrier().await?;
                Ok(local.databases.close().await?)
            }
            Target::Remote(mut remote) => Ok(remote.couch.barrier(&remote.database).await?),
        }
    }
}

fn no_database(name: &str, missing: MissingDatabase) -> Error {
    format!("there is no database {name}{}", missing.hint()).into()
}

impl Local {
    async fn open(
        directory: &Path,
        name: &str,
        options: Options,
        missing: MissingDatabase,
    ) -> Result<Local, Error> {
        let while_served = "use --url with its address";
        if missing != MissingDatabase::Create && !data_directory::has_databases(directory) {
            let error = match directory.is_dir() {
                true => format!("there are no databases in {}", directory.display()),
                false => data_directory::missing_directory_text(directory),
            };
            return Err(format!("{error}{}", missing.hint()).into());
        }
        let databases = data_directory::open_or_create(directory, while_served).await?;
        let database = match databases.get(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound && missing == MissingDatabase::Create => {
                databases.create(name).await?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_database(name, missing)),
            other => other?,
        };
        Ok(Local { databases, database, options })
    }

    async fn existing(
        &self,
        ids: &[&str],
        with_documents: bool,
    ) -> Result<Vec<Option<ExistingDocument>>, Error> {
        let snapshot = self.database.snapshot();
        let mut existing = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(summary) = snapshot.find(id).await? else {
                existing.push(None);
                continue;
            };
            let document = if with_documents && !summary.deleted {
                let mut text = Vec::new();
                let document = snapshot.read_whole(snapshot.document(id).await?).await?;
                document.write_json(&Extras::default(), &mut text);
                Some(text)
            } else {
                None
            };
            let revision = summary.revision.to_string();
            existing.push(Some(ExistingDocument { revision, is_deleted: summary.deleted, document }));
        }
        Ok(existing)
    }

    async fn missing(&self, items: &[&InputDocument]) -> Result<Vec<bool>, Error> {
        let snapshot = self.database.snapshot();
        let mut is_missing = Vec::with_capacity(items.len());
        for item in items {
            let revision = item.revision.as_deref().unwrap_or_default();
            is_missing.push(match revision.parse() {
                Ok(revision) => !snapshot.missing(&item.id, &[revision]).await?.0.is_empty(),
                // `store` refuses an invalid revision with its reason.
                Err(_) => true,
            });
        }
        Ok(is_missing)
    }

    async fn local_document(&self, id: &str) -> Result<Option<Vec<u8>>, Error> {
        let name = id.strip_prefix("_local/").unwrap_or(id);
        match self.database.snapshot().local(name).await {
            Ok((revision, body)) => Ok(Some(local_text(id, &revision, &body))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn put_local(&self, item: &InputDocument) -> Result<StoreOutcome, Error> {
        let mut edit = match Edit::parse(&item.text, &self.options) {
            Ok(edit) => edit,
            Err(error) => return Ok(StoreOutcome::Refused(error.to_string())),
        };
        edit.local_revision = edit.local_revision.and_then(replaced_by);
        match self.database.put_local(edit, Stage::Persisted).await {
            Ok(_) => Ok(StoreOutcome::Stored),
            Err(error) => match error.kind() {
                ErrorKind::BadRequest | ErrorKind::IllegalDocId | ErrorKind::TooLarge => {
                    Ok(StoreOutcome::Refused(error.to_string()))
                }
                _ => Err(error.into()),
            },
        }
    }

    async fn store(
        &self,
        items: &[&InputDocument],
        with_revisions: bool,
    ) -> Result<Vec<StoreOutcome>, Error> {
        let mut outcomes = vec![StoreOutcome::Stored; items.len()];
        let (mut edits, mut indexes) = (Vec::new(), Vec::new());
        for (index, item) in items.iter().enumerate() {
            match Edit::parse(&item.text, &self.options) {
                Ok(edit) => {
                    edits.push(edit);
                    indexes.push(index);
                }
                Err(error) => outcomes[index] = StoreOutcome::Refused(error.to_string()),
            }
        }
        let results: Vec<settee_doc::Result<Revision>> = if with_revisions {
            self.database.replicate_all(edits, Stage::Persisted).await?
        } else {
            self.database.update_all(edits, Stage::Persisted).await?
        };
        for (index, result) in indexes.into_iter().zip(results) {
            outcomes[index] = match result {
                Ok(_) => StoreOutcome::Stored,
                Err(error) if error.kind() == ErrorKind::Conflict => StoreOutcome::Conflict,
                Err(error) => StoreOutcome::Refused(error.to_string()),
            };
        }
        Ok(outcomes)
    }
}

/// Returns the JSON text of a local document. `members` are its other members without braces.
pub(crate) fn local_text(id: &str, revision: &str, members: &[u8]) -> Vec<u8> {
    let mut text = b"{\"_id\":".to_vec();
    settee_doc::write_json_string(id, &mut text);
    text.extend_from_slice(format!(",\"_rev\":\"{revision}\"").as_bytes());
    text.extend_from_slice(if members.is_empty() { b"" } else { b"," });
    text.extend_from_slice(members);
    text.push(b'}');
    text
}

/// Returns the revision number that an update must name so that the local document gets revision `0-number`.
/// None for the first revision.
fn replaced_by(number: u64) -> Option<u64> {
    number.checked_sub(1).filter(|before| *before > 0)
}

/// A row of `_all_docs` with keys.
#[derive(Deserialize)]
struct KeyRow<'a> {
    value: Option<KeyValue>,
    #[serde(borrow)]
    doc: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    rev: String,
    #[serde(default)]
    deleted: bool,
}

#[derive(Deserialize)]
struct KeyRows<'a> {
    #[serde(borrow)]
    rows: Vec<KeyRow<'a>>,
}

impl Remote {
    async fn open(mut couch: Couch, database: String, missing: MissingDatabase) -> Result<Remote, Error> {
        if missing == MissingDatabase::Create {
            couch.create_database(&database).await?;
        }
        match couch.call("GET", &format!("/{}", encode_segment(&database)), None).await {
            Err(CouchError::Refused { status: 404, .. }) => Err(no_database(&database, missing)),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(Remote { couch, database }),
        }
    }

    async fn existing(
        &mut self,
        ids: &[&str],
        with_documents: bool,
    ) -> Result<Vec<Option<ExistingDocument>>, Error> {
        let query = if with_documents { "?include_docs=true" } else { "" };
        let target = format!("/{}/_all_docs{query}", encode_segment(&self.database));
        let body = serde_json::to_vec(&serde_json::json!({ "keys": ids }))?;
        let reply = self.couch.call("POST", &target, Some(&body)).await?;
        let KeyRows { rows } = parse(&target, &reply.body)?;
        if rows.len() != ids.len() {
            return Err(format!("{target} returned {} rows for {} keys", rows.len(), ids.len()).into());
        }
        let existing = |row: KeyRow<'_>| {
            let KeyValue { rev, deleted } = row.value?;
            let document = row.doc.filter(|doc| doc.get() != "null").map(|doc| doc.get().as_bytes().to_vec());
            Some(ExistingDocument { revision: rev, is_deleted: deleted, document })
        };
        Ok(rows.into_iter().map(existing).collect())
    }

    async fn missing(&mut self, items: &[&InputDocument]) -> Result<Vec<bool>, Error> {
        #[derive(Deserialize)]
        struct RevsDiff {
            #[serde(default)]
            missing: Vec<String>,
        }
        let mut revisions: HashMap<&str, Vec<&str>> = HashMap::new();
        for item in items {
            revisions.entry(&item.id).or_default().extend(item.revision.as_deref());
        }
        let target = format!("/{}/_revs_diff", encode_segment(&self.database));
        let reply = self.couch.call("POST", &target, Some(&serde_json::to_vec(&revisions)?)).await?;
        let missing: HashMap<String, RevsDiff> = parse(&target, &reply.body)?;
        let is_missing = |item: &&InputDocument| {
            let diff = missing.get(&item.id);
            diff.is_some_and(|diff| diff.missing.iter().any(|one| Some(one) == item.revision.as_ref()))
        };
        Ok(items.iter().map(is_missing).collect())
    }

    fn local_target(&self, id: &str) -> String {
        let name = id.strip_prefix("_local/").unwrap_or(id);
        format!("/{}/_local/{}", encode_segment(&self.database), encode_segment(name))
    }

    async fn local_document(&mut self, id: &str) -> Result<Option<Vec<u8>>, Error> {
        match self.couch.call("GET", &self.local_target(id), None).await {
            Ok(reply) => Ok(Some(reply.body)),
            Err(CouchError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn put_local(&mut self, item: &InputDocument) -> Result<StoreOutcome, Error> {
        let mut body = Vec::with_capacity(item.text.len());
        json_members::write_without("_rev", &item.text, &mut body)?;
        let number = item.revision.as_deref().and_then(settee_doc::parse_local_revision);
        if let Some(before) = number.and_then(replaced_by) {
            body.pop();
            body.extend_from_slice(format!(",\"_rev\":\"0-{before}\"}}").as_bytes());
        }
        match self.couch.call("PUT", &self.local_target(&item.id), Some(&body)).await {
            Ok(_) => Ok(StoreOutcome::Stored),
            Err(CouchError::Refused { status: 409, .. }) => Ok(StoreOutcome::Conflict),
            Err(CouchError::Refused { status: 400 | 403 | 413, error, reason }) => {
                Ok(StoreOutcome::Refused(format!("{error}: {reason}")))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Stores documents with `_bulk_docs`. A request that the server refuses as a whole is halved until the
    /// refused document is identified.
    async fn store(
        &mut self,
        items: &[&InputDocument],
        with_revisions: bool,
    ) -> Result<Vec<StoreOutcome>, Error> {
        let mut outcomes = vec![StoreOutcome::Stored; items.len()];
        let mut spans = vec![(0, items.len())];
        while let Some((start, end)) = spans.pop() {
            let range = start..end;
            let body = bulk_body(&items[range.clone()], with_revisions);
            match self.couch.bulk(&self.database, &body).await {
                Ok(rows) => {
                    assign_rows(&items[range.clone()], rows, with_revisions, &mut outcomes[range])?;
                }
                Err(CouchError::Refused { status: 400 | 403 | 412 | 413, error, reason }) => {
                    if end - start == 1 {
                        outcomes[start] = StoreOutcome::Refused(format!("{error}: {reason}"));
                        continue;
                    }
                    let middle = start + (end - start) / 2;
                    spans.push((middle, end));
                    spans.push((start, middle));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(outcomes)
    }
}

fn bulk_body(items: &[&InputDocument], with_revisions: bool) -> Vec<u8> {
    let mut body = Vec::with_capacity(items.iter().map(|item| item.text.len() + 1).sum::<usize>() + 32);
    body.extend_from_slice(if with_revisions { b"{\"new_edits\":false,\"docs\":[" } else { b"{\"docs\":[" });
    for (index, item) in items.iter().enumerate() {
        body.extend_from_slice(if index == 0 { b"" } else { b"," });
        body.extend_from_slice(&item.text);
    }
    body.extend_from_slice(b"]}");
    body
}

/// Assigns the rows of a `_bulk_docs` response to their documents. With revisions the response has rows only
/// for refused documents.
fn assign_rows(
    items: &[&InputDocument],
    rows: Vec<BulkRow>,
    with_revisions: bool,
    outcomes: &mut [StoreOutcome],
) -> Result<(), Error> {
    if !with_revisions && rows.len() != items.len() {
        return Err(format!("_bulk_docs returned {} rows for {} documents", rows.len(), items.len()).into());
    }
    for (index, row) in rows.into_iter().enumerate() {
        // The batch may contain several revisions of one document.
        let matches = |item: &&InputDocument| {
            item.id == row.id && (!item.has_history || row.rev.is_none() || row.rev == item.revision)
        };
        let index = if with_revisions { items.iter().position(matches) } else { Some(index) };
        let index = index.ok_or_else(|| format!("_bulk_docs returned {}, which was not sent", row.id))?;
        outcomes[index] = match (row.error.as_deref(), row.rev) {
            (None, Some(_)) => StoreOutcome::Stored,
            (Some("conflict"), _) => StoreOutcome::Conflict,
            (error, _) => StoreOutcome::Refused(format!(
                "{}: {}",
                error.unwrap_or("no revision"),
                row.reason.unwrap_or_default()
            )),
        };
    }
    Ok(())
}
