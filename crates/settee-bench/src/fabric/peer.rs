//! One client of the workload: on the API of `settee-doc` in this process, or over HTTP.
//!
//! In this process each operation includes the work of a server up to the socket: documents are parsed when
//! they are stored and rendered as JSON when they are read.

use std::ops::Range;
use std::sync::Arc;

use settee_doc::{Database, Edit, Extras, Options, Stage};

use crate::drive::count_in_stream;
use crate::error::{Error, Result};
use crate::http::{Connection, Server, encode_segment};

/// Bytes of JSON of a listing after which the output buffer is cleared, as a server would send it.
const OUTPUT_BYTES: usize = 64 << 10;

/// JSON texts of documents, as the body of a `_bulk_docs` request.
#[derive(Debug, Default)]
pub(super) struct Batch {
    body: Vec<u8>,
    documents: Vec<Range<usize>>,
}

impl Batch {
    pub(super) fn clear(&mut self) {
        self.body.clear();
        self.documents.clear();
    }

    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.body.extend_from_slice(if self.documents.is_empty() { b"{\"docs\":[" } else { b"," });
        let start = self.body.len();
        write(&mut self.body);
        self.documents.push(start..self.body.len());
    }

    fn documents(&self) -> impl Iterator<Item = &[u8]> {
        self.documents.iter().map(|range| &self.body[range.clone()])
    }
}

/// The listings of all documents.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scan {
    AllDocs,
    AllDocsWithDocuments,
    Changes,
}

impl Scan {
    pub(super) fn name(self) -> &'static str {
        match self {
            Scan::AllDocs => "all docs",
            Scan::AllDocsWithDocuments => "all docs with include_docs",
            Scan::Changes => "changes",
        }
    }

    fn target(self) -> &'static str {
        match self {
            Scan::AllDocs => "_all_docs",
            Scan::AllDocsWithDocuments => "_all_docs?include_docs=true",
            Scan::Changes => "_changes",
        }
    }
}

/// The query string for a durability; empty for the servers' default.
pub(crate) fn durability_query(stage: Stage) -> &'static str {
    match stage {
        Stage::Accepted => "?durability=accepted",
        Stage::Written => "?durability=written",
        Stage::Persisted => "",
    }
}

/// One client.
pub(super) enum Peer {
    Process(Process),
    Http(Box<Http>),
}

pub(super) struct Process {
    database: Arc<Database>,
    durability: Stage,
    options: Options,
    output: Vec<u8>,
}

pub(super) struct Http {
    server: Server,
    connection: Connection,
    directory: String,
    query: &'static str,
    request: Vec<u8>,
}

impl Peer {
    pub(super) fn process(database: Arc<Database>, durability: Stage) -> Peer {
        Peer::Process(Process { database, durability, options: Options::default(), output: Vec::new() })
    }

    pub(super) async fn server(server: &Server, database: &str, durability: Stage) -> Result<Peer> {
        Ok(Peer::Http(Box::new(Http {
            server: server.clone(),
            connection: Connection::open(server).await?,
            directory: format!("/{}", encode_segment(database)),
            query: durability_query(durability),
            request: Vec::new(),
        })))
    }

    /// Stores a batch of new documents.
    pub(super) async fn add(&mut self, batch: &mut Batch) -> Result<()> {
        match self {
            Peer::Process(peer) => {
                let edits: Result<Vec<Edit>, _> =
                    batch.documents().map(|text| Edit::parse(text, &peer.options)).collect();
                for stored in peer.database.update_all(edits?, peer.durability).await? {
                    stored?;
                }
                Ok(())
            }
            Peer::Http(peer) => {
                batch.body.extend_from_slice(b"]}");
                let target = format!("{}/_bulk_docs{}", peer.directory, peer.query);
                let answer = peer.send("POST", &target, Some(&batch.body)).await?;
                match memchr::memmem::find(answer, b"\"error\":") {
                    None => Ok(()),
                    Some(_) => Err(Error::wrong("add", "a document was refused")),
                }
            }
        }
    }

    /// Reads a document.
    pub(super) async fn get(&mut self, id: &str) -> Result<()> {
        match self {
            Peer::Process(peer) => {
                let document = peer.database.snapshot().document(id).await?;
                peer.output.clear();
                document.write_json(&Extras::default(), &mut peer.output);
                Ok(())
            }
            Peer::Http(peer) => {
                let target = format!("{}/{}", peer.directory, encode_segment(id));
                peer.send("GET", &target, None).await.map(drop)
            }
        }
    }

    /// Stores the only document of `batch` as a new one.
    pub(super) async fn put(&mut self, id: &str, batch: &Batch) -> Result<()> {
        let text = batch.documents().next().expect("a batch of one");
        match self {
            Peer::Process(peer) => {
                let edit = Edit::parse(text, &peer.options)?;
                peer.database.update(edit, peer.durability).await?;
                Ok(())
            }
            Peer::Http(peer) => {
                let target = format!("{}/{}{}", peer.directory, encode_segment(id), peer.query);
                peer.send("PUT", &target, Some(text)).await.map(drop)
            }
        }
    }

    /// Reads a listing to its end and returns its number of rows.
    pub(super) async fn scan(&mut self, scan: Scan) -> Result<u64> {
        match self {
            Peer::Process(peer) => peer.scan(scan).await,
            Peer::Http(peer) => {
                let target = format!("{}/{}", peer.directory, scan.target());
                peer.request.clear();
                peer.server.render("GET", &target, None, &mut peer.request);
                let mut connection = Connection::open(&peer.server).await?;
                match connection.begin(&peer.request).await? {
                    200 => count_in_stream(connection, b"\"id\":\"").await,
                    status => Err(Error::wrong(scan.name(), format!("status {status}"))),
                }
            }
        }
    }
}

impl Http {
    async fn send(&mut self, method: &str, target: &str, body: Option<&[u8]>) -> Result<&[u8]> {
        self.request.clear();
        self.server.render(method, target, body, &mut self.request);
        let answer = self.connection.exchange(&self.request).await?;
        match answer.status {
            200..300 => Ok(answer.body),
            status => {
                let text: String = String::from_utf8_lossy(answer.body).chars().take(300).collect();
                Err(Error::wrong(&format!("{method} {target}"), format!("status {status}: {text}")))
            }
        }
    }
}

impl Process {
    async fn scan(&mut self, scan: Scan) -> Result<u64> {
        let snapshot = self.database.snapshot();
        let mut rows = match scan {
            Scan::AllDocs | Scan::AllDocsWithDocuments => {
                snapshot.all_docs(&settee_doc::Range::default()).await?
            }
            Scan::Changes => snapshot.changes(settee_doc::Seq::default(), false),
        };
        let mut count = 0;
        let mut id = String::new();
        loop {
            let Some(row) = rows.next().await? else {
                return Ok(count);
            };
            let (summary, body) = (row.summary, row.body);
            id.clear();
            id.push_str(row.id);
            if self.output.len() >= OUTPUT_BYTES {
                self.output.clear();
            }
            self.write_row(scan, &id, &summary);
            if matches!(scan, Scan::AllDocsWithDocuments) {
                let document = snapshot.read(&id, summary, body).await?;
                self.output.extend_from_slice(b",\"doc\":");
                document.write_json(&Extras::default(), &mut self.output);
            }
            self.output.extend_from_slice(b"}\n");
            count += 1;
        }
    }

    /// Appends a row as a server would render it, without its document and closing brace.
    fn write_row(&mut self, scan: Scan, id: &str, summary: &settee_doc::Summary) {
        use std::io::Write as _;
        let out = &mut self.output;
        if matches!(scan, Scan::Changes) {
            out.extend_from_slice(b"{\"seq\":\"");
            self.database.write_seq(summary.seq, out);
            out.extend_from_slice(b"\",\"id\":");
            settee_doc::write_json_string(id, out);
            write!(out, ",\"changes\":[{{\"rev\":\"{}\"}}]", summary.revision).expect("writing to memory");
        } else {
            out.extend_from_slice(b"{\"id\":");
            settee_doc::write_json_string(id, out);
            out.extend_from_slice(b",\"key\":");
            settee_doc::write_json_string(id, out);
            write!(out, ",\"value\":{{\"rev\":\"{}\"}}", summary.revision).expect("writing to memory");
        }
    }
}
