//! Files, engines and the environment: the only layer that touches the operating system.
//!
//! Everything above gets its files, clock, tasks and randomness from an [`Env`], so that the
//! same code runs on a real machine and in a seeded simulation (`settee-sim`).
//!
//! - [`Engine`] runs [`Operation`]s: plain data, so that an engine can batch, reorder and count.
//! - [`File`] is a shared, positional handle; reading needs no lock.
//! - [`File::read_many`] and [`ReadStream`] read many small values by few device reads, as
//!   [`plan`] merges them.
//! - [`AlignedBuffer`] is memory as direct I/O wants it.
//! - [`TailBuffer`] is the end of an append-only log, read while it grows; a [`BufferPool`]
//!   bounds the memory of all who have one.
//! - [`ThreadEngine`] is the engine on `std`'s positional I/O and a bounded pool of threads,
//!   [`UringEngine`] the one on io_uring; [`EngineOptions`] chooses between them.
//! - [`Env::system`] is the machine we run on.
//!
//! # Open, write, sync, read
//! [`EngineOptions::start`] takes io_uring where the machine has it, else threads. A file is
//! durable when it was synced, and its folder after the file was created. Any executor will do.
//! ```
//! use settee_io::{EngineOptions, Error, File, OpenMode, folder};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let data = temporary.path().join("data");
//! let engine = EngineOptions::default().start()?;
//! folder::create(&*engine, &data).await?;
//! let file = File::open(&engine, &data.join("greetings"), OpenMode::CreateNew).await?;
//! file.write_at(0, "hello, world".into()).await?;
//! file.write_and_sync_at(12, ", and goodbye".into()).await?;
//! folder::sync(&*engine, &data).await?;
//!
//! // As many tasks as like may read at once, also while others write and sync.
//! assert_eq!(file.read_at(7, 5).await?, "world");
//! // What is past the end isn't there: to a read it is less, to an exact read an error.
//! assert_eq!(file.read_at(18, 100).await?, "goodbye");
//! assert!(matches!(file.read_exact_at(18, 100).await, Err(Error::PastEnd { .. })));
//! // In the caller's thread, for those without an executor.
//! assert_eq!(file.read_at_blocking(0, 5)?, "hello");
//!
//! file.close();
//! assert!(matches!(file.read_at(0, 5).await, Err(Error::Closed { .. })));
//! # Ok(())
//! # }
//! ```
//! There is no append: writes are positional, so that one that came up short or was interrupted
//! can be done again, and many can be in flight at once. Whoever appends knows the end, as a log
//! does, or asks for it once ([`File::length`]) and counts on.
//! ```
//! # use settee_io::{EngineOptions, File, OpenMode};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let engine = EngineOptions::default().start()?;
//! # let file = File::open(&engine, &temporary.path().join("log"), OpenMode::Create).await?;
//! let mut end = file.length().await?;
//! for record in ["one,", "two,", "three"] {
//!     file.write_at(end, record.into()).await?;
//!     end += record.len() as u64;
//! }
//! file.sync().await?;
//! assert_eq!(file.read_at(0, 100).await?, "one,two,three");
//! # Ok(())
//! # }
//! ```
//!
//! # Read in bulk
//! The planner merges what lies close together, and all device reads are submitted at once.
//! Values are slices of the device reads' buffers, each with a result of its own.
//! ```
//! use settee_io::{EngineOptions, File, OpenMode, ReadAt, ReadPolicy, plan};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let engine = EngineOptions::default().start()?;
//! # let file = File::open(&engine, &temporary.path().join("records"), OpenMode::CreateNew).await?;
//! file.write_at(0, (0..200u8).flat_map(|record| [record; 100]).collect()).await?;
//! // Records of 100 bytes, wanted in no order: three groups of neighbours.
//! let wanted = [7, 120, 6, 121, 5, 199].map(|record| ReadAt::new(record * 100, 100));
//! assert_eq!(plan(&wanted, ReadPolicy::ADJACENT_ONLY).len(), 3);
//! let values = file.read_many(&wanted, ReadPolicy::ADJACENT_ONLY).await;
//! for (value, read) in values.into_iter().zip(wanted) {
//!     assert_eq!(value?, vec![(read.offset / 100) as u8; 100]);
//! }
//! # Ok(())
//! # }
//! ```
//! [`File::read_stream`] does the same for lists of any length, in bounded memory.
//!
//! # Past the page cache
//! A handle changes between buffered and direct mode while it is used, and works alike in both:
//! what isn't aligned is rounded out or goes through the page cache. Where the file system has
//! no direct I/O the handle says so and stays buffered.
//! ```
//! use settee_io::{AlignedBuffer, Alignment, DirectMode, EngineOptions, File, OpenMode};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let engine = EngineOptions::default().start()?;
//! # let file = File::open(&engine, &temporary.path().join("pages"), OpenMode::CreateNew).await?;
//! let alignment = match file.set_direct(true).await? {
//!     DirectMode::Direct(alignment) => alignment,
//!     DirectMode::Refused(why) => {
//!         println!("buffered, since {why}");
//!         Alignment::ONE
//!     }
//!     DirectMode::Buffered => unreachable!("direct was asked for"),
//! };
//! // Aligned memory is written as it is; other memory would be copied first.
//! let mut page = AlignedBuffer::new(8192, alignment);
//! page.append(&[7; 8192]);
//! file.write_and_sync_at(0, page.into()).await?;
//! assert_eq!(file.read_at(5000, 3).await?, [7; 3].as_slice());
//! file.set_direct(false).await?;
//! # Ok(())
//! # }
//! ```

#[allow(unsafe_code, reason = "the system writes to memory that isn't initialised before")]
mod aligned;
mod bulk;
mod descriptors;
mod engine;
mod env;
mod error;
mod file;
pub mod folder;
mod panic;
mod planner;
mod pool;
mod read;
mod system;
#[allow(unsafe_code, reason = "one writes a buffer behind the part that others read")]
mod tail;
#[allow(unsafe_code, reason = "no safe preadv2(2) takes memory that isn't initialised")]
mod threads;
mod timer;
#[allow(unsafe_code, reason = "the kernel uses buffers that belong to the table of what is in flight")]
mod uring;
mod write;

pub use aligned::{ALIGNMENT_MAX, AlignedBuffer, Alignment, InvalidAlignment};
pub use bulk::{READ_AHEAD_COUNT_MAX, READ_AHEAD_SIZE_MAX, ReadAhead, ReadStream};
pub use descriptors::Descriptors;
pub use engine::{
    Completion, Descriptor, Engine, Entry, FileIdentity, OpenMode, Operation, OperationKind, Outcome,
    Request, SyncFailed,
};
pub use env::{BACKGROUND_COUNT, COMPACTION_COUNT, Clock, Env, Random, Sleep, Spawn, Task, yield_now};
pub use error::{Error, Result};
pub use file::{DirectMode, File};
pub use panic::OnPanic;
pub use planner::{DeviceRead, Merge, OFFSET_MAX, READ_SIZE_MAX, ReadAt, ReadPolicy, plan};
pub use pool::{BUFFER_SIZE_MIN, BufferPool, PoolOptions, PoolStats, Reservation, Stall};
pub use system::{EngineKind, EngineOptions, SystemClock, SystemRandom, TokioSpawn};
pub use tail::{TAIL_ALIGNMENT, TailBuffer, TailReader};
pub use threads::{ThreadEngine, ThreadOptions};
pub use uring::{RingUse, UringEngine, UringOptions};

#[cfg(test)]
mod tests;
