//! Request bodies: read within their limits, held under permits, and parsed within a budget.
//!
//! All bodies share the memory of one [`BodyMemory`]. A body acquires memory as its bytes arrive, regardless
//! of its declared length ([`BodyBuffer`]). The body of an unauthenticated request acquires none: its size is
//! limited, and so is the number of such bodies ([`EvictingSet`]). A body that may be spooled goes to a file
//! once it exceeds 32 MiB or the memory that is guaranteed to one body.
//!
//! Invariants:
//! 1. No two bodies wait for each other's memory: see [`memory`].
//! 2. A client can't stretch out a body: see [`RequestBody`].

mod budget;
mod buffer;
pub(crate) mod encoding;
mod evicting_set;
mod incoming;
mod memory;
pub(crate) mod multipart;
mod reader;

pub(crate) use self::budget::{
    ALLOCATION_BYTES, BodyBudget, PARSE_INLINE_BYTES, parse_buffered, parse_buffered_from, parse_edit,
};
pub(crate) use self::buffer::{BodyBuffer, BufferedBody};
pub(crate) use self::evicting_set::EvictingSet;
pub(crate) use self::incoming::{RequestBody, UNAUTHENTICATED_BODIES_MAX};
pub(crate) use self::memory::{BodyMemory, MemoryPermit};
pub(crate) use self::reader::{
    ReceivedBody, VALUE_BODY_BYTES_MAX, check_json_type, read, read_or_spool, spool,
};
