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

mod aligned;
mod bulk;
mod engine;
mod env;
mod error;
mod file;
pub mod folder;
mod planner;
mod pool;
mod read;
mod system;
#[allow(unsafe_code, reason = "one writes a buffer behind the part that others read")]
mod tail;
mod threads;
mod timer;
#[allow(unsafe_code, reason = "the kernel uses buffers that belong to the table of what is in flight")]
mod uring;
mod write;

pub use aligned::{ALIGNMENT_MAX, AlignedBuffer, Alignment, InvalidAlignment};
pub use bulk::{READ_AHEAD_COUNT_MAX, READ_AHEAD_SIZE_MAX, ReadAhead, ReadStream};
pub use engine::{
    Completion, Descriptor, Engine, Entry, OpenMode, Operation, OperationKind, Outcome, Request,
};
pub use env::{Clock, Env, Random, Sleep, Spawn, Task, yield_now};
pub use error::{Error, Result};
pub use file::{DirectMode, File};
pub use planner::{DeviceRead, Merge, OFFSET_MAX, READ_SIZE_MAX, ReadAt, ReadPolicy, plan};
pub use pool::{BUFFER_SIZE_MIN, BufferPool, PoolOptions, PoolStats, Reservation};
pub use system::{EngineKind, EngineOptions, SystemClock, SystemRandom, TokioSpawn};
pub use tail::{TAIL_ALIGNMENT, TailBuffer, TailReader};
pub use threads::{ThreadEngine, ThreadOptions};
pub use uring::{RingUse, UringEngine, UringOptions};

#[cfg(test)]
mod tests;
