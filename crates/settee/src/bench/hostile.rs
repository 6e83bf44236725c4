//! `settee bench hostile`.

use std::path::PathBuf;
use std::time::Duration;

use settee_bench::hostile::{self, Attack, UP_MS_MAX, WRITE_MS_MAX};
use settee_bench::http::Server;
use settee_bench::process::ServerProcess;
use settee_bench::space::{self, Directory};

use super::scale;
use crate::CommandResult;

/// What is written meanwhile, with what large requests may store.
const DISK_BYTES: u64 = 4 << 30;

/// The administrator of the server that is attacked.
const ADMIN: &str = "hostile:hostile";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Attacks whose names contain one of these, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = attack_name)]
    attacks: Vec<String>,

    /// Multiplies connections and sizes
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    scale: f64,

    /// Seconds that each attack lasts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Where data go: choose a disk [default: where temporary files go]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

fn attack_name(text: &str) -> Result<String, String> {
    match Attack::ALL.iter().any(|attack| attack.name().contains(text)) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "no attack has it in its name; they are {}",
            Attack::ALL.map(Attack::name).join(", ")
        )),
    }
}

/// Fails past the limits, once all attacks are over.
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
    let is_wanted = |attack: &Attack| args.attacks.iter().any(|name| attack.name().contains(name.as_str()));
    let wanted = |attack: &Attack| args.attacks.is_empty() || is_wanted(attack);
    let attacks: Vec<Attack> = Attack::ALL.into_iter().filter(wanted).collect();
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
        misses => Err(format!("{misses} limits were passed").into()),
    }
}
