//! Settee: a document database in one binary.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rustix::fs::Mode;
use settee_client::CouchError;

mod backup;
mod bench;
mod check;
mod compact;
mod config;
mod data_directory;
mod dump;
mod first_admin;
mod json_members;
mod load;
mod logging;
mod output;
mod progress;
mod secret;
mod serve;
mod server_uuid;
mod upgrade;
mod variables;

use output::print_stderr;

/// Permission bits that no created file or directory gets: those of the group and of other users.
const UMASK: u32 = 0o077;

/// Returns memory that a burst used to the system within seconds: decision 19.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
#[command(name = "settee", version, about = "A document database that speaks CouchDB's HTTP API")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve databases over HTTP
    Serve(Box<serve::Args>),
    /// Show the effective settings and their sources, or convert CouchDB's settings
    Config(Box<config::Args>),
    /// Load JSON documents into a database
    Load(load::Args),
    /// Write a database's documents as JSON lines
    Dump(dump::Args),
    /// Verify every byte of the databases in a directory, or salvage their readable records
    Check(check::Args),
    /// Copy all databases of a running server or of a data directory
    Backup(backup::Args),
    /// Create a data directory from a backup
    Restore(backup::RestoreArgs),
    /// Convert a data directory that the version before wrote
    Upgrade(upgrade::Args),
    /// Free the disk space of replaced records
    Compact(compact::Args),
    /// Measure Settee against the limits of this machine
    Bench(Box<bench::Args>),
}

/// Exit code for invalid arguments and variables; clap uses the same.
const USAGE_EXIT_CODE: u8 = 2;

fn main() -> ExitCode {
    rustix::process::umask(Mode::from_raw_mode(UMASK));
    if let Err(error) = config::retired::check_flags(std::env::args_os().skip(1)) {
        print_stderr!("settee: {error}");
        return ExitCode::from(USAGE_EXIT_CODE);
    }
    let command = Cli::parse().command;
    if let Err(error) = variables::check(&Cli::command(), std::env::vars_os().map(|(name, _)| name)) {
        print_stderr!("settee: {error}");
        return ExitCode::from(USAGE_EXIT_CODE);
    }
    let result = match command {
        Command::Serve(args) => serve::run(*args),
        Command::Config(args) => config::run(*args),
        Command::Load(args) => load::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Check(args) => return check::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Restore(args) => backup::run_restore(args),
        Command::Upgrade(args) => upgrade::run(args),
        Command::Compact(args) => compact::run(args),
        Command::Bench(args) => bench::run(*args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<output::OutputClosed>() => ExitCode::from(output::CLOSED_EXIT_CODE),
        Err(error) => {
            let hint = match error.downcast_ref::<CouchError>() {
                Some(CouchError::Refused { status: 401, .. }) => secret::USER_HINT,
                _ => "",
            };
            print_stderr!("settee: {error}{hint}");
            ExitCode::FAILURE
        }
    }
}
