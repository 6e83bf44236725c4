//! Settee: a document database in one binary.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rustix::fs::Mode;
use settee_bench::couch::CouchError;

mod backup;
mod bench;
mod check;
mod compact;
mod config;
mod dump;
mod first_admin;
mod load;
mod logging;
mod members;
mod output;
mod place;
mod secret;
mod serve;
mod variables;

use output::complain;

/// Permissions that no file or directory gets, whichever part of the program creates it: those of
/// everybody but the user who runs it.
const UMASK: u32 = 0o077;

/// Memory that a burst took goes back to the system within seconds: decision 19.
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
    /// Show the settings in force and where they come from, or convert CouchDB's
    Config(Box<config::Args>),
    /// Load JSON documents into a database
    Load(load::Args),
    /// Write a database's documents as JSON lines
    Dump(dump::Args),
    /// Verify every byte of the databases in a directory, or salvage what can be read of them
    Check(check::Args),
    /// Copy all databases, while a server runs or while none does
    Backup(backup::Args),
    /// Make a data directory of a backup
    Restore(backup::RestoreArgs),
    /// Give back the space of what was replaced
    Compact(compact::Args),
    /// Measure this machine and what Settee reaches on it
    Bench(Box<bench::Args>),
}

/// Exit code for arguments and variables that aren't understood, as clap has it.
const USAGE_EXIT_CODE: u8 = 2;

fn main() -> ExitCode {
    rustix::process::umask(Mode::from_raw_mode(UMASK));
    let command = Cli::parse().command;
    if let Err(error) = variables::check(&Cli::command(), std::env::vars_os().map(|(name, _)| name)) {
        complain!("settee: {error}");
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
            complain!("settee: {error}{hint}");
            ExitCode::FAILURE
        }
    }
}

/// What ends a command: a message for the one who ran it.
type CommandResult<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
