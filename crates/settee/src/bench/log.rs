//! `settee bench log`: command line of the log benchmark.

use std::path::PathBuf;

use clap::ValueEnum;
use settee_bench::log::{self, Config, Part};
use settee_bench::space::{self, Directory};
use settee_io::EngineKind;

use crate::output::{CommandResult, print_stderr, print_stdout};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Directory on a disk, in which the files are created [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// The binary of the `peers` crate, to compare with fjall and RocksDB
    #[arg(long, value_name = "PATH")]
    peers: Option<PathBuf>,

    /// I/O engine of the log: auto, io_uring or threads
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    io_engine: EngineKind,

    /// Factor for bytes, counts and seconds
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = super::arguments::scale)]
    scale: f64,

    /// Parts of the table, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    parts: Vec<LogPart>,

    /// Print JSON lines instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogPart {
    Memory,
    Disk,
    Batches,
    Durable,
    Writers,
    Limit,
}

impl From<LogPart> for Part {
    fn from(part: LogPart) -> Part {
        match part {
            LogPart::Memory => Part::Memory,
            LogPart::Disk => Part::Disk,
            LogPart::Batches => Part::Batches,
            LogPart::Durable => Part::Durable,
            LogPart::Writers => Part::Writers,
            LogPart::Limit => Part::Limit,
        }
    }
}

#[derive(clap::Args)]
pub(super) struct DelayArgs {
    /// Directory in which the files are created
    directory: PathBuf,

    /// Number of bytes that each writer streams
    bytes: usize,

    /// I/O engine of the log
    engine: EngineKind,

    /// Directory of the control group to join
    group: Option<PathBuf>,
}

pub(super) async fn run(args: Args) -> CommandResult {
    // This function owns the directory, so it is removed even if the measurement is interrupted.
    let directory = Directory::new(args.data_dir.as_deref())?;
    let config = Config {
        directory: directory.path().to_owned(),
        peers: args.peers,
        program: std::env::current_exe()?,
        engine: args.io_engine,
        scale: args.scale,
        parts: match args.parts.is_empty() {
            true => Part::ALL.to_vec(),
            false => args.parts.into_iter().map(Part::from).collect(),
        },
    };
    if space::is_in_memory(&config.directory) {
        print_stderr!(
            "{} is on a file system in memory, where a sync costs nothing: see --data-dir",
            config.directory.display()
        );
    }
    if !args.json {
        print_stdout!("{}\n{}", config.title()?, log::heading());
    }
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let print = |row: log::LogRow| match args.json {
            true => print_stdout!("{}", row.json()),
            false => print_stdout!("{}", row.lines().trim_end()),
        };
        // The receiver is closed if the command was interrupted.
        let _ = done.send(log::run(&config, print));
    });
    Ok(result.await.map_err(|_| "the measurement panicked")??)
}

pub(super) fn run_delay(args: &DelayArgs) -> CommandResult {
    let print = |phase| print_stdout!("{}", serde_json::to_string(&phase).expect("a phase is plain data"));
    Ok(log::measure_delays(&args.directory, args.bytes, args.engine, args.group.as_deref(), print)?)
}
