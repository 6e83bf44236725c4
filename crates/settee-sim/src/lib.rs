//! A simulated disk, clock and executor with faults and power loss, for tests.
//!
//! A [`Sim`] runs a program's tasks in one thread, picking among them by a seed, in a time that
//! jumps to the next event. Its [`SimDisk`] keeps what the program sees apart from what is on
//! the medium, and when the power goes keeps, drops or garbles what was not synced: the same
//! seed and program give the same run, the same loss, the same remains.
//!
//! What the disk promises, and nothing else:
//! - A sync of a file makes durable the writes and lengths of that file that were complete when
//!   it was submitted (and its own write, where it has one).
//! - A sync of a folder makes durable the creations, removals and renames in that folder that
//!   were complete when it was submitted; a rename between folders needs both. The sync of a
//!   file does nothing for its name.
//! - At a power loss, each sector of 512 bytes written since holds one of its versions, or
//!   garbage; each length is one of those it had; each change of a name happened whole or not
//!   at all.
//!
//! `SETTEE_SIM_TRACE=1` prints every operation; `SETTEE_SEED` makes [`seeds`] give that one. What
//! runs on it with the most power losses is `settee-log`'s test `power_loss`: see "Trying it" in
//! `docs/recovery.md`, and `cargo xtask crashes`.
//!
//! A log of whole lines, tried with a power loss at each of its syncs:
//!
//! ```
//! use std::path::Path;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use settee_io::{File, OpenMode, folder};
//! use settee_sim::{Sim, SimDisk, seeds};
//!
//! const LINES: [&str; 2] = ["first line\n", "second line\n"];
//!
//! /// Appends the lines, each with a sync; how many of them were acknowledged.
//! fn append_lines(disk: &SimDisk) -> usize {
//!     let sim = Sim::with_disk(disk);
//!     let env = sim.env();
//!     let acknowledged = AtomicUsize::new(0);
//!     sim.run(async {
//!         let log = File::open(&env.engine, Path::new("/log"), OpenMode::CreateNew).await.unwrap();
//!         folder::sync(&*env.engine, Path::new("/")).await.unwrap();
//!         for (index, line) in LINES.into_iter().enumerate() {
//!             // Each in sectors of its own: a later write can't harm what was synced.
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
mod random;
#[cfg(test)]
mod tests;

pub use content::SECTOR_SIZE;
pub use disk::{Fault, SimDisk};
pub use executor::{STEP_COUNT_MAX, Sim};
pub use panics::Panics;

/// The seeds of a test: the first `count`, times the number in the variable `SETTEE_SEED_FACTOR` for
/// a longer search; or the one that the variable `SETTEE_SEED` names, to replay a failure.
///
/// # Panics
/// Where one of the variables is not a number.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("SETTEE_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("SETTEE_SEED is a number");
            seed..seed + 1
        }
        Err(_) => {
            let factor = std::env::var("SETTEE_SEED_FACTOR").ok();
            let factor = factor.map_or(1, |factor| factor.parse().expect("SETTEE_SEED_FACTOR is a number"));
            0..count * factor
        }
    }
}
