//! `settee bench io` and `settee bench reads`: file operations against the machine's limits.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use settee_bench::{io, reads, space};

use crate::output::{CommandResult, print_stderr, print_stdout};

/// Arguments of the benchmarks of files.
#[derive(clap::Args)]
struct FilesArgs {
    /// Directory on a disk, in which the files are created [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Run with small parameters that take seconds, as a test
    #[arg(long)]
    small: bool,

    /// Size in MiB of each file that is read at random
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    file_mib: Option<u64>,

    /// Number of measurements of each workload; medians are printed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,

    /// Duration in milliseconds of a workload that isn't bounded by its size
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    duration_ms: Option<u64>,

    /// Print JSON lines instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct IoArgs {
    #[command(flatten)]
    files: FilesArgs,

    /// Size in MiB of the data that each flush writes, a multiple of 4
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(4..=65_536))]
    flush_mib: Option<u64>,

    /// Parts, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    parts: Vec<IoPart>,
}

#[derive(clap::Args)]
pub(crate) struct ReadsArgs {
    #[command(flatten)]
    files: FilesArgs,

    /// Number of random reads of each file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    reads: Option<u64>,

    /// Parts, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    parts: Vec<ReadsPart>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum IoPart {
    Cold,
    Cached,
    Flush,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ReadsPart {
    Parread,
    Beside,
}

impl FilesArgs {
    fn directory(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    fn heading(&self, title: &str) {
        if space::is_in_memory(&self.directory()) {
            print_stderr!(
                "{} is on a file system in memory, where no read is cold: see --data-dir",
                self.directory().display()
            );
        }
        if !self.json {
            print_stdout!("{title}\n{}", io::row::heading());
        }
    }

    fn row(&self, row: &io::IoRow) {
        match (self.json, &row.note) {
            (true, _) => print_stdout!("{}", row.json()),
            (false, None) => print_stdout!("{}", row.line()),
            (false, Some(note)) => print_stdout!("{}\n    {note}", row.line()),
        }
    }
}

pub(crate) async fn run_io(args: IoArgs) -> CommandResult {
    let mut config = io::Config::new(args.files.directory());
    if args.files.small {
        config = config.small();
    }
    let IoArgs { files, flush_mib, parts } = args;
    config.file_bytes = files.file_mib.map_or(config.file_bytes, |mib| mib << 20);
    config.flush_bytes = flush_mib.map_or(config.flush_bytes, |mib| mib << 20);
    config.duration = files.duration_ms.map_or(config.duration, Duration::from_millis);
    if let Some(rounds) = files.rounds {
        (config.rounds, config.flush_rounds) = (rounds as usize, rounds as usize);
    }
    if !parts.is_empty() {
        config.parts = parts
            .iter()
            .map(|part| match part {
                IoPart::Cold => io::Part::Cold,
                IoPart::Cached => io::Part::Cached,
                IoPart::Flush => io::Part::Flush,
            })
            .collect();
    }
    files.heading(&config.title());
    Ok(io::run(&config, |row| files.row(&row)).await?)
}

pub(crate) async fn run_reads(args: ReadsArgs) -> CommandResult {
    let mut config = reads::Config::new(args.files.directory());
    if args.files.small {
        config = config.small();
    }
    let ReadsArgs { files, reads: count, parts } = args;
    config.file_bytes = files.file_mib.map_or(config.file_bytes, |mib| mib << 20);
    config.read_count = count.map_or(config.read_count, |count| count as usize);
    config.duration = files.duration_ms.map_or(config.duration, Duration::from_millis);
    if let Some(rounds) = files.rounds {
        (config.rounds, config.beside_rounds) = (rounds as usize, rounds as usize);
    }
    if !parts.is_empty() {
        config.parts = parts
            .iter()
            .map(|part| match part {
                ReadsPart::Parread => reads::Part::Parread,
                ReadsPart::Beside => reads::Part::Beside,
            })
            .collect();
    }
    files.heading(&config.title());
    Ok(reads::run(&config, |row| files.row(&row)).await?)
}
