//! `settee bench`: command line of the benchmarks in `settee-bench`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use settee_bench::api::Target;
use settee_bench::documents::DocumentSize;
use settee_bench::fabric::{self, Backend};
use settee_bench::limits;
use settee_bench::report::{self, Row};
use settee_bench::sync;
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{self, CommandResult, print_stdout};

mod arguments;
mod files;
mod hostile;
mod http;
mod log;
mod soak;
mod store;
mod subject;

use arguments::CommonArgs;
use subject::Subject;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,

    #[command(flatten)]
    fabric: FabricArgs,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Measure the HTTP API against recorded results of CouchDB 3.5.0 and the machine's limits
    Http(http::Args),

    /// Measure the cost of each sync method on each kind of file
    Sync(SyncArgs),

    /// Measure random reads and flushes of files against fio and pread
    Io(files::IoArgs),

    /// Measure many small cold reads, and cached reads beside a writer
    Reads(files::ReadsArgs),

    /// Measure the log against memcpy, fio, raw syncs, and other engines' logs
    Log(log::Args),

    /// Measure how a stream delays a task under a memory limit; started by `bench log`
    #[command(hide = true)]
    LogDelay(log::DelayArgs),

    /// Measure the store against other engines, fio, and a bare pread
    Store(store::Args),

    /// Run mixed clients on a server that is killed repeatedly, and compare its data with its responses
    Soak(soak::Args),

    /// Run hostile clients on a server, and measure its service for other clients
    Hostile(hostile::Args),

    /// Run one workload on the store; started by `bench store`
    #[command(hide = true)]
    StoreRun(store::RunArgs),

    /// Serve one document from memory, as a lower bound for any HTTP server; started by `bench http`
    #[command(hide = true)]
    BareServer,
}

#[derive(clap::Args)]
struct FabricArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Number of documents to add [default: 100000, or 5000 large ones]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    docs: Option<u64>,

    /// Size of the documents: 333, 14553 or 145871 bytes
    #[arg(long, value_name = "SIZE", default_value = "small")]
    doc_size: Size,

    /// Number of documents in a batch
    #[arg(long, value_name = "N", default_value_t = fabric::BATCH_COUNT_DEFAULT,
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    batch: u64,

    /// Number of tasks or connections that add, get and put
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,

    /// Number of single documents to put at the end
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
    /// Directory on a disk, in which the files are created [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Number of durable writes per row
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    count: usize,
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

pub(crate) fn run(args: Args) -> CommandResult {
    match args.benchmark {
        None if args.fabric.common.is_in_process() => {
            block_on(tokio::runtime::Builder::new_multi_thread(), run_fabric(args.fabric))
        }
        // All clients run on one thread, since they share the machine with the server.
        None => block_on(tokio::runtime::Builder::new_current_thread(), run_fabric(args.fabric)),
        Some(Benchmark::Http(args)) => {
            block_on(tokio::runtime::Builder::new_current_thread(), http::run(args))
        }
        Some(Benchmark::Sync(args)) => run_sync(&args),
        Some(Benchmark::Io(args)) => {
            block_on(tokio::runtime::Builder::new_multi_thread(), files::run_io(args))
        }
        Some(Benchmark::Reads(args)) => {
            block_on(tokio::runtime::Builder::new_multi_thread(), files::run_reads(args))
        }
        Some(Benchmark::Log(args)) => block_on(tokio::runtime::Builder::new_current_thread(), log::run(args)),
        Some(Benchmark::LogDelay(args)) => log::run_delay(&args),
        Some(Benchmark::Store(args)) => {
            block_on(tokio::runtime::Builder::new_current_thread(), store::run(args))
        }
        Some(Benchmark::Soak(args)) => {
            block_on(tokio::runtime::Builder::new_current_thread(), soak::run(args))
        }
        Some(Benchmark::Hostile(args)) => {
            block_on(tokio::runtime::Builder::new_current_thread(), hostile::run(args))
        }
        Some(Benchmark::StoreRun(args)) => store::run_here(&args),
        Some(Benchmark::BareServer) => {
            block_on(tokio::runtime::Builder::new_multi_thread(), run_bare_server())
        }
    }
}

/// Runs a benchmark until it completes or is interrupted. In both cases servers are stopped and directories
/// are removed.
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

async fn run_fabric(args: FabricArgs) -> CommandResult {
    let size = DocumentSize::from(args.doc_size);
    let documents = args.docs.unwrap_or(match size {
        DocumentSize::Large => fabric::LARGE_DOCUMENT_COUNT_DEFAULT,
        _ => fabric::DOCUMENT_COUNT_DEFAULT,
    });
    let needed = (documents + args.updates).saturating_mul(size.bytes() as u64);
    let subject = Subject::open(&args.common, needed, &[]).await?;
    let backend = match (&subject.server, subject.directory()) {
        (Some(Target { server, pid }), _) => Backend::Server { server: server.clone(), pid: *pid },
        (None, directory) => {
            Backend::Process { directory: directory.expect("created without a URL").to_owned() }
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
        subject.description(),
        size.name(),
        size.bytes(),
        args.clients,
        args.common.durability_text(),
    );
    let printer = RowPrinter::new(&args.common, &title);
    fabric::run(&config, |row| printer.row(&row)).await?;
    Ok(())
}

fn run_sync(args: &SyncArgs) -> CommandResult {
    let directory = args.data_dir.clone().unwrap_or_else(std::env::temp_dir);
    print_stdout!(
        "{} durable writes of {} random bytes each, one at a time, under {}",
        args.count,
        sync::BLOCK_BYTES,
        directory.display()
    );
    print_stdout!("{}", sync::table(&sync::measure(&directory, args.count)?).trim_end());
    Ok(())
}

/// Prints the server's address and serves until the standard input ends, so that the server stops with the
/// process that started it.
async fn run_bare_server() -> CommandResult {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    print_stdout!("http://{}", listener.local_addr()?);
    let (stdin_closed, wait) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = stdin_closed.send(());
    });
    tokio::select! {
        served = limits::serve_bare(listener) => Ok(served?),
        _ = wait => Ok(()),
    }
}

/// Prints the rows of a benchmark.
struct RowPrinter {
    json: bool,
}

impl RowPrinter {
    fn new(common: &CommonArgs, title: &str) -> RowPrinter {
        if !common.json {
            print_stdout!("{title}\n{}", report::heading(false));
        }
        RowPrinter { json: common.json }
    }

    fn row(&self, row: &Row) {
        print_stdout!("{}", if self.json { row.json() } else { report::line(row, false) });
    }
}
