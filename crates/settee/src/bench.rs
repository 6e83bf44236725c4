//! `settee bench`: the tables of `settee-bench` on the command line.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use settee_bench::api::Target;
use settee_bench::documents::DocumentSize;
use settee_bench::fabric::{self, Backend};
use settee_bench::http::Server;
use settee_bench::process::ServerProcess;
use settee_bench::report::{self, Row};
use settee_bench::space::{self, Directory};
use settee_bench::sync;
use settee_bench::{Result, limits};
use settee_doc::Stage;
use tokio::signal::unix::{SignalKind, signal};

use crate::CommandResult;
use crate::output::{self, complain, say};
use crate::secret::UserArgs;

mod files;
mod hostile;
mod http;
mod log;
mod soak;
mod store;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    table: Option<Table>,

    #[command(flatten)]
    fabric: FabricArgs,
}

#[derive(Subcommand)]
enum Table {
    /// Measure the HTTP API against what was recorded of CouchDB 3.5.0 and the machine's limits
    Http(http::Args),

    /// Measure what each way of syncing costs on each kind of file
    Sync(SyncArgs),

    /// Measure random reads and flushes of files against fio and pread
    Io(files::IoArgs),

    /// Measure many small cold reads, and cached reads beside a writer
    Reads(files::ReadsArgs),

    /// Measure the log against memcpy, fio, raw syncs, and other engines' logs
    Log(log::Args),

    /// Hold up a task by a stream under a memory limit: a part of `bench log`
    #[command(hide = true)]
    LogHoldUp(log::HoldUpArgs),

    /// Measure the store against other engines, fio, and a bare pread
    Store(store::Args),

    /// Run mixed clients on a server that is killed now and then, and compare what it has with what it said
    Soak(soak::Args),

    /// Run hostile clients on a server, and measure how it serves others meanwhile
    Hostile(hostile::Args),

    /// Run one workload on the store: a part of `bench store`
    #[command(hide = true)]
    StoreRun(store::RunArgs),

    /// Serve one document from memory: the floor of any HTTP server
    #[command(hide = true)]
    FloorServer,
}

/// What both tables understand.
#[derive(clap::Args)]
struct CommonArgs {
    /// Server that speaks CouchDB's API: `http://[user:password@]host:port`
    #[arg(long, value_name = "URL")]
    url: Option<Server>,

    #[command(flatten)]
    user: UserArgs,

    /// The server's process, for its processor time
    #[arg(long, visible_alias = "pid", value_name = "PID", requires = "url")]
    server_pid: Option<u32>,

    /// Start a server for the measurement, with its data in a directory of its own
    #[arg(long, conflicts_with = "url")]
    spawn: bool,

    /// Where that directory is made: choose a disk [default: where temporary files go]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// How far writes have got when they are answered
    #[arg(long, value_name = "STAGE", default_value = "persisted")]
    durability: Durability,

    /// Print JSON lines in place of a table
    #[arg(long)]
    json: bool,
}

impl CommonArgs {
    fn is_in_process(&self) -> bool {
        self.url.is_none() && !self.spawn
    }
}

#[derive(clap::Args)]
struct FabricArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Documents to add [default: 100000, of large ones 5000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    docs: Option<u64>,

    /// Size of the documents: 333, 14553 or 145871 bytes
    #[arg(long, value_name = "SIZE", default_value = "small")]
    doc_size: Size,

    /// Documents in a batch
    #[arg(long, value_name = "N", default_value_t = fabric::BATCH_COUNT_DEFAULT,
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    batch: u64,

    /// Tasks or connections that add, get and put
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,

    /// Single documents to put at the end
    #[arg(long, value_name = "N", default_value_t = fabric::UPDATE_COUNT_DEFAULT,
        value_parser = clap::value_parser!(u64).range(1..))]
    updates: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Size {
    Small,
    Medium,
    Large,
}

#[derive(clap::Args)]
struct SyncArgs {
    /// Where the files are made: choose a disk [default: where temporary files go]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Durable writes of each row
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    count: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Durability {
    Accepted,
    Written,
    Persisted,
}

impl From<Durability> for Stage {
    fn from(durability: Durability) -> Stage {
        match durability {
            Durability::Accepted => Stage::Accepted,
            Durability::Written => Stage::Written,
            Durability::Persisted => Stage::Persisted,
        }
    }
}

impl From<Size> for DocumentSize {
    fn from(size: Size) -> DocumentSize {
        match size {
            Size::Small => DocumentSize::Small,
            Size::Medium => DocumentSize::Medium,
            Size::Large => DocumentSize::Large,
        }
    }
}

fn scale(text: &str) -> Result<f64, String> {
    number(text, 0.001, 10.0)
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("a number from {least} to {most}")),
    }
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.table {
        None if args.fabric.common.is_in_process() => {
            block_on(tokio::runtime::Builder::new_multi_thread(), run_fabric(args.fabric))
        }
        // One thread for all clients: it shares the machine with the server.
        None => block_on(tokio::runtime::Builder::new_current_thread(), run_fabric(args.fabric)),
        Some(Table::Http(args)) => block_on(tokio::runtime::Builder::new_current_thread(), http::run(args)),
        Some(Table::Sync(args)) => run_sync(&args),
        Some(Table::Io(args)) => block_on(tokio::runtime::Builder::new_multi_thread(), files::run_io(args)),
        Some(Table::Reads(args)) => {
            block_on(tokio::runtime::Builder::new_multi_thread(), files::run_reads(args))
        }
        Some(Table::Log(args)) => block_on(tokio::runtime::Builder::new_current_thread(), log::run(args)),
        Some(Table::LogHoldUp(args)) => log::run_hold_up(&args),
        Some(Table::Store(args)) => block_on(tokio::runtime::Builder::new_current_thread(), store::run(args)),
        Some(Table::Soak(args)) => block_on(tokio::runtime::Builder::new_current_thread(), soak::run(args)),
        Some(Table::Hostile(args)) => {
            block_on(tokio::runtime::Builder::new_current_thread(), hostile::run(args))
        }
        Some(Table::StoreRun(args)) => store::run_here(&args),
        Some(Table::FloorServer) => block_on(tokio::runtime::Builder::new_multi_thread(), run_floor_server()),
    }
}

/// Runs until done or interrupted: either way servers are stopped and directories removed.
fn block_on(
    mut builder: tokio::runtime::Builder,
    command: impl Future<Output = CommandResult>,
) -> CommandResult {
    builder.enable_all().build()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            result = command => result,
            _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
            _ = terminate.recv() => Err("terminated".into()),
            () = output::closed() => Err(output::OutputClosed.into()),
        }
    })
}

/// A server to measure and the directory it writes to, as far as they are known or were made.
struct Host {
    server: Option<Target>,
    /// Dropped before the directory: the server stops first.
    _process: Option<ServerProcess>,
    directory: Option<Directory>,
}

impl Host {
    /// `needed` is what will be written, in bytes of JSON; `settings` are flags of a server that
    /// is started.
    async fn open(
        common: &CommonArgs,
        needed: u64,
        settings: &[String],
    ) -> Result<Host, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(server) = &common.url {
            let directory =
                common.data_dir.as_deref().map(|parent| Directory::new(Some(parent))).transpose()?;
            let target = Target { server: common.user.apply(server.clone())?, pid: common.server_pid };
            return Ok(Host { server: Some(target), _process: None, directory });
        }
        let directory = Directory::new(common.data_dir.as_deref())?;
        space::check(directory.path(), needed)?;
        if space::is_in_memory(directory.path()) {
            complain!(
                "{} lies in memory, where a sync costs nothing: see --data-dir",
                directory.path().display()
            );
        }
        let mut host = Host { server: None, _process: None, directory: Some(directory) };
        if common.spawn {
            let directory = host.directory.as_ref().expect("just made").path().join("server");
            let process =
                ServerProcess::settee(&std::env::current_exe()?, &directory, None, settings).await?;
            host.server = Some(Target { server: process.server().clone(), pid: Some(process.pid()) });
            host._process = Some(process);
        }
        Ok(host)
    }

    fn directory(&self) -> Option<&Path> {
        self.directory.as_ref().map(Directory::path)
    }

    fn place(&self) -> String {
        match &self.server {
            None => "in process".to_owned(),
            Some(target) => format!("over HTTP at {}", target.server.address()),
        }
    }
}

async fn run_fabric(args: FabricArgs) -> CommandResult {
    let size = DocumentSize::from(args.doc_size);
    let documents = args.docs.unwrap_or(match size {
        DocumentSize::Large => fabric::LARGE_DOCUMENT_COUNT_DEFAULT,
        _ => fabric::DOCUMENT_COUNT_DEFAULT,
    });
    let needed = (documents + args.updates).saturating_mul(size.bytes() as u64);
    let host = Host::open(&args.common, needed, &[]).await?;
    let backend = match (&host.server, host.directory()) {
        (Some(Target { server, pid }), _) => Backend::Server { server: server.clone(), pid: *pid },
        (None, directory) => {
            Backend::Process { directory: directory.expect("made where no URL is given").to_owned() }
        }
    };
    let config = fabric::Config {
        backend,
        size,
        documents,
        batch: args.batch,
        clients: args.clients,
        updates: args.updates,
        durability: args.common.durability.into(),
    };
    let title = format!(
        "fabric_bench, {}: {documents} {} documents of {} bytes, {} client(s), {}",
        host.place(),
        size.name(),
        size.bytes(),
        args.clients,
        durability_text(&args.common),
    );
    let printer = Printer::new(&args.common, &title);
    fabric::run(&config, |row| printer.row(&row)).await?;
    Ok(())
}

fn run_sync(args: &SyncArgs) -> CommandResult {
    let directory = args.data_dir.clone().unwrap_or_else(std::env::temp_dir);
    say!(
        "{} durable writes of {} random bytes each, one at a time, under {}",
        args.count,
        sync::BLOCK_BYTES,
        directory.display()
    );
    say!("{}", sync::table(&sync::measure(&directory, args.count)?).trim_end());
    Ok(())
}

fn durability_text(common: &CommonArgs) -> &'static str {
    match common.durability {
        Durability::Accepted => "writes answered when accepted",
        Durability::Written => "writes answered when written",
        Durability::Persisted => "writes answered when persisted",
    }
}

/// Prints its address and serves until its standard input ends, so that it goes with whoever
/// started it.
async fn run_floor_server() -> CommandResult {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    say!("http://{}", listener.local_addr()?);
    let (ended, wait) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = ended.send(());
    });
    tokio::select! {
        served = limits::serve_bare(listener) => Ok(served?),
        _ = wait => Ok(()),
    }
}

/// Prints each row as it comes.
struct Printer {
    json: bool,
}

impl Printer {
    fn new(common: &CommonArgs, title: &str) -> Printer {
        if !common.json {
            say!("{title}\n{}", report::heading(false));
        }
        Printer { json: common.json }
    }

    fn row(&self, row: &Row) {
        say!("{}", if self.json { row.json() } else { report::line(row, false) });
    }
}
