//! Standard output, error output and results of the commands.
//!
//! The reader of a pipe may close it at any time (`settee dump … | head`). That causes neither a panic nor an
//! error message.
//!
//! A command whose work isn't its output (`load`, `check`, `backup`) prints with [`print_stdout`] and runs to
//! completion. A command whose work is its output stops: `dump` and `config` through [`write_error`], the
//! benchmarks through [`closed`].

use std::io;

use tokio::sync::Notify;

/// Exit code of a command that stopped because its output was closed. A shell reports the same code for a
/// program that SIGPIPE terminated.
pub(crate) const CLOSED_EXIT_CODE: u8 = 128 + 13;

/// Notified when a line couldn't be printed because the reader closed stdout.
static CLOSED: Notify = Notify::const_new();

/// Result of a command. The error's text is printed to the user.
pub(crate) type CommandResult<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The reader closed stdout.
#[derive(Debug, thiserror::Error)]
#[error("the standard output was closed")]
pub(crate) struct OutputClosed;

/// Converts an error of writing to a command's output: a closed pipe becomes [`OutputClosed`].
pub(crate) fn write_error(error: io::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => error.into(),
    }
}

/// Returns once a line couldn't be printed because the reader closed stdout.
pub(crate) async fn closed() {
    CLOSED.notified().await;
}

/// Notifies [`closed`] if the result of [`print_stdout`] is a closed pipe.
pub(crate) fn note_failure(printed: io::Result<()>) {
    if printed.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        CLOSED.notify_one();
    }
}

/// Prints a line like `println`, except that a failed write doesn't panic.
macro_rules! print_stdout {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        $crate::output::note_failure(writeln!(::std::io::stdout(), $($text)*));
    }};
}

/// Prints a line like `eprintln`, except that a failed write doesn't panic.
macro_rules! print_stderr {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        drop(writeln!(::std::io::stderr(), $($text)*));
    }};
}

pub(crate) use {print_stderr, print_stdout};
