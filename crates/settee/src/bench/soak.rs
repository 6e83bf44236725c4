//! `settee bench soak`: command line of the soak test.

use std::path::PathBuf;
use std::time::Duration;

use settee_bench::soak;
use settee_bench::space::{self, Directory};

use crate::output::{CommandResult, print_stdout};

/// Disk space needed, in bytes. Live data and garbage stay small; there are several restored copies of both.
const DISK_BYTES: u64 = 3 << 30;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Duration in minutes
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,

    /// Duration in seconds, instead of --minutes
    #[arg(long, value_name = "N", conflicts_with = "minutes",
        value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: Option<u64>,

    /// Number of times that the server is killed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    kills: u32,

    /// Seed that determines the clients' operations and the times of the kills
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Directory on a disk, in which the data are created [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub(crate) async fn run(args: Args) -> CommandResult {
    let directory = Directory::new(args.data_dir.as_deref())?;
    space::check(directory.path(), DISK_BYTES)?;
    let config = soak::Config {
        program: std::env::current_exe()?,
        directory: directory.path().to_owned(),
        duration: Duration::from_secs(args.seconds.unwrap_or(args.minutes * 60)),
        kills: args.kills,
        seed: args.seed,
    };
    print_stdout!("soak of {:?} with {} kill(s), seed {}", config.duration, config.kills, config.seed);
    soak::run(&config, |line| print_stdout!("{line}")).await?;
    Ok(())
}
