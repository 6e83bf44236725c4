//! Writes the lines of the server log: a bounded queue and a thread that writes it.
//!
//! [`LogWriter`] appends a line to the queue under a mutex and returns. The thread takes the whole queue and
//! writes it to stderr or to a file. A line is dropped and counted if the queue is full or the write fails;
//! after the next successful write an event reports the count.
//!
//! Invariants:
//! 1. Logging waits for no write and doesn't panic. The mutex is held for the copy of one line.
//! 2. A line is written completely or counted as dropped. A partially written line is terminated before the
//!    next line begins, unless the file was reopened in between and wasn't rotated: it then remains the
//!    beginning of the next line.
//! 3. Closing the log waits for at most [`CLOSE_TIMEOUT`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

#[cfg(test)]
mod tests;

/// Capacity of the queue, in bytes of lines.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Memory that an empty queue keeps allocated, in bytes.
const QUEUE_BYTES_KEPT: usize = 64 << 10;

/// Longest time that [`LogWriter::close`] waits for the queue to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Appends lines to the log's queue.
#[derive(Clone)]
pub(super) struct LogWriter {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when the queue changes, for the thread and for `close`.
    changed: Condvar,
    dropped_count: Arc<AtomicU64>,
}

#[derive(Default)]
struct Queue {
    /// Complete lines with their line ends.
    lines: Vec<u8>,
    /// Whether the thread has to reopen the file.
    must_reopen: bool,
    /// Whether the thread is logging the count of dropped lines. That line may exceed the capacity.
    is_reporting: bool,
    is_closing: bool,
    has_ended: bool,
}

impl LogWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn start(sink: LogSink) -> io::Result<LogWriter> {
        let shared = Arc::new(Shared::default());
        let writer = LogWriter { shared: shared.clone() };
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write_queue(&shared, sink))?;
        Ok(writer)
    }

    pub(super) fn dropped_count(&self) -> Arc<AtomicU64> {
        self.shared.dropped_count.clone()
    }

    /// Makes the thread reopen the file before its next write.
    pub(super) fn reopen(&self) {
        self.shared.lock().must_reopen = true;
        self.shared.changed.notify_all();
    }

    /// Closes the log. Returns once the queued lines are written, or after [`CLOSE_TIMEOUT`]. Later lines are
    /// dropped.
    pub(super) fn close(&self) {
        let mut queue = self.shared.lock();
        queue.is_closing = true;
        self.shared.changed.notify_all();
        let waited = self.shared.changed.wait_timeout_while(queue, CLOSE_TIMEOUT, |queue| !queue.has_ended);
        drop(waited);
    }
}

impl io::Write for LogWriter {
    /// Queues a line, or counts it as dropped. Never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.shared.lock();
        let is_full = queue.lines.len() + line.len() > QUEUE_BYTES_MAX && !queue.is_reporting;
        if is_full || queue.has_ended {
            self.shared.dropped_count.fetch_add(1, Ordering::Relaxed);
            return Ok(line.len());
        }
        if queue.lines.is_empty() {
            self.shared.changed.notify_all();
        }
        queue.lines.extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for lines or a request to reopen the file. Moves the lines to `lines`, and returns whether the
    /// file must be reopened. Returns None once the log is closed and the queue is empty.
    fn next(&self, lines: &mut Vec<u8>) -> Option<bool> {
        lines.clear();
        lines.shrink_to(QUEUE_BYTES_KEPT);
        let is_waiting =
            |queue: &mut Queue| queue.lines.is_empty() && !queue.must_reopen && !queue.is_closing;
        let queue = self.changed.wait_while(self.lock(), is_waiting);
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut queue.lines, lines);
        let must_reopen = std::mem::take(&mut queue.must_reopen);
        if lines.is_empty() && !must_reopen {
            queue.has_ended = true;
            self.changed.notify_all();
            return None;
        }
        Some(must_reopen)
    }
}

/// Runs the thread until the log is closed.
fn write_queue(shared: &Shared, mut sink: LogSink) {
    let mut lines = Vec::new();
    let mut reported_count = 0;
    while let Some(must_reopen) = shared.next(&mut lines) {
        if must_reopen && let Err(error) = sink.reopen() {
            tracing::error!(%error, "cannot reopen the log file: continuing with the old one");
        }
        let lost_count = sink.write(&lines);
        let dropped_count = shared.dropped_count.fetch_add(lost_count, Ordering::Relaxed) + lost_count;
        if lost_count == 0 && !lines.is_empty() && dropped_count > reported_count {
            shared.lock().is_reporting = true;
            tracing::warn!(count = dropped_count - reported_count, "lines of the log were dropped");
            shared.lock().is_reporting = false;
            reported_count = dropped_count;
        }
    }
}

/// Output of the log: stderr or a file.
pub(super) struct LogSink {
    /// None: stderr.
    file: Option<(PathBuf, File)>,
    /// Whether the last byte that was written ended a line.
    is_at_line_start: bool,
}

impl LogSink {
    /// Opens a file for appending and creates it if it doesn't exist. None selects stderr.
    ///
    /// # Errors
    /// The file can't be opened.
    pub(super) fn open(path: Option<PathBuf>) -> Result<LogSink, String> {
        let open = |path: PathBuf| match open_file(&path) {
            Ok(file) => Ok((path, file)),
            Err(error) => Err(format!("cannot open `log_file` {}: {error}", path.display())),
        };
        Ok(LogSink { file: path.map(open).transpose()?, is_at_line_start: true })
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Some((path, file)) = &mut self.file {
            *file = open_file(path)?;
            self.is_at_line_start = true;
        }
        Ok(())
    }

    /// Writes lines. Returns the number of lines not written completely.
    fn write(&mut self, lines: &[u8]) -> u64 {
        let stderr = io::stderr();
        let target = self.file.as_ref().map_or(stderr.as_fd(), |(_, file)| file.as_fd());
        if !self.is_at_line_start {
            if lines.is_empty() || write_all(target, b"\n") == 0 {
                return line_count(lines);
            }
            self.is_at_line_start = true;
        }
        let written = &lines[..write_all(target, lines)];
        let complete_bytes = written.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.is_at_line_start = written.len() == complete_bytes;
        line_count(&lines[complete_bytes..])
    }
}

fn open_file(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn line_count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Writes bytes until the first error. Returns the number of bytes written. Waits for a full pipe, even if it
/// is non-blocking.
fn write_all(target: BorrowedFd<'_>, bytes: &[u8]) -> usize {
    let mut count = 0;
    while count < bytes.len() {
        match rustix::io::write(target, &bytes[count..]) {
            Ok(0) => return count,
            Ok(written) => count += written,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if !matches!(
                    poll(&mut [PollFd::from_borrowed_fd(target, PollFlags::OUT)], None),
                    Ok(_) | Err(Errno::INTR)
                ) {
                    return count;
                }
            }
            Err(_) => return count,
        }
    }
    count
}
