//! A simulated disk, clock and executor with faults and power loss, for tests.
//!
//! A [`Sim`] runs a program's tasks in one thread, picks among them by a seed, and jumps in virtual time to
//! the next event. Its [`SimDisk`] separates the contents that the program sees from those of the medium. At
//! a power loss it keeps, drops or garbles each unsynced change. The same seed and program give the same run,
//! the same power loss and the same remaining contents.
//!
//! The disk guarantees the following and nothing else:
//! - A sync of a file makes durable the writes and lengths of that file that were complete when the sync was
//!   submitted, and the sync's own write if it has one.
//! - A sync of a directory makes durable the creations, removals and renames in that directory that were
//!   complete when the sync was submitted. A rename between directories needs a sync of both. A sync of a
//!   file does not make its name durable.
//! - After a power loss, each sector of 512 bytes that was written since its last sync holds one of its
//!   versions, or garbage. Each length is one that the file has had. Each change of a name is either complete
//!   or undone.
//!
//! `SETTEE_SIM_TRACE=1` prints every operation. `SETTEE_SEED` makes [`seeds`] return that seed alone. The
//! tests with the most power losses are the [`trial`]s of `settee-log` and `settee-store`: see "Trying it" in
//! `docs/recovery.md`, and `cargo xtask crashes`.
//!
//! Example: a log of whole lines, with a power loss at each of its syncs.
//!
//! ```
//! use std::path::Path;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use settee_io::{File, OpenMode, directory};
//! use settee_sim::{Sim, SimDisk, seeds};
//!
//! const LINES: [&str; 2] = ["first line\n", "second line\n"];
//!
//! /// Appends the lines, each with a sync; returns how many were acknowledged.
//! fn append_lines(disk: &SimDisk) -> usize {
//!     let sim = Sim::with_disk(disk);
//!     let env = sim.env();
//!     let acknowledged = AtomicUsize::new(0);
//!     sim.run(async {
//!         let log = File::open(&env.engine, Path::new("/log"), OpenMode::CreateNew).await.unwrap();
//!         directory::sync(&*env.engine, Path::new("/")).await.unwrap();
//!         for (index, line) in LINES.into_iter().enumerate() {
//!             // Each line has sectors of its own, so a later write can't damage a synced one.
//!             let offset = index as u64 * settee_sim::SECTOR_SIZE;
//!             log.write_and_sync_at(offset, line.into()).await.unwrap();
//!             acknowledged.fetch_add(1, Ordering::Relaxed);
//!         }
//!     });
//!     acknowledged.into_inner()
//! }
//!
//! for seed in seeds(20) {
//!     let whole = SimDisk::new(seed);
//!     append_lines(&whole);
//!     for crash_at in 0..=whole.sync_count() {
//!         let disk = SimDisk::new(seed).crash_at_sync(crash_at);
//!         let acknowledged = append_lines(&disk);
//!         let found = disk.after_power_loss().read_file("/log").unwrap_or_default();
//!         for (index, line) in LINES.into_iter().enumerate().take(acknowledged) {
//!             let start = index * settee_sim::SECTOR_SIZE as usize;
//!             assert!(found[start..].starts_with(line.as_bytes()), "lost: seed={seed} crash_at={crash_at}");
//!         }
//!     }
//! }
//! ```

mod content;
mod disk;
mod engine;
mod executor;
mod files;
pub mod fuzz;
mod machine;
mod names;
mod panics;
mod plan;
mod random;
#[cfg(test)]
mod tests;
pub mod trial;

pub use content::SECTOR_SIZE;
pub use disk::SimDisk;
pub use executor::{STEP_COUNT_MAX, Sim};
pub use panics::Panics;
pub use plan::Fault;

/// Returns the seeds of a test: the first `count`, multiplied by the environment variable
/// `SETTEE_SEED_FACTOR` for a longer search; or only the seed in the variable `SETTEE_SEED`, to replay a
/// failure.
///
/// # Panics
/// If one of the variables is not a number.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    match variable("SETTEE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..count * variable("SETTEE_SEED_FACTOR").unwrap_or(1),
    }
}

/// The number in an environment variable, if it is set.
fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value:?}")))
}
