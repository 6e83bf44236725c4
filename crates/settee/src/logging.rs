//! The server log: its levels, its format and its output.
//!
//! `tracing-subscriber` formats events and appends them to a bounded queue that a thread writes ([`writer`]).
//! So a log that can't be written neither delays a request nor stops a task.
//!
//! Invariants:
//! 1. An event is one line; control characters in its values are escaped.
//! 2. While the server serves requests, all output to stderr goes through the log. Panics are events too.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Write};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

mod level;
mod writer;

pub(crate) use level::{LogLevel, START_TARGET};
use writer::{LogSink, LogWriter};

use crate::output::CommandResult;

/// Format of the server log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Configuration of the server log.
#[derive(Debug, Clone)]
pub(crate) struct LogConfig {
    pub(crate) level: LogLevel,
    pub(crate) format: LogFormat,
    /// File to append to. None: stderr.
    pub(crate) file: Option<PathBuf>,
}

/// The log of this process. Dropping it writes the queued lines, within a time limit.
pub(crate) struct ServerLog {
    writer: LogWriter,
}

impl ServerLog {
    /// Starts the log for the whole process and installs the panic hook. May be called once.
    ///
    /// # Errors
    /// The file can't be opened, the thread can't be started, or the log was started before.
    pub(crate) fn start(config: &LogConfig) -> CommandResult<ServerLog> {
        let sink = LogSink::open(config.file.clone())?;
        let has_colors = config.file.is_none() && std::io::stderr().is_terminal();
        let writer = LogWriter::start(sink).map_err(|error| format!("cannot start the log: {error}"))?;
        let targets = config.level.targets();
        tracing_subscriber::registry()
            .with(layer(config.format, has_colors, writer.clone()).with_filter(targets))
            .try_init()?;
        std::panic::set_hook(Box::new(log_panic));
        Ok(ServerLog { writer })
    }

    /// Returns the counter of dropped lines: the queue was full, or the write failed.
    pub(crate) fn dropped_count(&self) -> Arc<AtomicU64> {
        self.writer.dropped_count()
    }

    /// Returns a function that makes the log reopen its file by name before the next write. It has no effect
    /// on stderr.
    pub(crate) fn reopener(&self) -> impl Fn() + Send + 'static {
        let writer = self.writer.clone();
        move || writer.reopen()
    }
}

impl Drop for ServerLog {
    fn drop(&mut self) {
        self.writer.close();
    }
}

fn layer<S>(format: LogFormat, has_colors: bool, writer: LogWriter) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(move || writer.clone())
        .with_ansi(has_colors)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => layer.fmt_fields(debug_fn(write_field).delimited(" ")).boxed(),
        LogFormat::Json => layer.json().boxed(),
    }
}

/// Writes a field as `name=value`, and the message as its value. Control characters are escaped.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(Escaped(writer), "{value:?}"),
        name => write!(Escaped(writer), "{name}={value:?}"),
    }
}

/// A writer that replaces control characters with their Rust escapes.
struct Escaped<'a, W>(&'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            match char.is_control() {
                true => char.escape_default().try_for_each(|escaped| self.0.write_char(escaped))?,
                false => self.0.write_char(char)?,
            }
        }
        Ok(())
    }
}

/// Logs a panic. The default hook writes to stderr directly, which blocks while nobody reads the pipe.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let reason = panic.payload_as_str().unwrap_or("no text");
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => tracing::error!(thread, place, reason, %backtrace, "panicked"),
        _ => tracing::error!(thread, place, reason, "panicked"),
    }
}
