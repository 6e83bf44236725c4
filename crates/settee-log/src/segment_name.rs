//! The names of segment files: the segment's number in ten digits, and `.log`.

use std::path::{Path, PathBuf};

/// Path of a segment's file.
pub(crate) fn segment_path(directory: &Path, segment: u32) -> PathBuf {
    directory.join(format!("{segment:010}.log"))
}

/// The number of the segment whose file has this name.
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".log")?;
    let is_number = digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| is_number && *number > 0)
}
