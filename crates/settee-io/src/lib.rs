//! Files, engines and the environment: the only layer that calls the operating system.
//!
//! The crates above get their files, clock, tasks and randomness from an [`Env`], so the same code runs on a
//! real machine and in a seeded simulation (`settee-sim`).
//!
//! - [`Engine`] runs [`Operation`]s. An operation is plain data, so an engine can batch, reorder and count
//!   it.
//! - [`File`] is a shared, positional file handle; reading takes no lock.
//! - [`File::read_many`] and [`ReadStream`] read many small values with few device reads; [`plan`] merges the
//!   reads.
//! - [`AlignedBuffer`] is memory with the alignment that direct I/O requires.
//! - [`TailBuffer`] is the end of an append-only log, which readers read while it grows. A [`BufferPool`]
//!   bounds the memory of all tail buffers.
//! - [`ThreadEngine`] runs operations with `std`'s positional I/O on bounded thread pools, [`UringEngine`] on
//!   io_uring; [`EngineOptions`] chooses between them.
//! - [`Env::system`] is the environment of a real machine.
//!
//! # Open, write, sync, read
//! [`EngineOptions::start`] takes io_uring where the machine has it, else threads. A new file is durable once
//! both it and its directory are synced. The futures run on any executor.
//! ```
//! use settee_io::{EngineOptions, Error, File, OpenMode, directory};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let data = temporary.path().join("data");
//! let engine = EngineOptions::default().start()?;
//! directory::create(&*engine, &data).await?;
//! let file = File::open(&engine, &data.join("greetings"), OpenMode::CreateNew).await?;
//! file.write_at(0, "hello, world".into()).await?;
//! file.write_and_sync_at(12, ", and goodbye".into()).await?;
//! directory::sync(&*engine, &data).await?;
//!
//! // Any number of tasks may read at once, also while others write and sync.
//! assert_eq!(file.read_at(7, 5).await?, "world");
//! // At the end of the file a read returns fewer bytes; an exact read fails.
//! assert_eq!(file.read_at(18, 100).await?, "goodbye");
//! assert!(matches!(file.read_exact_at(18, 100).await, Err(Error::PastEnd { .. })));
//! // Blocking, for callers without an executor.
//! assert_eq!(file.read_at_blocking(0, 5)?, "hello");
//!
//! file.close();
//! assert!(matches!(file.read_at(0, 5).await, Err(Error::Closed { .. })));
//! # Ok(())
//! # }
//! ```
//! There is no append: writes are positional, so a short or interrupted write can be repeated, and many
//! writes can be in flight at once. A caller that appends keeps the end offset itself, starting from
//! [`File::length`].
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
//! The planner merges neighbouring reads, and all device reads are submitted at once. Each value has its own
//! result and is a slice of a device read's buffer.
//! ```
//! use settee_io::{EngineOptions, File, OpenMode, ReadAt, ReadPolicy, plan};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let engine = EngineOptions::default().start()?;
//! # let file = File::open(&engine, &temporary.path().join("records"), OpenMode::CreateNew).await?;
//! file.write_at(0, (0..200u8).flat_map(|record| [record; 100]).collect()).await?;
//! // Records of 100 bytes, in arbitrary order: three groups of neighbours.
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
//! # Direct I/O
//! A handle can switch between buffered and direct mode while it is used; results are the same in both.
//! Unaligned reads are rounded out, unaligned writes go through the page cache. Where the file system has no
//! direct I/O, the handle reports that and stays buffered.
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
//!         println!("buffered: {why}");
//!         Alignment::ONE
//!     }
//!     DirectMode::Buffered => unreachable!("direct was asked for"),
//! };
//! // Aligned memory is written without a copy; unaligned memory would be copied first.
//! let mut page = AlignedBuffer::new(8192, alignment);
//! page.append(&[7; 8192]);
//! file.write_and_sync_at(0, page.into()).await?;
//! assert_eq!(file.read_at(5000, 3).await?, [7; 3].as_slice());
//! file.set_direct(false).await?;
//! # Ok(())
//! # }
//! ```

#[allow(unsafe_code, reason = "the kernel writes to uninitialised memory")]
mod aligned;
mod bulk;
mod cache;
pub mod directory;
mod engine;
mod env;
mod error;
mod file;
mod idle_handles;
mod panic;
mod system;
#[allow(
    unsafe_code,
    reason = "the writer fills a buffer beyond the published part while readers read that part"
)]
mod tail;
mod timer;

pub use aligned::{ALIGNMENT_MAX, AlignedBuffer, Alignment, InvalidAlignment, OFFSET_MAX};
pub use bulk::planner::{DeviceRead, Merge, READ_SIZE_MAX, ReadAt, ReadPolicy, plan};
pub use bulk::{READ_AHEAD_COUNT_MAX, READ_AHEAD_SIZE_MAX, ReadAhead, ReadStream};
pub use cache::{CACHE_ENTRY_BYTES, Cache, CacheStats, CachedFile};
pub use engine::{
    Completion, Descriptor, Descriptors, Engine, Entry, FileIdentity, OpenMode, Operation, OperationKind,
    Outcome, Request, RingUse, SyncFailed, ThreadEngine, ThreadOptions, UringEngine, UringOptions,
};
pub use env::{BACKGROUND_COUNT, COMPACTION_COUNT, Clock, Env, Random, Sleep, Spawn, Task, yield_now};
pub use error::{Damage, Error, Result};
pub use file::{DirectMode, File};
pub use idle_handles::{IDLE_HANDLES_MAX, IdleHandle, IdleHandles};
pub use panic::OnPanic;
pub use system::{BACKGROUND_THREADS_MAX, EngineKind, EngineOptions, SystemClock, SystemRandom, TokioSpawn};
pub use tail::{
    BUFFER_SIZE_MIN, BufferPool, PoolOptions, PoolStats, Reservation, Stall, TAIL_ALIGNMENT, TailBuffer,
    TailReader,
};

#[cfg(test)]
mod tests;
