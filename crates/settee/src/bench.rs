//! `settee bench`: command line of the benchmarks in `settee-bench`.

use std::net::Ipv4Addr;

use clap::Subcommand;
use settee_bench::limits::{self, BareServer};
use settee_bench::report::{self, Row, Verdicts};
use settee_bench::{api, fabric, footprint, hostile, io, log, soak, store, views};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{self, CommandResult, print_stdout};

mod arguments;
mod subject;

use arguments::{DiskArgs, ServerArgs, StoreRunArgs};
use subject::Subject;

/// Number of connections that a started server accepts in addition to the followers'.
const CONNECTIONS_SPARE: u64 = 500;

/// Disk space needed for the writes of all clients of a soak, and of hostile clients, in bytes. A soak's live
/// data and garbage stay small; there are several restored copies of both.
const SOAK_DISK_BYTES: u64 = 3 << 30;
const HOSTILE_DISK_BYTES: u64 = 4 << 30;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,

    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    fabric: fabric::Config,
}

#[derive(clap::Args)]
struct DiskBenchmark<C: clap::Args> {
    #[command(flatten)]
    disk: DiskArgs,

    #[command(flatten)]
    config: C,
}

#[derive(clap::Args)]
struct HttpBenchmark {
    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    config: api::Config,
}

#[derive(clap::Args)]
struct ViewsBenchmark {
    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    config: views::Config,
}

#[derive(clap::Args)]
struct FootprintBenchmark {
    #[command(flatten)]
    disk: DiskArgs,

    #[command(flatten)]
    config: footprint::Config,

    /// Further flags of the server, such as --garbage-percent-max=20; repeatable
    #[arg(long = "server-flag", value_name = "FLAG", allow_hyphen_values = true)]
    server_flags: Vec<String>,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Measure the HTTP API against recorded results of CouchDB 3.5.0 and the machine's limits
    Http(HttpBenchmark),

    /// Measure views and Mango against recorded results of CouchDB 3.5.0
    Views(ViewsBenchmark),

    /// Measure random reads of files against fio and pread, reads beside a writer, and each way of syncing
    Io(DiskBenchmark<io::Config>),

    /// Measure the log against memcpy, fio and raw syncs
    Log(DiskBenchmark<log::Config>),

    /// Measure the store against other engines, fio, and a bare pread
    Store(DiskBenchmark<store::Config>),

    /// Run mixed clients on a server that is killed repeatedly, and compare its data with its responses
    Soak(DiskBenchmark<soak::Config>),

    /// Overwrite documents, and measure the disk space of their database each second
    Footprint(FootprintBenchmark),

    /// Run hostile clients on a server, and measure its service for other clients
    Hostile(DiskBenchmark<hostile::Config>),

    /// Run one workload on the store; started by `bench store`
    #[command(hide = true)]
    StoreRun(StoreRunArgs),

    /// Serve one document from memory, as a lower bound for any HTTP server; started by `bench http`
    #[command(hide = true)]
    BareServer,
}

pub(crate) fn run(args: Args) -> CommandResult {
    // All clients of a server run on one thread, since they share the machine with it.
    let (one, many) = (Builder::new_current_thread(), Builder::new_multi_thread());
    match args.benchmark {
        None => block_on(one, run_fabric(args.server, args.fabric)),
        Some(Benchmark::Http(args)) => block_on(one, run_http(args)),
        Some(Benchmark::Views(args)) => block_on(one, run_views(args)),
        Some(Benchmark::Io(args)) => block_on(many, run_io(args)),
        Some(Benchmark::Log(args)) => block_on(many, run_log(args)),
        Some(Benchmark::Store(args)) => block_on(one, run_store(args)),
        Some(Benchmark::Soak(args)) => block_on(one, run_soak(args)),
        Some(Benchmark::Footprint(args)) => block_on(one, run_footprint(args)),
        Some(Benchmark::Hostile(args)) => block_on(one, run_hostile(args)),
        Some(Benchmark::StoreRun(StoreRunArgs { subject, directory, spec, engine })) => {
            Ok(store::run_here(&subject, &directory, &spec, engine)?)
        }
        Some(Benchmark::BareServer) => block_on(many, run_bare_server()),
    }
}

/// Runs a benchmark until it completes or is interrupted. In both cases servers are stopped and directories
/// are removed.
fn block_on(mut builder: Builder, command: impl Future<Output = CommandResult>) -> CommandResult {
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

async fn run_fabric(args: ServerArgs, config: fabric::Config) -> CommandResult {
    let subject = Subject::open(&args, config.written_bytes(), None, &[]).await?;
    let title = format!(
        "fabric_bench, {}: {} {} documents of {} bytes, {} client(s), {}",
        subject.description(),
        config.documents(),
        config.doc_size.name(),
        config.doc_size.bytes(),
        config.clients,
        args.durability_text(),
    );
    let mut printer = Printer::new(args.disk.json, &title);
    fabric::run(&config, &subject.target, args.durability, &mut |row| printer.print(&row)).await?;
    printer.finish();
    Ok(())
}

async fn run_http(HttpBenchmark { server: args, config }: HttpBenchmark) -> CommandResult {
    let connections = config.follower_count() + CONNECTIONS_SPARE;
    let settings = ["--connections-max".to_owned(), connections.to_string()];
    let subject = Subject::open(&args, config.written_bytes(), None, &settings).await?;
    let bare = BareServer::start(&std::env::current_exe()?)?;
    let setup = api::Setup {
        target: subject.target.clone(),
        bare: Some(bare.target().clone()),
        directory: subject.directory().map(std::path::Path::to_owned),
        durability: args.durability,
    };
    let title = format!(
        "{}: documents of {} bytes, {} s a row, counts × {}, {}\n\
         recorded: {}, on another day; limits and aims: of this run",
        subject.description(),
        api::DOCUMENT_BYTES,
        config.row_time().as_secs_f64(),
        config.scale,
        args.durability_text(),
        api::RECORDED_SOURCE,
    );
    let mut printer = Printer::new(args.disk.json, &title);
    let failed = api::run(&config, &setup, &mut |row| printer.print(&row)).await?;
    printer.finish();
    if failed > 0 { Err(format!("{failed} rows failed").into()) } else { Ok(()) }
}

async fn run_views(ViewsBenchmark { server: args, config }: ViewsBenchmark) -> CommandResult {
    let subject = Subject::open(&args, config.written_bytes(), None, &[]).await?;
    let title = format!(
        "{}: {} documents of {} bytes, {} s a row of queries, {}; {}\n\
         recorded: {}, on another day; warm: documents and indexes are in the page cache",
        subject.description(),
        config.documents,
        views::DOCUMENT_BYTES,
        config.seconds,
        args.durability_text(),
        api::RECORDED_SOURCE,
    );
    let mut printer = Printer::new(args.disk.json, &title);
    let failed =
        views::run(&config, &subject.target, args.durability, &mut |row| printer.print(&row)).await?;
    printer.finish();
    if failed > 0 { Err(format!("{failed} parts failed").into()) } else { Ok(()) }
}

async fn run_io(DiskBenchmark { disk, config }: DiskBenchmark<io::Config>) -> CommandResult {
    let directory = disk.directory()?;
    let mut printer = Printer::new(disk.json, &format!("files in {}", disk.machine()));
    io::run(&config, directory.path(), &mut |row| printer.print(&row)).await?;
    printer.finish();
    Ok(())
}

async fn run_log(DiskBenchmark { disk, config }: DiskBenchmark<log::Config>) -> CommandResult {
    let directory = disk.directory()?;
    let title = format!("the log on the engine {}, random values, in {}", config.engine, disk.machine());
    let mut printer = Printer::new(disk.json, &title);
    log::run(&config, directory.path(), &mut |row| printer.print(&row)).await?;
    printer.finish();
    Ok(())
}

async fn run_store(DiskBenchmark { disk, config }: DiskBenchmark<store::Config>) -> CommandResult {
    // This function owns the directory, so it is removed even if the measurement is interrupted.
    let directory = disk.directory()?;
    let title = format!("the store, random values, {}\nin {}", config.title(), disk.machine());
    let (program, path) = (std::env::current_exe()?, directory.path().to_owned());
    let mut printer = Printer::new(disk.json, &title);
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut print = |mut row: Row| {
            if config.small {
                // The small parameters are too short for a verdict.
                row.compared.iter_mut().for_each(|compared| (compared.aim, compared.met) = (None, None));
            }
            printer.print(&row);
        };
        let ran = store::run(&config, &program, &path, &mut print);
        printer.finish();
        // The receiver is closed if the command was interrupted.
        let _ = done.send(ran);
    });
    Ok(result.await.map_err(|_| "the measurement panicked")??)
}

async fn run_soak(DiskBenchmark { disk, config }: DiskBenchmark<soak::Config>) -> CommandResult {
    let directory = disk.directory_for(SOAK_DISK_BYTES)?;
    print_stdout!("{}", config.title());
    let print = |line: &str| print_stdout!("{line}");
    Ok(soak::run(&config, &std::env::current_exe()?, directory.path(), print).await?)
}

async fn run_footprint(
    FootprintBenchmark { disk, config, server_flags }: FootprintBenchmark,
) -> CommandResult {
    let args = ServerArgs::started(disk);
    let subject = Subject::open(&args, config.written_bytes(), None, &server_flags).await?;
    let data = subject.data().expect("the server was started");
    let title = format!(
        "{} documents of {} bytes, overwritten {} times by {} client(s), {} a request; {}\n\
         what lives: the documents, and 16 bytes for each revision",
        config.documents,
        footprint::DOCUMENT_BYTES,
        config.rounds,
        config.clients,
        config.batch,
        args.disk.machine(),
    );
    let mut printer = Printer::new(args.disk.json, &title);
    footprint::run(&config, &subject.target, &data, args.durability, &mut |row| printer.print(&row)).await?;
    printer.finish();
    Ok(())
}

/// Runs the attacks and prints their rows.
///
/// # Errors
/// A limit was exceeded. All attacks were run.
async fn run_hostile(DiskBenchmark { disk, config }: DiskBenchmark<hostile::Config>) -> CommandResult {
    const ADMIN: &str = "hostile:hostile";
    let args = ServerArgs::started(disk);
    let subject = Subject::open(&args, HOSTILE_DISK_BYTES, Some(ADMIN), &[]).await?;
    let admin = format!("http://{ADMIN}@{}", subject.target.server.address()).parse()?;
    let victim = hostile::Victim { anonymous: subject.target.server.clone(), admin, pid: subject.target.pid };
    let mut printer = Printer::new(args.disk.json, &format!("{} s for each attack", config.seconds));
    let mut missed = 0;
    let mut each = |row: Row| {
        missed += row.aims().filter(|aim| aim.met != Some(true)).count();
        printer.print(&row);
    };
    hostile::run(&config, &victim, &mut each).await?;
    printer.finish();
    if missed > 0 { Err(format!("{missed} limits were exceeded").into()) } else { Ok(()) }
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

/// Prints the rows of a benchmark, and how many aims were met.
struct Printer {
    json: bool,
    verdicts: Verdicts,
}

impl Printer {
    fn new(json: bool, title: &str) -> Printer {
        if !json {
            print_stdout!("{title}\n{}", report::heading());
        }
        Printer { json, verdicts: Verdicts::default() }
    }

    fn print(&mut self, row: &Row) {
        self.verdicts.count(row);
        print_stdout!("{}", if self.json { row.json() } else { row.text() });
    }

    fn finish(&self) {
        if !self.json {
            print_stdout!("{}", self.verdicts.text());
        }
    }
}
