//! The database that documents are loaded into or dumped from: at a URL, or in a data directory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use settee_bench::couch::{self, Couch, CouchError};
use settee_bench::http::encode_segment;
use settee_doc::{Database, Databases, Edit, ErrorKind, Extras, Options, Revision, Stage};

use super::identity::Item;
use crate::members;
use crate::place;
use crate::secret::UserArgs;

/// The data directory where none is named.
const DATA_DIRECTORY_DEFAULT: &str = "./settee-data";

/// Names the data directory, as for the server. Not clap's `env`, which would clash with `--url`.
const DATA_DIRECTORY_VARIABLE: &str = "SETTEE_DATA_DIR";

/// Where the database is.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The database's name
    #[arg(long, value_name = "NAME")]
    pub(crate) db: String,

    /// Data directory, while no server runs on it [default: $SETTEE_DATA_DIR, or ./settee-data]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    data_dir: Option<PathBuf>,

    /// Server that speaks CouchDB's API: `http://[user:password@]host:port`
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    #[command(flatten)]
    user: UserArgs,
}

/// What becomes of a database that isn't there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is created.
    Create,
    /// It is an error, and `--create` would create it.
    MayCreate,
    /// It is an error.
    Refuse,
}

impl Missing {
    pub(crate) fn of_load(create: bool) -> Missing {
        if create { Missing::Create } else { Missing::MayCreate }
    }

    /// What stands behind the error.
    fn hint(self) -> &'static str {
        if self == Missing::MayCreate { " (--create makes it)" } else { "" }
    }
}

/// What a database has under an id.
#[derive(Debug)]
pub(crate) struct Existing {
    pub(crate) revision: String,
    pub(crate) is_deleted: bool,
    /// Its JSON text, where it was asked for and isn't deleted.
    pub(crate) document: Option<Vec<u8>>,
}

/// What became of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It is in the database now.
    Yes,
    /// Another one was there under its id.
    Conflict,
    /// It can't be stored, for this reason.
    Refused(String),
}

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// An open database.
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
    /// Opens the database. `ignore_validation` is that setting of a data directory; a server has its own.
    pub(crate) async fn open(
        args: &TargetArgs,
        options: Options,
        missing: Missing,
        ignore_validation: bool,
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
                Ok(Target::Local(
                    Local::open(&directory, &args.db, options, missing, ignore_validation).await?,
                ))
            }
        }
    }

    /// What the database has under each of `ids`.
    pub(crate) async fn existing(
        &mut self,
        ids: &[&str],
        with_documents: bool,
    ) -> Result<Vec<Option<Existing>>, Error> {
        match self {
            Target::Local(local) => local.existing(ids, with_documents).await,
            Target::Remote(remote) => remote.existing(ids, with_documents).await,
        }
    }

    /// Stores documents, persisted when it returns: new ones, or those that have a revision
    /// under the revision they have.
    pub(crate) async fn store(
        &mut self,
        items: &[&Item],
        with_revisions: bool,
    ) -> Result<Vec<Stored>, Error> {
        match self {
            Target::Local(local) => local.store(items, with_revisions).await,
            Target::Remote(remote) => remote.store(items, with_revisions).await,
        }
    }

    /// Of documents with revisions, which are unknown to the database.
    pub(crate) async fn missing(&mut self, items: &[&Item]) -> Result<Vec<bool>, Error> {
        match self {
            Target::Local(local) => local.missing(items).await,
            Target::Remote(remote) => remote.missing(items).await,
        }
    }

    /// The JSON text of a local document, by its id with `_local/`.
    pub(crate) async fn local_document(&mut self, id: &str) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Target::Local(local) => local.local_document(id).await,
            Target::Remote(remote) => remote.local_document(id).await,
        }
    }

    /// Stores a local document under the revision that it has, persisted when it returns.
    pub(crate) async fn put_local(&mut self, item: &Item) -> Result<Stored, Error> {
        match self {
            Target::Local(local) => local.put_local(item).await,
            Target::Remote(remote) => remote.put_local(item).await,
        }
    }

    /// Returns once all that was stored is persisted.
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

fn no_database(name: &str, missing: Missing) -> Error {
    format!("there is no database {name}{}", missing.hint()).into()
}

impl Local {
    async fn open(
        directory: &Path,
        name: &str,
        options: Options,
        missing: Missing,
        ignore_validation: bool,
    ) -> Result<Local, Error> {
        let while_served = "use --url with its address";
        if missing != Missing::Create && !place::has_databases(directory) {
            let error = match directory.is_dir() {
                true => format!("there are no databases in {}", directory.display()),
                false => place::no_directory(directory),
            };
            return Err(format!("{error}{}", missing.hint()).into());
        }
        let databases = place::make(directory, while_served, ignore_validation).await?;
        let database = match databases.get(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound && missing == Missing::Create => {
                databases.create(name).await?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_database(name, missing)),
            other => other?,
        };
        Ok(Local { databases, database, options })
    }

    async fn existing(&self, ids: &[&str], with_documents: bool) -> Result<Vec<Option<Existing>>, Error> {
        let view = self.database.snapshot();
        let mut existing = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(summary) = view.find(id).await? else {
                existing.push(None);
                continue;
            };
            let document = if with_documents && !summary.deleted {
                let mut text = Vec::new();
                view.document(id).await?.write_json(&Extras::default(), &mut text);
                Some(text)
            } else {
                None
            };
            let revision = summary.revision.to_string();
            existing.push(Some(Existing { revision, is_deleted: summary.deleted, document }));
        }
        Ok(existing)
    }

    async fn missing(&self, items: &[&Item]) -> Result<Vec<bool>, Error> {
        let view = self.database.snapshot();
        let mut is_missing = Vec::with_capacity(items.len());
        for item in items {
            let revision = item.revision.as_deref().unwrap_or_default();
            is_missing.push(match Revision::parse_any(revision) {
                Ok(Some(revision)) => !view.missing(&item.id, &[revision], 0).await?.0.is_empty(),
                // What isn't understood is refused, with its reason, where it is stored.
                Ok(None) | Err(_) => true,
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

    async fn put_local(&self, item: &Item) -> Result<Stored, Error> {
        let mut edit = match Edit::parse(&item.text, &self.options) {
            Ok(edit) => edit,
            Err(error) => return Ok(Stored::Refused(error.to_string())),
        };
        edit.local_revision = edit.local_revision.and_then(replaced_by);
        match self.database.put_local(edit, Stage::Persisted).await {
            Ok(_) => Ok(Stored::Yes),
            Err(error) => match error.kind() {
                ErrorKind::BadRequest | ErrorKind::IllegalDocId | ErrorKind::TooLarge => {
                    Ok(Stored::Refused(error.to_string()))
                }
                _ => Err(error.into()),
            },
        }
    }

    async fn store(&self, items: &[&Item], with_revisions: bool) -> Result<Vec<Stored>, Error> {
        let mut stored = vec![Stored::Yes; items.len()];
        let (mut edits, mut places) = (Vec::new(), Vec::new());
        for (place, item) in items.iter().enumerate() {
            match Edit::parse(&item.text, &self.options) {
                Ok(edit) => {
                    edits.push(edit);
                    places.push(place);
                }
                Err(error) => stored[place] = Stored::Refused(error.to_string()),
            }
        }
        let results: Vec<settee_doc::Result<Revision>> = if with_revisions {
            self.database.replicate_all(edits, Stage::Persisted).await?
        } else {
            self.database.update_all(edits, Stage::Persisted).await?
        };
        for (place, result) in places.into_iter().zip(results) {
            stored[place] = match result {
                Ok(_) => Stored::Yes,
                Err(error) if error.kind() == ErrorKind::Conflict => Stored::Conflict,
                Err(error) => Stored::Refused(error.to_string()),
            };
        }
        Ok(stored)
    }
}

/// A local document's JSON text.
pub(crate) fn local_text(id: &str, revision: &str, body: &[u8]) -> Vec<u8> {
    let mut text = b"{\"_id\":".to_vec();
    settee_doc::write_json_string(id, &mut text);
    text.extend_from_slice(format!(",\"_rev\":\"{revision}\"").as_bytes());
    text.extend_from_slice(if body.is_empty() { b"" } else { b"," });
    text.extend_from_slice(body);
    text.push(b'}');
    text
}

/// The number that a local document's writer names for its revision `0-number` to become: the one before,
/// where there is one.
fn replaced_by(number: u64) -> Option<u64> {
    number.checked_sub(1).filter(|before| *before > 0)
}

/// A row of `_all_docs`.
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
    async fn open(mut couch: Couch, database: String, missing: Missing) -> Result<Remote, Error> {
        if missing == Missing::Create {
            couch.create_database(&database).await?;
        }
        match couch.call("GET", &format!("/{}", encode_segment(&database)), None).await {
            Err(CouchError::Refused { status: 404, .. }) => Err(no_database(&database, missing)),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(Remote { couch, database }),
        }
    }

    async fn existing(&mut self, ids: &[&str], with_documents: bool) -> Result<Vec<Option<Existing>>, Error> {
        let query = if with_documents { "?include_docs=true" } else { "" };
        let target = format!("/{}/_all_docs{query}", encode_segment(&self.database));
        let body = serde_json::to_vec(&serde_json::json!({ "keys": ids }))?;
        let reply = self.couch.call("POST", &target, Some(&body)).await?;
        let KeyRows { rows } = couch::parse(&target, &reply.body)?;
        if rows.len() != ids.len() {
            return Err(format!("{target} gave {} rows for {} keys", rows.len(), ids.len()).into());
        }
        let existing = |row: KeyRow<'_>| {
            let KeyValue { rev, deleted } = row.value?;
            let document = row.doc.filter(|doc| doc.get() != "null").map(|doc| doc.get().as_bytes().to_vec());
            Some(Existing { revision: rev, is_deleted: deleted, document })
        };
        Ok(rows.into_iter().map(existing).collect())
    }

    async fn missing(&mut self, items: &[&Item]) -> Result<Vec<bool>, Error> {
        #[derive(Deserialize)]
        struct Known {
            #[serde(default)]
            missing: Vec<String>,
        }
        let mut asked: HashMap<&str, Vec<&str>> = HashMap::new();
        for item in items {
            asked.entry(&item.id).or_default().extend(item.revision.as_deref());
        }
        let target = format!("/{}/_revs_diff", encode_segment(&self.database));
        let reply = self.couch.call("POST", &target, Some(&serde_json::to_vec(&asked)?)).await?;
        let missing: HashMap<String, Known> = couch::parse(&target, &reply.body)?;
        let is_missing = |item: &&Item| {
            let known = missing.get(&item.id);
            known.is_some_and(|known| known.missing.iter().any(|one| Some(one) == item.revision.as_ref()))
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

    async fn put_local(&mut self, item: &Item) -> Result<Stored, Error> {
        let mut body = Vec::with_capacity(item.text.len());
        members::write_without("_rev", &item.text, &mut body)?;
        let number = item.revision.as_deref().and_then(settee_doc::parse_local_revision);
        if let Some(before) = number.and_then(replaced_by) {
            body.pop();
            body.extend_from_slice(format!(",\"_rev\":\"0-{before}\"}}").as_bytes());
        }
        match self.couch.call("PUT", &self.local_target(&item.id), Some(&body)).await {
            Ok(_) => Ok(Stored::Yes),
            Err(CouchError::Refused { status: 409, .. }) => Ok(Stored::Conflict),
            Err(CouchError::Refused { status: 400 | 403 | 413, error, reason }) => {
                Ok(Stored::Refused(format!("{error}: {reason}")))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A request that is refused as a whole is halved until the document is found that it was
    /// refused for.
    async fn store(&mut self, items: &[&Item], with_revisions: bool) -> Result<Vec<Stored>, Error> {
        let mut stored = vec![Stored::Yes; items.len()];
        let mut spans = vec![(0, items.len())];
        while let Some((start, end)) = spans.pop() {
            let range = start..end;
            let body = bulk_body(&items[range.clone()], with_revisions);
            match self.couch.bulk(&self.database, &body).await {
                Ok(rows) => {
                    place_rows(&items[range.clone()], rows, with_revisions, &mut stored[range])?;
                }
                Err(CouchError::Refused { status: 400 | 403 | 412 | 413, error, reason }) => {
                    if end - start == 1 {
                        stored[start] = Stored::Refused(format!("{error}: {reason}"));
                        continue;
                    }
                    let middle = start + (end - start) / 2;
                    spans.push((middle, end));
                    spans.push((start, middle));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(stored)
    }
}

fn bulk_body(items: &[&Item], with_revisions: bool) -> Vec<u8> {
    let mut body = Vec::with_capacity(items.iter().map(|item| item.text.len() + 1).sum::<usize>() + 32);
    body.extend_from_slice(if with_revisions { b"{\"new_edits\":false,\"docs\":[" } else { b"{\"docs\":[" });
    for (index, item) in items.iter().enumerate() {
        body.extend_from_slice(if index == 0 { b"" } else { b"," });
        body.extend_from_slice(&item.text);
    }
    body.extend_from_slice(b"]}");
    body
}

/// Takes the rows of an answer to their documents. With revisions, rows are of refused
/// documents alone.
fn place_rows(
    items: &[&Item],
    rows: Vec<couch::BulkRow>,
    with_revisions: bool,
    stored: &mut [Stored],
) -> Result<(), Error> {
    if !with_revisions && rows.len() != items.len() {
        return Err(format!("_bulk_docs gave {} rows for {} documents", rows.len(), items.len()).into());
    }
    for (index, row) in rows.into_iter().enumerate() {
        // Of a document with several revisions each may be among them.
        let is_it = |item: &&Item| {
            item.id == row.id && (!item.has_history || row.rev.is_none() || row.rev == item.revision)
        };
        let place = if with_revisions { items.iter().position(is_it) } else { Some(index) };
        let place = place.ok_or_else(|| format!("_bulk_docs names {}, which was not sent", row.id))?;
        stored[place] = match (row.error.as_deref(), row.rev) {
            (None, Some(_)) => Stored::Yes,
            (Some("conflict"), _) => Stored::Conflict,
            (error, _) => Stored::Refused(format!(
                "{}: {}",
                error.unwrap_or("no revision"),
                row.reason.unwrap_or_default()
            )),
        };
    }
    Ok(())
}
