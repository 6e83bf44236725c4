//! `settee bench http`: command line and summary of the HTTP benchmark.

use std::path::Path;
use std::time::Duration;

use settee_bench::api::{self, Target};
use settee_bench::process::ServerProcess;
use settee_bench::report::{self, Aim, Reported};

use super::arguments::{CommonArgs, number, scale};
use super::subject::Subject;
use crate::output::{CommandResult, print_stdout};

/// Duration of a row, except for loads.
const ROW_TIME: Duration = Duration::from_secs(5);

/// Shortest duration of a scaled-down row.
const ROW_TIME_MIN: Duration = Duration::from_millis(20);

/// Number of connections that a started server accepts in addition to the followers'.
const CONNECTIONS_SPARE: u64 = 500;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// Run rows whose names contain one of these strings, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = row_name)]
    rows: Vec<String>,

    /// Factor for documents, updates, attachments, followers and seconds
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    scale: f64,

    /// Duration of a row in seconds, except for loads, independent of the scale
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, ROW_TIME_MIN.as_secs_f64(), 600.0)
}

fn row_name(text: &str) -> Result<String, String> {
    if api::row_names().any(|name| name.contains(text)) {
        return Ok(text.to_owned());
    }
    let names: Vec<&str> = api::row_names().collect();
    Err(format!("no row's name contains it; the rows are {}", names.join(", ")))
}

pub(super) async fn run(args: Args) -> CommandResult {
    if args.common.is_in_process() {
        return Err("set --url to a server, or use --spawn to start one".into());
    }
    let row_time = match args.seconds {
        Some(seconds) => Duration::from_secs_f64(seconds),
        None => ROW_TIME.mul_f64(args.scale).max(ROW_TIME_MIN),
    };
    let needed = api::written_bytes(&args.rows, args.scale, row_time);
    let connections = api::follower_count(args.scale) + CONNECTIONS_SPARE;
    let settings = ["--connections-max".to_owned(), connections.to_string()];
    let subject = Subject::open(&args.common, needed, &settings).await?;
    let bare = ServerProcess::bare(&std::env::current_exe()?)?;
    let config = api::Config {
        target: subject.server.clone().expect("given or started"),
        bare: Some(Target { server: bare.server().clone(), pid: Some(bare.pid()) }),
        directory: subject.directory().map(Path::to_owned),
        scale: args.scale,
        row_time,
        durability: args.common.durability.into(),
        rows: args.rows,
    };
    if !args.common.json {
        let scale = if args.scale == 1.0 { String::new() } else { format!(", counts × {}", args.scale) };
        let settings =
            if args.common.spawn { format!(", with {}", settings.join(" ")) } else { String::new() };
        print_stdout!(
            "{}{settings}: documents of {} bytes, {} s a row{scale}, {}\n\
             recorded: {}, on another day; limits and aims: of this run\n{}",
            subject.description(),
            api::DOCUMENT_BYTES,
            row_time.as_secs_f64(),
            args.common.durability_text(),
            api::RECORDED_SOURCE,
            report::heading(true),
        );
    }
    let mut verdicts = Verdicts::default();
    let failed = api::run(&config, |reported| {
        verdicts.count(&reported);
        print(&reported, args.common.json);
    })
    .await?;
    if !args.common.json {
        print_stdout!("{}, {failed} rows failed", verdicts.text());
    }
    if failed > 0 { Err(format!("{failed} rows failed").into()) } else { Ok(()) }
}

fn print(reported: &Reported, json: bool) {
    match (reported, json) {
        (Reported::Measured(row), true) => print_stdout!("{}", row.json()),
        (Reported::Failed(failed), true) => print_stdout!("{}", failed.json()),
        (Reported::Measured(row), false) => {
            print_stdout!("{}", report::line(row, true));
            report::remarks(row).iter().for_each(|remark| print_stdout!("    {remark}"));
        }
        (Reported::Failed(failed), false) => print_stdout!("{}", failed.line()),
    }
}

/// Numbers of performance aims that were met, missed, and not measured.
#[derive(Debug, Default)]
struct Verdicts {
    met: u64,
    missed: u64,
    not_measured: u64,
}

impl Verdicts {
    fn count(&mut self, reported: &Reported) {
        let Reported::Measured(row) = reported else { return };
        for Aim { met, .. } in &row.aims {
            match met {
                Some(true) => self.met += 1,
                Some(false) => self.missed += 1,
                None => self.not_measured += 1,
            }
        }
    }

    fn text(&self) -> String {
        let Verdicts { met, missed, not_measured } = self;
        format!("aims: {met} met, {missed} missed, {not_measured} not measured")
    }
}

#[cfg(test)]
mod tests {
    use settee_bench::report::{Bound, Row};
    use settee_bench::stats::{Elapsed, Samples};

    use super::*;

    #[test]
    fn flags_accept_numbers_within_bounds_and_names_of_rows() {
        assert_eq!(scale("0.5"), Ok(0.5));
        for bad in ["0", "11", "NaN", "x"] {
            assert!(scale(bad).is_err(), "{bad}");
        }
        assert!(seconds("0.01").is_err() && seconds("3").is_ok());
        assert_eq!(row_name("get-"), Ok("get-".to_owned()));
        assert!(row_name("nonsense").unwrap_err().contains("followers"));
    }

    #[test]
    fn verdicts_are_counted_by_kind() {
        let row = Row::new("w", "docs", 1, &Elapsed::default(), &Samples::default());
        let row = row.aim("a", Bound::AtLeast(1.0), Some(2.0)).aim("b", Bound::AtMost(1.0), Some(2.0)).aim(
            "c",
            Bound::AtMost(1.0),
            None,
        );
        let mut verdicts = Verdicts::default();
        verdicts.count(&Reported::Measured(Box::new(row)));
        assert_eq!(verdicts.text(), "aims: 1 met, 1 missed, 1 not measured");
    }
}
