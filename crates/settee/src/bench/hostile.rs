//! `settee bench hostile`: hostile clients on a server.

use std::path::PathBuf;
use std::time::Duration;

use settee_bench::hostile::{self, Attack, UP_MS_MAX, WRITE_MS_MAX};
use settee_bench::http::Server;
use settee_bench::process::ServerProcess;
use settee_bench::space::{self, Directory};

use super::arguments::scale;

use crate::output::CommandResult;

/// Disk space needed for the writes of all clients, in bytes.
const DISK_BYTES: u64 = 4 << 30;

/// The administrator of the server that is attacked.
const ADMIN: &str = "hostile:hostile";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Run attacks whose names contain one of these strings, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = attack_name)]
    attacks: Vec<String>,

    /// Factor for connections and sizes
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    scale: f64,

    /// Duration of each attack in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Directory on a disk, in which the data directory is created [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

fn attack_name(text: &str) -> Result<String, String> {
    match Attack::ALL.iter().any(|attack| attack.name().contains(text)) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "no attack's name contains it; the attacks are {}",
            Attack::ALL.map(Attack::name).join(", ")
        )),
    }
}

/// Runs the attacks and prints their reports.
///
/// # Errors
/// A limit was exceeded. All attacks were run.
pub(super) async fn run(args: Args) -> CommandResult {
    let directory = Directory::new(args.data_dir.as_deref())?;
    space::check(directory.path(), DISK_BYTES)?;
    let (program, data) = (std::env::current_exe()?, directory.path().join("server"));
    let process = ServerProcess::settee(&program, &data, Some(ADMIN), &[]).await?;
    let admin: Server = format!("http://{ADMIN}@{}", process.server().address()).parse()?;
    let config = hostile::Config {
        anonymous: process.server().clone(),
        admin,
        pid: Some(process.pid()),
        time: Duration::from_secs(args.seconds),
        scale: args.scale,
    };
    let is_named = |attack: &Attack| args.attacks.iter().any(|name| attack.name().contains(name.as_str()));
    let is_selected = |attack: &Attack| args.attacks.is_empty() || is_named(attack);
    let attacks: Vec<Attack> = Attack::ALL.into_iter().filter(is_selected).collect();
    println!(
        "{} s each, limits: _up {UP_MS_MAX} ms, another client's writes {WRITE_MS_MAX} ms\n{}",
        args.seconds,
        hostile::heading()
    );
    let mut misses = 0;
    let run = hostile::run(&config, &attacks, |report| {
        println!("{}", report.line());
        for miss in report.misses() {
            println!("    {miss}");
            misses += 1;
        }
    });
    run.await?;
    match misses {
        0 => Ok(()),
        misses => Err(format!("{misses} limits were exceeded").into()),
    }
}
