//! Arguments that several benchmarks share.

use std::path::PathBuf;

use settee_bench::drive::Durability;
use settee_bench::io::machine;
use settee_bench::space::{self, Directory};
use settee_client::Server;
use settee_io::EngineKind;

use crate::output::print_stderr;
use crate::secret::UserArgs;

/// Arguments of the benchmarks that write to a disk.
#[derive(clap::Args)]
pub(super) struct DiskArgs {
    /// Directory on a disk, in which a new directory is created [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,

    /// Print JSON lines instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

impl DiskArgs {
    /// Creates the directory, with a warning if it is in memory.
    pub(super) fn directory(&self) -> settee_bench::Result<Directory> {
        let directory = Directory::new(self.data_dir.as_deref())?;
        if space::is_in_memory(directory.path()) {
            print_stderr!(
                "{} is on a file system in memory, where a sync costs nothing and no read is cold: see --data-dir",
                directory.path().display()
            );
        }
        Ok(directory)
    }

    /// Creates the directory if its disk has space for `document_bytes` of documents.
    pub(super) fn directory_for(&self, document_bytes: u64) -> settee_bench::Result<Directory> {
        let directory = self.directory()?;
        space::check(directory.path(), document_bytes)?;
        Ok(directory)
    }

    /// A description of the directory's parent and of the machine.
    pub(super) fn machine(&self) -> String {
        let parent = self.data_dir.clone().unwrap_or_else(std::env::temp_dir);
        format!("{}; {}", parent.display(), machine(&parent))
    }
}

/// Arguments of the benchmarks of a server.
#[derive(clap::Args)]
pub(super) struct ServerArgs {
    /// Server that speaks CouchDB's API, `http://[user:password@]host:port` [default: a server is started, with
    /// its data in a new directory]
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<Server>,

    #[command(flatten)]
    pub(super) user: UserArgs,

    /// The server's process id, to measure its processor time
    #[arg(long, visible_alias = "pid", value_name = "PID", requires = "url")]
    pub(super) server_pid: Option<u32>,

    /// Stage that writes have reached when they are acknowledged
    #[arg(long, value_name = "STAGE", default_value = "persisted")]
    pub(super) durability: Durability,

    #[command(flatten)]
    pub(super) disk: DiskArgs,
}

impl ServerArgs {
    /// The arguments of a server that is started.
    pub(super) fn started(disk: DiskArgs) -> ServerArgs {
        let (user, durability) = (UserArgs::default(), Durability::Persisted);
        ServerArgs { url: None, user, server_pid: None, durability, disk }
    }

    /// The stage of acknowledged writes, as the table's title states it.
    pub(super) fn durability_text(&self) -> &'static str {
        match self.durability {
            Durability::Accepted => "writes acknowledged when accepted",
            Durability::Written => "writes acknowledged when written",
            Durability::Persisted => "writes acknowledged when persisted",
        }
    }
}

/// Arguments of a run of the store.
#[derive(clap::Args)]
pub(super) struct StoreRunArgs {
    /// Subject of the measurement: settee for the store, bare for a bare lookup
    pub(super) subject: String,

    /// Directory of the files
    pub(super) directory: PathBuf,

    /// The workload in JSON
    pub(super) spec: String,

    /// I/O engine of the store
    pub(super) engine: EngineKind,
}
