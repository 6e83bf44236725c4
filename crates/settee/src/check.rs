//! `settee check`: verifies the databases of a data directory and prints each problem with the documents that
//! it affects. With `--repair` it writes the readable records to a new directory.
//!
//! Exit code 0: sound. 1: problems, each printed. 2: the directory could not be checked.

use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::ProgressBar;
use settee_doc::{DatabasesOptions, ErrorKind, OfflineDatabases, OfflineEvent};
use settee_io::{Env, ThreadOptions};

use crate::output::{print_stderr, print_stdout};
use crate::{data_directory, progress, server_uuid};

/// Exit code if the directory could not be checked.
const FAILURE_EXIT_CODE: u8 = 2;

#[derive(clap::Args)]
#[command(
    after_help = "The directory isn't changed. Exit code: 0 sound, 1 problems (each is printed), 2 could not \
    check."
)]
pub(crate) struct Args {
    /// Data directory that no server has open, or a run of a backup
    #[arg(value_name = "DATA_DIRECTORY", env = "SETTEE_DATA_DIR", default_value = "./settee-data")]
    directory: PathBuf,

    /// Check only this database
    #[arg(long, alias = "database", value_name = "NAME", conflicts_with = "repair")]
    db: Option<String>,

    /// Write all readable records of all databases to a new data directory
    #[arg(long, value_name = "NEW_DIRECTORY")]
    repair: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    match runtime.block_on(check(&args)) {
        Ok(is_sound) => {
            if is_sound {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    print_stderr!("settee: {error}");
    ExitCode::from(FAILURE_EXIT_CODE)
}

async fn check(args: &Args) -> settee_doc::Result<bool> {
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    let directory = std::path::absolute(&args.directory).unwrap_or_else(|_| args.directory.clone());
    if !directory.is_dir() {
        return Err(settee_doc::Error::new(
            ErrorKind::NotFound,
            data_directory::missing_directory_text(&args.directory),
        ));
    }
    let opened = OfflineDatabases::open(&env, &directory, DatabasesOptions::default()).await;
    let databases = opened.map_err(|error| match error.kind() {
        ErrorKind::InUse => settee_doc::Error::new(
            ErrorKind::InUse,
            format!("{error} (if a server has the directory open, stop it, or check a backup)"),
        ),
        _ => error,
    })?;
    if !databases.is_protected() {
        print_stderr!(
            "settee: {} is read-only and couldn't be locked: another process may write to it during the \
             check",
            args.directory.display()
        );
    }
    let mut printer = EventPrinter::new();
    let has_identity = match server_uuid::read(&directory) {
        Ok(_) => true,
        Err(error) => {
            print_stdout!("{error}");
            false
        }
    };
    let is_sound = match &args.repair {
        None => {
            let checked = databases.check(args.db.as_deref(), |event| printer.print(event)).await;
            let sums = checked.map_err(|error| match (&args.db, error.kind()) {
                (Some(name), ErrorKind::NotFound) => {
                    settee_doc::Error::new(ErrorKind::NotFound, format!("there is no database {name}"))
                }
                _ => error,
            })?;
            printer.bar.finish_and_clear();
            let problem_count = sums.problem_count + u64::from(!has_identity);
            let verdict = if problem_count == 0 { "sound".to_owned() } else { problems(problem_count) };
            print_stdout!(
                "{verdict}: {} files, {} bytes, {} records, {} index entries checked",
                sums.file_count,
                sums.bytes,
                sums.record_count,
                sums.entry_count
            );
            problem_count == 0
        }
        Some(to) => {
            let new = data_directory::resolve_path(to)
                .map_err(|error| settee_doc::Error::new(ErrorKind::BadRequest, error.to_string()))?;
            let sums = databases.repair(&new, |event| printer.print(event)).await?;
            let problem_count = sums.problem_count + u64::from(!has_identity);
            printer.bar.finish_and_clear();
            print_stdout!(
                "{} records (documents, their branches and local documents) salvaged into {}; {}, {} lost \
                 their newest version",
                sums.record_count,
                to.display(),
                problems(problem_count),
                sums.lost_count
            );
            problem_count == 0
        }
    };
    Ok(is_sound)
}

fn problems(count: u64) -> String {
    if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") }
}

struct EventPrinter {
    bar: ProgressBar,
    database: String,
}

impl EventPrinter {
    fn new() -> EventPrinter {
        let bar = progress::progress_bar("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}");
        // The first problems concern the run itself, before any database is checked.
        EventPrinter { bar, database: "the run".to_owned() }
    }

    fn print(&mut self, event: OfflineEvent) {
        match event {
            OfflineEvent::Database(name) => {
                self.database = name.unwrap_or_else(|| "the catalogue".to_owned());
                self.bar.set_message(self.database.clone());
                self.bar.set_position(0);
            }
            OfflineEvent::Progress(done, total) => progress::show_progress(&self.bar, done, total),
            OfflineEvent::Note(text) => {
                let database = &self.database;
                self.bar.suspend(|| print_stdout!("{database}: {text}"));
            }
            OfflineEvent::Problem { what, touched, is_doubtful } => {
                let doubtful =
                    if is_doubtful { " (if a crash caused it, opening the database repairs it)" } else { "" };
                let text = format!("{}: {what}{doubtful}\n    touches {touched}", self.database);
                self.bar.suspend(|| print_stdout!("{text}"));
            }
            OfflineEvent::Lost { what, has_older } => {
                let kept = if has_older { "an older version was kept" } else { "no version is left" };
                let text = format!("{}: lost the newest version of {what}; {kept}", self.database);
                self.bar.suspend(|| print_stdout!("{text}"));
            }
        }
    }
}
