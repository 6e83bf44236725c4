//! What commands print. The reader of a pipe may go at any time (`settee dump … | head`): that is no
//! error to report, and nothing to panic at.
//!
//! A command that works elsewhere (`load`, `check`, `backup`) prints by [`say`] and goes on to its end. A
//! command whose work is what it prints ends: `dump` and `config` by [`write_error`], the measurements by
//! [`closed`].

use std::io;

use tokio::sync::Notify;

/// Exit code of a command whose output nobody reads any more: what a shell shows for a program that
/// SIGPIPE ended.
pub(crate) const CLOSED_EXIT_CODE: u8 = 128 + 13;

/// Notified when a line couldn't be printed since the reader of stdout has gone.
static CLOSED: Notify = Notify::const_new();

/// The reader of stdout has gone.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output")]
pub(crate) struct OutputClosed;

/// What becomes of an error of writing to a command's output.
pub(crate) fn write_error(error: io::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => error.into(),
    }
}

/// Returns once a line couldn't be printed because the reader of stdout has gone.
pub(crate) async fn closed() {
    CLOSED.notified().await;
}

/// See [`say`].
pub(crate) fn note_failure(printed: io::Result<()>) {
    if printed.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        CLOSED.notify_one();
    }
}

/// As `println`, but a reader that has gone is no error.
macro_rules! say {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        $crate::output::note_failure(writeln!(::std::io::stdout(), $($text)*));
    }};
}

/// As `eprintln`, but a reader that has gone is no error.
macro_rules! complain {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        drop(writeln!(::std::io::stderr(), $($text)*));
    }};
}

pub(crate) use {complain, say};
