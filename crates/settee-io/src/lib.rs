//! Files, engines and the environment: the only layer that touches the operating system.
//!
//! Everything above gets its files, clock, tasks and randomness from an [`Env`], so that the
//! same code runs on a real machine and in a seeded simulation (`settee-sim`).
//!
//! - [`Engine`] runs [`Operation`]s: plain data, so that an engine can batch, reorder and count.
//! - [`File`] is a shared, positional handle; reading needs no lock.
//! - [`ThreadEngine`] is the engine on `std`'s positional I/O and a bounded pool of threads.
//! - [`Env::system`] is the machine we run on.

mod engine;
mod env;
mod error;
mod file;
pub mod folder;
mod system;
mod threads;

pub use engine::{
    Completion, Descriptor, Engine, Entry, OpenMode, Operation, OperationKind, Outcome, Request,
};
pub use env::{Clock, Env, Random, Sleep, Spawn, Task, yield_now};
pub use error::{Error, Result};
pub use file::File;
pub use system::{SystemClock, SystemRandom, TokioSpawn};
pub use threads::{ThreadEngine, ThreadOptions};
