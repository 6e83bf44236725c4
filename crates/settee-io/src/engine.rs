//! Engines: the operations on files, the trait of what runs them, and its two implementations.
//!
//! `operation` has the operations as data, `request` the trait and the completions. `threads` runs operations
//! on thread pools, `uring` on io_uring(7), which leaves the operations that block to the threads.
//! `descriptors` counts the open files and limits their number.

pub(crate) mod descriptors;
pub(crate) mod operation;
pub(crate) mod request;
#[allow(unsafe_code, reason = "no safe preadv2(2) takes uninitialised memory")]
pub(crate) mod threads;
#[allow(unsafe_code, reason = "the kernel uses buffers that the in-flight table owns")]
mod uring;

pub use descriptors::Descriptors;
pub use operation::{
    Descriptor, Entry, FileIdentity, OpenMode, Operation, OperationKind, Outcome, SyncFailed,
};
pub use request::{Completion, Engine, Request};
pub use threads::{ThreadEngine, ThreadOptions};
pub use uring::{RingUse, UringEngine, UringOptions};
