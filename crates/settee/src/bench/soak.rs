//! `settee bench soak`.

use std::path::PathBuf;
use std::time::Duration;

use settee_bench::soak;
use settee_bench::space::{self, Directory};

use crate::CommandResult;
use crate::output::say;

/// What a soak may write to its disk: live data stays small, and so does what isn't compacted yet. Of
/// each there are some restored copies.
const DISK_BYTES: u64 = 3 << 30;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long the clients run
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,

    /// How long the clients run, in place of minutes
    #[arg(long, value_name = "N", conflicts_with = "minutes",
        value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: Option<u64>,

    /// How often the server is killed meanwhile
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    kills: u32,

    /// Names the run: what the clients do and when the server is killed
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Where data go: choose a disk [default: where temporary files go]
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
    say!("soak of {:?} with {} kill(s), seed {}", config.duration, config.kills, config.seed);
    soak::run(&config, |line| say!("{line}")).await?;
    Ok(())
}
