//! Settee: a document database in one binary.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod backup;
mod bench;
mod check;
mod compact;
mod config;
mod dump;
mod load;
mod place;
mod serve;

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
    /// Verify every byte of the databases in a folder, or salvage what can be read of them
    Check(check::Args),
    /// Copy all databases, while a server runs or while none does
    Backup(backup::Args),
    /// Make a data folder of a backup
    Restore(backup::RestoreArgs),
    /// Give back the space of what was replaced
    Compact(compact::Args),
    /// Measure this machine and what Settee reaches on it
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(*args),
        Command::Config(args) => config::run(*args),
        Command::Load(args) => load::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Check(args) => return check::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Restore(args) => backup::run_restore(args),
        Command::Compact(args) => compact::run(args),
        Command::Bench(args) => bench::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("settee: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What ends a command: a message for the one who ran it.
type CommandResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;
