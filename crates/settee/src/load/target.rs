//! The database that documents are loaded into or dumped from: at a URL, or in a data folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use settee_bench::couch::{self, Couch, CouchError};
use settee_bench::http::encode_segment;
use settee_doc::{Database, Databases, Edit, ErrorKind, Extras, Options, Revision, Stage};

use super::identity::Item;
use crate::place;

/// The data folder where none is named.
const DATA_FOLDER_DEFAULT: &str = "./settee-data";

/// Names the data folder, as for the server. Not clap's `env`, which would clash with `--url`.
const DATA_FOLDER_VARIABLE: &str = "SETTEE_DATA_DIR";

/// Where the database is.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The database's name
    #[arg(long, value_name = "NAME")]
    pub(crate) db: String,

    /// Data folder, while no server runs on it [default: $SETTEE_DATA_DIR, or ./settee-data]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    data_dir: Option<PathBuf>,

    /// Server that speaks CouchDB's API: `http://[user:password@]host:port`
    #[arg(long, value_name = "URL")]
    url: Option<String>,
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
    /// Opens the database; with `create` it is made where it isn't there.
    pub(crate) async fn open(args: &TargetArgs, options: Options, create: bool) -> Result<Target, Error> {
        match &args.url {
            Some(url) => {
                let couch = Couch::new(url.parse()?);
                Ok(Target::Remote(Box::new(Remote::open(couch, args.db.clone(), create).await?)))
            }
            None => {
                let named = args
                    .data_dir
                    .clone()
                    .or_else(|| std::env::var_os(DATA_FOLDER_VARIABLE).map(PathBuf::from));
                let folder = named.unwrap_or_else(|| PathBuf::from(DATA_FOLDER_DEFAULT));
                Ok(Target::Local(Local::open(&folder, &args.db, options, create).await?))
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

fn no_database(name: &str) -> Error {
    format!("there is no database {name} (loading with --create makes it)").into()
}

impl Local {
    async fn open(folder: &Path, name: &str, options: Options, create: bool) -> Result<Local, Error> {
        let while_served = "use --url with its address";
        if !create && folder.is_dir() && !place::has_databases(folder) {
            let folder = folder.display();
            return Err(
                format!("there are no databases in {folder} (loading with --create makes one)").into()
            );
        }
        let databases = match create {
            true => place::make(folder, while_served).await?,
            false => place::open(folder, while_served).await?,
        };
        let database = match databases.get(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound && create => databases.create(name).await?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_database(name)),
            other => other?,
        };
        Ok(Local { databases, database, options })
    }

    async fn existing(&self, ids: &[&str], with_documents: bool) -> Result<Vec<Option<Existing>>, Error> {
        let view = self.database.view();
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
    async fn open(mut couch: Couch, database: String, create: bool) -> Result<Remote, Error> {
        if create {
            couch.create_database(&database).await?;
        }
        match couch.call("GET", &format!("/{}", encode_segment(&database)), None).await {
            Err(CouchError::Refused { status: 404, .. }) => Err(no_database(&database)),
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
                Err(CouchError::Refused { status: 400 | 403 | 413, error, reason }) => {
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
        let place =
            if with_revisions { items.iter().position(|item| item.id == row.id) } else { Some(index) };
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
