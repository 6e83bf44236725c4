//! Goal: logging never waits for the output, and each line is written completely or counted as dropped.
//! Method: pipes that are full, closed or unread, `/dev/full`, and files that are renamed.

use std::io::{Read, Write};

use rustix::fs::{OFlags, fcntl_setfl};

use super::*;

/// A sink that writes to an open file.
fn sink(file: impl Into<std::os::fd::OwnedFd>) -> LogSink {
    LogSink { file: Some((PathBuf::new(), File::from(file.into()))), is_at_line_start: true }
}

/// Line `number`, 100 bytes long.
fn line(number: usize) -> String {
    format!("{number:099}\n")
}

/// Number of lines that exceeds the capacity of the queue and a pipe.
const LINE_COUNT: usize = 2 * QUEUE_BYTES_MAX / 100;

/// Logs lines to a pipe that is read only afterwards. Returns the text read and the number of dropped lines.
fn through_unread_pipe(is_nonblocking: bool) -> (String, u64) {
    let (mut reader, pipe) = io::pipe().unwrap();
    if is_nonblocking {
        fcntl_setfl(&pipe, OFlags::NONBLOCK).unwrap();
    }
    let mut writer = LogWriter::start(sink(pipe)).unwrap();
    for number in 0..LINE_COUNT {
        writer.write_all(line(number).as_bytes()).unwrap();
    }
    let dropped_count = writer.dropped_count().load(Ordering::Relaxed);
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    writer.close();
    (reading.join().unwrap(), dropped_count)
}

#[test]
fn with_an_unread_pipe_each_line_is_written_completely_or_counted() {
    for is_nonblocking in [false, true] {
        let (text, dropped_count) = through_unread_pipe(is_nonblocking);
        assert!(dropped_count > 0);
        assert!(text.ends_with('\n'));
        let numbers: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(numbers.is_sorted() && text.lines().all(|line| line.len() == 99));
        assert_eq!(numbers.len() + dropped_count as usize, LINE_COUNT, "non-blocking: {is_nonblocking}");
    }
}

#[test]
fn lines_whose_write_fails_are_counted() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (_, closed) = io::pipe().unwrap();
    for target in [sink(full), sink(closed)] {
        let mut writer = LogWriter::start(target).unwrap();
        (0..300).for_each(|number| writer.write_all(line(number).as_bytes()).unwrap());
        writer.close();
        assert_eq!(writer.dropped_count().load(Ordering::Relaxed), 300);
    }
}

#[test]
fn closing_with_an_unread_pipe_returns_after_the_timeout() {
    let (_reader, pipe) = io::pipe().unwrap();
    let mut writer = LogWriter::start(sink(pipe)).unwrap();
    (0..LINE_COUNT).for_each(|number| writer.write_all(line(number).as_bytes()).unwrap());
    writer.close();
}

#[test]
fn a_partially_written_line_is_terminated_before_the_next() {
    let (mut reader, pipe) = io::pipe().unwrap();
    let mut sink = LogSink { is_at_line_start: false, ..sink(pipe) };
    assert_eq!((sink.write(b""), sink.write(b"next\n"), sink.write(b"half")), (0, 0, 0));
    assert!(!sink.is_at_line_start);
    drop(sink);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "\nnext\nhalf");
}

#[test]
fn after_reopening_lines_are_written_to_the_file_of_that_name() {
    let directory = tempfile::tempdir().unwrap();
    let (path, aside) = (directory.path().join("log"), directory.path().join("log.1"));
    std::fs::write(&path, "before\n").unwrap();
    let mut sink = LogSink::open(Some(path.clone())).unwrap();
    assert_eq!(sink.write(b"old\n"), 0);
    std::fs::rename(&path, &aside).unwrap();
    assert_eq!(sink.write(b"late\n"), 0);
    sink.reopen().unwrap();
    assert_eq!(sink.write(b"new\n"), 0);
    assert_eq!(std::fs::read_to_string(&aside).unwrap(), "before\nold\nlate\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
    std::fs::remove_dir_all(directory.path()).unwrap();
    assert!(sink.reopen().is_err());
    assert_eq!(sink.write(b"goes on\n"), 0);
}
