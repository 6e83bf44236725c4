//! `settee bench store`: command line of the store benchmark.

use std::path::PathBuf;

use clap::ValueEnum;
use settee_bench::io;
use settee_bench::space::{self, Directory};
use settee_bench::store::{self, Config, PEERS, Part};
use settee_io::EngineKind;

use crate::output::{CommandResult, print_stderr, print_stdout};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Directory on a disk, in which the files are created [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// The binary of the `peers` crate, to compare with other engines
    #[arg(long, value_name = "PATH")]
    peers: Option<PathBuf>,

    /// Names of the engines to compare with, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "peers", value_parser = PEERS)]
    engines: Vec<String>,

    /// I/O engine of the store: auto, io_uring or threads
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    io_engine: EngineKind,

    /// Run with small parameters that take seconds, as a test
    #[arg(long)]
    small: bool,

    /// Number of records of the large data sets [default: 10000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    records: Option<u64>,

    /// Size in MiB of the values that each load of the part `ingest` writes [default: 128]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    ingest_mib: Option<u64>,

    /// Memory in MiB of each engine while it loads [default: 512]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    memory_mib: Option<u64>,

    /// Number of measurements of repeatable workloads; medians are printed [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: Option<u64>,

    /// Parts of the table, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    parts: Vec<StorePart>,

    /// Print JSON lines instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StorePart {
    /// Loads as in Neon's bench_ingest
    Ingest,
    /// Load, reads and scans of 1 KiB records
    Large,
    /// Load, reads and scans of 100 B records
    Small,
    /// Loads of increasing numbers of records
    Growth,
    /// Durable single writes
    Durable,
    /// Overwrites with concurrent reads
    Overwrite,
    /// Opening after a kill
    Open,
}

impl From<StorePart> for Part {
    fn from(part: StorePart) -> Part {
        match part {
            StorePart::Ingest => Part::Ingest,
            StorePart::Large => Part::Large,
            StorePart::Small => Part::Small,
            StorePart::Growth => Part::Growth,
            StorePart::Durable => Part::Durable,
            StorePart::Overwrite => Part::Overwrite,
            StorePart::Open => Part::Open,
        }
    }
}

#[derive(clap::Args)]
pub(super) struct RunArgs {
    /// Subject of the measurement: settee for the store, bare for a bare lookup
    subject: String,

    /// Directory of the files
    directory: PathBuf,

    /// The workload in JSON
    spec: String,

    /// I/O engine of the store
    engine: EngineKind,
}

pub(super) async fn run(args: Args) -> CommandResult {
    // This function owns the directory, so it is removed even if the measurement is interrupted.
    let directory = Directory::new(args.data_dir.as_deref())?;
    let mut config = Config::new(directory.path(), std::env::current_exe()?);
    if args.small {
        config = config.small();
    }
    config.peers = args.peers;
    config.engine = args.io_engine;
    config.records = args.records.unwrap_or(config.records);
    config.ingest_bytes = args.ingest_mib.map_or(config.ingest_bytes, |mib| mib << 20);
    config.memory_bytes = args.memory_mib.map_or(config.memory_bytes, |mib| mib << 20);
    config.rounds = args.rounds.map_or(config.rounds, |rounds| rounds as usize);
    if !args.engines.is_empty() {
        config.peer_names.retain(|name| args.engines.iter().any(|engine| engine == name));
    }
    if !args.parts.is_empty() {
        config.parts = args.parts.into_iter().map(Part::from).collect();
    }
    if space::is_in_memory(&config.directory) {
        print_stderr!(
            "{} is on a file system in memory, where a sync costs nothing: see --data-dir",
            config.directory.display()
        );
    }
    if !args.json {
        print_stdout!("{}\n{}", config.title(), io::row::heading());
    }
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let print = |mut row: io::IoRow| {
            if args.small {
                // The small parameters are too short for a verdict.
                (row.aim, row.met) = (None, None);
            }
            match (args.json, &row.note) {
                (true, _) => print_stdout!("{}", row.json()),
                (false, None) => print_stdout!("{}", row.line()),
                (false, Some(note)) => print_stdout!("{}\n    {note}", row.line()),
            }
        };
        // The receiver is closed if the command was interrupted.
        let _ = done.send(store::run(&config, print));
    });
    Ok(result.await.map_err(|_| "the measurement panicked")??)
}

pub(super) fn run_here(args: &RunArgs) -> CommandResult {
    Ok(store::run_here(&args.subject, &args.directory, &args.spec, args.engine)?)
}
