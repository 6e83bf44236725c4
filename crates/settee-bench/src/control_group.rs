//! Control groups that limit the memory of a run's processes (cgroups(7), version 2 or 1).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of attempts to remove a control group whose last process is exiting.
const REMOVE_COUNT_MAX: usize = 50;

/// Pause between two such attempts.
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

/// A control group with a memory limit, removed on drop.
pub(crate) struct ControlGroup {
    pub(crate) directory: PathBuf,
    pub(crate) kind: &'static str,
}

impl ControlGroup {
    /// Creates a group whose processes together have `limit_bytes` of memory, their files' pages included.
    ///
    /// # Errors
    /// The reason why it can't be created.
    pub(crate) fn create(limit_bytes: u64) -> Result<ControlGroup, String> {
        let name = format!("settee-bench-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let is_second = root.join("cgroup.controllers").exists();
        let (directory, file, kind) = match is_second {
            true => (root.join(name), "memory.max", "cgroup v2"),
            false => (root.join("memory").join(name), "memory.limit_in_bytes", "cgroup v1"),
        };
        let failed = |error: std::io::Error| format!("{kind}: {}: {error}", directory.display());
        fs::create_dir(&directory).map_err(failed)?;
        let group = ControlGroup { directory: directory.clone(), kind };
        // The file exists if the group has a memory controller, and must not be created otherwise.
        let limited = fs::OpenOptions::new()
            .write(true)
            .open(directory.join(file))
            .and_then(|mut file| file.write_all(limit_bytes.to_string().as_bytes()));
        limited.map_err(failed)?;
        Ok(group)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Fails while the group's last process is exiting.
        for _ in 0..REMOVE_COUNT_MAX {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(REMOVE_PAUSE);
        }
    }
}
